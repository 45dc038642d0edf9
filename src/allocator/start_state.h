#pragma once
// The allocator's state when recording began, found by undoing the trace from the snapshot's end.
//
//   StartState start = find_start(snapshot, device, settings);
//   if (start.problems.empty()) ..      // the replay can be exact

#include <cstdint>
#include <string>
#include <vector>

#include "src/allocator/allocator_settings.h"
#include "src/allocator/caching_allocator.h"
#include "src/evidence/snapshot.h"

namespace lowtide {

struct StartSegment {
  std::uint64_t address = 0;
  Bytes size = 0;
  Lane lane;
  bool is_small = false;
  bool is_expandable = false;
  std::vector<CachingAllocator::BlockView> live;  // by address
};

// Address space of expandable segments: from the lowest address that was ever mapped in it.
struct StartReservation {
  std::uint64_t address = 0;
  Bytes size = 0;
  Lane lane;
  bool is_small = false;
};

struct StartState {
  std::vector<StartSegment> segments;  // by address
  std::vector<StartReservation> reservations;
  // For each event of the trace, the lane of the request: as recorded, or by the segment that it
  // was served from when the trace does not name pools.
  std::vector<Lane> lanes;
  Bytes peak_reserved = 0;  // of the recorded run
  // Why the trace can't be replayed exactly; empty when it can.
  std::vector<std::string> problems;
};

// `settings` give the sizes of blocks that were freed during the trace. Linear in events, with a
// logarithm of what is live.
StartState find_start(const Snapshot& snapshot, std::int64_t device,
                      const AllocatorSettings& settings);

}  // namespace lowtide
