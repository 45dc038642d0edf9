#include "src/plan/bring_back.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "src/plan/online_policy.h"

namespace lowtide {
namespace {

struct Fixture {
  RecipeGraph graph{std::make_unique<OnlinePolicy>()};
  std::uint64_t clock = 0;
  StorageId storage() { return graph.add_storage(8); }
  OpId op(std::initializer_list<StorageId> reads, std::initializer_list<StorageId> writes) {
    return graph.add_op(10, {reads.begin(), reads.size()}, {writes.begin(), writes.size()},
                        ++clock);
  }
  void drop(StorageId id) {
    graph.set_droppable(id, true);
    graph.dropped(id);
  }
};

TEST_CASE("a shared ancestor is run once, before both of those that need it") {
  Fixture f;
  const StorageId x = f.storage(), a = f.storage(), b = f.storage(), c = f.storage();
  const OpId to_a = f.op({x}, {a}), to_b = f.op({a}, {b}), to_c = f.op({a, b}, {c});
  for (const StorageId id : {a, b, c}) f.drop(id);
  const BringBackPlan plan = bring_back_plan(f.graph, {{c, b}});
  CHECK(plan.ops == std::vector{to_a, to_b, to_c});
  CHECK(plan.cost_ns == 30);
}

TEST_CASE("an op with several dropped outputs is run once") {
  Fixture f;
  const StorageId x = f.storage(), a = f.storage(), b = f.storage();
  const OpId op = f.op({x}, {a, b});
  f.drop(a);
  f.drop(b);
  CHECK(bring_back_plan(f.graph, {{a, b}}).ops == std::vector{op});
}

TEST_CASE("a copied storage is read once, and nothing is run for it") {
  Fixture f;
  const StorageId x = f.storage(), a = f.storage(), b = f.storage(), c = f.storage();
  f.op({x}, {a});
  const OpId to_b = f.op({a}, {b}), to_c = f.op({a, b}, {c});
  f.graph.set_copy_cost(a, CopyCost{1, 1, 0});
  f.graph.set_droppable(a, true);
  f.graph.dropped(a, Way::kCopy);
  f.drop(b);
  f.drop(c);
  const BringBackPlan plan = bring_back_plan(f.graph, {{c, a}});
  CHECK(plan.reads == std::vector{a});
  CHECK(plan.ops == std::vector{to_b, to_c});
  CHECK(bring_back_plan(f.graph, {{a}}).ops.empty());
  // Without the copy its recipe runs.
  f.graph.copy_gone(a);
  CHECK(bring_back_plan(f.graph, {{a}}).reads.empty());
  CHECK(bring_back_plan(f.graph, {{a}}).ops.size() == 1);
}

TEST_CASE("an older version of a copied storage is made by its recipe") {
  Fixture f;
  const StorageId x = f.storage(), a = f.storage(), b = f.storage();
  const OpId to_a = f.op({x}, {a}), to_b = f.op({a}, {b});
  f.op({a, x}, {a});  // in place
  f.graph.set_copy_cost(a, CopyCost{1, 1, 0});
  f.graph.set_droppable(a, true);
  f.graph.dropped(a, Way::kCopy);
  f.drop(b);
  const BringBackPlan plan = bring_back_plan(f.graph, {{b}});
  CHECK(plan.reads.empty());
  CHECK(plan.ops == std::vector{to_a, to_b});
  REQUIRE(plan.rebuilds.size() == 2);
  CHECK(plan.rebuilds[0].storage == b);
  CHECK(plan.rebuilds[1].aside);
}

TEST_CASE("what is there is not run, nor anything before it") {
  Fixture f;
  const StorageId x = f.storage(), a = f.storage(), b = f.storage(), c = f.storage();
  f.op({x}, {a});
  f.op({a}, {b});
  const OpId to_c = f.op({b}, {c});
  f.drop(a);
  f.drop(c);
  CHECK(bring_back_plan(f.graph, {{c}}).ops == std::vector{to_c});
  CHECK(bring_back_plan(f.graph, {{b}}).ops.empty());
}

TEST_CASE("a reader of older contents makes them be rebuilt aside") {
  Fixture f;
  const StorageId x = f.storage(), h = f.storage(), y = f.storage();
  const OpId to_h = f.op({x}, {h}), to_y = f.op({h}, {y});
  f.op({h}, {h});
  f.drop(y);
  const BringBackPlan plan = bring_back_plan(f.graph, {{y}});
  CHECK(plan.ops == std::vector{to_h, to_y});
  const auto h_rebuild = std::find_if(plan.rebuilds.begin(), plan.rebuilds.end(),
                                      [&](const Rebuild& r) { return r.storage == h; });
  REQUIRE(h_rebuild != plan.rebuilds.end());
  CHECK(h_rebuild->aside);
  CHECK(h_rebuild->version == 1);
}

// The twin: every storage has a value, an op's outputs are a hash of its inputs' values. A plan is
// right when running it on values alone gives back what was dropped.
using Value = std::uint64_t;
Value mix(Value a, Value b) {
  a ^= b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2);
  return a * 0xff51afd7ed558ccdull;
}

TEST_CASE(
    "a plan run on values gives the values that were there, over random ops with writes in place") {
  std::mt19937 random(3);
  int planned = 0;
  for (int round = 0; round < 400; ++round) {
    Fixture f;
    std::vector<StorageId> ids{f.storage(), f.storage()};
    std::map<StorageId, Value> truth{{ids[0], 1}, {ids[1], 2}};
    const auto compute = [](OpId op, const std::vector<Value>& inputs, std::size_t output) {
      Value value = mix(op.index() + 100, output);
      for (const Value input : inputs) value = mix(value, input);
      return value;
    };
    std::map<OpId, std::vector<StorageId>> outputs;
    for (int i = 0; i < 20; ++i) {
      std::vector<StorageId> reads{ids[random() % ids.size()], ids[random() % ids.size()]};
      if (reads[0] == reads[1]) reads.pop_back();
      std::vector<StorageId> writes;
      const bool source = !f.graph.has_recipe(reads[0]);
      if (random() % 3 == 0 && !source) writes.push_back(reads[0]);
      if (writes.empty() || random() % 3 == 0) writes.push_back(f.storage());
      if (random() % 4 == 0) writes.push_back(f.storage());
      const OpId op = f.graph.add_op(10, reads, writes, ++f.clock);
      std::vector<Value> inputs;
      f.graph.for_reads(op,
                        [&](RecipeGraph::Read read) { inputs.push_back(truth.at(read.storage)); });
      for (std::size_t k = 0; k < writes.size(); ++k) {
        truth[writes[k]] = compute(op, inputs, k);
        if (std::find(ids.begin(), ids.end(), writes[k]) == ids.end()) ids.push_back(writes[k]);
      }
      outputs[op] = writes;
    }
    std::map<StorageId, Value> there = truth;
    std::vector<StorageId> targets;
    for (const StorageId id : ids) {
      if (!f.graph.has_recipe(id) || random() % 2) continue;
      f.drop(id);
      there.erase(id);
      if (random() % 2) targets.push_back(id);
    }
    const BringBackPlan plan = bring_back_plan(f.graph, targets);
    std::set<OpId> once(plan.ops.begin(), plan.ops.end());
    CHECK(once.size() == plan.ops.size());
    std::map<StorageId, std::pair<std::uint32_t, Value>> aside;  // version and value
    for (const OpId op : plan.ops) {
      std::vector<Value> inputs;
      f.graph.for_reads(op, [&](RecipeGraph::Read read) {
        if (there.count(read.storage) && f.graph.version(read.storage) == read.version) {
          inputs.push_back(there.at(read.storage));
        } else {
          REQUIRE(aside.count(read.storage));
          REQUIRE(aside.at(read.storage).first == read.version);
          inputs.push_back(aside.at(read.storage).second);
        }
      });
      for (std::size_t k = 0; k < outputs[op].size(); ++k) {
        const StorageId id = outputs[op][k];
        std::uint32_t version = 0;
        f.graph.for_writes(op, [&](StorageId written, std::uint32_t after) {
          if (written == id) version = after;
        });
        aside[id] = {version, compute(op, inputs, k)};
        if (version == f.graph.version(id) && !there.count(id)) there[id] = aside[id].second;
      }
    }
    for (const StorageId target : targets) {
      REQUIRE(there.count(target));
      CHECK(there.at(target) == truth.at(target));
      ++planned;
    }
  }
  CHECK(planned > 500);
}

}  // namespace
}  // namespace lowtide
