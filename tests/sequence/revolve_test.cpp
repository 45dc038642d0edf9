#include "src/sequence/revolve.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace lowtide::sequence {
namespace {

// t(l, s) by its definition: run to some m, keep the state there, do the rest with one state less,
// then the first m with all.
std::vector<std::vector<std::int64_t>> fewest_by_search(std::int64_t steps, std::int64_t states) {
  std::vector<std::vector<std::int64_t>> t(steps + 1, std::vector<std::int64_t>(states + 1, 0));
  for (std::int64_t l = 2; l <= steps; ++l) {
    t[l][1] = l * (l - 1) / 2;
    for (std::int64_t s = 2; s <= states; ++s) {
      t[l][s] = t[l][1];
      for (std::int64_t m = 1; m < l; ++m) {
        t[l][s] = std::min(t[l][s], m + t[m][s] + t[l - m][s - 1]);
      }
    }
  }
  return t;
}

TEST_CASE("fewest_runs is what a search over all schedules finds") {
  const auto t = fewest_by_search(120, 9);
  for (std::int64_t l = 1; l <= 120; ++l) {
    for (std::int64_t s = 1; s <= 9; ++s) {
      CAPTURE(l);
      CAPTURE(s);
      CHECK(fewest_runs(l, s) == t[l][s]);
    }
  }
}

TEST_CASE("keeping the next state where steps_to_next_state says loses nothing") {
  const auto t = fewest_by_search(120, 9);
  for (std::int64_t l = 2; l <= 120; ++l) {
    for (std::int64_t s = 2; s <= 9; ++s) {
      CAPTURE(l);
      CAPTURE(s);
      const std::int64_t m = steps_to_next_state(l, s);
      REQUIRE(m >= 1);
      REQUIRE(m < l);
      CHECK(m + t[m][s] + t[l - m][s - 1] == t[l][s]);
    }
  }
}

TEST_CASE("reachable_steps is a binomial and does not overflow") {
  CHECK(reachable_steps(3, 2) == 10);
  CHECK(reachable_steps(10, 0) == 1);
  CHECK(reachable_steps(4, -1) == 0);
  CHECK(reachable_steps(1000, 2) == 501501);
  CHECK(reachable_steps(100000, 100000) > 1'000'000'000'000);
}

TEST_CASE("a plan fits its bytes, and more bytes never mean more runs") {
  constexpr std::uint64_t kState = 100, kGraph = 700;
  CHECK(plan_blocks(1000, kState + kGraph - 1, kState, kGraph).block_steps == 0);
  std::int64_t before = -1;
  for (std::uint64_t bytes = kState + kGraph; bytes < 400'000; bytes += 1700) {
    const BlockPlan plan = plan_blocks(1000, bytes, kState, kGraph);
    CAPTURE(bytes);
    REQUIRE(plan.block_steps >= 1);
    CHECK(plan.blocks * plan.block_steps >= 1000);
    CHECK(static_cast<std::uint64_t>(plan.block_steps) * kGraph +
              static_cast<std::uint64_t>(plan.states) * kState <=
          bytes);
    CHECK((plan.blocks == 1 ? plan.runs == 0 : plan.runs >= 1000));
    if (before >= 0) CHECK(plan.runs <= before);
    before = plan.runs;
  }
}

TEST_CASE("a plan is never behind revolve over single steps in the same bytes") {
  constexpr std::uint64_t kState = 100, kGraph = 700;
  for (const std::uint64_t bytes : {1'000ULL, 3'000ULL, 10'000ULL, 60'000ULL}) {
    for (const std::int64_t steps : {10, 100, 1000, 100'000}) {
      const BlockPlan plan = plan_blocks(steps, bytes, kState, kGraph);
      const auto states = static_cast<std::int64_t>((bytes - kGraph) / kState);
      CHECK(plan.runs <= fewest_runs(steps, states) + 1);
    }
  }
}

TEST_CASE("the default's bytes let every step run once beside the first pass") {
  for (const std::int64_t steps : {1, 7, 100, 12'345, 100'000}) {
    const std::uint64_t bytes = bytes_for_one_repeat(steps, 2048, 30'000);
    const BlockPlan plan = plan_blocks(steps, bytes + 2048, 2048, 30'000);
    REQUIRE(plan.block_steps >= 1);
    CHECK(plan.runs <= 2 * steps + plan.block_steps);
  }
}

}  // namespace
}  // namespace lowtide::sequence
