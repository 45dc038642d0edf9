#pragma once
// A plan: what a step drops and which ops it runs again, and when. Plain data.
//
//   Plan plan = Planner(trace).plan(options).plan;
//   if (auto problem = find_problem(trace, plan)) ...   // replayed by code of its own
//   write_plan(plan, path);                             // plan_file.h
//
// Steps stand in the order of time; those of one event happen just before that event of the trace.
// All that is dropped stands here, also what the program has released: a released storage may stay
// for a while, to make others from. What an op overwrites is not dropped but becomes the next
// version. Sources are never dropped.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/trace.h"

namespace lowtide {

struct PlanStep {
  // Stored on disk: never renumber.
  enum class Kind : std::uint8_t {
    kDrop = 0,    // storage `index` goes, at `version`
    kReplay = 1,  // op `index` runs again
  };
  std::uint32_t event = 0;  // of the trace; its number of events: after the last
  Kind kind = Kind::kDrop;
  std::uint32_t index = 0;
  std::uint32_t version = 0;  // writes that the storage had had before the one whose result goes
  bool operator==(const PlanStep&) const = default;
};

struct Plan {
  Bytes budget_bytes = 0;
  Bytes peak_bytes = 0;
  std::uint64_t plain_ns = 0;
  std::uint64_t total_ns = 0;
  std::uint64_t bound_ns = 0;  // no schedule within the budget takes less in all
  std::vector<PlanStep> steps;
  bool operator==(const Plan&) const = default;

  double overhead() const {
    return plain_ns == 0 ? 1.0 : static_cast<double>(total_ns) / static_cast<double>(plain_ns);
  }
  // How far above the bound at most, as a part of it: 0.01 is one per cent.
  double gap() const {
    return bound_ns == 0 ? 0.0
                         : static_cast<double>(total_ns) / static_cast<double>(bound_ns) - 1.0;
  }
};

struct PlanProblem {
  std::size_t step = 0;  // steps.size(): none in particular
  std::string what;      // "op 7 runs again but storage 3 is not there"
};

// Follows the plan through the trace, op by op, and says the first thing that cannot be: an input
// that is missing, bytes over the budget, what the program holds dropped, steps out of order, or
// another time or peak than the plan claims. Shares nothing with the planners. Linear; any plan and
// any sound trace.
std::optional<PlanProblem> find_problem(const Trace& trace, const Plan& plan);

}  // namespace lowtide
