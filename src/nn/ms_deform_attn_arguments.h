#pragma once
// What the operator's arguments must be, checked in one place for every kernel of it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lowtide {

struct MsDeformAttnLevel {
  std::int64_t height;
  std::int64_t width;
  std::int64_t start;  // token
};

struct MsDeformAttnSizes {
  std::int64_t batch;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t head_width;
  std::int64_t queries;
  std::int64_t levels;
  std::int64_t points;
};

// The sizes, or a UsageError (LT0401 shape, LT0402 dtype, LT0404 device) that names the argument.
// The tables may stay on the CPU when the others are meta tensors.
MsDeformAttnSizes check_ms_deform_attn_arguments(const at::Tensor& value,
                                                 const at::Tensor& spatial_shapes,
                                                 const at::Tensor& level_start_index,
                                                 const at::Tensor& sampling_locations,
                                                 const at::Tensor& attention_weights);

// The level table out of its two CPU tensors, or a UsageError (LT0403). `tokens`: what it must
// cover.
std::vector<MsDeformAttnLevel> read_ms_deform_attn_levels(const at::Tensor& spatial_shapes,
                                                          const at::Tensor& level_start_index,
                                                          std::int64_t tokens);

// grad_output against the sizes of the rest (LT0401, LT0402, LT0404).
void check_ms_deform_attn_gradient(const at::Tensor& grad_output, const at::Tensor& value,
                                   const MsDeformAttnSizes& sizes);

}  // namespace lowtide
