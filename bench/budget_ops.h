#pragma once
// What the budget costs an op, in nanoseconds beside the op's own time.

#include "src/base/json.h"

namespace lowtide::bench {

// Medians over 20 * `repeats` rounds in which all variants take turns; one thread. Members of the
// result, in ns of processor time:
//   op                 an op on 4 KiB (neg) by itself: no budget, no gradient
//   record             on top of it under a budget with room; the end of its record included
//   pack_unpack        a saved tensor's way to the budget and back
//   drop               a saved tensor's bytes given back, without checksum
//   bring_back         making it again, beside the op, without checksum
//   checksum_64_kib    of 64 KiB: once for a drop, once for a bring-back
Json measure_op_costs(int repeats);

}  // namespace lowtide::bench
