#pragma once
// The plans of a budget: one for each kind of step, and the running step's.
//
//   StepPlans plans;
//   plans.configure(1.0);
//   plans.learn(kind, tape, base);              // a step was recorded
//   plans.begin(live, limit);                   // a step begins
//   auto tag = plans.packed(graph, node, bytes, made_by);
//   plans.op_begins();
//   plans.unpacked(graph, tag);
//   plans.end(graph);
//
// Which kind the step is of shows with its first saved tensor, at the latest with the one that
// differs; then another known step that began like it takes over. When there is none, the online
// policy does, and the step after it is to be recorded.
//
// A plan is made when its step is first met under a limit that asks for one: on the calling thread,
// within the time given and that of the step itself, so that trying never costs more than twice
// what was asked of it. It holds until the limit or what lives beneath the step changes by more
// than it allows for.
//
// Not thread-safe but for follows(): the runtime's lock guards it. Torch-free.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/plan.h"
#include "src/plan/recipe_graph.h"
#include "src/plan/step_follower.h"

namespace lowtide {

class StepPlans {
 public:
  // Steps known at most; the one not met for longest goes.
  static constexpr std::size_t kMostKnown = 8;

  // Processor time for a plan; 0: none are made.
  void configure(double seconds) { seconds_ = seconds; }
  bool is_on() const { return seconds_ > 0; }
  void clear();

  // `kind` tells kinds of steps apart; `base_bytes` were live where it began.
  void learn(std::uint64_t kind, const Tape& tape, Bytes base_bytes);
  // A plan from elsewhere, for the step of `tape`.
  void add(const Tape& tape, const Plan& plan);

  // The step that begins may be followed.
  void begin(Bytes live_bytes, Bytes limit_bytes);
  // The tag goes to unpacked(); 0: the step is not followed.
  std::uint64_t packed(RecipeGraph& graph, StorageId node, Bytes bytes, const char* made_by);
  void unpacked(RecipeGraph& graph, std::uint64_t tag);
  void op_begins() {
    if (follower_ != nullptr) follower_->op_begins();
  }
  // The step ends, however it went. Whether the next is to be recorded because it departed.
  bool end(RecipeGraph& graph);

  bool follows() const { return follows_.load(std::memory_order_relaxed); }

  struct Counts {
    std::uint64_t planned_steps = 0;  // whole steps that went as a plan said
    std::uint64_t departures = 0;
    std::uint64_t plans = 0;  // made
    std::uint64_t planning_ns = 0;
    std::uint64_t beyond_plan = 0;  // choices that a plan did not make, of planned steps
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Known {
    std::uint64_t kind = 0;
    std::shared_ptr<const KnownStep> step;
    Bytes base_bytes = 0;
    std::optional<Plan> plan;
    std::shared_ptr<const PlanGaps> gaps;  // of the plan
    Bytes failed_within = 0;               // no plan was found within so many bytes
    int plans_made = 0;
    int met = 0;  // recorded, or gone through as planned
    std::uint64_t last_met = 0;
    std::uint64_t next_kind = 0;  // of the step after it, when it last ran
    bool is_given = false;        // by add(): what is recorded anew does not replace it
  };
  Known* find(std::uint64_t kind);
  bool prepare(Known& known);
  bool start(RecipeGraph& graph, Known& known);
  Known* first_choice(Bytes bytes);
  void depart(RecipeGraph& graph);
  void stop(RecipeGraph& graph);

  double seconds_ = 0;
  std::vector<std::unique_ptr<Known>> known_;
  Known* running_ = nullptr;
  std::unique_ptr<StepFollower> follower_;
  std::atomic<bool> follows_{false};
  bool may_start_ = false;  // nothing was saved yet
  bool departed_ = false;
  Bytes live_bytes_ = 0;
  Bytes limit_bytes_ = 0;
  std::uint64_t step_ = 0;  // in tags
  std::uint64_t last_kind_ = 0;
  Counts counts_;
};

}  // namespace lowtide
