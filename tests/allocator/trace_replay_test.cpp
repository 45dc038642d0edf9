#include "src/allocator/trace_replay.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "src/allocator/what_if_rows.h"
#include "src/evidence/snapshot_reader.h"
#include "tests/allocator/random_traces.h"
#include "tests/evidence/real_snapshots.h"

using namespace lowtide;  // the tests of one header

namespace {

constexpr Bytes kPage = 2_MiB;

void check_exact(const Snapshot& snapshot) {
  const DeviceReplay replay(snapshot, 0);
  for (const std::string& problem : replay.problems()) CAPTURE(problem);
  REQUIRE(replay.problems().empty());
  const RecordedReplay result = replay.as_recorded();
  CAPTURE(result.first_difference.value_or(0));
  REQUIRE(result.addresses_matched == result.allocations);
  REQUIRE(result.layout_identical);
  REQUIRE(!result.first_difference);
}

}  // namespace

TEST_CASE("a recording from the beginning is replayed exactly") {
  for (const TraceKind& kind : trace_kinds()) {
    CAPTURE(kind.name);
    for (unsigned seed = 100; seed < 108; ++seed) {
      CAPTURE(seed);
      check_exact(snapshot_of(random_run(kind, seed, 400), 0, true));
    }
  }
}

TEST_CASE("a recording that begins in the middle is replayed exactly") {
  for (const TraceKind& kind : trace_kinds()) {
    CAPTURE(kind.name);
    for (unsigned seed = 200; seed < 208; ++seed) {
      CAPTURE(seed);
      const SlowAllocator run = random_run(kind, seed, 400);
      // At a request, as a recording begins: its segments' events are its own.
      std::size_t first = run.events.size() / 2;
      while (first > 0 && run.events[first - 1].action != EventAction::kFreeRequested &&
             run.events[first - 1].action != EventAction::kAlloc) {
        --first;
      }
      check_exact(snapshot_of(run, first, true));
    }
  }
}

TEST_CASE("the state before an event is the slow model's at that moment") {
  for (const TraceKind& kind : trace_kinds()) {
    CAPTURE(kind.name);
    for (unsigned seed = 400; seed < 404; ++seed) {
      CAPTURE(seed);
      const SlowAllocator run = random_run(kind, seed, 300);
      const Snapshot snapshot = snapshot_of(run, 0, true);
      const DeviceReplay replay(snapshot, 0);
      for (const int steps : {40, 111, 230}) {
        // The same run, stopped earlier.
        const SlowAllocator until = random_run(kind, seed, steps);
        const auto event = static_cast<std::uint32_t>(until.events.size());
        if (event >= run.events.size()) continue;
        const SlowAllocator::Event& next = run.events[event];
        const bool is_small = run.settings.rounded(next.size) <= 1_MiB;
        RecordedMoment slow;
        for (const SlowAllocator::Block& block : until.blocks) {
          if (!block.mapped) continue;
          slow.reserved += block.size;
          if (block.in_use) {
            slow.allocated += block.size;
          } else if (block.lane == next.lane && block.is_small == is_small) {
            slow.free.usable += block.size;
            slow.free.largest_usable = std::max(slow.free.largest_usable, block.size);
          } else {
            slow.free.elsewhere += block.size;
          }
        }
        const auto fast = replay.before(event);
        REQUIRE(fast.has_value());
        CHECK(fast->reserved == slow.reserved);
        CHECK(fast->allocated == slow.allocated);
        CHECK(fast->free.usable == slow.free.usable);
        CHECK(fast->free.largest_usable == slow.free.largest_usable);
        CHECK(fast->free.elsewhere == slow.free.elsewhere);
      }
      CHECK(!replay.before(static_cast<std::uint32_t>(run.events.size())));
    }
  }
}

TEST_CASE("of the usual what-ifs the first is the recording, and a capacity says which complete") {
  for (const TraceKind& kind : trace_kinds()) {
    CAPTURE(kind.name);
    const Snapshot snapshot = snapshot_of(random_run(kind, 77, 200), 0, true);
    const DeviceReplay replay(snapshot, 0);
    const auto unlimited = what_if_rows(replay, {.smallest_capacities = true});
    REQUIRE(unlimited.size() >= 4);
    CHECK(unlimited[0].change == "as recorded");
    CHECK(unlimited[0].peak_reserved == replay.as_recorded().peak_reserved);
    CHECK(unlimited[0].smallest_capacity == replay.smallest_capacity(replay.settings()));
    CHECK(!unlimited[0].completes.has_value());
    // With its own smallest capacity a row completes, with a page less it does not.
    for (const WhatIfRow& row : unlimited) {
      if (!row.smallest_capacity) continue;
      CAPTURE(row.change);
      for (const Bytes less : {Bytes{0}, kPage}) {
        const auto rows = what_if_rows(
            replay, {.capacity = *row.smallest_capacity - less, .smallest_capacities = false});
        const auto same = std::find_if(rows.begin(), rows.end(), [&](const WhatIfRow& other) {
          return other.change == row.change;
        });
        REQUIRE(same != rows.end());
        CHECK(same->completes == (less == 0));
      }
    }
  }
}

