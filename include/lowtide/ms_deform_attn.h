#pragma once
// Multi-scale deformable attention (Zhu et al., "Deformable DETR", ICLR 2021, equation 3) on the
// CPU, forward and backward each in one fused pass.
//
//   // value (bs, N, heads, D); two levels, 8x10 and 4x5, so N = 100
//   at::Tensor shapes = at::tensor({8, 10, 4, 5}, at::kLong).view({2, 2});
//   at::Tensor starts = at::tensor({0, 80}, at::kLong);
//   at::Tensor output = lowtide::ms_deform_attn(value, shapes, starts, locations, weights);
//
// Every query of every head reads `points` places of each level by bilinear interpolation and adds
// them up with its weights:
//
//   output[b, q, head] = sum over l, p of
//       weights[b, q, head, l, p] * bilinear(level l of value[b, :, head], locations[b, q, head, l,
//       p])
//
// A location (x, y) is a fraction of the level's size: 0 is the outer edge of the first pixel, 1
// that of the last one, so that x is at pixel x * width - 0.5. This is grid_sample's
// align_corners=false at 2 * location - 1, with zero padding. A sample counts only if its pixel is
// in (-1, width) and
// (-1, height): one that does not, and that includes a NaN or infinite location, adds zero and gets
// zero gradients, whatever its weight. At a pixel's centre, where the interpolation has a kink, the
// gradient of a location is the one towards larger coordinates.
//
// From Python or by the dispatcher it is `lowtide::ms_deform_attn`, once the library is loaded.
//
// What it does not do: other devices than the CPU, double backward, forward-mode gradients,
// torch.func transforms. All of these are errors, none a wrong number.

#include <ATen/core/Tensor.h>

#include "lowtide/export.h"

namespace lowtide {

// value: (bs, N, heads, D), float32, float64, bfloat16 or float16; any D.
// spatial_shapes: (L, 2) int64, (height, width) of each level; their areas add up to N.
// level_start_index: (L) int64, the token at which each level begins: 0, h0 * w0, ...
// sampling_locations: (bs, Q, heads, L, P, 2), (x, y). float32, also for half-precision values
//   (bfloat16's steps of 1/256 would be a third of a pixel on a map 100 wide); float64 for float64.
// attention_weights: (bs, Q, heads, L, P), of the locations' dtype. Used as they are: the softmax
// is
//   the caller's.
//
// Returns (bs, Q, heads * D) of value's dtype; sums are made in the locations' dtype. Any size may
// be 0, but there is at least one level. Inputs need not be contiguous (they are copied if not).
//
// Gradients flow to value, sampling_locations and attention_weights; these three inputs, and no
// intermediate, are what autograd keeps. Only gradients that are asked for are computed.
//
// Under autocast, value stays as it is, and half-precision locations and weights are raised to what
// is asked for above.
//
// Bitwise repeatable, also from one thread count to another. It is not bitwise the same from one
// instruction set to another: AVX-512, AVX2 or plain code is chosen when the program runs; the
// environment variable LOWTIDE_MS_DEFORM_ATTN=avx512|avx2|plain overrides the choice.
//
// Cost: 4 * D multiply-adds a sample forward, 8 * D backward; workspace: one head's value, as
// float32 or float64, for each thread (twice that in backward).
//
// Throws UsageError: a shape (LT0401), dtype (LT0402), level table (LT0403) or device (LT0404) that
// does not fit, and later double backward (LT0405) or forward-mode gradients (LT0406).
LOWTIDE_API at::Tensor ms_deform_attn(const at::Tensor& value, const at::Tensor& spatial_shapes,
                                      const at::Tensor& level_start_index,
                                      const at::Tensor& sampling_locations,
                                      const at::Tensor& attention_weights);

}  // namespace lowtide
