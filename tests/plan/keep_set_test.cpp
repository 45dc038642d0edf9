#include "src/plan/keep_set.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/plan/made_traces.h"

namespace lowtide {
namespace {

TEST_CASE("the largest flow is the smallest cut over all ways to cut") {
  std::mt19937 random(31);
  for (int round = 0; round < 1000; ++round) {
    const std::uint32_t nodes = 4 + random() % 7;
    FlowNetwork network;
    for (std::uint32_t i = 0; i < nodes; ++i) network.add_node();
    struct Edge {
      std::uint32_t from;
      std::uint32_t to;
      std::int64_t capacity;
    };
    std::vector<Edge> edges;
    for (std::uint32_t i = 0; i < 2 * nodes; ++i) {
      const Edge edge{static_cast<std::uint32_t>(random() % nodes),
                      static_cast<std::uint32_t>(random() % nodes),
                      static_cast<std::int64_t>(random() % 20)};
      if (edge.from == edge.to) continue;
      edges.push_back(edge);
      network.add_edge(edge.from, edge.to, edge.capacity);
    }
    std::int64_t least = FlowNetwork::kInfinite;
    for (std::uint32_t side = 0; side < 1u << nodes; ++side) {
      if ((side & 1) == 0 || (side & 2) != 0) continue;
      std::int64_t cut = 0;
      for (const Edge& edge : edges) {
        if ((side >> edge.from & 1) != 0 && (side >> edge.to & 1) == 0) cut += edge.capacity;
      }
      least = std::min(least, cut);
    }
    CHECK(network.max_flow() == least);
    std::int64_t found = 0;
    for (const Edge& edge : edges) {
      if (network.is_source_side(edge.from) && !network.is_source_side(edge.to)) {
        found += edge.capacity;
      }
    }
    CHECK(found == least);
  }
}

// A chain whose values are all used again: at the middle, keeping any set costs the runs of the
// others, so the best set of one size is known.
TEST_CASE("in a unit chain the bound is what does not fit, and the set fills the room") {
  const Trace trace = testing::unit_chain(20);
  const StepGraph graph(trace);
  std::uint32_t last_forward = 0;
  for (std::uint32_t op = 0; op < 20; ++op) last_forward = graph.ops()[op].event;
  KeepSets sets(graph, last_forward);
  // While the last forward op runs its input and output are there; 18 more are used later.
  CHECK(sets.free_bytes(10) == 8);
  CHECK(sets.all_bytes() == 18);
  for (std::int64_t room = 0; room <= 18; ++room) {
    const KeepSet set = sets.within(room);
    CHECK(set.bytes <= static_cast<Bytes>(room));
    CHECK(set.bound_ns <= 1e6 * static_cast<double>(18 - room) + 1);
    CHECK(set.bound_ns >= 0.99 * 1e6 * static_cast<double>(18 - room));
  }
}

}  // namespace
}  // namespace lowtide
