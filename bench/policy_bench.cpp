// What the bookkeeping of dropping costs, in ns of CPU time for each event and as a part of a step.
//
//   policy_bench                       made-up steps
//   LOWTIDE_DTR_LOGS=folder policy_bench   and DTR's operator logs
//
// "events" are what a runtime tells and asks: ops, releases, holds, drops, bring-backs. The times
// include the simulator's own loop. "planner's" is the same for one run of the planner's. "of a
// step" is that time against the plain time of the step's ops.

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

#include "src/plan/dtr_log.h"
#include "src/plan/greedy_run.h"
#include "src/plan/online_policy.h"
#include "src/plan/simulator.h"
#include "tests/plan/dtr_logs.h"
#include "tests/plan/made_traces.h"

namespace {

using namespace lowtide;

double cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

struct Measured {
  SimulationResult result;
  double median_ns = 0;
  double worst_ns = 0;
};

Measured measure(const Trace& trace, Bytes budget) {
  SimulationOptions options;
  options.budget_bytes = budget;
  options.time_limit = 3.2;
  Measured measured;
  std::vector<double> times;
  for (int run = 0; run < 6; ++run) {
    const double start = cpu_ns();
    measured.result = simulate(trace, options, std::make_unique<OnlinePolicy>());
    if (run > 0) times.push_back(cpu_ns() - start);  // the first warms up
  }
  std::sort(times.begin(), times.end());
  measured.median_ns = times[times.size() / 2];
  measured.worst_ns = times.back();
  return measured;
}

// The planner's own simulation, with the same events counted.
double greedy_ns_per_event(const StepGraph& graph, const Trace& trace, Bytes budget) {
  GreedyRun run(graph);
  GreedyOptions options;
  options.budget_bytes = budget;
  std::vector<double> each;
  for (int i = 0; i < 6; ++i) {
    const double start = cpu_ns();
    const GreedyResult result = run(options);
    const double events = static_cast<double>(trace.events.size() + result.drops) +
                          2.0 * static_cast<double>(result.replays.size());
    if (i > 0) each.push_back((cpu_ns() - start) / events);
  }
  std::sort(each.begin(), each.end());
  return each[each.size() / 2];
}

void report(const std::string& name, const Trace& trace) {
  const Bytes peak = natural_peak(trace);
  std::printf("%s: %zu ops, peak %s, floor %.3f, plain %.1f ms\n", name.c_str(), trace.ops.size(),
              format_bytes(peak).c_str(),
              static_cast<double>(lowest_budget(trace).bytes) / static_cast<double>(peak),
              static_cast<double>(plain_ns(trace)) / 1e6);
  std::printf("  budget  overhead     drops  replays  ns/event  worst   of a step  planner's\n");
  const StepGraph graph(trace);
  Bytes all = 0;
  for (const TraceStorage& storage : trace.storages) all += storage.bytes;
  for (const double part : {0.0, 1.0, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2}) {
    const Bytes budget =
        part == 0 ? 2 * all + peak : static_cast<Bytes>(part * static_cast<double>(peak));
    const Measured m = measure(trace, budget);
    const SimulationResult& r = m.result;
    const double events = static_cast<double>(trace.events.size() + r.drops + 2 * r.replays);
    std::printf("  %-6s  %s  %8llu %8llu  %8.0f %6.0f  %8.1f %%   %8.0f\n",
                part == 0 ? "room" : std::to_string(part).substr(0, 3).c_str(),
                r.done() ? std::to_string(r.overhead()).c_str() : "      --",
                static_cast<unsigned long long>(r.drops),
                static_cast<unsigned long long>(r.replays), m.median_ns / events,
                m.worst_ns / events, 100.0 * m.median_ns / static_cast<double>(r.total_ns),
                greedy_ns_per_event(graph, trace, budget));
  }
}

}  // namespace

int main() {
  report("chain of 10,000", testing::unit_chain(10'000));
  report("residual net, 32 blocks", testing::residual_net(32));
  report("dense net, 40 layers", testing::dense_net(40));
  report("recurrent net, 120 steps", testing::recurrent_net(120));
  const std::string folder = testing::dtr_log_folder();
  if (folder.empty()) {
    std::printf("no operator logs: LOWTIDE_DTR_LOGS is not set\n");
    return 0;
  }
  std::vector<std::filesystem::path> logs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".log") logs.push_back(entry.path());
  }
  std::sort(logs.begin(), logs.end());
  for (const auto& log : logs) report(log.stem().string(), read_dtr_log(log.string()).trace);
}
