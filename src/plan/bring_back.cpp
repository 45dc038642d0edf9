// Needs are (storage, version) pairs on an explicit stack. A storage may be met several times with
// rising versions; only the ops not yet collected are looked into, so each op and each of its edges
// is met once.
//
// Tested by tests/plan/bring_back_test.cpp, against a twin that replays single values.

#include "src/plan/bring_back.h"

#include <algorithm>
#include <utility>

#include "src/base/assert.h"

namespace lowtide {

const BringBackPlan& BringBackPlanner::plan(const RecipeGraph& graph,
                                            std::span<const StorageId> targets) {
  plan_.reads.clear();
  plan_.ops.clear();
  plan_.rebuilds.clear();
  plan_.cost_ns = 0;
  wanted_.clear();
  stack_.clear();
  if (++epoch_ == 0) {  // wrapped: old marks would look new
    std::fill(storage_mark_.begin(), storage_mark_.end(), 0);
    std::fill(op_mark_.begin(), op_mark_.end(), 0);
    std::fill(read_mark_.begin(), read_mark_.end(), 0);
    epoch_ = 1;
  }
  storage_mark_.resize(graph.storage_slots(), 0);
  wanted_version_.resize(graph.storage_slots(), 0);
  op_mark_.resize(graph.op_slots(), 0);
  read_mark_.resize(graph.storage_slots(), 0);

  for (const StorageId target : targets) {
    const std::uint32_t version = graph.version(target);
    if (graph.is_there(target) || is_read_back(graph, target, version)) continue;
    stack_.push_back({target, version});
  }
  while (!stack_.empty()) {
    const Need need = stack_.back();
    stack_.pop_back();
    const std::uint32_t s = need.storage.index();
    if (storage_mark_[s] == epoch_) {
      if (wanted_version_[s] >= need.version) continue;
    } else {
      storage_mark_[s] = epoch_;
      wanted_.push_back(need.storage);
    }
    wanted_version_[s] = need.version;
    LOWTIDE_ASSERT(graph.has_recipe(need.storage));
    graph.for_recipe(need.storage, [&](OpId op, std::uint32_t version) {
      if (version > need.version) return false;
      if (op_mark_[op.index()] == epoch_) return true;
      op_mark_[op.index()] = epoch_;
      plan_.ops.push_back(op);
      plan_.cost_ns += graph.cost_ns(op);
      graph.for_reads(op, [&](RecipeGraph::Read read) {
        if (!read.storage.valid()) return;
        const bool as_read = read.version == graph.version(read.storage);
        if (graph.is_there(read.storage) && as_read) return;
        if (is_read_back(graph, read.storage, read.version)) return;
        stack_.push_back({read.storage, read.version});
      });
      return true;
    });
  }

  std::sort(plan_.ops.begin(), plan_.ops.end(),
            [&](OpId a, OpId b) { return graph.order(a) < graph.order(b); });
  for (const StorageId id : wanted_) {
    const std::uint32_t version = wanted_version_[id.index()];
    plan_.rebuilds.push_back({id, version, graph.is_there(id) || version != graph.version(id)});
  }
  return plan_;
}

// Whether the storage comes back by being read; it joins the plan.
bool BringBackPlanner::is_read_back(const RecipeGraph& graph, StorageId id, std::uint32_t version) {
  if (!graph.is_copied(id) || version != graph.version(id)) return false;
  if (std::exchange(read_mark_[id.index()], epoch_) != epoch_) plan_.reads.push_back(id);
  return true;
}

BringBackPlan bring_back_plan(const RecipeGraph& graph, std::span<const StorageId> targets) {
  BringBackPlanner planner;
  return planner.plan(graph, targets);
}

}  // namespace lowtide
