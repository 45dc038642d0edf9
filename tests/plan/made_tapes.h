#pragma once
// Tapes of made training steps.

#include <cstdint>

#include "src/tape/tape.h"

namespace lowtide {

// A chain of `links` ops, each output saved; then a backward pass from the last to the first, whose
// ops cannot run again. Bytes and times vary with `seed`.
Tape made_chain_tape(int links, std::uint32_t seed);

}  // namespace lowtide
