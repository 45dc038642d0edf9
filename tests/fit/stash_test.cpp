// Bytes that are put elsewhere: the plain run's bits all the same, in less room than recomputing
// alone can do with.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "lowtide/budget.h"
#include "lowtide/error.h"
#include "tests/fit/opaque_model.h"
#include "tests/fit/spill_directory.h"
#include "tests/fit/training.h"

using namespace lowtide;  // the tests of one header

namespace {

enum class Mode { kSpill, kPack, kMixed };

BudgetOptions options_for(Mode mode) {
  BudgetOptions options;
  options.pack = mode != Mode::kSpill;
  options.always_put_away = mode != Mode::kMixed;
  if (mode != Mode::kPack) options.spill_directory = spill_directory();
  return options;
}

struct Totals {
  std::uint64_t spilled = 0;
  std::uint64_t packed = 0;
  std::uint64_t recomputed = 0;
  int finished_low = 0;  // runs at a tenth of what the step adds
  int refused = 0;
};

Totals train_all(Mode mode) {
  at::set_num_threads(1);
  Totals totals;
  for (const TinyModelCase& which : tiny_models()) {
    CAPTURE(which.name);
    const Outcome plain = train(which, std::nullopt);
    const auto above = static_cast<double>(plain.peak_bytes - plain.start_bytes);
    for (const double fraction : {1.0, 0.5, 0.25, 0.1}) {
      CAPTURE(fraction);
      Bytes limit = 0;
      try {
        const Outcome budgeted = train(
            which,
            [&](Bytes start) { return limit = start + static_cast<Bytes>(fraction * above); },
            options_for(mode));
        CHECK(differences(plain, budgeted) == 0);
        CHECK(budgeted.report.peak_bytes <= limit);
        totals.spilled += budgeted.report.spilled_tensors;
        totals.packed += budgeted.report.packed_tensors;
        totals.recomputed += budgeted.report.recomputed_ops;
        if (fraction == 0.1) ++totals.finished_low;
      } catch (const BudgetError& error) {
        CHECK(error.id() == "LT0301");
        CHECK(fraction < 1);
        ++totals.refused;
        clear_stopped_backward();
      }
    }
    CHECK(differences(plain, train(which, std::nullopt)) == 0);
  }
  return totals;
}

}  // namespace

TEST_CASE("spilling whatever can be spilled gives the plain run's bits") {
  const Totals totals = train_all(Mode::kSpill);
  CHECK(totals.spilled > 300);
  CHECK(totals.packed == 0);
  MESSAGE("at 10 %: ", totals.finished_low, " finished; ", totals.refused, " refused in all");
}

TEST_CASE("packing whatever can be packed gives the plain run's bits") {
  const Totals totals = train_all(Mode::kPack);
  CHECK(totals.spilled == 0);
  CHECK(totals.packed > 100);
}

TEST_CASE("recomputing, packing and spilling together give the plain run's bits") {
  const Totals totals = train_all(Mode::kMixed);
  CHECK(totals.recomputed + totals.packed > 50);
  CHECK(totals.spilled > 50);
  MESSAGE("spilled ", totals.spilled, ", packed ", totals.packed,
          "; at 10 %: ", totals.finished_low, " finished; ", totals.refused, " refused in all");
}

TEST_CASE("what cannot be computed again is spilled, and refused without a directory") {
  at::set_num_threads(1);
  const at::Tensor expected = plain_gradient(20);
  const at::Tensor w = weight();
  {
    const MemoryBudget budget(live() + 6 * kBlock);
    CHECK_THROWS_AS(opaque_loss(w, 20).backward(), BudgetError);
  }
  clear_stopped_backward();
  w.mutable_grad() = at::Tensor();
  BudgetOptions options;
  options.spill_directory = spill_directory();
  const MemoryBudget budget(live() + 6 * kBlock, options);
  opaque_loss(w, 20).backward();
  CHECK(same_bits(w.grad(), expected));
  const BudgetReport report = budget.report();
  CHECK(report.peak_bytes <= report.limit_bytes);
  CHECK(report.spilled_tensors >= 12);
  CHECK(report.spilled_bytes >= 12 * kBlock);
  CHECK(std::filesystem::is_empty(spill_directory()));
}

TEST_CASE("a full spill file is said in the refusal, and nothing is lost") {
  at::set_num_threads(1);
  const at::Tensor expected = plain_gradient(20);
  const at::Tensor w = weight();
  BudgetOptions options;
  options.spill_directory = spill_directory();
  options.spill_limit = 4 * kBlock;
  const MemoryBudget budget(live() + 8 * kBlock, options);
  CHECK_THROWS_WITH_AS(opaque_loss(w, 30).backward(), doctest::Contains("LT0312"), BudgetError);
  clear_stopped_backward();
  w.mutable_grad() = at::Tensor();
  const MemoryBudget wide(live() + 8 * kBlock);
  CHECK(same_bits(plain_gradient(3), plain_gradient(3)));
}

