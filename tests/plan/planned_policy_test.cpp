#include "src/plan/planned_policy.h"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "src/plan/recipe_graph.h"

using namespace lowtide;  // the tests of one header

namespace {

using Kind = PlanStep::Kind;

// x = source; a = f(x); b = f(a); c = f(b).
struct Chain {
  Chain() {
    x = trace.add_source(10);
    for (StorageId* id : {&a, &b, &c}) *id = trace.add_storage(100);
    trace.run(1, {{x}}, {{a}});
    trace.run(1, {{a}}, {{b}});
    trace.run(1, {{b}}, {{c}});
  }
  Trace trace;
  StorageId x, a, b, c;
};

}  // namespace

TEST_CASE("a gap lasts from the drop to the op's next run") {
  const Chain chain;
  Plan plan;
  plan.steps = {{3, Kind::kDrop, chain.a.index(), 0},
                {5, Kind::kReplay, 0, 0},
                {6, Kind::kDrop, chain.a.index(), 0},
                {7, Kind::kDrop, chain.b.index(), 0}};
  const PlanGaps gaps(chain.trace, plan);
  CHECK(!gaps.end_of_gap(chain.a, 2));
  CHECK(gaps.end_of_gap(chain.a, 3) == 5u);
  CHECK(gaps.end_of_gap(chain.a, 4) == 5u);
  CHECK(!gaps.end_of_gap(chain.a, 5));
  CHECK(gaps.end_of_gap(chain.a, 6) == PlanGaps::kNever);
  CHECK(gaps.end_of_gap(chain.b, 100) == PlanGaps::kNever);
  CHECK(!gaps.end_of_gap(chain.c, 100));
}

TEST_CASE("an older version that the plan drops is no gap of the latest") {
  Chain chain;
  chain.trace.run(1, {{chain.a}}, {{chain.a}});  // in place
  Plan plan;
  plan.steps = {{3, Kind::kDrop, chain.a.index(), 0}};
  CHECK(!PlanGaps(chain.trace, plan).end_of_gap(chain.a, 3));
  plan.steps = {{3, Kind::kDrop, chain.a.index(), 1}, {5, Kind::kReplay, 3, 0}};
  CHECK(PlanGaps(chain.trace, plan).end_of_gap(chain.a, 4) == 5u);
  plan.steps = {{3, Kind::kDrop, chain.a.index(), 1}, {5, Kind::kReplay, 0, 0}};
  CHECK(PlanGaps(chain.trace, plan).end_of_gap(chain.a, 6) == PlanGaps::kNever);
}

TEST_CASE("what the plan drops goes first, the latest to come back before others, then the rest") {
  const Chain chain;
  Plan plan;
  plan.steps = {{2, Kind::kDrop, chain.a.index(), 0},
                {2, Kind::kDrop, chain.b.index(), 0},
                {8, Kind::kReplay, 1, 0},
                {9, Kind::kReplay, 0, 0}};
  auto policy =
      std::make_unique<PlannedPolicy>(std::make_shared<const PlanGaps>(chain.trace, plan));
  PlannedPolicy& follow = *policy;
  RecipeGraph graph(std::move(policy));
  const StorageId x = graph.add_storage(10);
  const StorageId a = graph.add_storage(100);
  const StorageId b = graph.add_storage(100);
  const StorageId c = graph.add_storage(100);
  graph.add_op(1, {{x}}, {{a}}, 1);
  graph.add_op(1, {{a}}, {{b}}, 2);
  graph.add_op(1, {{b}}, {{c}}, 3);
  follow.bind(a, chain.a);
  follow.bind(b, chain.b);
  follow.bind(c, chain.c);
  for (const StorageId id : {a, b, c}) graph.set_droppable(id, true);

  // Until the plan's drops are reached nothing of it may go.
  CHECK(graph.next_victim(1, 4).has_value());
  CHECK(follow.choices_beyond_plan() == 1);

  follow.reach(2);
  CHECK(graph.next_victim(1, 5) == a);
  graph.hold(a, Hold::kSoft);
  CHECK(graph.next_victim(1, 5) == b);
  graph.unhold(a, Hold::kSoft);
  graph.dropped(*graph.next_victim(1, 5));
  CHECK(!graph.is_there(a));
  CHECK(graph.next_victim(1, 6) == b);
  // Denied ones are passed over until something changes.
  graph.deny(b, 6);
  CHECK(graph.next_victim(1, 6) == c);
  CHECK(follow.choices_beyond_plan() == 2);
  graph.brought_back(a);
  CHECK(graph.next_victim(1, 7) == a);
  // The gaps are over: all that is left is beyond the plan.
  follow.reach(9);
  graph.next_victim(1, 8);
  CHECK(follow.choices_beyond_plan() == 3);
}
