#pragma once
// Takes out of a report what names people, machines and places.
//
//   Redactor redactor;
//   redactor.text("/home/ann/exp/train.py on gpu-node7.lab.example");  // "<path>/train.py on
//   <host>"
//
// Replaced: folders of absolute and home paths (of installed packages the part from the package's
// name on is kept, of others the last name), user names in them wherever else they stand, host
// names, e-mail and network addresses. The same name gets the same stand-in.

#include <string>
#include <string_view>
#include <vector>

#include "src/base/json.h"

namespace lowtide {

class Redactor {
 public:
  // Looks for user names in the paths of `text`, so that text() replaces them wherever they stand.
  void learn(std::string_view text);
  void learn(const Json& value);
  std::string text(std::string_view text) const;
  // Every string of `value`, keys left alone.
  Json json(const Json& value) const;

 private:
  std::vector<std::string> users_;
};

}  // namespace lowtide
