#pragma once
// The seam between what happens (RecipeGraph) and what to drop. Two are planned: OnlinePolicy,
// which knows the past only, and one that follows a plan. The runtime and the simulator see
// neither.
//
// The graph calls on_*() after it has changed its own state. A policy reads the graph and keeps
// what it needs by id; it never changes the graph. Ids are given out again after on_forgotten().

#include <cstdint>
#include <optional>

#include "lowtide/bytes.h"
#include "src/plan/recipe_graph.h"
#include "src/tape/ids.h"

namespace lowtide {

class DropPolicy {
 public:
  virtual ~DropPolicy();

  // Takes charge of `graph`, which outlives the policy. Called once, before anything else.
  virtual void attach(const RecipeGraph& graph) = 0;

  virtual void on_added(StorageId id) = 0;
  // Droppable, released, held, and whether it has a recipe: any of them may have changed.
  virtual void on_state(StorageId id) = 0;
  virtual void on_copy_cost(StorageId id) { on_state(id); }
  virtual void on_used(StorageId id) = 0;
  virtual void on_dropped(StorageId id) = 0;
  virtual void on_brought_back(StorageId id) = 0;
  virtual void on_forgotten(StorageId id) = 0;

  virtual std::optional<StorageId> next_victim(Bytes bytes_needed, std::uint64_t clock_ns) = 0;
  // How the victim should go. Called after next_victim() has named it, before anything else.
  virtual Way way(StorageId) const { return Way::kRecompute; }
  virtual void on_denied(StorageId id, std::uint64_t clock_ns) = 0;
};

}  // namespace lowtide
