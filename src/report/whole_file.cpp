#include "src/report/whole_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {

void write_file(const std::string& path, std::string_view bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool written =
      file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (written) return;
  throw IoError("LT0722", concat("cannot write ", path, ": ", std::strerror(errno),
                                 ". Check the folder, its rights and the room on the disk"));
}

}  // namespace lowtide
