#pragma once
// One pass over a step inside a budget, dropping by a score that knows the future.
//
//   GreedyRun run(graph);
//   GreedyOptions options;
//   options.budget_bytes = ...;
//   GreedyResult result = run(options);
//   if (result.done) use(result.replays);
//
// score(v) = (own + live_weight * L + D + child_weight * C) / (bytes * until_next_use ^ power)
// with own, L, D and C as in online_policy.h. The lowest goes first; what is of no use any more
// goes before all others.
//
// Internal to the planners. Not thread-safe; keeps its scratch space between runs.

#include <cstdint>
#include <span>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/step_graph.h"

namespace lowtide {

struct GreedyOptions {
  static constexpr float kKeep = 1e6f;
  Bytes budget_bytes = 0;
  double live_weight = 0.3;
  double child_weight = 0.1;
  int distance_quarters = 2;  // of the power of the time until the next use: 1 to 4
  // By slot of a value, what scores are multiplied with; empty: 1 for all. kKeep for what is to
  // stay.
  std::span<const float> weights;
  // Gives up past so much time; 0: three times the plain time.
  std::uint64_t time_limit_ns = 0;
  // Values visited to weigh one.
  int walk_limit = 100;
};

// Ops run again, in order; each just before the trace event.
struct Replay {
  std::uint32_t event = 0;
  std::uint32_t op = 0;
  bool operator==(const Replay&) const = default;
};

struct GreedyResult {
  bool done = false;
  std::uint64_t total_ns = 0;
  std::uint64_t drops = 0;
  std::vector<Replay> replays;
};

class GreedyRun {
 public:
  explicit GreedyRun(const StepGraph& graph);
  GreedyResult operator()(const GreedyOptions& options);

 private:
  struct Entry {
    float score;
    std::uint32_t value;
    std::uint32_t stamp;
  };
  static bool dearer(const Entry& a, const Entry& b) { return a.score > b.score; }

  void reset();
  bool step(std::uint32_t event);
  bool run_op(std::uint32_t op);
  bool bring_back(std::span<const std::uint32_t> targets);
  void collect_missing(std::span<const std::uint32_t> targets);
  bool replay(std::uint32_t op);
  bool make_room(Bytes more);
  std::uint32_t choose();
  void appear(std::uint32_t value);
  void drop(std::uint32_t value);
  void vanish(std::uint32_t value, bool may_be_asked_for);
  void used(std::uint32_t value);
  void hold(std::uint32_t value, int change);
  void offer(std::uint32_t value);
  float score(std::uint32_t value);
  double ancestors_ns(std::uint32_t value);
  double descendants_ns(std::uint32_t value);
  void update_needed(std::uint32_t first);
  void refresh_around(std::uint32_t value);
  void start_walk();

  bool has_future(std::uint32_t value) const {
    return next_use_[value] < graph_.uses(value).size();
  }
  bool droppable(std::uint32_t value) const {
    return present_[value] && !fixed_[value] && held_[value] == 0 && bytes_[value] > 0;
  }
  bool mark(std::uint32_t value) {
    return value_mark_[value] != epoch_ && (value_mark_[value] = epoch_, true);
  }
  bool mark_op(std::uint32_t op) { return op_mark_[op] != epoch_ && (op_mark_[op] = epoch_, true); }

  const StepGraph& graph_;
  GreedyOptions options_;
  GreedyResult result_;
  // By value.
  std::vector<Bytes> bytes_;
  std::vector<std::uint32_t> root_;
  std::vector<std::uint32_t> producer_;
  std::vector<std::uint8_t> fixed_;
  std::vector<std::uint8_t> present_;
  std::vector<std::uint8_t> needed_;  // not there, and asked for again or wanted by what is
  std::vector<std::uint16_t> held_;
  std::vector<std::uint16_t> locked_;
  std::vector<std::uint16_t> soft_;
  std::vector<std::uint32_t> next_use_;
  std::vector<std::uint32_t> stamp_;
  std::vector<std::uint32_t> needed_readers_;
  std::vector<std::uint32_t> value_mark_;
  // By op.
  std::vector<std::uint32_t> needed_outputs_;
  std::vector<std::uint32_t> op_mark_;
  std::vector<float> cost_;

  std::vector<Entry> heap_;
  std::vector<Entry> set_aside_;
  std::vector<std::uint32_t> expiring_;  // fixed ones by their last need
  std::vector<std::uint32_t> free_;      // perhaps of no use any more
  std::vector<std::uint32_t> stack_;
  std::vector<std::uint32_t> plan_;
  std::vector<std::uint32_t> targets_;
  std::vector<std::uint32_t> missing_;
  std::uint32_t epoch_ = 0;
  std::uint32_t event_ = 0;
  std::uint64_t clock_ns_ = 0;
  std::uint64_t limit_ns_ = 0;
  Bytes live_ = 0;
};

}  // namespace lowtide
