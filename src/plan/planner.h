#pragma once
// Chooses what a step drops and runs again when the whole step is known.
//
//   Planner planner(trace);
//   PlannerOptions options;
//   options.budget_bytes = natural_peak(trace) / 2;
//   PlannerResult result = planner.plan(options);
//   result.plan->overhead();   // 1.07
//   result.plan->gap();        // 0.004: within 0.4 % of what no schedule can beat
//
// Any-time: the first schedule comes after a few simulations, the rest of the time makes it better.
// The answer is the same on every machine unless time runs out. docs/design/plan.md says how.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace lowtide {

// CPU time that the calling thread has taken.
std::uint64_t thread_cpu_ns();

struct PlannerOptions {
  Bytes budget_bytes = 0;
  // CPU time of the calling thread after which no new schedule is tried.
  std::uint64_t cpu_limit_ns = 900'000'000;
  // Schedules tried at most. Fewer is faster and worse; below 100 not all of the portfolio runs.
  int most_tries = 6000;
  std::uint32_t seed = 1;
};

struct PlannerResult {
  std::optional<Plan> plan;    // none: no schedule was found
  std::uint64_t bound_ns = 0;  // no schedule within the budget takes less in all
  int tries = 0;               // schedules simulated
};

// Keeps the trace's graph between budgets. Not thread-safe: one for each thread. `trace` outlives
// it.
class Planner {
 public:
  explicit Planner(const Trace& trace);
  ~Planner();

  // `known`: plans for the same trace; those within the budget are taken as they are if nothing
  // better is found. Every plan returned has been followed by find_problem().
  PlannerResult plan(const PlannerOptions& options, std::span<const Plan> known = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
