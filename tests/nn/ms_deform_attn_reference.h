#pragma once
// What ms_deform_attn is held against, in tests and in the benchmark: the formulation in tensor
// operators that is used where there is no kernel, and a scalar twin written straight from the
// definition. Also makes inputs.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "lowtide/ms_deform_attn.h"

namespace lowtide::reference {

using Index = std::int64_t;
using Levels = std::vector<std::array<Index, 2>>;  // (height, width)

struct Inputs {
  at::Tensor value;
  at::Tensor spatial_shapes;
  at::Tensor level_start_index;
  at::Tensor locations;
  at::Tensor weights;
};

inline at::Tensor fused(const Inputs& in) {
  return ms_deform_attn(in.value, in.spatial_shapes, in.level_start_index, in.locations,
                        in.weights);
}

// The multi-scale sum by grid_sample: one call for each level, the samples stacked, weighted and
// summed. Keeps the stacked samples (L * P times the output) for backward.
inline at::Tensor by_grid_sample(const Inputs& in) {
  const Index bs = in.value.size(0);
  const Index heads = in.value.size(2);
  const Index width = in.value.size(3);
  const Index queries = in.locations.size(1);
  const Index levels = in.locations.size(3);
  const Index points = in.locations.size(4);
  const at::Tensor grids = in.locations.mul(2).sub(1);
  const Index* shapes = in.spatial_shapes.const_data_ptr<Index>();
  std::vector<at::Tensor> sampled;
  Index start = 0;
  for (Index l = 0; l < levels; ++l) {
    const Index h = shapes[2 * l];
    const Index w = shapes[2 * l + 1];
    // (bs, h * w, heads, D) -> (bs * heads, D, h, w)
    const at::Tensor map = in.value.narrow(1, start, h * w)
                               .flatten(2)
                               .transpose(1, 2)
                               .reshape({bs * heads, width, h, w});
    // (bs, Q, heads, P, 2) -> (bs * heads, Q, P, 2)
    const at::Tensor grid = grids.select(3, l).transpose(1, 2).flatten(0, 1);
    sampled.push_back(at::grid_sampler(map, grid, 0, 0, false));  // bilinear, zeros
    start += h * w;
  }
  const at::Tensor weights =
      in.weights.transpose(1, 2).reshape({bs * heads, 1, queries, levels * points});
  return at::stack(sampled, -2)
      .flatten(-2)
      .mul(weights)
      .sum(-1)
      .view({bs, heads * width, queries})
      .transpose(1, 2)
      .contiguous();
}

// Result and gradients of the scalar twin, in double.
struct Scalar {
  at::Tensor output;
  at::Tensor grad_value;
  at::Tensor grad_locations;
  at::Tensor grad_weights;
};

// One tap at a time, in double, straight from the definition.
inline Scalar by_scalar(const Inputs& in, const at::Tensor& grad_output = {}) {
  const at::Tensor value = in.value.detach().to(at::kDouble).contiguous();
  const at::Tensor locations = in.locations.detach().to(at::kDouble).contiguous();
  const at::Tensor weights = in.weights.detach().to(at::kDouble).contiguous();
  const Index bs = value.size(0), tokens = value.size(1), heads = value.size(2),
              width = value.size(3), queries = locations.size(1), levels = locations.size(3),
              points = locations.size(4);
  const at::Tensor g = grad_output.defined()
                           ? grad_output.detach().to(at::kDouble).contiguous()
                           : at::zeros({bs, queries, heads * width}, value.options());
  Scalar result{at::zeros({bs, queries, heads * width}, value.options()), at::zeros_like(value),
                at::zeros_like(locations), at::zeros_like(weights)};
  const double* v = value.const_data_ptr<double>();
  const double* loc = locations.const_data_ptr<double>();
  const double* wt = weights.const_data_ptr<double>();
  const double* go = g.const_data_ptr<double>();
  double* out = result.output.mutable_data_ptr<double>();
  double* gv = result.grad_value.mutable_data_ptr<double>();
  double* gl = result.grad_locations.mutable_data_ptr<double>();
  double* gw = result.grad_weights.mutable_data_ptr<double>();
  const Index* shapes = in.spatial_shapes.const_data_ptr<Index>();
  for (Index b = 0; b < bs; ++b)
    for (Index q = 0; q < queries; ++q)
      for (Index m = 0; m < heads; ++m) {
        Index start = 0;
        for (Index l = 0; l < levels; ++l) {
          const Index h = shapes[2 * l], w = shapes[2 * l + 1];
          for (Index p = 0; p < points; ++p) {
            const Index s = (((b * queries + q) * heads + m) * levels + l) * points + p;
            const double x = loc[2 * s] * static_cast<double>(w) - 0.5;
            const double y = loc[2 * s + 1] * static_cast<double>(h) - 0.5;
            if (!(x > -1 && y > -1 && x < static_cast<double>(w) && y < static_cast<double>(h)))
              continue;
            const double left = std::floor(x), top = std::floor(y);
            for (int dy = 0; dy < 2; ++dy)
              for (int dx = 0; dx < 2; ++dx) {
                const Index tx = static_cast<Index>(left) + dx, ty = static_cast<Index>(top) + dy;
                if (tx < 0 || ty < 0 || tx >= w || ty >= h) continue;
                const double cx = dx == 1 ? x - left : 1 - (x - left);
                const double cy = dy == 1 ? y - top : 1 - (y - top);
                const Index tap = ((b * tokens + start + ty * w + tx) * heads + m) * width;
                const Index o = ((b * queries + q) * heads + m) * width;
                for (Index d = 0; d < width; ++d) {
                  out[o + d] += wt[s] * cx * cy * v[tap + d];
                  gv[tap + d] += wt[s] * cx * cy * go[o + d];
                  gw[s] += cx * cy * v[tap + d] * go[o + d];
                  gl[2 * s] += wt[s] * (dx == 1 ? 1 : -1) * cy * v[tap + d] * go[o + d] *
                               static_cast<double>(w);
                  gl[2 * s + 1] += wt[s] * (dy == 1 ? 1 : -1) * cx * v[tap + d] * go[o + d] *
                                   static_cast<double>(h);
                }
              }
          }
          start += h * w;
        }
      }
  return result;
}

struct Sizes {
  Index bs = 1;
  Index heads = 1;
  Index width = 8;
  Index queries = 1;
  Index points = 4;
  Levels levels = {{5, 7}};
};

inline std::pair<at::Tensor, at::Tensor> level_tables(const Levels& levels) {
  std::vector<Index> shapes;
  std::vector<Index> starts;
  Index tokens = 0;
  for (const auto& [h, w] : levels) {
    shapes.insert(shapes.end(), {h, w});
    starts.push_back(tokens);
    tokens += h * w;
  }
  return {at::tensor(shapes, at::kLong).view({-1, 2}), at::tensor(starts, at::kLong)};
}

inline Index token_count(const Levels& levels) {
  Index tokens = 0;
  for (const auto& [h, w] : levels) tokens += h * w;
  return tokens;
}

template <typename Draw>
at::Tensor filled(at::IntArrayRef sizes, at::ScalarType dtype, Draw&& draw) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(at::kFloat));
  float* data = tensor.mutable_data_ptr<float>();
  for (Index i = 0; i < tensor.numel(); ++i) data[i] = draw();
  return tensor.to(dtype);
}

