#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lowtide/error.h"
#include "src/base/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lowtide;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  // As a whole file, and as the start of a larger one.
  for (const std::uint64_t file_size : {std::uint64_t{size}, std::uint64_t{size} + 4096}) {
    try {
      parse_safetensors_header(bytes, file_size, "fuzz");
    } catch (const FormatError&) {
    }
  }
  return 0;
}
