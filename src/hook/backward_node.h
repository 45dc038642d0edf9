#pragma once
// Which part of the forward pass the backward of this thread is at.

#include <cstdint>

namespace lowtide::hook {

// The number of the forward op whose gradient this thread computes: what
// at::sequence_number::peek() was, on the thread of the forward pass, when that op was recorded. -1
// outside of a backward, and in nodes without a number (those that add up gradients of parameters).
std::int64_t current_node_number() noexcept;

}  // namespace lowtide::hook
