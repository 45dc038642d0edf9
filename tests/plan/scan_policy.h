#pragma once
// The online policy's slow twin: weighs every storage at every choice, with the exact score and no
// limit on the walk. Follows policy as written, shares no code with OnlinePolicy.

#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "src/plan/drop_policy.h"

namespace lowtide::testing {

class ScanPolicy : public DropPolicy {
 public:
  double live_weight = 0.35;
  double dead_weight = 1.0;
  double child_weight = 0.3;

  void attach(const RecipeGraph& graph) override { graph_ = &graph; }
  void on_added(StorageId) override { denied_.clear(); }
  void on_state(StorageId) override {}
  void on_used(StorageId) override {}
  void on_dropped(StorageId) override { denied_.clear(); }
  void on_brought_back(StorageId) override { denied_.clear(); }
  void on_forgotten(StorageId) override {}
  void on_denied(StorageId id, std::uint64_t) override { denied_.insert(id); }

  std::optional<StorageId> next_victim(Bytes, std::uint64_t clock_ns) override {
    std::optional<StorageId> best;
    std::pair<int, double> best_score;
    present_.clear();
    graph_->for_storages([&](StorageId id) { present_.insert(id); });
    find_needed();
    graph_->for_storages([&](StorageId id) {
      if (!may_go(id) || denied_.count(id)) return;
      const auto score = std::pair(rank(id), weight(id) / std::sqrt(idle_ns(id, clock_ns)));
      if (!best || score < best_score) {
        best = id;
        best_score = score;
      }
    });
    return best;
  }

  bool may_go(StorageId id) const {
    return graph_->is_there(id) && graph_->is_droppable(id) && graph_->has_recipe(id) &&
           graph_->bytes(id) > 0 && !graph_->is_held(id, Hold::kHard);
  }
  double idle_ns(StorageId id, std::uint64_t clock_ns) const {
    return static_cast<double>(clock_ns - graph_->last_use_ns(id)) + 1000.0;
  }
  // 0: free, 1: regular, 2: soft-held.
  int rank(StorageId id) const {
    if (graph_->is_held(id, Hold::kSoft)) return 2;
    return graph_->is_released(id) && needed_ops(id).empty() ? 0 : 1;
  }
  // (own + weighted neighbours) / bytes.
  double weight(StorageId id) const {
    double total = 0;
    std::set<StorageId> seen;
    std::set<OpId> ops;
    ascend(id, id, seen, ops, total);
    for (const OpId op : needed_ops(id)) total += child_weight * ns(op);
    return std::max(total, 1.0) / static_cast<double>(graph_->bytes(id));
  }

 private:
  double ns(OpId op) const { return static_cast<double>(graph_->cost_ns(op)); }

  void ascend(StorageId root, StorageId id, std::set<StorageId>& seen, std::set<OpId>& ops,
              double& total) const {
    if (!seen.insert(id).second) return;
    const double factor = id == root ? 1.0 : graph_->is_released(id) ? dead_weight : live_weight;
    std::vector<OpId> mine;
    graph_->for_recipe(id, [&](OpId op, std::uint32_t) {
      if (ops.insert(op).second) {
        mine.push_back(op);
        total += factor * ns(op);
      }
      return true;
    });
    for (const OpId op : mine) {
      graph_->for_reads(op, [&](RecipeGraph::Read read) {
        if (!read.storage.valid()) return;
        const bool current = read.version == graph_->version(read.storage);
        if (!graph_->is_there(read.storage) || !current) {
          ascend(root, read.storage, seen, ops, total);
        }
      });
    }
  }
  // Needed: not there, and live or with something needed that is rebuilt from it. The least fixed
  // point, by passes over everything until nothing changes.
  void find_needed() {
    needed_.clear();
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = graph_->storage_slots(); i-- > 0;) {
        const StorageId id{static_cast<std::uint32_t>(i)};
        if (!present_.count(id) || graph_->is_there(id) || needed_.count(id)) continue;
        bool needed = !graph_->is_released(id);
        graph_->for_readers(id, [&](OpId op, std::uint32_t) {
          graph_->for_writes(
              op, [&](StorageId written, std::uint32_t) { needed |= needed_.count(written) > 0; });
        });
        if (needed) needed_.insert(id);
        changed |= needed;
      }
    }
  }
  // The ops that rebuild what is needed and comes from `id`.
  std::set<OpId> needed_ops(StorageId id) const {
    std::set<OpId> ops;
    std::set<StorageId> seen;
    std::vector<StorageId> open{id};
    while (!open.empty()) {
      const StorageId at = open.back();
      open.pop_back();
      graph_->for_readers(at, [&](OpId op, std::uint32_t) {
        graph_->for_writes(op, [&](StorageId written, std::uint32_t) {
          if (!needed_.count(written)) return;
          ops.insert(op);
          if (seen.insert(written).second) open.push_back(written);
        });
      });
    }
    return ops;
  }

  std::set<StorageId> present_;
  std::set<StorageId> needed_;
  const RecipeGraph* graph_ = nullptr;
  std::set<StorageId> denied_;
};

}  // namespace lowtide::testing
