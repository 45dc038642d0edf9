#pragma once
// What to drop when the future is not known: the storage that costs least to bring back for each
// byte and has not been used longest.
//
//   auto policy = std::make_unique<OnlinePolicy>();
//
// score(s) = (own + live_weight * L + dead_weight * D + child_weight * C) / (bytes * sqrt(idle))
//   own   times of the ops of its recipe
//   L, D  times of the ops to rebuild its dropped ancestors: live ones will be asked for anyway,
//         released ones come back for this storage only
//   C     times of the ops of its dropped descendants that are still needed: their way back would
//         get longer
//   idle  clock - last use by the program (replays do not count), plus 1 us
// Where a copy elsewhere is possible and costs less (CopyCost: away and back, and `child_weight` of
// the way back when something dropped would be rebuilt from it), that is the cost and the way, and
// the bytes are what the drop frees beyond the copy. A copied ancestor costs its way back, no more.
//
// The lowest score goes first. Before all others go released storages from which nothing dropped
// and still wanted would be rebuilt; after all others those held softly.
//
// Cost: O(log n) for each call, plus the walk over the dropped neighbourhood, at most `walk_limit`
// storages, for each storage weighed. docs/design/online_policy.md says how.

#include <memory>

#include "src/plan/drop_policy.h"

namespace lowtide {

struct OnlinePolicyOptions {
  double live_weight = 0.35;
  double dead_weight = 1.0;
  double child_weight = 0.3;
  // Storages visited to weigh one. Smaller is faster; below 50 the choice gets worse.
  int walk_limit = 300;
};

class OnlinePolicy final : public DropPolicy {
 public:
  explicit OnlinePolicy(const OnlinePolicyOptions& options = {});
  ~OnlinePolicy() override;

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
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
