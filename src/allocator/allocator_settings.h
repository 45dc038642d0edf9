#pragma once
// What PYTORCH_CUDA_ALLOC_CONF tells the caching allocator, as far as it decides where blocks go.

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "lowtide/bytes.h"
#include "src/evidence/snapshot.h"

namespace lowtide {

struct AllocatorSettings {
  static constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

  Bytes max_split_size = kNoLimit;  // larger free blocks are not cut
  Bytes max_non_split_rounding = 20_MiB;
  Bytes large_segment_size = 20_MiB;  // what is asked of the driver for requests of 1 to 10 MiB
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  // For sizes from 1 MiB, 2 MiB .. 32 GiB: parts between powers of two; 0 and 1 are off.
  std::array<std::uint32_t, 16> roundup_power2_divisions{};

  bool operator==(const AllocatorSettings&) const = default;

  // The block that a request of `bytes` gets, before splitting is considered.
  Bytes rounded(Bytes bytes) const;
  // What is asked of the driver for a block of `rounded` bytes.
  Bytes segment_for(Bytes rounded) const;
};

// The settings that a snapshot was taken with; torch's defaults where it does not say.
AllocatorSettings settings_of(const Snapshot& snapshot);

// Changes `settings` by one "key:value" as PYTORCH_CUDA_ALLOC_CONF has it: max_split_size_mb,
// roundup_power2_divisions (a number, or [256:1,512:2,>:4]), garbage_collection_threshold,
// expandable_segments, large_segment_size_mb, max_non_split_rounding_mb.
// Throws UsageError (LT0720) for an unknown key or a value that torch would refuse.
void apply_setting(AllocatorSettings& settings, const std::string& setting);

}  // namespace lowtide
