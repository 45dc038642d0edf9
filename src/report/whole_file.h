#pragma once
// A file written whole.

#include <string>
#include <string_view>

namespace lowtide {

// Throws IoError (LT0722) when it cannot be created or the disk is full.
void write_file(const std::string& path, std::string_view bytes);

}  // namespace lowtide
