#include "src/tape/tape_file.h"

#include <doctest/doctest.h>

#include "lowtide/error.h"
#include "src/tape/tape_text.h"

using namespace lowtide;  // the tests of one header

TEST_CASE("a tape is told by how it begins, whatever its version") {
  CHECK(is_tape("lowtide-tape 1\n"));
  CHECK(is_tape("lowtide-tape 2\n"));
  CHECK(is_tape("lt-tape\n"));
  CHECK(!is_tape("lowtide-tap"));
  CHECK(!is_tape(""));
  CHECK(!is_tape("epoch 1: lowtide-tape 1"));
  CHECK(!is_tape("\x80\x04"));
}

TEST_CASE("a tape of each form reads as its own reader reads it") {
  Tape tape;
  tape.make(4096, StorageKind::kParameter);
  const std::string text = to_tape_text(tape);
  CHECK(to_tape_text(parse_tape(text)) == text);
}

TEST_CASE("what is no tape is refused, and so is another version") {
  for (const char* bytes : {"", "step 1 loss 0.5\n", "lowtide-tape 2\n"}) {
    CAPTURE(bytes);
    try {
      parse_tape(bytes);
      FAIL("read");
    } catch (const FormatError& error) {
      CHECK(error.id() == "LT0140");
    }
  }
}
