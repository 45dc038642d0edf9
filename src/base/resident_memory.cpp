#include "src/base/resident_memory.h"

#include <cstdio>

namespace lowtide {

ResidentMemory resident_memory() noexcept {
  ResidentMemory memory;
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return memory;
  char line[256];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "VmHWM: %llu kB", &kib) == 1) memory.peak = Bytes{kib} << 10;
    if (std::sscanf(line, "VmRSS: %llu kB", &kib) == 1) memory.now = Bytes{kib} << 10;
  }
  std::fclose(file);
  return memory;
}

}  // namespace lowtide
