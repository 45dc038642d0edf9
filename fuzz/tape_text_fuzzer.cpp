#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lowtide/error.h"
#include "src/diagnose/tape_facts.h"
#include "src/tape/tape_file.h"
#include "src/tape/tape_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lowtide;
  try {
    const Tape tape = parse_tape_text({reinterpret_cast<const char*>(data), size});
    const TapeFacts facts = facts_of(tape, "fuzz", 1000);
    if (facts.peak != tape_peak(tape) || facts.floor > facts.peak) std::abort();
    parse_tape({reinterpret_cast<const char*>(data), size});
    const std::string text = to_tape_text(tape);
    if (to_tape_text(parse_tape_text(text)) != text) std::abort();
  } catch (const FormatError&) {
  }
  return 0;
}
