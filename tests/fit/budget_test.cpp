#include "lowtide/budget.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <optional>

#include "lowtide/error.h"
#include "tests/fit/training.h"

using namespace lowtide;  // the tests of one header

namespace {

constexpr Bytes kBlock = 256 * 256 * sizeof(float);

at::Tensor copied(const at::Tensor& tensor) { return tensor.detach().clone(); }

}  // namespace

TEST_CASE("training under a budget gives the plain run's bits or is refused") {
  at::set_num_threads(1);
  std::uint64_t recomputed = 0;
  int runs_below_plain = 0;
  for (const TinyModelCase& which : tiny_models()) {
    CAPTURE(which.name);
    const Outcome plain = train(which, std::nullopt);
    const auto above = static_cast<double>(plain.peak_bytes - plain.start_bytes);
    for (const double fraction : {1.0, 0.75, 0.5, 0.35, 0.25}) {
      CAPTURE(fraction);
      Bytes limit = 0;
      try {
        const Outcome budgeted = train(which, [&](Bytes start) {
          return limit = start + static_cast<Bytes>(fraction * above);
        });
        CHECK(differences(plain, budgeted) == 0);
        CHECK(budgeted.report.peak_bytes <= limit);
        recomputed += budgeted.report.recomputed_ops;
        if (fraction < 1) ++runs_below_plain;
      } catch (const BudgetError& error) {
        CHECK(error.id() == "LT0301");
        CHECK(fraction < 1);
        clear_stopped_backward();
      }
    }
    // What refusals left behind does no harm: the plain run still gives its bits.
    CHECK(differences(plain, train(which, std::nullopt)) == 0);
  }
  CHECK(recomputed > 1000);
  CHECK(runs_below_plain > 20);
}

TEST_CASE("the smallest budget that a report names is enough, and near what no schedule can beat") {
  at::set_num_threads(1);
  int within_a_tenth = 0;
  for (const TinyModelCase& which : tiny_models()) {
    CAPTURE(which.name);
    const Outcome plain = train(which, std::nullopt);
    const Outcome roomy =
        train(which, [&](Bytes start) { return BudgetLimit(start + 2 * plain.peak_bytes); });
    REQUIRE(roomy.report.smallest_budget_bytes > roomy.start_bytes);
    // Over what is live before: each run starts with the outcomes of those before it.
    const Bytes smallest = roomy.report.smallest_budget_bytes - roomy.start_bytes;
    CAPTURE(smallest);
    CAPTURE(plain.peak_bytes - plain.start_bytes);
    CHECK(smallest <= plain.peak_bytes - plain.start_bytes);
    try {
      const Outcome budgeted =
          train(which, [&](Bytes start) { return BudgetLimit(start + smallest); });
      CHECK(differences(plain, budgeted) == 0);
      CHECK(budgeted.report.peak_bytes <= budgeted.start_bytes + smallest);
    } catch (const BudgetError& error) {
      clear_stopped_backward();
      FAIL_CHECK(std::string(error.what()));
    }
    // Against a bound found another way: by what no schedule can do without.
    const Bytes bound = roomy.report.budget_lower_bound_bytes;
    CHECK(bound <= roomy.report.smallest_budget_bytes);
    const double ratio = static_cast<double>(roomy.report.smallest_budget_bytes) / bound;
    CAPTURE(ratio);
    // A step that differentiates its own backward is not told whole by its tape: its floor is what
    // it took plainly.
    if (which.name != "gradient penalty") CHECK(ratio <= 1.25);
    if (ratio <= 1.1) ++within_a_tenth;
  }
  CHECK(within_a_tenth >= 36);
}

TEST_CASE("a write that nobody announces is an error, not another gradient") {
  at::Tensor batch = at::ones({256, 256});
  const at::Tensor w = at::full({256, 256}, 0.5).requires_grad_(true);
  const MemoryMeter meter;
  MemoryBudget budget(meter.live_bytes() + 12 * kBlock);
  // Cheap to make again, and used longest ago: these go first.
  at::Tensor sum = w * 0;
  for (int i = 1; i <= 4; ++i) sum = sum + (batch * i) * w;
  at::Tensor y = w + 2;
  for (int i = 0; i < 16; ++i) y = at::lgamma(y).abs() + 2;
  CHECK(budget.report().drops > 0);
  batch.mutable_data_ptr<float>()[5] = 3;
  CHECK_THROWS_WITH_AS((sum + y).sum().backward(), doctest::Contains("LT0304"), DivergenceError);
}

TEST_CASE("an in-place write to what a dropped tensor was made from brings it back first") {
  const auto gradient = [](bool budgeted) {
    at::Tensor source = at::ones({256, 256});
    const at::Tensor w = at::full({256, 256}, 0.5).requires_grad_(true);
    std::optional<MemoryBudget> budget;
    const MemoryMeter meter;
    if (budgeted) budget.emplace(meter.live_bytes() + 12 * kBlock);
    // Cheap to make again, and used longest ago: these go first.
    at::Tensor sum = w * 0;
    for (int i = 1; i <= 4; ++i) sum = sum + (source * i) * w;
    at::Tensor y = w + 2;
    for (int i = 0; i < 16; ++i) y = at::lgamma(y).abs() + 2;
    if (budgeted) CHECK(budget->report().recomputed_ops == 0);
    source.mul_(5);
    if (budgeted) CHECK(budget->report().recomputed_ops > 0);
    (sum + y).sum().backward();
    return copied(w.grad());
  };
  CHECK(same_bits(gradient(false), gradient(true)));
}

TEST_CASE("PyTorch's own check of in-place changes still raises") {
  const at::Tensor w = at::ones({64, 64}).requires_grad_(true);
  MemoryMeter meter;
  const MemoryBudget budget(meter.live_bytes() + (1 << 22));
  at::Tensor y = at::sigmoid(w * 2);
  const at::Tensor loss = (y * 1).sum();
  y.add_(1);
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("modified by an inplace operation"),
                       c10::Error);
}

TEST_CASE("graphs outlive their budget") {
  const at::Tensor w = at::full({256, 256}, 0.5).requires_grad_(true);
  at::Tensor loss;
  {
    MemoryMeter meter;
    MemoryBudget budget(meter.live_bytes() + 8 * kBlock);
    at::Tensor y = w * 2;
    for (int i = 0; i < 16; ++i) y = at::sin(y);
    loss = y.sum();
    CHECK(budget.report().drops > 0);
  }
  loss.backward();
  CHECK(w.grad().defined());
}
