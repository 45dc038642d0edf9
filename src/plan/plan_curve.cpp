// Tested by tests/plan/plan_curve_test.cpp.

#include "src/plan/plan_curve.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "src/plan/online_policy.h"
#include "src/plan/simulator.h"

namespace lowtide {

std::vector<CurvePoint> plan_curve(const Trace& trace, std::span<const Bytes> budgets,
                                   const CurveOptions& options) {
  std::vector<CurvePoint> points(budgets.size());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // guards `failure`
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      Planner planner(trace);
      // Relaxed: each index is taken once, and joining orders the results.
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < budgets.size();) {
        CurvePoint& point = points[i];
        point.budget_bytes = budgets[i];
        const std::uint64_t start_ns = thread_cpu_ns();
        SimulationOptions simulation;
        simulation.budget_bytes = budgets[i];
        simulation.time_limit = options.online_time_limit;
        const SimulationResult online =
            simulate(trace, simulation, std::make_unique<OnlinePolicy>());
        if (online.done()) point.online = online.overhead();
        PlannerOptions planning = options.planner;
        planning.budget_bytes = budgets[i];
        planning.cpu_limit_ns -= std::min(planning.cpu_limit_ns, thread_cpu_ns() - start_ns);
        PlannerResult planned = planner.plan(planning);
        point.planned = std::move(planned.plan);
        point.bound_ns = planned.bound_ns;
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t threads =
      std::min<std::size_t>(options.threads != 0 ? options.threads : cores, budgets.size());
  std::vector<std::thread> helpers;
  for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);

  std::vector<std::size_t> order(budgets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return budgets[a] < budgets[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::optional<Plan>& smaller = points[order[i - 1]].planned;
    CurvePoint& point = points[order[i]];
    if (!smaller || (point.planned && point.planned->total_ns <= smaller->total_ns)) continue;
    point.planned = smaller;
    point.planned->budget_bytes = point.budget_bytes;
    point.planned->bound_ns = std::min(point.bound_ns, smaller->total_ns);
  }
  // A bound for a larger budget holds for a smaller one.
  for (std::size_t i = order.size(); i-- > 1;) {
    CurvePoint& point = points[order[i - 1]];
    point.bound_ns = std::max(point.bound_ns, points[order[i]].bound_ns);
    if (point.planned) point.planned->bound_ns = std::min(point.bound_ns, point.planned->total_ns);
  }
  return points;
}

}  // namespace lowtide
