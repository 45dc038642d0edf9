#include "src/sequence/revolve.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lowtide::sequence {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 4;

std::int64_t fewest_repeats(std::int64_t steps, std::int64_t states) {
  std::int64_t repeats = 0;
  if (states == 1) return steps - 1;
  while (reachable_steps(states, repeats) < steps) ++repeats;
  return repeats;
}

}  // namespace

std::int64_t reachable_steps(std::int64_t states, std::int64_t repeats) {
  if (states < 0 || repeats < 0) return 0;
  // C(n, k), with k the smaller: each partial product is itself a binomial.
  const std::int64_t k = std::min(states, repeats);
  const std::int64_t n = states + repeats;
  __int128 result = 1;
  for (std::int64_t i = 1; i <= k; ++i) {
    result = result * (n - k + i) / i;
    if (result > kMost) return kMost;
  }
  return static_cast<std::int64_t>(result);
}

std::int64_t fewest_runs(std::int64_t steps, std::int64_t states) {
  if (steps <= 1) return 0;
  if (states == 1) return steps * (steps - 1) / 2;
  const std::int64_t repeats = fewest_repeats(steps, states);
  return repeats * steps - reachable_steps(states + 1, repeats - 1);
}

std::int64_t steps_to_next_state(std::int64_t steps, std::int64_t states) {
  // Any m is best for which both parts stay within what their repeats reach: the first is run with
  // one repeat less, the second with one state less.
  const std::int64_t r = fewest_repeats(steps, states);
  const std::int64_t high =
      std::min(reachable_steps(states, r - 1), steps - reachable_steps(states - 1, r - 1));
  const std::int64_t low =
      std::max(reachable_steps(states, r - 2), steps - reachable_steps(states - 1, r));
  return std::clamp(std::max(high, low), std::int64_t{1}, steps - 1);
}

BlockPlan plan_blocks(std::int64_t steps, std::uint64_t bytes, std::uint64_t state_bytes,
                      std::uint64_t graph_bytes) {
  state_bytes = std::max<std::uint64_t>(state_bytes, 1);
  graph_bytes = std::max<std::uint64_t>(graph_bytes, 1);
  BlockPlan best{0, 0, 0, 0};
  if (bytes < graph_bytes + state_bytes) return best;
  const std::uint64_t most = std::min<std::uint64_t>((bytes - state_bytes) / graph_bytes,
                                                     static_cast<std::uint64_t>(steps));
  const auto consider = [&](std::int64_t block) {
    const std::uint64_t left =
        bytes - state_bytes - static_cast<std::uint64_t>(block) * graph_bytes;
    BlockPlan plan;
    plan.block_steps = block;
    plan.blocks = (steps + block - 1) / block;
    plan.states = 1 + static_cast<std::int64_t>(std::min<std::uint64_t>(
                          left / state_bytes, static_cast<std::uint64_t>(plan.blocks - 1)));
    // The first pass goes one block further than the schedule, to the end; a single block is the
    // whole graph, and needs none.
    plan.runs =
        plan.blocks == 1 ? 0 : std::max(steps, (fewest_runs(plan.blocks, plan.states) + 1) * block);
    // Of equals the longest: each block begins with the sums so far, which costs a pass over them.
    if (best.block_steps == 0 || plan.runs <= best.runs) best = plan;
  };
  // Each length while that is cheap, then in steps of a hundredth.
  for (std::int64_t block = 1; block <= static_cast<std::int64_t>(most);
       block += std::max<std::int64_t>(1, block / 100)) {
    consider(block);
  }
  consider(static_cast<std::int64_t>(most));
  return best;
}

std::uint64_t bytes_for_one_repeat(std::int64_t steps, std::uint64_t state_bytes,
                                   std::uint64_t graph_bytes) {
  // steps / k states and k graphs: least where both take the same.
  const double ideal = std::sqrt(static_cast<double>(steps) *
                                 static_cast<double>(std::max<std::uint64_t>(state_bytes, 1)) /
                                 static_cast<double>(std::max<std::uint64_t>(graph_bytes, 1)));
  const std::int64_t block = std::clamp(std::llround(ideal), 1LL, static_cast<long long>(steps));
  const std::int64_t blocks = (steps + block - 1) / block;
  return static_cast<std::uint64_t>(block) * graph_bytes +
         static_cast<std::uint64_t>(blocks) * state_bytes;
}

}  // namespace lowtide::sequence
