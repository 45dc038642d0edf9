#include "tests/allocator/random_traces.h"

#include <set>

namespace lowtide {

std::vector<TraceKind> trace_kinds() {
  AllocatorSettings plain;
  AllocatorSettings expandable;
  expandable.expandable_segments = true;
  AllocatorSettings split;
  split.max_split_size = 40_MiB;
  AllocatorSettings rounding;
  rounding.roundup_power2_divisions.fill(4);
  AllocatorSettings garbage;
  garbage.garbage_collection_threshold = 0.6;
  AllocatorSettings wide;
  wide.large_segment_size = 40_MiB;
  return {
      {.name = "plain", .settings = plain},
      {.name = "small card", .settings = plain, .capacity = 500_MiB},
      {.name = "streams", .settings = plain, .streams = 3, .delayed_frees = true},
      {.name = "streams on a small card",
       .settings = plain,
       .capacity = 700_MiB,
       .streams = 3,
       .delayed_frees = true},
      {.name = "private pools", .settings = plain, .streams = 2, .private_pools = 2},
      {.name = "empty_cache", .settings = plain, .empties_cache = true},
      {.name = "expandable", .settings = expandable},
      {.name = "expandable, small card", .settings = expandable, .capacity = 500_MiB},
      {.name = "expandable, streams and pools",
       .settings = expandable,
       .streams = 2,
       .private_pools = 1,
       .delayed_frees = true,
       .empties_cache = true},
      {.name = "max_split_size", .settings = split, .capacity = 700_MiB},
      {.name = "roundup_power2_divisions", .settings = rounding, .empties_cache = true},
      {.name = "garbage collection", .settings = garbage, .capacity = 600_MiB},
      {.name = "large segments of 40 MiB", .settings = wide, .empties_cache = true},
  };
}

SlowAllocator random_run(const TraceKind& kind, unsigned seed, int steps) {
  std::mt19937_64 random(seed);
  SlowAllocator run;
  run.settings = kind.settings;
  run.capacity = kind.capacity;
  // As the driver: new memory is not always above the old.
  std::vector<std::uint64_t> places;
  for (std::uint64_t i = 1; i < 4096; ++i) places.push_back(i << 38);
  if (kind.ascending) {
    std::reverse(places.begin(), places.end());
  } else {
    std::shuffle(places.begin(), places.end(), random);
  }
  run.driver = [places](Bytes) mutable {
    const std::uint64_t place = places.back();
    places.pop_back();
    return place;
  };
  const auto size = [&]() -> Bytes {
    switch (random() % 6) {
      case 0:
        return 1 + random() % 600;
      case 1:
        return (1 + random() % 8) * 100'000;
      case 2:
        return 1_MiB + random() % 3 * 700'001;
      case 3:
        return (3 + random() % 6) << 20;
      case 4:
        return (12 + random() % 3) << 20;
      default:
        return (30 + 7 * (random() % 4)) << 20;
    }
  };
  std::vector<std::uint64_t> live;
  std::vector<std::uint64_t> waiting;
  for (int step = 0; step < steps; ++step) {
    // What another stream still used is given free at the next request, oldest first.
    while (!waiting.empty() && random() % 3 == 0) {
      if (std::count(run.pending.begin(), run.pending.end(), waiting.front()) != 0) {
        run.finish_free(waiting.front());
      }
      waiting.erase(waiting.begin());
    }
    const bool full = live.size() > 40;
    if (live.empty() || (!full && random() % 100 < 55)) {
      Lane lane;
      lane.stream = random() % static_cast<unsigned>(kind.streams);
      if (kind.private_pools > 0 && random() % 3 == 0) {
        lane.pool_first = 1 + random() % static_cast<unsigned>(kind.private_pools);
      }
      const auto made = run.allocate(size(), lane);
      // A retry finishes what waits.
      if (made) live.push_back(*made);
    } else {
      const std::size_t i = random() % live.size();
      const std::uint64_t address = live[i];
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
      const bool at_once = !kind.delayed_frees || random() % 2 == 0;
      run.request_free(address, at_once);
      if (!at_once) waiting.push_back(address);
    }
    std::erase_if(waiting, [&](std::uint64_t address) {
      return std::count(run.pending.begin(), run.pending.end(), address) == 0;
    });
    if (kind.empties_cache && random() % 60 == 0) {
      run.empty_cache();
      waiting.clear();
    }
  }
  return run;
}

Snapshot snapshot_of(const SlowAllocator& run, std::size_t first_event, bool names_pools) {
  Snapshot snapshot;
  snapshot.name = "made";
  snapshot.texts.intern("");
  snapshot.settings.known = true;
  SnapshotSettings& settings = snapshot.settings;
  if (run.settings.max_split_size != AllocatorSettings::kNoLimit) {
    settings.max_split_size = run.settings.max_split_size;
  }
  settings.large_segment_size = run.settings.large_segment_size;
  settings.garbage_collection_threshold = run.settings.garbage_collection_threshold;
  settings.expandable_segments = run.settings.expandable_segments;
  settings.roundup_power2_divisions = run.settings.roundup_power2_divisions;
  const auto add_block = [&](const SlowAllocator::Block& block) {
    SnapshotBlock made;
    made.address = block.address;
    made.size = block.size;
    made.requested = block.in_use ? block.requested : 0;
    made.state = !block.in_use   ? BlockState::kInactive
                 : block.pending ? BlockState::kPendingFree
                                 : BlockState::kAllocated;
    snapshot.blocks.push_back(made);
  };
  // A segment is what is mapped without a gap.
  int last = 0;
  std::uint64_t end = 0;
  for (const SlowAllocator::Block& block : run.blocks) {
    if (!block.mapped) continue;
    if (block.segment != last || block.address != end) {
      SnapshotSegment segment;
      segment.address = block.address;
      segment.lane = block.lane;
      segment.is_small = block.is_small;
      segment.is_expandable = block.expandable;
      segment.first_block = static_cast<std::uint32_t>(snapshot.blocks.size());
      snapshot.segments.push_back(segment);
    }
    last = block.segment;
    end = block.address + block.size;
    snapshot.segments.back().size += block.size;
    ++snapshot.segments.back().block_count;
    add_block(block);
  }
  EventColumns& events = snapshot.events;
  for (std::size_t i = first_event; i < run.events.size(); ++i) {
    const SlowAllocator::Event& event = run.events[i];
    Lane lane = event.lane;
    if (!names_pools) lane.pool_first = lane.pool_second = 0;
    const auto known = std::find(snapshot.lanes.begin(), snapshot.lanes.end(), lane);
    events.lane.push_back(static_cast<std::uint32_t>(known - snapshot.lanes.begin()));
    if (known == snapshot.lanes.end()) snapshot.lanes.push_back(lane);
    events.action.push_back(event.action);
    events.address.push_back(event.address);
    events.size.push_back(event.size);
    events.time_us.push_back(0);
    events.stack.push_back(0);
  }
  if (events.count() > 0) {
    snapshot.traces.push_back({0, 0, static_cast<std::uint32_t>(events.count())});
  }
  return snapshot;
}

}  // namespace lowtide
