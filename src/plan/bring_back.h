#pragma once
// Which ops to run, in which order, so that dropped storages are there again.
//
//   BringBackPlan plan = bring_back_plan(graph, missing);
//   for (OpId op : plan.ops) { hold inputs; make room; run; }
//
// All dropped ancestors of the missing storages are collected, each op once (an op with several
// outputs too), and sorted by the order in which they first ran; so every op finds its inputs.
// Bringing back one by one instead would run shared ancestors again and again.
//
// Old versions. An op may have read a storage before a later in-place write. If that storage is
// there now, at its latest version, its older contents are rebuilt on the side (Rebuild::aside):
// the ops of its recipe up to that version run into a temporary block. In the order of running,
// each reader finds the version it read.
//
// A storage that is copied elsewhere is read from there, before the ops that need it, and nothing
// is run for it. A storage without recipe must be there or copied; one that is dropped is a bug
// (LT0001).

#include <cstdint>
#include <span>
#include <vector>

#include "src/plan/recipe_graph.h"
#include "src/tape/ids.h"

namespace lowtide {

struct Rebuild {
  StorageId storage;
  std::uint32_t version = 0;  // how many ops of its recipe the plan runs
  bool aside = false;         // into a temporary block: the plan does not bring the storage back
};

struct BringBackPlan {
  std::vector<StorageId> reads;   // copied storages that must be read back, in no order
  std::vector<OpId> ops;          // in the order of running
  std::vector<Rebuild> rebuilds;  // every storage the ops write into that was not there, and asides
  std::uint64_t cost_ns = 0;      // of the ops together
};

// Keeps the scratch space between calls. O(ops in the plan and their edges, and a sort of the ops);
// no recursion. Not thread-safe.
class BringBackPlanner {
 public:
  // The plan for all of `targets` at their latest versions. Targets that are there are skipped.
  // The result is valid until the next call. Throws nothing but std::bad_alloc.
  const BringBackPlan& plan(const RecipeGraph& graph, std::span<const StorageId> targets);

 private:
  struct Need {
    StorageId storage;
    std::uint32_t version;
  };
  bool is_read_back(const RecipeGraph& graph, StorageId id, std::uint32_t version);

  std::vector<Need> stack_;
  std::vector<std::uint32_t> storage_mark_;    // epoch in which wanted_ was set
  std::vector<std::uint32_t> wanted_version_;  // by storage, in this epoch
  std::vector<std::uint32_t> op_mark_;
  std::vector<StorageId> wanted_;
  std::vector<std::uint32_t> read_mark_;
  std::uint32_t epoch_ = 0;
  BringBackPlan plan_;
};

// The same for one call.
BringBackPlan bring_back_plan(const RecipeGraph& graph, std::span<const StorageId> targets);

}  // namespace lowtide