TEST_CASE("a block's slack is told by an allocation behind it") {
  SlowAllocator run;
  std::uint64_t next = 0;
  run.driver = [&next](Bytes) { return next += std::uint64_t{1} << 38; };
  run.request_free(*run.allocate(40_MiB, {}), true);
  CHECK(run.allocate(10_MiB, {}).has_value());
  const std::uint64_t hole = *run.allocate(5_MiB, {});
  const std::uint64_t behind = *run.allocate(12_MiB, {});
  run.request_free(hole, true);
  // Takes the hole whole: the half MiB that is left is too little to be cut off.
  const std::uint64_t block = *run.allocate(5_MiB - 512_KiB, {});
  CHECK(block == hole);
  run.request_free(behind, true);
  // Here recording begins. What is free behind the block begins half a MiB after its rounded size.
  const std::size_t first = run.events.size();
  CHECK(*run.allocate(3_MiB, {}) == behind);
  run.request_free(block, true);
  check_exact(snapshot_of(run, first, true));
}

TEST_CASE("pools that the trace does not name are known by their segments") {
  for (const TraceKind& kind : trace_kinds()) {
    // A segment that is gone at the end can't say whose it was.
    if (kind.private_pools == 0 || kind.empties_cache) continue;
    CAPTURE(kind.name);
    for (unsigned seed = 300; seed < 308; ++seed) {
      CAPTURE(seed);
      check_exact(snapshot_of(random_run(kind, seed, 400), 0, false));
    }
  }
}

TEST_CASE("a trace that does not fit its segments is said not to be exact") {
  Snapshot snapshot = snapshot_of(random_run(trace_kinds()[0], 1, 200), 0, true);
  Snapshot wrong_size = snapshot;
  for (std::size_t i = wrong_size.events.count(); i-- > 0;) {
    if (wrong_size.events.action[i] != EventAction::kAlloc) continue;
    wrong_size.events.size[i] += 512;
    break;
  }
  CHECK(DeviceReplay(wrong_size, 0).problems().size() == 1);
  CHECK(DeviceReplay(wrong_size, 0).as_recorded().addresses_matched == 0);
  snapshot.blocks[0].size += 512;
  CHECK(!DeviceReplay(snapshot, 0).problems().empty());
}

TEST_CASE("another address than the model's is told with its event") {
  Snapshot snapshot = snapshot_of(random_run(trace_kinds()[0], 3, 200), 0, true);
  const AllocatorSettings other = [] {
    AllocatorSettings settings;
    settings.roundup_power2_divisions.fill(4);
    return settings;
  }();
  snapshot.settings.roundup_power2_divisions = other.roundup_power2_divisions;
  const DeviceReplay replay(snapshot, 0);
  if (replay.problems().empty()) {
    const RecordedReplay result = replay.as_recorded();
    CHECK(result.addresses_matched < result.allocations);
    CHECK(result.first_difference.has_value());
    CHECK(!result.layout_identical);
  }
}

TEST_CASE("a what-if without a change reserves what the recording did") {
  for (unsigned seed = 400; seed < 410; ++seed) {
    // Between equal blocks the lower address is taken, so that where segments lie matters.
    const TraceKind kind{.name = "ascending", .ascending = true};
    const Snapshot snapshot = snapshot_of(random_run(kind, seed, 300), 0, true);
    const DeviceReplay replay(snapshot, 0);
    CHECK(replay.what_if({}).peak_reserved == replay.as_recorded().peak_reserved);
    CHECK(replay.what_if({}).completes);
  }
}

