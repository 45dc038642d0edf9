#pragma once
// What is best kept across one moment of a step, and what no schedule can beat there.
//
//   KeepSets sets(graph, event);               // while the op of that event runs
//   KeepSet best = sets.within(room_bytes);    // by price of a byte, bisected
//   sets.free_bytes(budget);                   // what is left for it
//
// Whatever is used after the moment is either there at the moment or made again after it, each op
// at least once. The cheapest set of a given size is a minimum cut when every byte has a price; the
// price that fills the room is found by bisection. The cut less the price of the room is a lower
// bound on the extra time of every schedule that runs the ops in the trace's order (Lagrangian
// relaxation).
//
// The op of a view that is made again for another op only is taken as free: its cost depends on two
// choices at once, which no cut can express.
//
// Internal to the planners.

#include <cstdint>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/step_graph.h"

namespace lowtide {

// The largest flow through a network, by Dinic's algorithm.
class FlowNetwork {
 public:
  static constexpr std::int64_t kInfinite = std::int64_t{1} << 60;

  std::uint32_t add_node();
  // Returns the edge's number, for set_capacity().
  std::uint32_t add_edge(std::uint32_t from, std::uint32_t to, std::int64_t capacity);
  void set_capacity(std::uint32_t edge, std::int64_t capacity) { capacity_[edge] = capacity; }
  // From node 0 to node 1.
  std::int64_t max_flow();
  // After max_flow(): whether the node is on node 0's side of the cut nearest to it.
  bool is_source_side(std::uint32_t node) const { return level_[node] >= 0; }

 private:
  struct Edge {
    std::uint32_t to;
    std::uint32_t next;
    std::int64_t left;
  };
  bool find_levels();

  std::vector<Edge> edges_;  // in pairs, there and back
  std::vector<std::int64_t> capacity_;
  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> at_;
  std::vector<std::int32_t> level_;
  std::vector<std::uint32_t> queue_;
  std::vector<std::uint32_t> path_;
};

struct KeepSet {
  std::vector<std::uint32_t> values;
  Bytes bytes = 0;
  double bound_ns = 0;  // extra time that no schedule with that room can go below
};

class KeepSets {
 public:
  KeepSets(const StepGraph& graph, std::uint32_t event);

  // What a budget leaves beside what must be there at the moment; negative: not even that fits.
  std::int64_t free_bytes(Bytes budget) const {
    return static_cast<std::int64_t>(budget) - static_cast<std::int64_t>(fixed_bytes_);
  }
  // The cheapest set that fits, but for the step of the bisection, and the bound for that room.
  // `far_tilt` raises the price of what is used late: 0 for none (the bound holds for 0 only).
  KeepSet within(std::int64_t room_bytes, double far_tilt = 0, int cuts = 14);
  // Bytes of all that could be kept.
  Bytes all_bytes() const { return all_bytes_; }

 private:
  struct Candidate {
    std::uint32_t value;
    std::uint32_t node;
    std::uint32_t target;
    std::uint32_t edge;
    double far;  // until its next use, as a part of what is left of the step
  };
  KeepSet cut(double price, std::int64_t room_bytes, double far_tilt);

  const StepGraph& graph_;
  double units_;  // of capacity in a ns
  FlowNetwork network_;
  std::vector<Candidate> candidates_;
  Bytes fixed_bytes_ = 0;
  Bytes all_bytes_ = 0;
  std::uint64_t op_ns_ = 0;  // of all that could have to run again
};

}  // namespace lowtide
