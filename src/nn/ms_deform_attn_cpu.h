#pragma once
// The CPU implementation behind `lowtide::ms_deform_attn`: plain functions on checked tensors.

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "src/nn/ms_deform_attn_arguments.h"

namespace lowtide {

at::Tensor ms_deform_attn_forward_cpu(const at::Tensor& value,
                                      const std::vector<MsDeformAttnLevel>& levels,
                                      const at::Tensor& sampling_locations,
                                      const at::Tensor& attention_weights,
                                      const MsDeformAttnSizes& sizes);

// Gradients of value, sampling_locations and attention_weights; undefined where `needed` is false.
std::array<at::Tensor, 3> ms_deform_attn_backward_cpu(const at::Tensor& grad_output,
                                                      const at::Tensor& value,
                                                      const std::vector<MsDeformAttnLevel>& levels,
                                                      const at::Tensor& sampling_locations,
                                                      const at::Tensor& attention_weights,
                                                      const MsDeformAttnSizes& sizes,
                                                      std::array<bool, 3> needed);

}  // namespace lowtide
