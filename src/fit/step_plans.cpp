// Tested by tests/fit/step_plans_test.cpp, and with real steps by tests/fit/planned_steps_test.cpp.

#include "src/fit/step_plans.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "src/plan/online_policy.h"
#include "src/plan/planner.h"
#include "src/tape/tape_costs.h"

namespace lowtide {
namespace {

// Limits within this part of a plan's need no other plan.
constexpr Bytes kPartThatIsTheSame = 50;
// Plans made for one kind of step; one whose memory never comes to rest is left to the online
// policy then.
constexpr int kMostPlans = 16;
constexpr std::uint64_t kDeparturesAtFirst = 4;
constexpr std::uint64_t kShortestPlanningNs = 20'000'000;

}  // namespace

void StepPlans::clear() {
  follower_.reset();
  follows_ = false;
  running_ = nullptr;
  known_.clear();
  may_start_ = departed_ = false;
  last_kind_ = 0;
  counts_ = {};
}

StepPlans::Known* StepPlans::find(std::uint64_t kind) {
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&](const auto& known) { return known->kind == kind; });
  return found == known_.end() ? nullptr : found->get();
}

void StepPlans::learn(std::uint64_t kind, const Tape& tape, Bytes base_bytes) {
  if (!is_on() || tape.saved.empty()) return;
  Tape level = tape;
  level_costs(level);
  auto step = std::make_shared<const KnownStep>(level);
  for (const auto& given : known_) {
    if (!given->is_given || !step->saves_like(*given->step)) continue;
    given->kind = last_kind_ = kind;
    return;
  }
  Known* known = find(kind);
  if (known == nullptr) {
    if (known_.size() >= kMostKnown) {
      known_.erase(std::min_element(known_.begin(), known_.end(), [](const auto& a, const auto& b) {
        return a->last_met < b->last_met;
      }));
    }
    known = known_.emplace_back(std::make_unique<Known>()).get();
    known->kind = kind;
  }
  known->step = std::move(step);
  known->base_bytes = base_bytes;
  known->plan.reset();
  known->failed_within = 0;
  known->last_met = step_;
  ++known->met;
  last_kind_ = kind;
}

void StepPlans::add(const Tape& tape, const Plan& plan) {
  if (tape.saved.empty()) return;
  auto known = std::make_unique<Known>();
  known->step = std::make_shared<const KnownStep>(tape);
  known->kind = fingerprint(known->step->trace);
  // What stands before the first op was there before the step.
  for (const TraceEvent& event : known->step->trace.events) {
    if (event.kind == TraceEvent::Kind::kRun) break;
    if (event.kind == TraceEvent::Kind::kSource) {
      known->base_bytes += known->step->trace.storages[event.index].bytes;
    }
  }
  known->plan = plan;
  known->gaps = std::make_shared<const PlanGaps>(known->step->trace, plan);
  known->is_given = true;
  known->met = 2;
  known_.push_back(std::move(known));
}

void StepPlans::begin(Bytes live_bytes, Bytes limit_bytes) {
  ++step_;
  live_bytes_ = live_bytes;
  limit_bytes_ = limit_bytes;
  may_start_ = is_on() && !known_.empty() && limit_bytes != ~Bytes{0};
  departed_ = false;
}

