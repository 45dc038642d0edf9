#pragma once
// The best schedule of a small step, by A* over what is there at each event.
//
//   SmallSearch search(graph);
//   if (search.possible()) result = search(budget, known_ns, 1.0, 20'000);
//   result.complete;   // nothing better exists (with weight 1)
//
// Cost so far plus what must run again at least (each missing ancestor of what is still used, once)
// orders the states. With a weight above 1 on the second it finds something sooner, and proves
// nothing.
//
// Internal to the planners.

#include <cstdint>
#include <optional>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/greedy_run.h"
#include "src/plan/step_graph.h"

namespace lowtide {

struct SmallResult {
  std::optional<std::vector<Replay>> replays;  // of a schedule that takes less than `below_ns`
  bool complete = false;                       // every state that could lead to one was looked at
};

class SmallSearch {
 public:
  static constexpr std::size_t kMostValues = 64;

  explicit SmallSearch(const StepGraph& graph);
  // At most kMostValues values beside sources, and no views.
  bool possible() const { return possible_; }
  SmallResult operator()(Bytes budget, std::uint64_t below_ns, double weight,
                         int most_states) const;

 private:
  using Set = std::uint64_t;
  struct Op {
    Set reads = 0;
    Set writes = 0;
    Set consumed = 0;
    std::uint32_t until = StepGraph::kNone;  // an event: its sources are gone after it
    std::int64_t made_bytes = 0;             // with its working bytes, less what it overwrites
  };
  Bytes bytes_of(Set set) const;
  std::uint64_t missing_ns(std::uint32_t event, Set set) const;
  Set at_event(std::uint32_t event, Set set) const { return set & wanted_[event]; }

  const StepGraph& graph_;
  bool possible_ = false;
  std::vector<std::uint32_t> value_of_;  // by bit
  std::vector<Bytes> bytes_;             // by bit
  std::vector<std::uint32_t> producer_;  // by bit
  std::vector<Op> ops_;
  // By event.
  std::vector<Bytes> source_bytes_;
  std::vector<Set> held_;
  std::vector<Set> used_later_;  // by the step itself, in this event or after, and made before
  std::vector<Set> wanted_;      // by it or by what is made from it
};

}  // namespace lowtide
