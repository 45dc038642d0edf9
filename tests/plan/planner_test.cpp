#include "src/plan/planner.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/plan/best_schedule.h"
#include "tests/plan/made_traces.h"

namespace lowtide {
namespace {

Bytes part(Bytes whole, int percent) { return whole * static_cast<Bytes>(percent) / 100; }

struct Tally {
  int tried = 0;
  int feasible = 0;
  int missed = 0;  // a schedule exists, the planner found none
  int optimal = 0;
  double worst = 1;
};

// Plans at many budgets against all schedules. Never over budget (find_problem inside), never below
// the bound claimed, never better than the best.
void compare_with_all(const Trace& trace, Tally& tally) {
  Planner planner(trace);
  const Bytes peak = natural_peak(trace);
  const Bytes floor = lowest_budget(trace).bytes;
  for (const int percent : {100, 80, 60, 40, 20, 0}) {
    PlannerOptions options;
    options.budget_bytes = floor + part(peak - std::min(peak, floor), percent);
    options.most_tries = 300;
    CAPTURE(options.budget_bytes);
    const PlannerResult result = planner.plan(options);
    const auto best = testing::best_schedule_ns(trace, options.budget_bytes);
    ++tally.tried;
    if (!best) {
      CHECK_FALSE(result.plan.has_value());
      continue;
    }
    ++tally.feasible;
    CHECK(result.bound_ns <= *best);
    if (!result.plan) {
      ++tally.missed;
      continue;
    }
    CHECK_FALSE(find_problem(trace, *result.plan).has_value());
    CHECK(result.plan->total_ns >= *best);
    CHECK(result.plan->bound_ns <= result.plan->total_ns);
    tally.optimal += result.plan->total_ns == *best;
    tally.worst = std::max(tally.worst,
                           static_cast<double>(result.plan->total_ns) / static_cast<double>(*best));
  }
}

void compare_random_steps(int rounds, bool in_place, unsigned seed) {
  std::mt19937 random(seed);
  Tally tally;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const Trace trace = testing::random_step(random, 5 + round % 4, in_place);
    if (testing::value_count(trace) > 10) continue;
    compare_with_all(trace, tally);
  }
  MESSAGE(tally.tried, " plans, ", tally.feasible, " feasible, ", tally.missed, " missed, ",
          tally.optimal, " optimal, worst ", tally.worst);
  CHECK(tally.feasible > tally.tried / 3);
  CHECK(tally.missed == 0);
  CHECK(tally.worst <= 1.05);
}

TEST_CASE(
    "plans of tiny steps are valid, above the bound, and as good as the best of all schedules") {
  compare_random_steps(150, false, 11);
}

TEST_CASE("and so with writes in place") { compare_random_steps(150, true, 12); }

TEST_CASE("and so on thousands" * doctest::test_suite("slow")) {
  compare_random_steps(2000, false, 13);
  compare_random_steps(2000, true, 14);
}

// Runs of forward ops in the best recursive schedule of backward ops that each read their step's
// output, from a kept start, with room for `slots` kept values (after Griewank and Walther).
std::uint64_t recursive_runs(int steps, int slots) {
  std::vector<std::vector<std::uint64_t>> runs(static_cast<std::size_t>(slots) + 1);
  for (std::size_t s = 0; s < runs.size(); ++s) {
    runs[s].assign(static_cast<std::size_t>(steps) + 1, 0);
    for (std::size_t n = 1; n < runs[s].size(); ++n) {
      runs[s][n] = n * (n + 1) / 2;
      for (std::size_t k = 1; s > 0 && k <= n; ++k) {
        runs[s][n] = std::min(runs[s][n], k + runs[s - 1][n - k] + runs[s][k - 1]);
      }
    }
  }
  return runs.back().back();
}

TEST_CASE("on unit chains plans are as good as the best recursive schedule") {
  for (const int length : {12, 24, 48}) {
    const Trace trace = testing::unit_chain(length);
    Planner planner(trace);
    for (const int percent : {75, 50, 33, 25, 20}) {
      CAPTURE(length);
      CAPTURE(percent);
      // At each backward op its input, the gradient and the next one are there beside what is kept.
      const int slots = length * percent / 100 - 3;
      if (slots < 0) continue;
      PlannerOptions options;
      options.budget_bytes = static_cast<Bytes>(slots) + 3;
      options.cpu_limit_ns = 60'000'000'000;
      options.most_tries = 2000;
      const auto plan = planner.plan(options).plan;
      REQUIRE(plan.has_value());
      const std::uint64_t extra = (plan->total_ns - plan->plain_ns) / 1'000'000;
      MESSAGE(length, " at ", percent, " %: ", extra, " extra, recursive ",
              recursive_runs(length, slots) - static_cast<std::uint64_t>(length));
      CHECK(extra + static_cast<std::uint64_t>(length) <= recursive_runs(length, slots));
    }
  }
}

}  // namespace
}  // namespace lowtide
