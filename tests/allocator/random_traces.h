#pragma once
// Random requests to the slow allocator, and the snapshot that its run would have left.

#include <random>
#include <string>

#include "src/evidence/snapshot.h"
#include "tests/allocator/slow_allocator.h"

namespace lowtide {

struct TraceKind {
  std::string name;
  AllocatorSettings settings = {};
  Bytes capacity = AllocatorSettings::kNoLimit;
  int streams = 1;
  int private_pools = 0;
  bool delayed_frees = false;
  bool empties_cache = false;
  bool ascending = false;  // each new segment lies above the last
};

std::vector<TraceKind> trace_kinds();

// Runs `steps` requests. Sizes come from few classes, so that blocks are used again.
SlowAllocator random_run(const TraceKind& kind, unsigned seed, int steps);

// The snapshot after the run, with the events from `first_event` on.
Snapshot snapshot_of(const SlowAllocator& run, std::size_t first_event, bool names_pools);

}  // namespace lowtide
