#pragma once
// The tape of a step at a batch size that was not run, from tapes of the same step at two others.
//
//   Tape at_64 = tape_at_batch(tape_8, tape_16, 64);
//
// Bytes and times of each storage and op follow a straight line through the two. That is exact for
// what grows with the batch or not at all; kernels that choose another way at another size, and
// steps that branch on their data, are not like that, so check against a third tape.

#include <cstdint>

#include "src/tape/tape.h"

namespace lowtide {

// Both tapes have batch sizes, two different ones. Throws UsageError (LT0156) when they do not, and
// FormatError (LT0157), naming the first op or event that differs, when the steps did not do the
// same. Bytes are rounded up. Linear.
Tape tape_at_batch(const Tape& first, const Tape& second, std::uint64_t batch_size);

}  // namespace lowtide
