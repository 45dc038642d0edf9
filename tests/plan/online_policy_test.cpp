#include "src/plan/online_policy.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "src/plan/bring_back.h"
#include "tests/plan/scan_policy.h"

namespace lowtide {
namespace {

struct Fixture {
  RecipeGraph graph{std::make_unique<OnlinePolicy>()};
  std::uint64_t clock = 1'000'000;
  StorageId source = graph.add_storage(1000);

  StorageId made(Bytes bytes, std::uint64_t cost, std::initializer_list<StorageId> reads = {}) {
    const StorageId id = graph.add_storage(bytes);
    std::vector<StorageId> inputs(reads);
    if (inputs.empty()) inputs.push_back(source);
    graph.add_op(cost, inputs, {{id}}, clock += cost);
    graph.set_droppable(id, true);
    return id;
  }
  std::optional<StorageId> victim() { return graph.next_victim(1, clock); }
};

TEST_CASE("of two alike the one that costs less for each byte goes first") {
  Fixture f;
  f.made(1000, 90'000);
  const StorageId cheap = f.made(1000, 10'000);
  f.clock += 1'000'000'000;
  CHECK(f.victim() == cheap);
}

TEST_CASE("of two alike the one unused for longer goes first, and a use saves it") {
  Fixture f;
  const StorageId old = f.made(1000, 10'000);
  const StorageId young = f.made(1000, 10'000);
  f.clock += 100'000;
  CHECK(f.victim() == old);
  f.graph.used(old, f.clock);
  f.clock += 1000;
  CHECK(f.victim() == young);
}

TEST_CASE(
    "of recompute and copy the cheaper one is the way, and what can only be copied goes too") {
  Fixture f;
  const StorageId costly = f.made(1000, 90'000);
  f.graph.set_copy_cost(costly, CopyCost{10'000, 10'000, 0});
  const StorageId cheap = f.made(1000, 30'000);
  f.graph.set_copy_cost(cheap, CopyCost{40'000, 10'000, 0});
  const StorageId foreign = f.graph.add_storage(1000);
  f.graph.set_copy_cost(foreign, CopyCost{1'000'000, 10'000, 0});
  f.graph.set_droppable(foreign, true);
  f.clock += 1'000'000'000;
  REQUIRE(f.victim() == costly);
  CHECK(f.graph.way(costly) == Way::kCopy);
  f.graph.dropped(costly, Way::kCopy);
  REQUIRE(f.victim() == cheap);
  CHECK(f.graph.way(cheap) == Way::kRecompute);
  f.graph.dropped(cheap);
  REQUIRE(f.victim() == foreign);
  CHECK(f.graph.way(foreign) == Way::kCopy);
  f.graph.set_copy_cost(foreign, std::nullopt);
  CHECK(!f.victim().has_value());
}

TEST_CASE("a copied ancestor costs its way back, and a copy that stays frees less") {
  Fixture f;
  const StorageId root = f.made(1000, 500'000);
  f.graph.set_copy_cost(root, CopyCost{0, 1'000, 0});
  const StorageId chained = f.made(1000, 10'000, {root});
  const StorageId free_standing = f.made(1000, 12'000);
  f.clock += 1'000'000'000;
  REQUIRE(f.victim() == root);
  f.graph.dropped(root, Way::kCopy);
  CHECK(f.victim() == chained);  // 10,350 against 12,000
  f.graph.copy_gone(root);
  CHECK(f.victim() == free_standing);  // 12,000 against 185,000
  const StorageId packed = f.made(1000, 90'000);
  f.graph.set_copy_cost(packed, CopyCost{3'000, 3'000, 250});  // 8 a byte
  f.clock += 1'000'000'000;
  CHECK(f.victim() == packed);
  f.graph.set_copy_cost(packed, CopyCost{3'000, 3'000, 750});  // 24 a byte
  CHECK(f.victim() == free_standing);
}

TEST_CASE("a dropped ancestor makes what is rebuilt from it dearer") {
  Fixture f;
  const StorageId root = f.made(1000, 50'000);
  const StorageId chained = f.made(1000, 10'000, {root});
  const StorageId free_standing = f.made(1000, 12'000);
  f.clock += 1'000'000'000;
  CHECK(f.victim() == chained);
  f.graph.dropped(root);
  CHECK(f.victim() == free_standing);
  f.graph.brought_back(root);
  CHECK(f.victim() == chained);
}

TEST_CASE(
    "a released storage goes first, unless something dropped is still to be rebuilt from it") {
  Fixture f;
  const StorageId dear = f.made(1000, 900'000);
  const StorageId child = f.made(1000, 5'000, {dear});
  const StorageId cheap = f.made(1000, 100);
  f.graph.released(dear);
  f.clock += 1'000'000;
  CHECK(f.victim() == dear);
  f.graph.dropped(child);
  CHECK(f.victim() == cheap);
  f.graph.brought_back(child);
  CHECK(f.victim() == dear);
  f.graph.dropped(child);
  f.graph.released(child);
  CHECK(f.victim() == dear);
}

TEST_CASE("a storage held hard is never proposed, one held softly only when nothing else is left") {
  Fixture f;
  const StorageId hard = f.made(1000, 10);
  const StorageId soft = f.made(1000, 20);
  const StorageId plain = f.made(1000, 90'000);
  f.graph.hold(hard, Hold::kHard);
  f.graph.hold(soft, Hold::kSoft);
  f.clock += 1000;
  CHECK(f.victim() == plain);
  f.graph.dropped(plain);
  CHECK(f.victim() == soft);
  f.graph.dropped(soft);
  CHECK_FALSE(f.victim());
  f.graph.unhold(hard, Hold::kHard);
  CHECK(f.victim() == hard);
}

TEST_CASE("sources, storages that the program holds and stripped ones are never proposed") {
  Fixture f;
  const StorageId held = f.made(1000, 10);
  const StorageId stripped = f.made(1000, 10);
  f.graph.set_droppable(held, false);
  f.graph.strip_recipe(stripped);
  f.graph.set_droppable(f.source, true);
  CHECK_FALSE(f.victim());
}

TEST_CASE("a loop over denied storages ends, having asked for each once") {
  Fixture f;
  std::set<StorageId> all;
  for (int i = 0; i < 30; ++i) all.insert(f.made(1000, 10'000));
  std::set<StorageId> asked;
  while (const auto victim = f.victim()) {
    CHECK(asked.insert(*victim).second);
    f.graph.deny(*victim, f.clock += 50);
    REQUIRE(asked.size() <= all.size());
  }
  CHECK(asked == all);
  // Something changed: they may be let go now.
  f.graph.add_storage(8);
  CHECK(f.victim().has_value());
}

TEST_CASE("a denied storage waits while others will do, and longer each time") {
  Fixture f;
  const StorageId best = f.made(1000, 1);
  std::vector<int> gaps;
  int since = 0;
  for (int i = 0; i < 400; ++i) {
    f.made(1000, 90'000);
    ++since;
    const auto victim = f.victim();
    REQUIRE(victim);
    if (*victim != best) continue;
    f.graph.deny(best, f.clock);
    gaps.push_back(since);
    since = 0;
  }
  REQUIRE(gaps.size() >= 4);
  CHECK(gaps[2] > gaps[1]);
  CHECK(gaps[3] > gaps[2]);
}

TEST_CASE("being told that a denied storage is droppable makes it a candidate at once") {
  Fixture f;
  const StorageId best = f.made(1000, 1);
  f.made(1000, 90'000);
  REQUIRE(f.victim() == best);
  f.graph.deny(best, f.clock);
  CHECK(f.victim() != best);
  f.graph.set_droppable(best, true);
  CHECK(f.victim() == best);
}

TEST_CASE("a policy put in charge midway proposes from the state as it stands") {
  Fixture f;
  const StorageId dropped = f.made(1000, 10);
  const StorageId cheap = f.made(1000, 20, {dropped});
  f.made(1000, 900'000);
  f.graph.dropped(dropped);
  f.graph.set_policy(std::make_unique<OnlinePolicy>());
  f.clock += 1000;
  CHECK(f.victim() == cheap);
  f.graph.dropped(cheap);
  f.graph.brought_back(dropped);
  f.graph.brought_back(cheap);
}

// What the buckets leave exact: the rank (free, regular, soft), and a score within the width of a
// bucket of the best that a scan finds.
TEST_CASE(
    "choices over random events are as good as a scan's: 98 of 100 to a quarter of its score") {
  std::mt19937 random(11);
  int choices = 0;
  int same = 0;
  int far = 0;
  for (int round = 0; round < 60; ++round) {
    RecipeGraph graph(std::make_unique<OnlinePolicy>());
    testing::ScanPolicy scan;
    scan.live_weight = OnlinePolicyOptions{}.live_weight;
    scan.dead_weight = OnlinePolicyOptions{}.dead_weight;
    scan.child_weight = OnlinePolicyOptions{}.child_weight;
    scan.attach(graph);
    std::uint64_t clock = 0;
    std::vector<StorageId> ids{graph.add_storage(64)};
    std::vector<StorageId> gone;
    for (int i = 0; i < 150; ++i) {
      switch (random() % 6) {
        case 0:
        case 1:
        case 2: {
          std::vector<StorageId> reads;
          for (int k = 0; k < 2; ++k) {
            const StorageId id =
                ids[ids.size() - 1 - random() % std::min<std::size_t>(ids.size(), 6)];
            if (graph.is_there(id)) reads.push_back(id);
          }
          const StorageId made = graph.add_storage(1 + random() % 5000);
          clock += 100 + random() % 90'000;
          graph.add_op(100 + random() % 90'000, reads, {{made}}, clock);
          graph.set_droppable(made, random() % 8 != 0);
          ids.push_back(made);
          break;
        }
        case 3: {
          const StorageId id = ids[random() % ids.size()];
          if (graph.has_recipe(id) && !graph.is_released(id)) graph.released(id);
          break;
        }
        case 4: {
          if (gone.empty()) break;
          const StorageId id = gone[random() % gone.size()];
          // With everything before it, as a bring-back does.
          const BringBackPlan plan = bring_back_plan(graph, {{id}});
          for (const Rebuild& rebuild : plan.rebuilds) {
            graph.brought_back(rebuild.storage);
            gone.erase(std::find(gone.begin(), gone.end(), rebuild.storage));
          }
          break;
        }
        default: {
          clock += random() % 50'000;
          const auto victim = graph.next_victim(1, clock);
          const auto best = scan.next_victim(1, clock);
          REQUIRE(victim.has_value() == best.has_value());
          if (!victim) break;
          ++choices;
          same += *victim == *best;
          CHECK(scan.rank(*victim) == scan.rank(*best));
          const double mine = scan.weight(*victim) / std::sqrt(scan.idle_ns(*victim, clock));
          const double theirs = scan.weight(*best) / std::sqrt(scan.idle_ns(*best, clock));
          far += mine > theirs * 1.25;
          graph.dropped(*victim);
          gone.push_back(*victim);
        }
      }
    }
  }
  CHECK(choices > 1000);
  CHECK(same > choices * 3 / 4);
  CHECK(far < choices / 50);  // costs that fell further away than is looked
}

}  // namespace
}  // namespace lowtide
