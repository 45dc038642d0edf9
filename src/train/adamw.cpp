// Tested by tests/train/trainer_test.cpp.
#include "src/train/adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

namespace lowtide {

AdamW::AdamW(std::vector<TrainedTensor> parameters, const AdamWOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const TrainedTensor& parameter = parameters_[i];
    means_.push_back(at::zeros_like(parameter.tensor.detach()));
    squares_.push_back(at::zeros_like(parameter.tensor.detach()));
    steps_.push_back(at::zeros({}, at::kFloat));
    const double decay = parameter.decays ? options_.weight_decay : 0;
    const auto same = [&](const Group& group) {
      return group.rate_factor == parameter.rate_factor && group.weight_decay == decay;
    };
    auto group = std::find_if(groups_.begin(), groups_.end(), same);
    if (group == groups_.end()) {
      group = groups_.insert(groups_.end(), {parameter.rate_factor, decay, {}});
    }
    group->members.push_back(i);
  }
}

void AdamW::step(double rate_factor) {
  const c10::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    std::vector<at::Tensor> values, gradients, means, squares, steps;
    for (const std::size_t i : group.members) {
      const at::Tensor& gradient = parameters_[i].tensor.grad();
      if (!gradient.defined()) continue;
      values.push_back(parameters_[i].tensor);
      gradients.push_back(gradient);
      means.push_back(means_[i]);
      squares.push_back(squares_[i]);
      steps_[i].add_(1);
      steps.push_back(steps_[i]);
    }
    if (values.empty()) continue;
    at::_fused_adamw_(values, gradients, means, squares, {}, steps,
                      options_.learning_rate * group.rate_factor * rate_factor, options_.beta1,
                      options_.beta2, group.weight_decay, options_.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
}

void AdamW::drop_gradients() {
  for (TrainedTensor& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

std::map<std::string, at::Tensor> AdamW::state() const {
  std::map<std::string, at::Tensor> state;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    state.emplace("exp_avg." + parameters_[i].name, means_[i]);
    state.emplace("exp_avg_sq." + parameters_[i].name, squares_[i]);
    state.emplace("step." + parameters_[i].name, steps_[i]);
  }
  return state;
}

double clip_gradients(const std::vector<TrainedTensor>& parameters, double largest_norm) {
  const c10::NoGradGuard no_grad;
  double sum_of_squares = 0;
  for (const TrainedTensor& parameter : parameters) {
    if (!parameter.tensor.grad().defined()) continue;
    const double norm = at::linalg_vector_norm(parameter.tensor.grad()).item<double>();
    sum_of_squares += norm * norm;
  }
  const double norm = std::sqrt(sum_of_squares);
  if (std::isfinite(norm) && norm > largest_norm) {
    for (const TrainedTensor& parameter : parameters) {
      if (parameter.tensor.grad().defined()) {
        parameter.tensor.mutable_grad().mul_(largest_norm / norm);
      }
    }
  }
  return norm;
}

}  // namespace lowtide
