#pragma once
// Drops what a plan says, as room is needed.
//
//   auto gaps = std::make_shared<const PlanGaps>(trace, plan);
//   auto policy = std::make_unique<PlannedPolicy>(gaps);
//   PlannedPolicy& follow = *policy;
//   graph.set_policy(std::move(policy));
//   follow.bind(node, storage);    // the graph's storage is the trace's
//   follow.reach(event);           // the step has come to this event of the trace
//
// A storage whose contents the plan has dropped, and not made again yet, may go; the one that the
// plan makes again last goes first. Nothing goes before room is asked for, so what the plan drops
// may still be there when it is wanted: that is won. What the plan keeps, and what is not bound,
// goes only when nothing else is left: an OnlinePolicy chooses it.
//
// The plan decides what goes, never whether it may: that is the graph's and its feeder's.
//
// Cost: O(log n) for each call. An OnlinePolicy is made, O(n), and fed from then on when the plan
// has nothing to offer for the first time.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/plan/drop_policy.h"
#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace lowtide {

// When the plan has a storage not there. Immutable; any number of policies may read it.
class PlanGaps {
 public:
  // Events [begin, end): dropped before `begin`, made again before `end`.
  struct Gap {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    StorageId storage;
  };
  static constexpr std::uint32_t kNever = 0xffffffffu;

  // Of the latest contents only: older versions are never bound.
  PlanGaps(const Trace& trace, const Plan& plan);

  // The end of the storage's gap that holds `event`; nullopt: the plan has it there.
  std::optional<std::uint32_t> end_of_gap(StorageId storage, std::uint32_t event) const;
  // All, by their beginnings.
  std::span<const Gap> by_begin() const { return by_begin_; }
  std::size_t storage_count() const { return first_.size() - 1; }

 private:
  std::vector<Gap> by_storage_;  // and by their beginnings
  std::vector<std::uint32_t> first_;
  std::vector<Gap> by_begin_;
};

class PlannedPolicy final : public DropPolicy {
 public:
  explicit PlannedPolicy(std::shared_ptr<const PlanGaps> gaps);
  ~PlannedPolicy() override;

  // Each storage of the trace at most once, and of the graph.
  void bind(StorageId node, StorageId storage);
  // Events before the one reached are no news.
  void reach(std::uint32_t event);
  // What is bound to the other; not valid: nothing.
  StorageId node_of(StorageId storage) const { return node_of_[storage.index()]; }
  StorageId storage_of(StorageId node) const { return slots_[node.index()].storage; }
  // Choices that the plan did not make.
  std::uint64_t choices_beyond_plan() const { return beyond_plan_; }

  void attach(const RecipeGraph& graph) override;
  void on_added(StorageId id) override;
  void on_state(StorageId id) override;
  void on_copy_cost(StorageId id) override;
  void on_used(StorageId id) override;
  void on_dropped(StorageId id) override;
  void on_brought_back(StorageId id) override;
  void on_forgotten(StorageId id) override;
  std::optional<StorageId> next_victim(Bytes bytes_needed, std::uint64_t clock_ns) override;
  Way way(StorageId id) const override;
  void on_denied(StorageId id, std::uint64_t clock_ns) override;

 private:
  // A storage of the graph.
  struct Slot {
    StorageId storage;            // of the trace, if bound
    std::uint64_t stamp = 0;      // of its entry; 0: there is none
    std::uint32_t end = 0;        // the entry's
    std::uint64_t denied_in = 0;  // round_ in which it was denied
  };
  struct Entry {
    std::uint32_t end;  // of its gap
    StorageId id;
    std::uint64_t stamp;
    bool operator<(const Entry& other) const { return end < other.end; }
  };
  bool may_go(StorageId id) const;
  void offer(StorageId id);

  std::shared_ptr<const PlanGaps> gaps_;
  const RecipeGraph* graph_ = nullptr;
  std::unique_ptr<DropPolicy> beyond_;  // none until it is asked for
  std::vector<Slot> slots_;             // by the graph's id
  std::vector<StorageId> node_of_;      // by the trace's id
  std::vector<Entry> heap_;             // the latest end on top
  std::vector<StorageId> denied_;
  std::size_t next_gap_ = 0;
  std::uint32_t event_ = 0;
  std::uint64_t last_stamp_ = 0;
  std::uint64_t round_ = 1;  // see RecipeGraph::deny()
  std::uint64_t beyond_plan_ = 0;
  bool was_beyond_plan_ = false;  // the last choice
};

}  // namespace lowtide
