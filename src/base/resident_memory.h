#pragma once
// What the kernel says of this process's memory.

#include "lowtide/bytes.h"
#include "lowtide/export.h"

namespace lowtide {

struct ResidentMemory {
  Bytes now = 0;   // VmRSS
  Bytes peak = 0;  // VmHWM: the most since the process began
};

// From /proc/self/status; zeros where that cannot be read. Some 20 us.
LOWTIDE_API ResidentMemory resident_memory() noexcept;

}  // namespace lowtide
