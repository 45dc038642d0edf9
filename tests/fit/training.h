#pragma once
// Trains a tiny model for a few steps, plainly or under a budget, and keeps all that it leaves.

#include <functional>
#include <optional>
#include <vector>

#include "lowtide/budget.h"
#include "tests/fit/tiny_models.h"

namespace lowtide {

inline constexpr int kTrainingSteps = 3;

// All that training leaves behind, copied out of the budget's sight.
struct Outcome {
  std::vector<at::Tensor> tensors;
  std::vector<double> losses;
  at::Tensor generator_state;
  Bytes start_bytes = 0;  // live before the first forward
  Bytes peak_bytes = 0;
  BudgetReport report;
};

// `limit` is asked with start_bytes; without one the run is plain.
using LimitOf = std::function<BudgetLimit(Bytes start_bytes)>;
Outcome train(const TinyModelCase& which, const std::optional<LimitOf>& limit,
              const BudgetOptions& options = {}, int steps = kTrainingSteps);

bool same_bits(const at::Tensor& a, const at::Tensor& b);
// How many tensors, losses or generator states differ in any bit.
int differences(const Outcome& a, const Outcome& b);

// A backward that was stopped leaves tasks in this thread's queue, with their gradients; the next
// backward drops them.
void clear_stopped_backward();

}  // namespace lowtide
