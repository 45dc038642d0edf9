#include "src/plan/step_simulation.h"

#include <doctest/doctest.h>

#include "src/plan/planner.h"
#include "tests/plan/made_tapes.h"

using namespace lowtide;  // the tests of one header

TEST_CASE("a step without drops takes what its tape says") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Tape tape = made_chain_tape(12, seed);
    REQUIRE(!find_problem(tape));
    const SimulatedStep step = simulate_step(tape, Plan{}, ~Bytes{0});
    CHECK(step.done);
    CHECK(step.peak_bytes == tape_peak(tape));
    CHECK(step.total_ns == step.plain_ns);
    CHECK(step.drops == 0);
  }
}

// The best schedule of a small step may run an op again before it is asked for, while its input is
// still there; carried out, it runs when it is asked for, and that can take more.
TEST_CASE("carried out, a plan takes hardly more time than it says, and keeps to its bytes") {
  int planned = 0;
  int as_planned = 0;
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const Tape tape = made_chain_tape(6 + static_cast<int>(seed % 20), seed);
    const Trace trace = trace_of(tape);
    const Bytes floor = lowest_budget(trace).bytes;
    const Bytes peak = natural_peak(trace);
    Planner planner(trace);
    for (const double part : {0.2, 0.4, 0.6, 0.8}) {
      PlannerOptions options;
      options.budget_bytes = floor + static_cast<Bytes>(part * static_cast<double>(peak - floor));
      options.most_tries = 200;
      const auto plan = planner.plan(options).plan;
      if (!plan) continue;
      ++planned;
      const SimulatedStep step = simulate_step(tape, *plan, options.budget_bytes);
      CHECK(step.done);
      CHECK(step.peak_bytes <= options.budget_bytes);
      CHECK(static_cast<double>(step.total_ns) <= 1.06 * static_cast<double>(plan->total_ns));
      if (step.total_ns <= plan->total_ns && step.choices_beyond_plan == 0) ++as_planned;
    }
  }
  CHECK(planned > 120);
  CHECK(as_planned * 20 >= planned * 19);
}

TEST_CASE("a step that a budget cannot carry is refused on paper too") {
  const Tape tape = made_chain_tape(10, 1);
  CHECK(!simulate_step(tape, Plan{}, lowest_budget(trace_of(tape)).bytes / 2).done);
}