TEST_CASE("a spill directory that is not there is refused at once") {
  BudgetOptions options;
  options.spill_directory = "/no/such/folder";
  CHECK_THROWS_WITH_AS(MemoryBudget(1 << 30, options), doctest::Contains("LT0311"), UsageError);
  // As if it had never been asked for.
  const MemoryBudget budget(live() + 40 * kBlock);
  const at::Tensor w = weight();
  opaque_loss(w, 3).backward();
}

namespace {

// Layers of 256 x 256 with AdamW as torch.optim does it, one parameter after the other.
struct WideNet {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> first_moments;
  std::vector<at::Tensor> second_moments;
  int steps = 0;

  explicit WideNet(int layers) {
    at::manual_seed(3);
    for (int i = 0; i < layers; ++i) {
      weights.push_back((at::randn({256, 256}) * 0.06).requires_grad_(true));
      first_moments.push_back(at::zeros({256, 256}));
      second_moments.push_back(at::zeros({256, 256}));
    }
  }
  Bytes static_bytes() const { return 4 * weights.size() * kBlock; }

  double step(const at::Tensor& x) {
    for (const at::Tensor& w : weights) w.mutable_grad() = at::Tensor();
    at::Tensor y = x;
    for (const at::Tensor& w : weights) y = at::tanh(at::mm(y, w));
    const at::Tensor loss = (y * y).mean();
    loss.backward();
    const c10::NoGradGuard no_grad;
    ++steps;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor& gradient = weights[i].grad();
      const_cast<at::Tensor&>(weights[i]).mul_(1 - 1e-5);
      first_moments[i].lerp_(gradient, 0.1);
      second_moments[i].mul_(0.999).addcmul_(gradient, gradient, 0.001);
      const at::Tensor denominator = (second_moments[i] / (1 - std::pow(0.999, steps))).sqrt_();
      denominator.add_(1e-8);
      const_cast<at::Tensor&>(weights[i])
          .addcdiv_(first_moments[i], denominator, -1e-3 / (1 - std::pow(0.9, steps)));
    }
    return loss.item<double>();
  }
};

}  // namespace

TEST_CASE("with attach a budget of half the static bytes trains to the plain run's bits") {
  at::set_num_threads(1);
  constexpr int kLayers = 12;
  WideNet plain(kLayers);
  WideNet attached(kLayers);
  at::manual_seed(5);
  const at::Tensor x = at::randn({16, 256});
  std::vector<double> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(plain.step(x));
  for (const at::Tensor& w : plain.weights) w.mutable_grad() = at::Tensor();
  const Bytes others = live() - attached.static_bytes() / 4 * 3;
  BudgetOptions options;
  options.spill_directory = spill_directory();
  BudgetReport report;
  {
    MemoryBudget budget(others + attached.static_bytes() / 2, options);
    budget.attach(attached.weights);
    budget.attach(attached.first_moments);
    budget.attach(attached.second_moments);
    for (int i = 0; i < 4; ++i) CHECK(attached.step(x) == expected[static_cast<std::size_t>(i)]);
    report = budget.report();
    CHECK(live() <= others + attached.static_bytes() / 2);
  }
  CHECK(report.spilled_tensors > 3 * kLayers);
  for (std::size_t i = 0; i < kLayers; ++i) {
    CHECK(same_bits(attached.weights[i], plain.weights[i]));
    CHECK(same_bits(attached.first_moments[i], plain.first_moments[i]));
    CHECK(same_bits(attached.second_moments[i], plain.second_moments[i]));
  }
}

TEST_CASE("memory that is away says so to who reads it without an op, and is there for ops") {
  at::set_num_threads(1);
  WideNet net(8);
  const at::Tensor x = at::randn({16, 256});
  BudgetOptions options;
  options.spill_directory = spill_directory();
  const at::Tensor copy = net.weights[0].detach().clone();
  // A view of the program's own keeps the second one where it is.
  const at::Tensor view = net.weights[1].detach();
  const void* const address = view.const_data_ptr();
  MemoryBudget budget(live() + 4 * kBlock, options);
  budget.attach(net.weights);
  const at::Tensor room = at::empty({256, 256 * 8});
  int away = 0;
  for (std::size_t i = 0; i < net.weights.size(); ++i) {
    try {
      net.weights[i].const_data_ptr();
    } catch (const c10::Error& error) {
      CHECK(std::string(error.what()).find("spill file") != std::string::npos);
      ++away;
    }
  }
  CHECK(away >= 4);
  CHECK(view.const_data_ptr() == address);
  CHECK(at::equal(net.weights[0].detach(), copy));
  // What is away when its tensor goes leaves nothing behind.
  net.weights.clear();
}

TEST_CASE("attach without a spill directory is refused") {
  MemoryBudget budget(Bytes{1} << 40);
  CHECK_THROWS_WITH_AS(budget.attach({weight()}), doctest::Contains("LT0316"), UsageError);
}
