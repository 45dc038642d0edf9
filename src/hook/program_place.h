#pragma once
// Where in the user's program this thread runs: the host's line (Python), else the C++ stack.
//
//   const ProgramPlace* place = current_place();   // about 30 ns in Python, 0.5 us in C++
//   text_of(place);                                // "train.py:12"; "" when not known
//
// A place is made once and lives for ever: compare pointers. C++ places keep return addresses; they
// become a file and a line when text_of() is first asked, from the debug information of the
// program (-g), by libtorch's own reader; without it they are "function (program+0x12ab)".
//
// Checked with torch 2.13.0: torch/csrc/profiler/unwind, x86-64 and aarch64 Linux. Elsewhere C++
// places are not known.

#include <string>

#include "lowtide/export.h"

namespace lowtide::hook {

struct ProgramPlace;

// Null when nothing is known. Takes no lock on the way that is usual; call it between ops, with
// none of Lowtide's locks held.
LOWTIDE_API const ProgramPlace* current_place() noexcept;

// May take seconds when first asked of a large program's C++ place.
LOWTIDE_API std::string text_of(const ProgramPlace* place);

}  // namespace lowtide::hook
