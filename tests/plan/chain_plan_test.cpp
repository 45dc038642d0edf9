#include "src/plan/chain_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "src/plan/planner.h"
#include "src/plan/schedule.h"
#include "src/plan/step_graph.h"
#include "tests/plan/best_schedule.h"
#include "tests/plan/made_traces.h"

namespace lowtide {
namespace {

struct ChainOptions {
  int length = 4;
  Bytes most_bytes = 8;
  bool reads_input = false;  // backward reads an op's input, else its output
  bool keeps = false;        // each backward op makes a parameter's gradient too, kept to the end
  bool working = false;
};

// Forward ops of random times and bytes, and backward over them.
Trace random_chain(std::mt19937& random, const ChainOptions& options) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  Trace trace;
  std::vector<StorageId> made{trace.add_source(1)};
  std::vector<StorageId> kept;
  for (int i = 0; i < options.length; ++i) {
    const StorageId out = trace.add_storage(1 + below(options.most_bytes));
    trace.run(1000 * (1 + below(20)), {{made.back()}}, {{out}}, options.working ? below(4) : 0);
    made.push_back(out);
  }
  StorageId gradient;
  for (std::size_t i = made.size() - 1; i > 0; --i) {
    std::vector<StorageId> reads{options.reads_input ? made[i - 1] : made[i]};
    if (gradient.valid()) reads.push_back(gradient);
    const StorageId next = trace.add_storage(1 + below(options.most_bytes));
    std::vector<StorageId> writes{next};
    if (options.keeps) {
      kept.push_back(trace.add_storage(1));
      writes.push_back(kept.back());
    }
    trace.run(1000 * (1 + below(20)), reads, writes, options.working ? below(4) : 0);
    if (gradient.valid()) trace.release(gradient);
    trace.release(made[i]);
    gradient = next;
  }
  trace.pin(gradient);
  for (const StorageId id : kept) trace.pin(id);
  return trace;
}

// Whether each link's output goes at once, into the next link, or stays until it is asked for.
bool keeps_until_use(const Schedule& schedule, const std::vector<std::uint32_t>& first_use) {
  for (const Schedule::Instance& instance : schedule.instances()) {
    const std::uint32_t use = first_use[instance.value];
    if (use == StepGraph::kNone || instance.last <= instance.first + 1) continue;
    // In a forward pass other events may lie between a link and the next one.
    bool is_passed_on = true;
    for (std::uint32_t at = instance.first + 1; at < instance.last; ++at) {
      is_passed_on &= schedule.items()[at].op == StepGraph::kNone;
    }
    if (!is_passed_on && schedule.items()[instance.last].event < use) return false;
  }
  return true;
}

// The slow twin: before the use of each link either nothing runs again, or a run of links that ends
// with it; all combinations. What has to stay for that follows from Schedule.
std::optional<std::uint64_t> best_late_ns(const StepGraph& graph, Bytes budget, bool reads_input,
                                          int length) {
  struct Use {
    std::uint32_t event;
    int link;
  };
  std::vector<Use> uses;
  std::vector<std::uint32_t> link_ops;
  int backward = 0;
  for (std::uint32_t event = 0; event < graph.end(); ++event) {
    const StepGraph::Step& step = graph.steps()[event];
    if (step.kind != StepGraph::Step::Kind::kRun) continue;
    if (static_cast<int>(link_ops.size()) < length) {
      link_ops.push_back(step.index);
    } else {
      const int link = length - 1 - backward++ - (reads_input ? 1 : 0);
      if (link >= 0) uses.push_back({event, link});
    }
  }
  std::vector<std::uint32_t> first_use(graph.values().size(), StepGraph::kNone);
  for (const Use& use : uses) {
    first_use[graph.writes(link_ops[static_cast<std::size_t>(use.link)])[0]] = use.event;
  }
  std::optional<std::uint64_t> best;
  std::vector<int> start(uses.size(), 0);  // from which link; one past the use's: nothing
  while (true) {
    std::vector<Replay> replays;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      for (int link = start[i]; link <= uses[i].link; ++link) {
        replays.push_back({uses[i].event, link_ops[static_cast<std::size_t>(link)]});
      }
    }
    const Schedule schedule(graph, std::move(replays));
    if (schedule.is_sound() && schedule.peak_bytes() <= budget &&
        (!best || schedule.total_ns() < *best) && keeps_until_use(schedule, first_use)) {
      best = schedule.total_ns();
    }
    std::size_t digit = 0;
    while (digit < uses.size() && ++start[digit] > uses[digit].link + 1) start[digit++] = 0;
    if (digit == uses.size()) return best;
  }
}

