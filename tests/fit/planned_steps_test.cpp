// Real steps that follow a plan: results, limits, departures.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lowtide/budget.h"
#include "lowtide/error.h"
#include "src/plan/plan_file.h"
#include "src/plan/planner.h"
#include "src/tape/tape_bytes.h"
#include "tests/fit/training.h"

using namespace lowtide;  // the tests of one header

namespace {

constexpr std::int64_t kWidth = 64;
constexpr int kDepth = 12;

// A chain of products whose length, width of the batch and ops a step may choose.
struct Chain {
  Chain() {
    at::manual_seed(3);
    for (int i = 0; i < kDepth; ++i) {
      weights.push_back((at::randn({kWidth, kWidth}) * 0.1).requires_grad_(true));
    }
  }
  at::Tensor loss(std::int64_t rows, int depth = kDepth, int throws_at = -1, bool relu = false) {
    at::Tensor x = at::sin(at::arange(rows * kWidth, at::kFloat)).view({rows, kWidth});
    for (int i = 0; i < depth; ++i) {
      if (i == throws_at) throw std::runtime_error("stopped");
      const at::Tensor y = at::mm(x, weights[static_cast<std::size_t>(i)]);
      x = relu ? at::relu(y) : at::tanh(y);
    }
    return at::mul(x, x).sum();
  }
  // Gradients of a step of each, copied.
  std::vector<at::Tensor> weights;
};

using Steps = std::function<void(Chain&, int step)>;

struct Run {
  std::vector<at::Tensor> gradients;  // after each step
  BudgetReport report;
  Bytes start_bytes = 0;
  Bytes peak_bytes = 0;
};

Run run(const Steps& steps, int count, std::optional<Bytes> above,
        const BudgetOptions& options = {}) {
  at::set_num_threads(1);
  Chain chain;
  for (const at::Tensor& w : chain.weights) w.mutable_grad() = at::zeros_like(w);
  Run made;
  {
    MemoryMeter meter;
    made.start_bytes = meter.live_bytes();
    std::optional<MemoryBudget> budget;
    if (above.has_value()) budget.emplace(made.start_bytes + *above, options);
    for (int step = 0; step < count; ++step) {
      steps(chain, step);
    }
    made.peak_bytes = meter.peak_bytes();
    if (budget.has_value()) made.report = budget->report();
  }
  for (const at::Tensor& w : chain.weights) made.gradients.push_back(w.grad().clone());
  return made;
}

void check_same(const Run& plain, const Run& other) {
  for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
    CHECK(same_bits(plain.gradients[i], other.gradients[i]));
  }
}

Bytes part(const Run& plain, double fraction) {
  return static_cast<Bytes>(fraction * static_cast<double>(plain.peak_bytes - plain.start_bytes));
}

void plain_step(Chain& chain, int) { chain.loss(256).backward(); }

}  // namespace

TEST_CASE("planned training gives the plain run's bits, or is refused, at every limit") {
  at::set_num_threads(1);
  constexpr int kSteps = 5;
  std::uint64_t planned = 0;
  std::uint64_t steps = 0;
  std::uint64_t departures = 0;
  for (const TinyModelCase& which : tiny_models()) {
    CAPTURE(which.name);
    const Outcome plain = train(which, std::nullopt, {}, kSteps);
    // One of them comes to a loss that is not a number, which equals nothing.
    const int nans = differences(plain, plain);
    const auto above = static_cast<double>(plain.peak_bytes - plain.start_bytes);
    std::vector<double> fractions{0.75, 0.5, 0.35, 0.25};
    const Outcome roomy = train(
        which, [&](Bytes start) { return BudgetLimit(start + 2 * plain.peak_bytes); }, {}, kSteps);
    fractions.push_back(
        static_cast<double>(roomy.report.smallest_budget_bytes - roomy.start_bytes) / above);
    for (const double fraction : fractions) {
      CAPTURE(fraction);
      Bytes limit = 0;
      try {
        const Outcome budgeted = train(
            which,
            [&](Bytes start) { return limit = start + static_cast<Bytes>(fraction * above); }, {},
            kSteps);
        CHECK(differences(plain, budgeted) == nans);
        CHECK(budgeted.report.peak_bytes <= limit);
        planned += budgeted.report.planned_steps;
        departures += budgeted.report.plan_departures;
        steps += budgeted.report.steps;
      } catch (const BudgetError& error) {
        CHECK(error.id() == "LT0301");
        clear_stopped_backward();
      }
    }
  }
  MESSAGE(planned, " of ", steps, " steps planned, ", departures, " departures");
  CHECK(planned * 2 > steps);
}

TEST_CASE("from the second step on a plan chooses, unless plans are turned off") {
  const Run plain = run(plain_step, 6, std::nullopt);
  BudgetOptions online;
  online.plan_seconds = 0;
  for (const double fraction : {0.7, 0.5, 0.35}) {
    CAPTURE(fraction);
    const Run planned = run(plain_step, 6, part(plain, fraction));
    const Run chosen = run(plain_step, 6, part(plain, fraction), online);
    check_same(plain, planned);
    check_same(plain, chosen);
    // The last step has not ended.
    CHECK(planned.report.steps == 5);
    CHECK(planned.report.planned_steps == 4);
    CHECK(planned.report.plan_departures == 0);
    CHECK(planned.report.plans >= 1);
    CHECK(planned.report.recomputed_ops > 0);
    CHECK(chosen.report.planned_steps == 0);
    CHECK(chosen.report.plans == 0);
  }
}

