#include "src/plan/step_follower.h"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "src/plan/online_policy.h"
#include "tests/plan/made_tapes.h"

using namespace lowtide;  // the tests of one header

namespace {

struct Followed {
  explicit Followed(int links = 6, std::uint32_t seed = 1)
      : step(std::make_shared<const KnownStep>(made_chain_tape(links, seed))),
        graph(std::make_unique<OnlinePolicy>()),
        follower(step, std::make_shared<const PlanGaps>(step->trace, Plan{}), graph) {}

  std::optional<std::uint32_t> pack(std::size_t n) {
    nodes.push_back(graph.add_storage(step->saved[n].bytes));
    return follower.packed(nodes.back(), step->saved[n].bytes, "");
  }

  std::shared_ptr<const KnownStep> step;
  RecipeGraph graph;
  StepFollower follower;
  std::vector<StorageId> nodes;
};

}  // namespace

TEST_CASE("a step that saves and asks as its tape says is followed to the end") {
  Followed f;
  for (std::uint32_t n = 0; n < 6; ++n) {
    f.follower.op_begins();
    CHECK(f.pack(n) == n);
  }
  CHECK(f.follower.is_whole());
  for (std::uint32_t n = 6; n-- > 0;) {
    CHECK(f.follower.unpacked(n));
    f.follower.op_begins();
  }
}

TEST_CASE("other bytes, another op and another sharing of storages are departures") {
  Followed f;
  REQUIRE(f.pack(0).has_value());
  const Bytes bytes = f.step->saved[1].bytes;
  CHECK(!f.follower.packed(f.graph.add_storage(bytes + 1), bytes + 1, "").has_value());
  CHECK(!f.follower.packed(f.graph.add_storage(bytes), bytes, "backward").has_value());
  CHECK(!f.follower.packed(f.nodes[0], bytes, "").has_value());
  CHECK(f.follower.packed(f.graph.add_storage(bytes), bytes, "forward") == 1u);
}

TEST_CASE("one saved tensor too many, and one asked for too early, are departures") {
  Followed f;
  for (std::size_t n = 0; n < 5; ++n) REQUIRE(f.pack(n).has_value());
  CHECK(!f.follower.unpacked(4));  // the sixth was to come first
  REQUIRE(f.pack(5).has_value());
  CHECK(!f.follower.packed(f.graph.add_storage(2048), 2048, "").has_value());
  CHECK(f.follower.unpacked(5));
  CHECK(!f.follower.unpacked(5));  // once is what the tape has
}

TEST_CASE("a step that began alike is known, and takes over where the first one stands") {
  Followed f;
  const KnownStep same(made_chain_tape(6, 1));
  const KnownStep other(made_chain_tape(6, 2));
  for (std::size_t n = 0; n < 3; ++n) REQUIRE(f.pack(n).has_value());
  const Bytes next = f.step->saved[3].bytes;
  const StorageId node = f.graph.add_storage(next);
  CHECK(f.follower.begins_like(same, node, next));
  CHECK(!f.follower.begins_like(same, node, next + 1));
  CHECK(!f.follower.begins_like(same, f.nodes[0], next));
  CHECK(!f.follower.begins_like(other, node, next));

  const std::vector<StorageId> nodes = f.follower.nodes();
  CHECK(nodes == f.nodes);
  StepFollower second(std::make_shared<const KnownStep>(made_chain_tape(6, 1)),
                      std::make_shared<const PlanGaps>(same.trace, Plan{}), f.graph);
  second.take_over(nodes);
  CHECK(second.packed(node, next, "") == 3u);
}
