// Gaps stand sorted by their beginnings: as the step comes to them their storages are offered. An
// offer is an entry in a heap, looked at when it is on top: it may have been overtaken by another,
// by a hold, or by the end of its gap. What is on hold is offered anew by on_state() when it ends.
//
// Tested by tests/plan/planned_policy_test.cpp.

#include "src/plan/planned_policy.h"

#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/plan/online_policy.h"

namespace lowtide {

PlanGaps::PlanGaps(const Trace& trace, const Plan& plan) {
  const std::size_t count = trace.storages.size();
  std::vector<std::uint32_t> versions(count, 0);  // how many it comes to have
  for (const TraceOp& op : trace.ops) {
    std::vector<StorageId> writes(op.writes);
    std::sort(writes.begin(), writes.end());
    writes.erase(std::unique(writes.begin(), writes.end()), writes.end());
    for (const StorageId written : writes) ++versions[written.index()];
  }
  std::vector<std::uint32_t> open(count, kNever);  // of the gap without an end yet, its beginning
  const auto close = [&](std::uint32_t storage, std::uint32_t end) {
    const std::uint32_t begin = std::exchange(open[storage], kNever);
    if (begin != kNever && begin < end) by_storage_.push_back({begin, end, StorageId{storage}});
  };
  // The writes of each op that gave a storage its latest contents.
  std::vector<std::uint32_t> written(count, 0);
  std::vector<std::vector<std::uint32_t>> finishes(trace.ops.size());
  for (const TraceEvent& event : trace.events) {
    if (event.kind != TraceEvent::Kind::kRun) continue;
    std::vector<StorageId> writes(trace.ops[event.index].writes);
    std::sort(writes.begin(), writes.end());
    writes.erase(std::unique(writes.begin(), writes.end()), writes.end());
    for (const StorageId id : writes) {
      if (++written[id.index()] == versions[id.index()])
        finishes[event.index].push_back(id.index());
    }
  }
  for (const PlanStep& step : plan.steps) {
    if (step.kind == PlanStep::Kind::kReplay) {
      for (const std::uint32_t storage : finishes[step.index]) close(storage, step.event);
    } else if (step.version + 1 == versions[step.index]) {
      if (open[step.index] == kNever) open[step.index] = step.event;
    }
  }
  for (std::uint32_t s = 0; s < count; ++s) close(s, kNever);
  by_begin_ = by_storage_;
  const auto by_begin = [](const Gap& a, const Gap& b) { return a.begin < b.begin; };
  std::stable_sort(by_begin_.begin(), by_begin_.end(), by_begin);
  by_storage_ = by_begin_;
  std::stable_sort(by_storage_.begin(), by_storage_.end(),
                   [](const Gap& a, const Gap& b) { return a.storage < b.storage; });
  first_.assign(count + 1, 0);
  for (const Gap& gap : by_storage_) ++first_[gap.storage.index() + 1];
  for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
}

std::optional<std::uint32_t> PlanGaps::end_of_gap(StorageId storage, std::uint32_t event) const {
  const auto begin = by_storage_.begin() + first_[storage.index()];
  const auto end = by_storage_.begin() + first_[storage.index() + 1];
  // The last that has begun.
  const auto after = std::upper_bound(
      begin, end, event, [](std::uint32_t at, const Gap& gap) { return at < gap.begin; });
  if (after == begin || std::prev(after)->end <= event) return std::nullopt;
  return std::prev(after)->end;
}

PlannedPolicy::PlannedPolicy(std::shared_ptr<const PlanGaps> gaps)
    : gaps_(std::move(gaps)), node_of_(gaps_->storage_count()) {}

PlannedPolicy::~PlannedPolicy() = default;

void PlannedPolicy::attach(const RecipeGraph& graph) {
  graph_ = &graph;
  slots_.resize(graph.storage_slots());
}

void PlannedPolicy::bind(StorageId node, StorageId storage) {
  LOWTIDE_ASSERT(!node_of_[storage.index()].valid());
  node_of_[storage.index()] = node;
  slots_[node.index()].storage = storage;
  offer(node);
}

void PlannedPolicy::reach(std::uint32_t event) {
  if (event <= event_) return;
  event_ = event;
  const auto gaps = gaps_->by_begin();
  for (; next_gap_ < gaps.size() && gaps[next_gap_].begin <= event_; ++next_gap_) {
    const StorageId node = node_of_[gaps[next_gap_].storage.index()];
    if (node.valid()) offer(node);
  }
}

bool PlannedPolicy::may_go(StorageId id) const {
  return graph_->is_there(id) && graph_->is_droppable(id) && graph_->has_recipe(id) &&
         graph_->bytes(id) > 0 && !graph_->is_held(id, Hold::kHard) &&
         !graph_->is_held(id, Hold::kSoft);
}

void PlannedPolicy::offer(StorageId id) {
  Slot& slot = slots_[id.index()];
  if (!slot.storage.valid() || !may_go(id)) return;
  const auto end = gaps_->end_of_gap(slot.storage, event_);
  if (!end || (slot.stamp != 0 && slot.end == *end)) return;
  slot.stamp = ++last_stamp_;
  slot.end = *end;
  heap_.push_back({*end, id, slot.stamp});
  std::push_heap(heap_.begin(), heap_.end());
}

void PlannedPolicy::on_added(StorageId id) {
  if (slots_.size() <= id.index()) slots_.resize(graph_->storage_slots());
  slots_[id.index()] = Slot{};
  ++round_;
  if (beyond_ != nullptr) beyond_->on_added(id);
}

void PlannedPolicy::on_state(StorageId id) {
  slots_[id.index()].denied_in = 0;
  offer(id);
  if (beyond_ != nullptr) beyond_->on_state(id);
}

void PlannedPolicy::on_copy_cost(StorageId id) {
  if (beyond_ != nullptr) beyond_->on_copy_cost(id);
}

void PlannedPolicy::on_used(StorageId id) {
  if (beyond_ != nullptr) beyond_->on_used(id);
}

void PlannedPolicy::on_dropped(StorageId id) {
  ++round_;
  slots_[id.index()].stamp = 0;
  if (beyond_ != nullptr) beyond_->on_dropped(id);
}

void PlannedPolicy::on_brought_back(StorageId id) {
  ++round_;
  offer(id);
  if (beyond_ != nullptr) beyond_->on_brought_back(id);
}

void PlannedPolicy::on_forgotten(StorageId id) {
  Slot& slot = slots_[id.index()];
  if (slot.storage.valid()) node_of_[slot.storage.index()] = StorageId{};
  slot = Slot{};
  if (beyond_ != nullptr) beyond_->on_forgotten(id);
}

std::optional<StorageId> PlannedPolicy::next_victim(Bytes bytes_needed, std::uint64_t clock_ns) {
  was_beyond_plan_ = false;
  for (bool again = true; again;) {
    while (!heap_.empty()) {
      const Entry top = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      Slot& slot = slots_[top.id.index()];
      if (slot.stamp != top.stamp) continue;
      slot.stamp = 0;
      // What is held is offered anew when it is held no more.
      if (slot.denied_in != 0 || !may_go(top.id)) continue;
      const auto end = gaps_->end_of_gap(slot.storage, event_);
      if (!end) continue;
      if (*end != top.end) {
        offer(top.id);
        continue;
      }
      // Until it is dropped or denied it is still on offer.
      offer(top.id);
      return top.id;
    }
    // Those that were denied, once more after each change.
    again = false;
    std::vector<StorageId> stay;
    for (const StorageId id : denied_) {
      Slot& slot = slots_[id.index()];
      if (slot.denied_in == 0) continue;
      if (slot.denied_in == round_) {
        stay.push_back(id);
        continue;
      }
      slot.denied_in = 0;
      offer(id);
      again = true;
    }
    denied_ = std::move(stay);
  }
  if (beyond_ == nullptr) {
    beyond_ = std::make_unique<OnlinePolicy>();
    beyond_->attach(*graph_);
  }
  const auto victim = beyond_->next_victim(bytes_needed, clock_ns);
  was_beyond_plan_ = victim.has_value();
  if (was_beyond_plan_) ++beyond_plan_;
  return victim;
}

Way PlannedPolicy::way(StorageId id) const {
  return was_beyond_plan_ ? beyond_->way(id) : Way::kRecompute;
}

void PlannedPolicy::on_denied(StorageId id, std::uint64_t clock_ns) {
  Slot& slot = slots_[id.index()];
  slot.denied_in = round_;
  slot.stamp = 0;
  denied_.push_back(id);
  if (beyond_ != nullptr) beyond_->on_denied(id, clock_ns);
}

}  // namespace lowtide
