#pragma once
// The schedule of checkpointing over time: which states to keep while a sequence runs forward, and
// from which to run again when its backward gets there, so that the fewest steps are run again.
//
// Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26(1), 2000. With room for s states
// (that at the start counts) and every step run again at most r times, a sequence can have
// beta(s, r) = C(s + r, s) steps; for the smallest such r, l steps need
// t(l, s) = r l - beta(s + 1, r - 1) runs beside the one that records each step's graph, and not
// fewer.
//
// No tensors here. Tested by tests/sequence/revolve_test.cpp against dynamic programming.

#include <cstdint>

namespace lowtide::sequence {

// C(states + repeats, states), or the largest value there is where that is more.
std::int64_t reachable_steps(std::int64_t states, std::int64_t repeats);

// The fewest runs of a step without its graph, for `steps` >= 1 in room for `states` >= 1.
std::int64_t fewest_runs(std::int64_t steps, std::int64_t states);

// How far to run before the next state is kept: in [1, steps - 1], for steps >= 2, states >= 2, of
// which one is kept at the start.
std::int64_t steps_to_next_state(std::int64_t steps, std::int64_t states);

// How a sequence is cut into blocks, whose graphs are made whole, and how many blocks' first states
// are kept at most.
struct BlockPlan {
  std::int64_t block_steps = 1;
  std::int64_t blocks = 1;
  std::int64_t states = 1;
  // Runs of a step beside those that record a graph: the first pass and what is run again.
  std::int64_t runs = 0;
};

// The plan with the fewest runs for `steps` in `bytes`: the graph of a block, the states beside the
// first, which is the caller's, and one state under way. Returns block_steps 0 when not even blocks
// of one step and no kept state fit.
BlockPlan plan_blocks(std::int64_t steps, std::uint64_t bytes, std::uint64_t state_bytes,
                      std::uint64_t graph_bytes);

// The fewest bytes for `steps` with no step run more than once beside the first pass and the graph.
std::uint64_t bytes_for_one_repeat(std::int64_t steps, std::uint64_t state_bytes,
                                   std::uint64_t graph_bytes);

}  // namespace lowtide::sequence
