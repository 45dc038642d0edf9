#pragma once
// Small models and op mixes, made of ATen ops only, that training under a budget must not change.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace lowtide {

struct TinyModel {
  std::vector<at::Tensor> parameters;  // leaves that require grad
  std::vector<at::Tensor> buffers;     // running statistics and the like
  std::function<at::Tensor(int step)> loss;
  // When set, does the backward itself (gradient penalties, two graphs); else loss.backward().
  std::function<void(const at::Tensor& loss)> backward;
};

struct TinyModelCase {
  std::string name;
  std::function<TinyModel()> make;  // deterministic, given the default generator's state
};

const std::vector<TinyModelCase>& tiny_models();

}  // namespace lowtide
