#pragma once
// Which line of the user's program runs on this thread, where somebody can tell: in a Python process
// the bindings can. Used to say who made the tensors that a program holds.

#include "lowtide/export.h"

namespace lowtide::hook {

// Returns "train.py:12", or "" when not known; the text must live for ever. Called between ops with
// none of Lowtide's locks held. Costs up to a microsecond.
using ProgramLineSource = const char* (*)() noexcept;
LOWTIDE_API void set_program_line_source(ProgramLineSource source) noexcept;

const char* program_line() noexcept;

}  // namespace lowtide::hook
