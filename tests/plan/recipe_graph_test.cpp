#include "src/plan/recipe_graph.h"

#include <doctest/doctest.h>

#include <vector>

#include "lowtide/error.h"
#include "src/plan/bring_back.h"
#include "src/plan/online_policy.h"

namespace lowtide {
namespace {

std::unique_ptr<DropPolicy> policy() { return std::make_unique<OnlinePolicy>(); }

std::vector<OpId> recipe(const RecipeGraph& graph, StorageId id) {
  std::vector<OpId> ops;
  graph.for_recipe(id, [&](OpId op, std::uint32_t) {
    ops.push_back(op);
    return true;
  });
  return ops;
}

TEST_CASE("a recipe is the op that made a storage and its in-place writes, in order") {
  RecipeGraph graph(policy());
  const StorageId x = graph.add_storage(8);
  const StorageId h = graph.add_storage(8);
  const OpId made = graph.add_op(10, {{x}}, {{h}}, 1);
  const OpId written = graph.add_op(10, {{h, x}}, {{h}}, 2);
  CHECK(recipe(graph, h) == std::vector{made, written});
  CHECK(graph.version(h) == 2);
  CHECK_FALSE(graph.has_recipe(x));
}

TEST_CASE("an argument read twice is one read") {
  RecipeGraph graph(policy());
  const StorageId x = graph.add_storage(8);
  const StorageId y = graph.add_storage(8);
  const StorageId z = graph.add_storage(8);
  const OpId op = graph.add_op(10, {{x, y, x}}, {{z, z}}, 1);
  int reads = 0;
  graph.for_reads(op, [&](RecipeGraph::Read) { ++reads; });
  CHECK(reads == 2);
  CHECK(graph.version(z) == 1);
}

TEST_CASE("a write in place over a source leaves it a source, at a new version") {
  RecipeGraph graph(policy());
  const StorageId w = graph.add_storage(8);
  const OpId op = graph.add_op(10, {{w}}, {{w}}, 1);
  CHECK_FALSE(op.valid());
  CHECK_FALSE(graph.has_recipe(w));
  CHECK(graph.version(w) == 1);
  CHECK(graph.op_count() == 0);
}

TEST_CASE("what was rebuilt from a source that has changed since is named") {
  RecipeGraph graph(policy());
  const StorageId w = graph.add_storage(8);
  const StorageId a = graph.add_storage(8);
  const StorageId b = graph.add_storage(8);
  graph.add_op(10, {{w}}, {{a}}, 1);
  graph.add_op(10, {{a}}, {{b}}, 2);
  CHECK(graph.stale_readers(w).empty());
  CHECK(graph.dependents(w) == std::vector{a, b});
  graph.add_op(10, {{w}}, {{w}}, 3);
  CHECK(graph.stale_readers(w) == std::vector{a});
  // Rebuilding it from the new contents would be silently wrong.
  graph.set_droppable(a, true);
  graph.dropped(a);
  CHECK_THROWS_AS(bring_back_plan(graph, {{a}}), InternalError);
}

TEST_CASE("a storage is of no use once it is released and no recipe reads it") {
  RecipeGraph graph(policy());
  const StorageId x = graph.add_storage(8);
  const StorageId a = graph.add_storage(8);
  const StorageId b = graph.add_storage(8);
  graph.add_op(10, {{x}}, {{a}}, 1);
  graph.add_op(10, {{a}}, {{b}}, 2);
  graph.released(a);
  CHECK_FALSE(graph.next_useless());
  graph.hold(b, Hold::kHard);
  graph.released(b);
  CHECK_FALSE(graph.next_useless());
  graph.unhold(b, Hold::kHard);
  CHECK(graph.next_useless() == b);
  graph.forgotten(b);
  CHECK(graph.next_useless() == a);
  graph.forgotten(a);
  CHECK_FALSE(graph.next_useless());
  CHECK(graph.op_count() == 0);
  CHECK_FALSE(graph.is_read(x));
}

TEST_CASE("an op lives as long as one of its outputs") {
  RecipeGraph graph(policy());
  const StorageId x = graph.add_storage(8);
  const StorageId a = graph.add_storage(8);
  const StorageId b = graph.add_storage(8);
  const OpId op = graph.add_op(10, {{x}}, {{a, b}}, 1);
  graph.forgotten(a);
  CHECK(recipe(graph, b) == std::vector{op});
  graph.forgotten(b);
  CHECK(graph.op_count() == 0);
}

TEST_CASE("recipes that read a forgotten storage keep no id of it, though its slot is used again") {
  RecipeGraph graph(policy());
  const StorageId x = graph.add_storage(8);
  const StorageId a = graph.add_storage(8);
  const OpId op = graph.add_op(10, {{x}}, {{a}}, 1);
  graph.forgotten(x);
  const StorageId other = graph.add_storage(99);
  CHECK(other == x);
  graph.for_reads(op, [&](RecipeGraph::Read read) { CHECK_FALSE(read.storage.valid()); });
  CHECK_FALSE(graph.is_read(other));
}

TEST_CASE("a thousand steps do not grow the graph") {
  RecipeGraph graph(policy());
  const StorageId w = graph.add_storage(1 << 20);
  std::uint64_t clock = 0;
  Bytes settled = 0;
  for (int step = 0; step < 1000; ++step) {
    std::vector<StorageId> made;
    StorageId last = w;
    for (int i = 0; i < 50; ++i) {
      const StorageId next = graph.add_storage(1 << 10);
      graph.add_op(100, {{last, w}}, {{next}}, clock += 100);
      graph.set_droppable(next, true);
      made.push_back(next);
      last = next;
    }
    if (const auto victim = graph.next_victim(1, clock)) {
      if (step % 2) {
        graph.dropped(*victim);
      } else {
        graph.deny(*victim, clock);
      }
    }
    for (const StorageId id : made) graph.released(id);
    while (const auto id = graph.next_useless()) graph.forgotten(*id);
    CHECK(graph.storage_count() == 1);
    if (step == 10) settled = graph.memory_bytes();
  }
  CHECK(graph.memory_bytes() == settled);
}

TEST_CASE("a chain of a hundred thousand is planned, and forgotten, without recursion") {
  RecipeGraph graph(policy());
  constexpr int kLength = 100'000;
  StorageId last = graph.add_storage(8);
  std::vector<StorageId> made;
  for (int i = 0; i < kLength; ++i) {
    const StorageId next = graph.add_storage(8);
    graph.add_op(1, {{last}}, {{next}}, static_cast<std::uint64_t>(i));
    made.push_back(next);
    last = next;
  }
  for (const StorageId id : made) {
    graph.set_droppable(id, true);
    graph.dropped(id);
  }
  CHECK(bring_back_plan(graph, {{last}}).ops.size() == kLength);
  for (const StorageId id : made) graph.released(id);
  int forgotten = 0;
  while (const auto id = graph.next_useless()) {
    graph.forgotten(*id);
    ++forgotten;
  }
  CHECK(forgotten == kLength);
}

}  // namespace
}  // namespace lowtide