// Whether there is a plan for the step that begins now.
bool StepPlans::prepare(Known& known) {
  // What lives beneath it beyond the recorded step is not the plan's to use.
  const Bytes more = live_bytes_ - std::min(live_bytes_, known.base_bytes);
  const Bytes less = known.base_bytes - std::min(live_bytes_, known.base_bytes);
  if (more >= limit_bytes_) return false;
  const Bytes within = limit_bytes_ - more + less;
  if (known.plan.has_value() && known.plan->peak_bytes <= within &&
      (known.is_given || within - within / kPartThatIsTheSame <= known.plan->budget_bytes)) {
    return true;
  }
  if (within <= known.failed_within || known.plans_made >= kMostPlans) return false;
  // Where every step is of another kind, a plan is hardly ever of use.
  if (known.met < 2 && counts_.departures > kDeparturesAtFirst + 2 * counts_.planned_steps) {
    return false;
  }
  ++known.plans_made;
  ++counts_.plans;
  const std::uint64_t start_ns = thread_cpu_ns();
  PlannerOptions options;
  options.budget_bytes = within;
  options.cpu_limit_ns =
      std::max(kShortestPlanningNs,
               std::min(static_cast<std::uint64_t>(seconds_ * 1e9), plain_ns(known.step->trace)));
  std::vector<Plan> before;
  if (known.plan.has_value()) before.push_back(*known.plan);
  try {
    known.plan = Planner(known.step->trace).plan(options, before).plan;
  } catch (const std::exception&) {
    known.plan.reset();  // the step goes on without
  }
  counts_.planning_ns += thread_cpu_ns() - start_ns;
  if (!known.plan.has_value()) {
    known.failed_within = within;
    return false;
  }
  known.gaps = std::make_shared<const PlanGaps>(known.step->trace, *known.plan);
  return true;
}

bool StepPlans::start(RecipeGraph& graph, Known& known) {
  if (!prepare(known)) return false;
  running_ = &known;
  known.last_met = step_;
  follower_ = std::make_unique<StepFollower>(known.step, known.gaps, graph);
  follows_ = true;
  return true;
}

// The kind that came after the last one when that last ran; else the latest that begins so.
StepPlans::Known* StepPlans::first_choice(Bytes bytes) {
  const Known* last = find(last_kind_);
  Known* choice = nullptr;
  for (const auto& known : known_) {
    if (known->step->saved[0].bytes != bytes) continue;
    if (last != nullptr && last->next_kind == known->kind) return known.get();
    if (choice == nullptr || known->last_met >= choice->last_met) choice = known.get();
  }
  return choice;
}

std::uint64_t StepPlans::packed(RecipeGraph& graph, StorageId node, Bytes bytes,
                                const char* made_by) {
  if (std::exchange(may_start_, false)) {
    if (Known* choice = first_choice(bytes)) start(graph, *choice);
  }
  if (follower_ == nullptr) return 0;
  auto saved = follower_->packed(node, bytes, made_by);
  if (!saved.has_value()) {
    for (const auto& other : known_) {
      if (other.get() == running_ || !follower_->begins_like(*other->step, node, bytes)) continue;
      const std::vector<StorageId> nodes = follower_->nodes();
      if (!start(graph, *other)) break;
      follower_->take_over(nodes);
      saved = follower_->packed(node, bytes, made_by);
      break;
    }
  }
  if (!saved.has_value()) {
    depart(graph);
    return 0;
  }
  return (step_ << 32 | *saved) + 1;
}

void StepPlans::unpacked(RecipeGraph& graph, std::uint64_t tag) {
  if (tag == 0 || follower_ == nullptr || (tag - 1) >> 32 != (step_ & 0xffffffffu)) return;
  if (!follower_->unpacked(static_cast<std::uint32_t>(tag - 1))) depart(graph);
}

void StepPlans::depart(RecipeGraph& graph) {
  departed_ = true;
  ++counts_.departures;
  stop(graph);
}

void StepPlans::stop(RecipeGraph& graph) {
  follower_.reset();
  follows_ = false;
  running_ = nullptr;
  graph.set_policy(std::make_unique<OnlinePolicy>());
}

bool StepPlans::end(RecipeGraph& graph) {
  may_start_ = false;
  if (Known* last = find(last_kind_)) last->next_kind = running_ == nullptr ? 0 : running_->kind;
  last_kind_ = 0;
  if (running_ == nullptr) return departed_;
  last_kind_ = running_->kind;
  if (follower_->is_whole()) {
    ++running_->met;
    if (!running_->plan->steps.empty()) ++counts_.planned_steps;
    counts_.beyond_plan += follower_->choices_beyond_plan();
  } else {
    departed_ = true;
    ++counts_.departures;
  }
  stop(graph);
  return departed_;
}

}  // namespace lowtide
