#include "src/allocator/caching_allocator.h"

#include <doctest/doctest.h>

#include <map>

#include "tests/allocator/random_traces.h"

using namespace lowtide;  // the tests of one header

namespace {

// The same requests to the fast model, with the driver's answers of the slow one.
void check_against_slow(const TraceKind& kind, unsigned seed, int steps) {
  const SlowAllocator slow = random_run(kind, seed, steps);
  // Segments in the order in which they were made; reservations by their first mapping.
  std::size_t next = 0;
  const auto driver = [&](Bytes size, const Lane&, bool mapped) -> std::optional<std::uint64_t> {
    for (std::size_t i = next; i < slow.events.size(); ++i) {
      const SlowAllocator::Event& event = slow.events[i];
      if (event.action == EventAction::kSegmentMap && mapped) return event.address;
      if (event.action == EventAction::kSegmentAlloc && !mapped && event.size == size) {
        return event.address;
      }
    }
    return std::nullopt;
  };
  CachingAllocator fast({kind.settings, kind.capacity, driver});
  std::map<std::uint64_t, BlockId> live;
  for (; next < slow.events.size(); ++next) {
    const SlowAllocator::Event& event = slow.events[next];
    CAPTURE(next);
    if (event.action == EventAction::kAlloc || event.action == EventAction::kOom) {
      // The driver's answers lie before the request.
      const std::size_t here = next;
      while (next > 0 && slow.events[next - 1].action != EventAction::kAlloc &&
             slow.events[next - 1].action != EventAction::kOom) {
        --next;
      }
      const auto block = fast.allocate(event.size, event.lane);
      next = here;
      REQUIRE(block.has_value() == (event.action == EventAction::kAlloc));
      if (!block) continue;
      REQUIRE(fast.view(*block).address == event.address);
      REQUIRE(fast.view(*block).requested == event.size);
      live[event.address] = *block;
    } else if (event.action == EventAction::kFreeRequested) {
      fast.set_pending(live.at(event.address));
    } else if (event.action == EventAction::kFreeCompleted) {
      // A retry's own frees have happened already.
      const auto view = fast.view(live.at(event.address));
      if (view.state == BlockState::kPendingFree && view.address == event.address) {
        fast.free(live.at(event.address));
      }
    }
  }
  std::vector<CachingAllocator::BlockView> expected;
  for (const SlowAllocator::Block& block : slow.blocks) {
    if (!block.mapped) continue;
    expected.push_back({block.address, block.size, block.in_use ? block.requested : 0,
                        !block.in_use   ? BlockState::kInactive
                        : block.pending ? BlockState::kPendingFree
                                        : BlockState::kAllocated});
  }
  REQUIRE(fast.layout() == expected);
  REQUIRE(fast.reserved() == slow.reserved());
}

}  // namespace

TEST_CASE(
    "a request beyond the address space of expandable segments fails, and nothing else does") {
  AllocatorSettings settings;
  settings.expandable_segments = true;
  CachingAllocator allocator({.settings = settings});
  CHECK(!allocator.allocate(Bytes{1} << 61, {}));
  CHECK(!allocator.allocate((Bytes{1} << 48) + 1, {}));
  CHECK(allocator.allocate(Bytes{1} << 48, {}));
  CHECK(allocator.allocate(1_MiB, {}));
  CHECK(allocator.reserved() == (Bytes{1} << 48) + 2_MiB);
}

TEST_CASE("the model gives the slow one's addresses and layout") {
  for (const TraceKind& kind : trace_kinds()) {
    // What is no event of its own (a call of empty_cache, the frees that a retry completes) can't
    // be told apart here; trace_replay_test has those.
    if (kind.empties_cache) continue;
    if (kind.delayed_frees && kind.capacity != AllocatorSettings::kNoLimit) continue;
    CAPTURE(kind.name);
    for (unsigned seed = 0; seed < 12; ++seed) {
      CAPTURE(seed);
      check_against_slow(kind, seed, 300);
    }
  }
}

TEST_CASE("blocks are cut, joined, and taken by the best fit with the lowest address") {
  std::uint64_t next = 0;
  CachingAllocator allocator({.driver = [&](Bytes, const Lane&, bool) {
    return std::optional(next += std::uint64_t{1} << 32);
  }});
  const Lane lane;
  const BlockId a = *allocator.allocate(3_MiB, lane);
  const BlockId b = *allocator.allocate(4_MiB, lane);
  const BlockId c = *allocator.allocate(5_MiB, lane);
  CHECK(allocator.reserved() == 20_MiB);
  CHECK(allocator.view(b).address == allocator.view(a).address + 3_MiB);
  allocator.free(a);
  allocator.free(b);
  // 7 MiB in one piece now, which fits better than the 8 MiB behind c.
  CHECK(allocator.view(*allocator.allocate(6_MiB, lane)).address == std::uint64_t{1} << 32);
  allocator.free(c);
  CHECK(allocator.reserved() == 20_MiB);
  CHECK(allocator.peak_allocated() == 12_MiB);
  allocator.empty_cache();
  CHECK(allocator.reserved() == 20_MiB);
}

TEST_CASE("a rest of at most 1 MiB stays with its block in the large pool") {
  CachingAllocator allocator({});
  CHECK(allocator.view(*allocator.allocate(19_MiB, {})).size == 20_MiB);
  CHECK(allocator.view(*allocator.allocate(11_MiB + 1, {})).size == 12_MiB);
}

TEST_CASE("a request fails after a retry although a block of another stream is free") {
  CachingAllocator allocator({.capacity = 42_MiB});
  const BlockId other = *allocator.allocate(20_MiB, {.stream = 1});
  const BlockId kept = *allocator.allocate(10_MiB, {.stream = 1});
  allocator.free(other);
  CHECK(allocator.allocate(20_MiB, {.stream = 2}).has_value());  // takes what the retry gave back
  CHECK(allocator.retries() == 1);
  CHECK(!allocator.allocate(20_MiB, {.stream = 2}).has_value());
  allocator.free(kept);
  CHECK(allocator.allocate(2_MiB, {.stream = 2}).has_value());
}

TEST_CASE("the pool is not searched again after a retry: the known flaw is kept") {
  CachingAllocator allocator({.capacity = 20_MiB});
  const BlockId pending = *allocator.allocate(8_MiB, {});
  const BlockId kept = *allocator.allocate(2_MiB, {});
  const BlockId rest = *allocator.allocate(9_MiB, {});
  allocator.set_pending(pending);
  CHECK(!allocator.allocate(8_MiB, {}).has_value());  // though `pending` was just freed
  CHECK(allocator.allocate(8_MiB, {}).has_value());
  allocator.free(kept);
  allocator.free(rest);
}