struct Tally {
  int compared = 0;
  int other = 0;  // a schedule of another kind is better
  double worst = 1;
};

void compare(std::mt19937& random, const ChainOptions& options, Tally& tally) {
  const Trace trace = random_chain(random, options);
  const StepGraph graph(trace);
  const ChainPlan chain(graph);
  REQUIRE(chain.possible());
  const Bytes peak = natural_peak(trace);
  const Bytes floor = lowest_budget(trace).bytes;
  for (Bytes budget = floor; budget < peak; budget += 1 + (peak - floor) / 6) {
    CAPTURE(budget);
    const auto best = testing::best_schedule_ns(trace, budget);
    const auto late = best_late_ns(graph, budget, options.reads_input, options.length);
    auto replays = chain(budget);
    REQUIRE(replays.has_value() == late.has_value());
    if (!replays) continue;
    const Schedule schedule(graph, std::move(*replays));
    CHECK(schedule.is_sound());
    CHECK(schedule.peak_bytes() <= budget);
    CHECK(schedule.total_ns() == *late);
    REQUIRE(best.has_value());
    CHECK(schedule.total_ns() >= *best);
    ++tally.compared;
    tally.other += schedule.total_ns() > *best;
    tally.worst = std::max(tally.worst,
                           static_cast<double>(schedule.total_ns()) / static_cast<double>(*best));
  }
}

void compare_chains(int rounds, unsigned seed) {
  std::mt19937 random(seed);
  Tally tally;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    ChainOptions options;
    options.length = 4 + round % 3;
    options.reads_input = round % 2 == 1;
    options.working = round % 5 == 0;
    options.keeps = round % 7 == 0 && options.length < 6;
    compare(random, options, tally);
  }
  MESSAGE(tally.compared, " budgets; in ", tally.other,
          " a schedule of another kind is better, at most ", tally.worst, " times");
}

TEST_CASE("on small chains no schedule that keeps outputs until their use is better") {
  compare_chains(60, 21);
}

TEST_CASE("and so on hundreds" * doctest::test_suite("slow")) { compare_chains(600, 22); }

// Runs of forward ops in the best recursive schedule (planner_test.cpp), in closed form: with room
// for s kept values and up to r runs of each op, a chain of at most (s + r)! / (s! r!) ops
// (Griewank and Walther, 2000, proposition 1).
std::uint64_t revolve_runs(std::uint64_t length, std::uint64_t slots) {
  std::uint64_t reach = 1;  // with r runs
  std::uint64_t runs = 0;
  std::uint64_t total = 0;
  while (reach < length) {
    ++runs;
    const std::uint64_t before = reach;
    reach = reach * (slots + runs) / runs;
    total += runs * (std::min(reach, length) - before);
  }
  return total;
}

TEST_CASE("a unit chain of 200 costs what the recursion says") {
  const Trace trace = testing::unit_chain(200);
  const StepGraph graph(trace);
  const ChainPlan chain(graph);
  REQUIRE(chain.possible());
  for (const Bytes budget : {10, 20, 40, 100}) {
    CAPTURE(budget);
    auto replays = chain(budget, 4 * ChainPlan::kMostWork);  // a unit each
    REQUIRE(replays.has_value());
    const Schedule schedule(graph, std::move(*replays));
    CHECK(schedule.peak_bytes() <= budget);
    const std::uint64_t extra = (schedule.total_ns() - graph.plain_ns()) / 1'000'000;
    // At each backward op its input, the gradient and the next one are there beside what is kept.
    MESSAGE(budget, ": ", extra, " extra, revolve ", revolve_runs(200, budget - 3) - 200);
    CHECK(extra + 200 <= revolve_runs(200, budget - 3));
  }
}

TEST_CASE("what is no chain is left alone") {
  CHECK_FALSE(ChainPlan(StepGraph(testing::residual_net(4))).possible());
  CHECK_FALSE(ChainPlan(StepGraph(testing::u_net(3))).possible());
  CHECK_FALSE(ChainPlan(StepGraph(testing::tree_net(2))).possible());
}

}  // namespace
}  // namespace lowtide
