#include "src/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lowtide {

// checksum_avx2.cpp, which is compiled for AVX2.
std::uint64_t checksum_avx2(const void* data, std::size_t bytes) noexcept;

std::uint64_t checksum(const void* data, std::size_t bytes) noexcept {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return checksum_avx2(data, bytes);
#endif
  return XXH3_64bits(data, bytes);
}

}  // namespace lowtide