TEST_CASE("steps of two shapes in turn follow a plan each") {
  const Steps steps = [](Chain& chain, int step) {
    chain.loss(step % 2 == 0 ? 256 : 192).backward();
  };
  const Run plain = run(steps, 12, std::nullopt);
  const Run planned = run(steps, 12, part(plain, 0.5));
  check_same(plain, planned);
  CHECK(planned.report.planned_steps >= 6);
  CHECK(planned.report.plan_departures <= 3);
}

TEST_CASE("a step that goes on otherwise than it began is handed to the plan of its like") {
  // The two save the same until one ends early.
  const Steps steps = [](Chain& chain, int step) {
    chain.loss(256, step % 3 == 2 ? kDepth - 3 : kDepth).backward();
  };
  const Run plain = run(steps, 15, std::nullopt);
  const Run planned = run(steps, 15, part(plain, 0.5));
  check_same(plain, planned);
  CHECK(planned.report.planned_steps >= 5);
}

TEST_CASE("steps that depart from what is known give the plain run's bits") {
  for (const double fraction : {0.6, 0.4}) {
    SUBCASE("each of another shape") {
      const Steps steps = [](Chain& chain, int step) { chain.loss(256 - 8 * step).backward(); };
      const Run plain = run(steps, 12, std::nullopt);
      const Run planned = run(steps, 12, part(plain, fraction));
      check_same(plain, planned);
      CHECK(planned.report.plan_departures == 0);  // told by their first saved tensor
    }
    SUBCASE("another op of the same bytes") {
      const Steps steps = [](Chain& chain, int step) {
        chain.loss(256, kDepth, -1, step % 4 == 3).backward();
      };
      const Run plain = run(steps, 12, std::nullopt);
      check_same(plain, run(steps, 12, part(plain, fraction)));
    }
    SUBCASE("a branch late in the step") {
      const Steps steps = [](Chain& chain, int step) {
        at::Tensor loss = chain.loss(256);
        if (step % 3 == 1) loss = loss + at::exp(chain.weights[0] * 0.01).sum();
        loss.backward();
      };
      const Run plain = run(steps, 12, std::nullopt);
      check_same(plain, run(steps, 12, part(plain, fraction)));
    }
    SUBCASE("two backward passes over one graph") {
      const Steps steps = [](Chain& chain, int step) {
        const at::Tensor loss = chain.loss(256);
        if (step % 3 == 2) loss.backward({}, true);
        loss.backward();
      };
      const Run plain = run(steps, 12, std::nullopt);
      check_same(plain, run(steps, 12, part(plain, fraction)));
    }
    SUBCASE("an exception in the middle of the forward pass") {
      const Steps steps = [](Chain& chain, int step) {
        try {
          chain.loss(256, kDepth, step % 3 == 2 ? kDepth / 2 : -1).backward();
        } catch (const std::runtime_error&) {
        }
      };
      const Run plain = run(steps, 12, std::nullopt);
      check_same(plain, run(steps, 12, part(plain, fraction)));
    }
    SUBCASE("a graph that is never run backward") {
      const Steps steps = [](Chain& chain, int step) {
        const at::Tensor loss = chain.loss(256);
        if (step % 3 != 2) loss.backward();
      };
      const Run plain = run(steps, 12, std::nullopt);
      check_same(plain, run(steps, 12, part(plain, fraction)));
    }
  }
}

TEST_CASE("a plan given at the start is followed from the first step on") {
  const auto folder = std::filesystem::temp_directory_path();
  const std::string tape_path = (folder / "lowtide_planned_steps.tape").string();
  const std::string plan_path = (folder / "lowtide_planned_steps.plan").string();
  const Run plain = run(plain_step, 4, std::nullopt);
  BudgetOptions record;
  record.tape_path = tape_path;
  run(plain_step, 4, 4 * part(plain, 1), record);
  const Tape tape = read_tape(tape_path);
  PlannerOptions options;
  // What was live when the step began is not the same in each run.
  const Bytes base = tape_peak(tape) - part(plain, 1);
  options.budget_bytes = base + part(plain, 0.5);
  const auto plan = Planner(trace_of(tape)).plan(options).plan;
  REQUIRE(plan.has_value());
  write_plan(plan_path, *plan, tape);

  BudgetOptions given;
  given.plan_path = plan_path;
  SUBCASE("the same step") {
    const Run planned = run(plain_step, 4, part(plain, 0.5), given);
    check_same(plain, planned);
    CHECK(planned.report.planned_steps == 3);
    CHECK(planned.report.plan_departures == 0);
  }
  SUBCASE("another step departs, and is planned for by itself") {
    const Steps other = [](Chain& chain, int) { chain.loss(256, kDepth, -1, true).backward(); };
    const Run other_plain = run(other, 6, std::nullopt);
    const Run planned = run(other, 6, part(other_plain, 0.5), given);
    check_same(other_plain, planned);
    CHECK(planned.report.plan_departures >= 1);
    CHECK(planned.report.planned_steps >= 2);
  }
  SUBCASE("a file that is none") {
    given.plan_path = tape_path;
    CHECK_THROWS_AS(MemoryBudget(Bytes{1} << 40, given), FormatError);
    given.plan_path = plan_path + ".missing";
    CHECK_THROWS_AS(MemoryBudget(Bytes{1} << 40, given), IoError);
  }
  std::filesystem::remove(tape_path);
  std::filesystem::remove(plan_path);
}
