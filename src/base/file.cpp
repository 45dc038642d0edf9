#include "src/base/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

}  // namespace

std::string read_file(const std::string& path) {
  const auto refuse = [&] {
    throw IoError("LT0102", concat("cannot read ", path, ": ", std::strerror(errno),
                                   ". Check the path and its rights"));
  };
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) refuse();
  std::string bytes;
  char block[1 << 16];
  while (const std::size_t count = std::fread(block, 1, sizeof block, file.get())) {
    bytes.append(block, count);
  }
  if (std::ferror(file.get())) refuse();
  return bytes;
}

void write_file(const std::string& path, std::string_view bytes) {
  File file(std::fopen(path.c_str(), "wb"));
  bool written = file && std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  if (file) written = std::fclose(file.release()) == 0 && written;
  if (!written) {
    throw IoError("LT0103", concat("cannot write ", path, ": ", std::strerror(errno),
                                   ". Check the folder, its rights and the room on the disk"));
  }
}

}  // namespace lowtide
