#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lowtide/error.h"
#include "src/tape/tape_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lowtide;
  try {
    const Tape tape = parse_tape_bytes({reinterpret_cast<const char*>(data), size});
    tape_peak(tape);
    const std::string bytes = to_tape_bytes(tape);
    if (to_tape_bytes(parse_tape_bytes(bytes)) != bytes) std::abort();
  } catch (const FormatError&) {
  }
  return 0;
}
