#pragma once
// The best schedule of a step whose forward pass is a chain, by dynamic programming.
//
//   const ChainPlan chain(graph);
//   if (chain.possible()) auto replays = chain(budget);
//
// A chain: the step begins with ops of one output each that read only the output of the one before
// (and what is always there); then come ops that ask for these outputs from the last to the first,
// as a backward pass does. What they make is not run again.
//
// After A. Griewank and A. Walther, Revolve (2000), for the recursion, and O. Beaumont,
// L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, Optimal checkpointing for heterogeneous
// chains (2019), for ops of different times and outputs of different bytes: the best of all
// schedules that keep an output, once kept, until its use. chain_plan.cpp says how.
//
// Internal to the planners.

#include <cstdint>
#include <optional>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/greedy_run.h"
#include "src/plan/schedule.h"
#include "src/plan/step_graph.h"

namespace lowtide {

class ChainPlan {
 public:
  // Of a search: links^3 / 6 times the units of room; about 15 ns each. Within it kept bytes are
  // counted in units, which is exact where the outputs' bytes have a common divisor that large, and
  // else on the safe side.
  static constexpr std::uint64_t kMostWork = 60'000'000;

  explicit ChainPlan(const StepGraph& graph);

  bool possible() const { return links_.size() >= kFewest; }
  // nullopt: no schedule of that kind fits. Its peak is to be checked: what the program holds is
  // not looked at.
  std::optional<std::vector<Replay>> operator()(Bytes budget,
                                                std::uint64_t most_work = kMostWork) const;

 private:
  static constexpr std::size_t kFewest = 3;
  static constexpr std::size_t kMost = 400;
  static constexpr std::uint32_t kNever = 0xffffffffu;

  struct Link {
    std::uint32_t value = 0;
    std::uint32_t op = 0;
    std::uint64_t cost_ns = 0;
    Bytes bytes = 0;
    Bytes working_bytes = 0;
    std::uint32_t event = 0;           // of its run
    std::uint32_t first_use = kNever;  // event after the chain that asks for it
    std::uint32_t last_use = kNever;
  };
  class Search;

  bool find_links(const StepGraph& graph);
  void weigh_others(const StepGraph& graph);

  std::vector<Link> links_;
  std::uint32_t end_ = 0;             // events
  std::vector<Bytes> others_at_;      // live at each event beside the links, working bytes too
  std::vector<Bytes> others_before_;  // and just before it
};

}  // namespace lowtide
