#pragma once
// data/errors/*.json as they were when the program was built; the definition is made by
// cmake/LowtideEmbed.cmake.

#include <string_view>
#include <vector>

namespace lowtide {

struct EmbeddedError {
  std::string_view file;  // without the folder
  std::string_view text;
};

// In the order of the file names.
const std::vector<EmbeddedError>& embedded_errors();

}  // namespace lowtide
