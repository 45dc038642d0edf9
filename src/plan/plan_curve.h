#pragma once
// What a step costs at each of several budgets: online, planned, and what cannot be beaten.
//
//   auto points = plan_curve(trace, {peak / 2, peak / 4}, {});
//   points[0].planned->overhead();
//
// The planned cost never rises with the budget: a plan for a smaller one is valid for a larger one.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/plan.h"
#include "src/plan/planner.h"
#include "src/plan/trace.h"

namespace lowtide {

struct CurvePoint {
  Bytes budget_bytes = 0;
  std::optional<double> online;  // multiple of plain time; none: the policy does not get through
  std::optional<Plan> planned;
  std::uint64_t bound_ns = 0;
};

struct CurveOptions {
  PlannerOptions planner;  // but for the budget
  unsigned threads = 0;    // 0: one for each core
  // A step that takes longer than so many plain ones does not get through.
  double online_time_limit = 10;
};

// In the order of `budgets`. Each takes at most the planner's limit of CPU time, online run and
// all, and a little more.
std::vector<CurvePoint> plan_curve(const Trace& trace, std::span<const Bytes> budgets,
                                   const CurveOptions& options);

}  // namespace lowtide
