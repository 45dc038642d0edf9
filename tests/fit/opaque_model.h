#pragma once
// A chain whose saved tensors cannot be computed again: the function that makes them is none of
// libtorch's ops. Each takes kBlock.

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lowtide/memory_meter.h"

namespace lowtide {

inline constexpr Bytes kBlock = 256 * 256 * sizeof(float);

inline Bytes live() { return MemoryMeter().live_bytes(); }

struct Opaque : torch::autograd::Function<Opaque> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    at::Tensor y = at::empty_like(x);
    const float* from = x.const_data_ptr<float>();
    float* to = y.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] * 0.9F;
    context->save_for_backward({y});
    return y.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * context->get_saved_variables()[0]};
  }
};

inline at::Tensor opaque_loss(const at::Tensor& w, int depth) {
  at::Tensor y = w * 1;
  for (int i = 0; i < depth; ++i) y = Opaque::apply(y);
  return y.sum();
}

inline at::Tensor weight() {
  return at::linspace(0.1, 1, 256 * 256).view({256, 256}).requires_grad_(true);
}

inline at::Tensor plain_gradient(int depth) {
  const at::Tensor w = weight();
  opaque_loss(w, depth).backward();
  return w.grad().clone();
}

}  // namespace lowtide