TEST_CASE(
    "the smallest capacity completes, a page less does not, and neither does the slow model") {
  for (unsigned seed = 500; seed < 506; ++seed) {
    CAPTURE(seed);
    const TraceKind kind = trace_kinds()[seed % 2 == 0 ? 0 : 6];
    const Snapshot snapshot = snapshot_of(random_run(kind, seed, 120), 0, true);
    const DeviceReplay replay(snapshot, 0);
    const Bytes smallest = replay.smallest_capacity(replay.settings());
    CHECK(replay.what_if({.capacity = smallest}).completes);
    const WhatIfResult less = replay.what_if({.capacity = smallest - kPage});
    CHECK(!less.completes);
    CHECK(less.failed_request > 0);
    for (const Bytes capacity : {smallest, smallest - kPage}) {
      SlowAllocator slow;
      slow.settings = kind.settings;
      slow.capacity = capacity;
      std::uint64_t next = 0;
      slow.driver = [&next](Bytes) { return next += std::uint64_t{1} << 38; };
      std::map<std::uint64_t, std::uint64_t> place;
      bool completes = true;
      for (std::size_t i = 0; i < snapshot.events.count() && completes; ++i) {
        const std::uint64_t address = snapshot.events.address[i];
        if (snapshot.events.action[i] == EventAction::kAlloc) {
          const auto made = slow.allocate(snapshot.events.size[i], {});
          completes = made.has_value();
          if (made) place[address] = *made;
        } else if (snapshot.events.action[i] == EventAction::kFreeCompleted) {
          slow.request_free(place.at(address), true);
        }
      }
      CHECK(completes == (capacity == smallest));
    }
  }
}

TEST_CASE("a request that failed when recorded counts for the smallest capacity") {
  // 60 MiB live on a card of 64 MiB, and 30 more are asked for.
  SlowAllocator run;
  run.capacity = 64_MiB;
  std::uint64_t next = 0;
  run.driver = [&next](Bytes) { return next += std::uint64_t{1} << 38; };
  CHECK(run.allocate(60_MiB, {}).has_value());
  CHECK(!run.allocate(30_MiB, {}).has_value());
  const Snapshot snapshot = snapshot_of(run, 0, true);
  const DeviceReplay replay(snapshot, 0);
  CHECK(replay.smallest_capacity(replay.settings()) == 90_MiB);
  CHECK(!replay.what_if({.capacity = 88_MiB}).completes);
  CHECK(replay.what_if({.capacity = 88_MiB}).failed_event == 2);
  CHECK(replay.what_if({.capacity = 90_MiB}).completes);
}

TEST_CASE("emptying the cache before a larger request saves its bytes") {
  SlowAllocator run;
  std::uint64_t next = 0;
  run.driver = [&next](Bytes) { return next += std::uint64_t{1} << 38; };
  const std::uint64_t first = *run.allocate(40_MiB, {});
  run.request_free(first, true);
  const std::size_t before = run.events.size();
  CHECK(run.allocate(50_MiB, {}).has_value());
  const Snapshot snapshot = snapshot_of(run, 0, true);
  const DeviceReplay replay(snapshot, 0);
  CHECK(replay.what_if({}).peak_reserved == 90_MiB);
  CHECK(replay.what_if({.empty_cache_before = static_cast<std::uint32_t>(before)}).peak_reserved ==
        50_MiB);
  CHECK(replay.what_if({.largest_first = true}).peak_reserved == 50_MiB);
}

TEST_CASE("an empty_cache of the program is made again; a retry's is not") {
  SlowAllocator run;
  std::uint64_t next = 0;
  run.driver = [&next](Bytes) { return next += std::uint64_t{1} << 38; };
  run.request_free(*run.allocate(60_MiB, {}), true);
  run.empty_cache();
  CHECK(run.allocate(30_MiB, {}).has_value());
  const Snapshot by_program = snapshot_of(run, 0, true);
  CHECK(DeviceReplay(by_program, 0).what_if({}).peak_reserved == 60_MiB);

  SlowAllocator tight;
  tight.capacity = 64_MiB;
  tight.driver = run.driver;
  tight.request_free(*tight.allocate(60_MiB, {}), true);
  CHECK(tight.allocate(62_MiB, {}).has_value());
  const Snapshot by_retry = snapshot_of(tight, 0, true);
  CHECK(DeviceReplay(by_retry, 0).what_if({}).peak_reserved == 122_MiB);
  CHECK(DeviceReplay(by_retry, 0).what_if({.capacity = 64_MiB}).completes);
}

TEST_CASE("the real traces are replayed exactly") {
  int exact = 0;
  for (const std::string& path : real_snapshots()) {
    CAPTURE(path);
    const Snapshot snapshot = read_snapshot(path);
    for (const std::int64_t device : snapshot.devices()) {
      const DeviceReplay replay(snapshot, device);
      const RecordedReplay result = replay.as_recorded();
      if (path.find("mosaic") != std::string::npos) {
        CHECK(!replay.problems().empty());  // its blocks do not fill its segments
        continue;
      }
      CHECK(result.addresses_matched == result.allocations);
      CHECK(result.layout_identical);
      exact += result.allocations > 0;
    }
  }
  if (!real_snapshots().empty() && std::getenv("LOWTIDE_SNAPSHOTS") == nullptr) CHECK(exact == 3);
}
