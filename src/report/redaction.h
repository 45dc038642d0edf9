#pragma once
// Takes out of a report what names people, machines and places.
//
//   Redactor redactor;
//   redactor.text("/home/ann/exp/train.py on gpu-node7.lab.example");  // "<path>/train.py on
//   <host>"
//
// Replaced: folders of absolute and home paths (of installed packages and of what torch.compile
// wrote the part from there on is kept, of others the last name), user names in them wherever else
// they stand, host names, e-mail and network addresses. The same name gets the same stand-in.
//
// A snapshot is redacted before it is analysed, so that lines which become one are one:
//
//   redact(snapshot);

#include <string>
#include <string_view>
#include <vector>

#include "src/base/json.h"
#include "src/evidence/snapshot.h"

namespace lowtide {

class Redactor {
 public:
  // Looks for user names in the paths of `text`, so that text() replaces them wherever they stand.
  void learn(std::string_view text);
  void learn(const Json& value);
  void learn(const Snapshot& snapshot);
  std::string text(std::string_view text) const;
  // What is known to be a path, relative ones too: "job/model.py" becomes "<path>/model.py". A name
  // without folders is left alone.
  std::string path(std::string_view path) const;
  // Every string of `value`, keys left alone.
  Json json(const Json& value) const;

 private:
  std::vector<std::string> users_;
};

// The files of its frames, its annotations, its settings and its own name.
void redact(Snapshot& snapshot);

}  // namespace lowtide
