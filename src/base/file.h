#pragma once
// Whole files to and from memory, with errors that name the path and the reason.

#include <string>
#include <string_view>

#include "lowtide/export.h"

namespace lowtide {

// Throws IoError (LT0102) when the file cannot be opened or read.
LOWTIDE_API std::string read_file(const std::string& path);

// Makes or replaces the file. Throws IoError (LT0103); what is there then is not to be used.
LOWTIDE_API void write_file(const std::string& path, std::string_view bytes);

}  // namespace lowtide
