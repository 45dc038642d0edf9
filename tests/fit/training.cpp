#include "tests/fit/training.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <cstring>

#include "lowtide/memory_meter.h"

namespace lowtide {
namespace {

at::Tensor copied(const at::Tensor& tensor) { return tensor.detach().clone(); }

}  // namespace

Outcome train(const TinyModelCase& which, const std::optional<LimitOf>& limit,
              const BudgetOptions& options, int steps) {
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
  if (limit.has_value()) budget.emplace((*limit)(outcome.start_bytes), options);
  meter.reset_peak();
  for (int step = 0; step < steps; ++step) {
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

int differences(const Outcome& a, const Outcome& b) {
  if (a.tensors.size() != b.tensors.size() || a.losses.size() != b.losses.size()) return -1;
  int count = same_bits(a.generator_state, b.generator_state) ? 0 : 1;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (!same_bits(a.tensors[i], b.tensors[i])) ++count;
  }
  for (std::size_t i = 0; i < a.losses.size(); ++i) count += a.losses[i] != b.losses[i];
  return count;
}

void clear_stopped_backward() { at::ones({1}).requires_grad_(true).sum().backward(); }

}  // namespace lowtide
