#pragma once
// A tape as text: for tests, for looking at, for sending by mail. docs/formats/tape_text.md.
//
//   lowtide-tape 1
//   make s0 4096 parameter
//   run aten::mm 1200 work=0 in=s0 out=s1:8192:saved
//   pack t0 s1
//
// The reader trusts nothing: every id, number and word is checked, and the tape is checked as a
// whole (check_tape). What it reads writes back to the same text but for comments and spacing.

#include <string>
#include <string_view>

#include "src/tape/tape.h"

namespace lowtide {

// Throws FormatError (LT0140) naming the line and what is wrong in it, or LT0141 when every line
// reads but the whole makes no sense. Lines end in \n or \r\n. Linear in the text.
Tape parse_tape_text(std::string_view text);

// The tape must be without problems (find_problem).
std::string to_tape_text(const Tape& tape);

}  // namespace lowtide
