#pragma once
// A tape from the bytes of a file, in whichever form it was written. Told by content.
//
//   if (is_tape(head)) Tape tape = parse_tape(bytes);

#include <string_view>

#include "src/tape/tape.h"

namespace lowtide {

// Whether a file that begins with `head` is a tape, of this or another version. Some 16 bytes are
// enough.
bool is_tape(std::string_view head);

// Throws FormatError: LT0140 and LT0141 as the form's own reader does, LT0140 when it is no tape.
Tape parse_tape(std::string_view bytes);

}  // namespace lowtide
