#include "lowtide/budget.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <cstring>
#include <optional>

#include "lowtide/error.h"
#include "tests/fit/tiny_models.h"

using namespace lowtide;  // the tests of one header

namespace {

constexpr int kSteps = 3;
constexpr Bytes kBlock = 256 * 256 * sizeof(float);

// All that training leaves behind, copied out of the budget's sight.
struct Outcome {
  std::vector<at::Tensor> tensors;
  std::vector<double> losses;
  at::Tensor generator_state;
  Bytes start_bytes = 0;  // live before the first forward
  Bytes peak_bytes = 0;
  BudgetReport report;
};

at::Tensor copied(const at::Tensor& tensor) { return tensor.detach().clone(); }

Outcome train(const TinyModelCase& which, const std::optional<std::function<Bytes(Bytes)>>& limit) {
  at::manual_seed(7);
  TinyModel model = which.make();
  std::vector<at::Tensor> momentum;
  for (const at::Tensor& p : model.parameters) {
    momentum.push_back(at::zeros_like(p));
    p.mutable_grad() = at::zeros_like(p);
  }
  Outcome outcome;
  std::optional<MemoryBudget> budget;
  MemoryMeter meter;
  outcome.start_bytes = meter.live_bytes();
  if (limit.has_value()) budget.emplace((*limit)(outcome.start_bytes));
  meter.reset_peak();
  for (int step = 0; step < kSteps; ++step) {
    for (const at::Tensor& p : model.parameters) p.mutable_grad().zero_();
    {
      const at::Tensor loss = model.loss(step);
      if (model.backward) {
        model.backward(loss);
      } else {
        loss.backward();
      }
      outcome.losses.push_back(loss.item<double>());
    }
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < momentum.size(); ++i) {
      momentum[i].mul_(0.9).add_(model.parameters[i].grad());
      const_cast<at::Tensor&>(model.parameters[i]).add_(momentum[i], -0.01);
    }
  }
  outcome.peak_bytes = meter.peak_bytes();
  if (budget.has_value()) outcome.report = budget->report();
  budget.reset();
  for (const at::Tensor& p : model.parameters) {
    outcome.tensors.push_back(copied(p));
    outcome.tensors.push_back(copied(p.grad()));
  }
  for (const at::Tensor& b : model.buffers) outcome.tensors.push_back(copied(b));
  outcome.generator_state = at::detail::getDefaultCPUGenerator().get_state();
  return outcome;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(),
                     static_cast<std::size_t>(a.nbytes())) == 0;
}

void check_same(const Outcome& plain, const Outcome& budgeted) {
  REQUIRE(plain.tensors.size() == budgeted.tensors.size());
  CHECK(plain.losses == budgeted.losses);
  int differing = 0;
  for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
    if (!same_bits(plain.tensors[i], budgeted.tensors[i])) ++differing;
  }
  CHECK(differing == 0);
  CHECK(same_bits(plain.generator_state, budgeted.generator_state));
}

// A backward that was stopped leaves tasks in this thread's queue, with their gradients; the next
// backward drops them.
void clear_stopped_backward() { at::ones({1}).requires_grad_(true).sum().backward(); }

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
        check_same(plain, budgeted);
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
    check_same(plain, train(which, std::nullopt));
  }
  CHECK(recomputed > 1000);
  CHECK(runs_below_plain > 20);
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

TEST_CASE("a second budget is refused while one is in force") {
  const MemoryMeter meter;
  const MemoryBudget budget(meter.live_bytes() + (1 << 20));
  CHECK_THROWS_WITH_AS(MemoryBudget(1 << 30), doctest::Contains("LT0302"), UsageError);
}
