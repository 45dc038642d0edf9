#pragma once
// Feeds the requests of a recorded trace to the model of the allocator: as recorded, to see that
// the model is exact; or on a smaller card, with other settings, to see what would have happened.
//
//   DeviceReplay replay(snapshot, device);
//   replay.as_recorded().addresses_matched;          // of .allocations
//   replay.what_if({.capacity = 24_GiB}).completes;
//   replay.smallest_capacity(replay.settings());
//
// Only sizes, streams, pools and the order of requests and frees go into the model; where blocks
// land comes out of it. Where the driver put segments is taken from the trace when it is replayed
// as recorded, and made up otherwise.

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/allocator/allocator_settings.h"
#include "src/allocator/caching_allocator.h"
#include "src/allocator/start_state.h"
#include "src/evidence/snapshot.h"

namespace lowtide {

struct RecordedReplay {
  std::uint64_t allocations = 0;
  std::uint64_t addresses_matched = 0;
  bool layout_identical = false;  // every block at the end: address, size, state
  Bytes peak_reserved = 0;
  Bytes peak_allocated = 0;
  std::optional<std::uint32_t> first_difference;  // event
};

// The allocator's state just before an event, as recorded.
struct RecordedMoment {
  Bytes reserved = 0;
  Bytes allocated = 0;               // blocks, rounding and slack included
  CachingAllocator::FreeSpace free;  // seen from the event's request
};

struct WhatIf {
  Bytes capacity = AllocatorSettings::kNoLimit;
  std::optional<AllocatorSettings> settings = {};  // as recorded when absent
  std::optional<std::uint32_t> empty_cache_before =
      {};  // event before which the program empties the cache
  // Begins on an empty card, with the blocks that lived at the start requested again. Always so
  // with a capacity or with other settings; else the start is as it was.
  bool from_empty = false;
  // The blocks that live at the peak are requested and freed once before the trace, largest first:
  // what running the largest batch first does.
  bool largest_first = false;
};

struct WhatIfResult {
  bool completes = true;
  Bytes peak_reserved = 0;
  Bytes peak_allocated = 0;
  std::uint64_t retries = 0;  // times that cached segments were given back to make room
  // Unless it completes: the first request that failed. The start's blocks come before event 0.
  std::uint32_t failed_event = 0;
  Bytes failed_request = 0;
};

class DeviceReplay {
 public:
  // Keeps references to `snapshot`.
  DeviceReplay(const Snapshot& snapshot, std::int64_t device);

  std::int64_t device() const { return device_; }
  const AllocatorSettings& settings() const { return settings_; }
  // Why it can't be exact; empty when it can. What-ifs are estimates then.
  const std::vector<std::string>& problems() const { return start_.problems; }
  bool has_trace() const { return trace_.count > 0; }
  std::uint32_t event_count() const { return trace_.count; }

  RecordedReplay as_recorded() const;
  // Just before an event of the trace; nothing when the replay is not exact up to there.
  std::optional<RecordedMoment> before(std::uint32_t event) const;
  WhatIfResult what_if(const WhatIf& change) const;
  // The least capacity with which everything completes, and does not with a driver's page less.
  // A request that failed when recorded counts. About twenty replays.
  Bytes smallest_capacity(const AllocatorSettings& settings) const;

 private:
  bool is_exact() const { return start_.problems.empty(); }
  RecordedReplay replay_until(std::uint32_t end, RecordedMoment* moment) const;
  void add_start(CachingAllocator& allocator,
                 std::unordered_map<std::uint64_t, BlockId>& blocks) const;
  Lane lane_of(std::uint32_t event) const;
  bool grew_after_free(std::uint32_t event) const;
  void find_cache_emptyings();
  void find_live_blocks();

  const Snapshot& snapshot_;
  std::int64_t device_;
  AllocatorSettings settings_;
  StartState start_;
  DeviceTrace trace_;
  std::vector<bool> empties_cache_;  // by event: the program emptied the cache just before it
  // Blocks that live when recording begins: where, and what was asked for.
  std::vector<std::pair<CachingAllocator::BlockView, Lane>> live_at_start_;
  std::vector<std::pair<Bytes, Lane>> live_at_peak_;
  Bytes peak_requested_ = 0;
  bool has_completed_frees_ = false;
};

}  // namespace lowtide
