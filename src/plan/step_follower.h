#pragma once
// Follows a step through the tape of an earlier one, and lets a plan choose what to drop.
//
//   auto known = std::make_shared<const KnownStep>(tape);
//   StepFollower follower(known, gaps, graph);     // PlannedPolicy takes charge of the graph
//   follower.op_begins();
//   auto tag = follower.packed(node, bytes);       // nullopt: another step than on the tape
//   follower.unpacked(*tag);                       // false: the same
//
// Saved tensors are what steps are known by: the n-th one must have the bytes of the tape's n-th,
// and lie over the same earlier one or over a new storage, as there. Each, and each time one is
// asked for, tells how far the step has come; ops are only counted between. So an op more or less,
// where nothing is saved, is no departure.
//
// Not thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/planned_policy.h"
#include "src/plan/recipe_graph.h"
#include "src/plan/trace.h"
#include "src/tape/tape.h"

namespace lowtide {

// A recorded step. Immutable.
struct KnownStep {
  explicit KnownStep(const Tape& tape);

  // Whether the same tensors are saved, in the same order.
  bool saves_like(const KnownStep& other) const;

  struct Saved {
    StorageId storage;
    Bytes bytes = 0;
    std::string made_by;                 // "aten::mm"; "" for what was there before the step
    std::vector<std::uint32_t> unpacks;  // anchors, ascending
  };
  // A saved tensor comes or is asked for.
  struct Anchor {
    std::uint32_t event = 0;  // of the trace
    bool is_pack = false;
  };

  Trace trace;
  std::vector<Saved> saved;          // in the order of saving
  std::vector<Anchor> anchors;       // in the order of the step
  std::vector<std::uint32_t> packs;  // anchors, by saved tensor
  std::vector<std::uint32_t> runs;   // events of the trace that are ops
  Bytes natural_peak = 0;
};

class StepFollower {
 public:
  // Of no use any more once the graph has another policy.
  StepFollower(std::shared_ptr<const KnownStep> step, std::shared_ptr<const PlanGaps> gaps,
               RecipeGraph& graph);

  void op_begins();
  // A tensor over the storage is saved. Its number, for unpacked(); nullopt: the step departs.
  // `made_by` is the op that made it, "" where that is not known.
  std::optional<std::uint32_t> packed(StorageId node, Bytes bytes, const char* made_by);
  // False: the step departs.
  bool unpacked(std::uint32_t saved);

  // Whether another step begins with the same saved tensors, as far as this one has come, and goes
  // on with one over a storage of `bytes`, `node`.
  bool begins_like(const KnownStep& other, StorageId node, Bytes bytes) const;
  // The graph's storages under the tensors saved so far; not valid: gone. With those another
  // follower takes over, which must be done before a tensor is saved.
  std::vector<StorageId> nodes() const;
  void take_over(const std::vector<StorageId>& nodes);

  const std::shared_ptr<const KnownStep>& step() const { return step_; }
  std::size_t packed_count() const { return packed_; }
  bool is_whole() const { return packed_ == step_->saved.size(); }
  std::uint64_t choices_beyond_plan() const { return policy_->choices_beyond_plan(); }

 private:
  void reach_anchor(std::uint32_t anchor);

  std::shared_ptr<const KnownStep> step_;
  PlannedPolicy* policy_;  // the graph's
  std::size_t packed_ = 0;
  std::uint32_t next_anchor_ = 0;
  std::size_t next_run_ = 0;
};

}  // namespace lowtide
