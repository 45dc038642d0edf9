#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lowtide/error.h"
#include "src/tape/tape_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lowtide;
  try {
    const Tape tape = parse_tape_text({reinterpret_cast<const char*>(data), size});
    tape_peak(tape);
    const std::string text = to_tape_text(tape);
    if (to_tape_text(parse_tape_text(text)) != text) std::abort();
  } catch (const FormatError&) {
  }
  return 0;
}
