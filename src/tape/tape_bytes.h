#pragma once
// A tape as a binary file: docs/formats/tape.md. About 30 bytes an op.
//
//   write_tape("step.tape", tape);
//   Tape tape = read_tape("step.tape");   // either form: binary, or text as in tape_text.h
//
// The reader trusts nothing: every number is checked where it is read, and the tape as a whole
// (check_tape).

#include <string>
#include <string_view>

#include "src/tape/tape.h"

namespace lowtide {

// The tape must be without problems (find_problem).
std::string to_tape_bytes(const Tape& tape);

// Throws FormatError (LT0142) naming `what`, the byte and what is wrong there, or LT0141 when it
// reads but makes no sense. Linear; takes no more memory than ten times the bytes.
Tape parse_tape_bytes(std::string_view bytes, const char* what = "the tape");

// Throws IoError (LT0103).
void write_tape(const std::string& path, const Tape& tape);

// Throws IoError (LT0102), and FormatError as the readers of both forms do.
Tape read_tape(const std::string& path);

}  // namespace lowtide