// Locations all over the maps, a fifth of them out of it or on its border; weights that do not add
// up to one. Locations and weights are float64 for a float64 value, else float32.
inline Inputs random_inputs(const Sizes& sizes, at::ScalarType dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const at::ScalarType arithmetic = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const Index levels = static_cast<Index>(sizes.levels.size());
  auto [shapes, starts] = level_tables(sizes.levels);
  Inputs in;
  in.spatial_shapes = shapes;
  in.level_start_index = starts;
  in.value = filled({sizes.bs, token_count(sizes.levels), sizes.heads, sizes.width}, dtype,
                    [&] { return uniform(random); });
  in.locations = filled({sizes.bs, sizes.queries, sizes.heads, levels, sizes.points, 2}, arithmetic,
                        [&] { return 0.5f + 0.65f * uniform(random); });
  in.weights = filled({sizes.bs, sizes.queries, sizes.heads, levels, sizes.points}, arithmetic,
                      [&] { return uniform(random); });
  return in;
}

// What an encoder's layer does: a query for each token, its samples a few pixels of each level
// around the token's own place, weights that add up to one.
inline Inputs encoder_inputs(const Sizes& sizes, at::ScalarType dtype, unsigned seed) {
  Sizes own = sizes;
  own.queries = token_count(sizes.levels);
  Inputs in = random_inputs(own, dtype, seed);
  std::mt19937 random(seed + 1);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  const at::Tensor locations = in.locations.to(at::kFloat).contiguous();
  float* loc = locations.mutable_data_ptr<float>();
  for (Index b = 0; b < own.bs; ++b)
    for (const auto& [h, w] : own.levels)
      for (Index token = 0; token < h * w; ++token)
        for (Index m = 0; m < own.heads; ++m)
          for (const auto& [lh, lw] : own.levels)
            for (Index p = 0; p < own.points; ++p) {
              *loc++ = (static_cast<float>(token % w) + 0.5f) / static_cast<float>(w) +
                       normal(random) / static_cast<float>(lw);
              *loc++ = (static_cast<float>(token / w) + 0.5f) / static_cast<float>(h) +
                       normal(random) / static_cast<float>(lh);
            }
  in.locations = locations.to(in.locations.scalar_type());
  in.weights = in.weights.flatten(-2).softmax(-1).view(in.weights.sizes());
  return in;
}

}  // namespace lowtide::reference
