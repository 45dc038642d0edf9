#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>

#include "lowtide/checkpoint.h"
#include "lowtide/deformable_detr_encoder.h"
#include "lowtide/error.h"
#include "lowtide/ms_deform_attn.h"
#include "src/base/assert.h"
#include "src/base/text.h"
#include "src/nn/encoder_weights.h"

// The encoder of Deformable DETR, written so that a layer keeps as little as its backward needs.
//
// A layer is attention, norm, feed-forward, norm, each with its residual inside:
//
//   value = value_proj(query), zero at padding          locations = reference + offsets / size
//   a = norm0(query + dropout(output_proj(sample(value, locations, weights))))
//   memory = norm1(a + dropout(linear2(dropout(relu(linear1(a))))))
//
// What is kept for backward, in units of one (bs, N, C) tensor: query, query + query_pos, value,
// locations (1), weights (1/2), samples, both norms' inputs, a, and the hidden layer (4 with 1024
// channels of 256), which is 12.5. Three choices keep it there:
//
// 1. All linear layers run on (bs * N, C). On three dimensions libtorch returns a view, and an
//    in-place op on a view makes autograd copy the whole gradient (CopySlices) in backward.
// 2. ReLU comes after dropout, in place. Both orders give the same values, since the noise is never
//    negative; but in this one ReLU's result is also what linear2 keeps, instead of a second
//    hidden tensor. Dropout keeps a mask of one byte an element, not a float.
// 3. Masking, adding the residual and adding the reference points are done in place on results
//    that no op has kept.
//
// 4. In backward the top of memory is the hidden layer: as kept, as the gradient that linear2 hands
//    down, and as what ReLU makes of that. ReLU's own node writes the last over the second, when
//    nobody else holds it.
//
// With num_cp a layer is two checkpointed regions, each from the sum that a norm takes to the sum
// that the next norm takes:
//
//   attention      norm1 of the layer before, then all of attention and its residual
//   feed-forward   norm0, then both linear layers and the residual
//
// What is kept between is one token tensor for each, and query_pos, shared by all layers. Two
// regions, since with one, backward through the feed-forward part would stand on the attention's
// tensors. From sum to sum, since each region then ends in a linear layer of which only the input
// is kept: the replay stops before it and spares output_proj and linear2, 43 % of a layer's
// multiplications. (With dropout they run again: their outputs' masks come after them.)
//
// Tested by tests/nn/encoder_test.cpp, and against expected values by tests/nn/parity_test.cpp

namespace lowtide {
namespace detail {

struct EncoderLinear {
  at::Tensor weight;
  at::Tensor bias;
};

struct EncoderLayerWeights {
  EncoderLinear sampling_offsets;
  EncoderLinear attention_weights;
  EncoderLinear value_proj;
  EncoderLinear output_proj;
  EncoderLinear norm0;
  EncoderLinear norm1;
  EncoderLinear ffn0;
  EncoderLinear ffn1;
};

// What all layers of one forward share.
struct EncoderGeometry {
  at::Tensor padding;  // (bs * N, 1) bool, or undefined
  at::Tensor spatial_shapes;
  at::Tensor level_start_index;
  at::Tensor reference_points;  // (bs, N, 1, L, 1, 2)
  at::Tensor level_sizes;       // (L, 1, 2) as (w, h)
  std::int64_t batch = 0;
  double dropout = 0;  // 0 when not training
};

}  // namespace detail

namespace {

using detail::EncoderGeometry;
using detail::EncoderLayerWeights;
using detail::EncoderLinear;

// A module that only holds parameters and other modules, so that names come out as mmdetection's.
class ParameterNode : public torch::nn::Module {};

std::shared_ptr<ParameterNode> add_node(torch::nn::Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<ParameterNode>());
}

EncoderLinear add_pair(torch::nn::Module& parent, const std::string& name, at::Tensor weight,
                       std::int64_t bias_size) {
  const std::shared_ptr<ParameterNode> node = add_node(parent, name);
  EncoderLinear pair;
  pair.weight = node->register_parameter("weight", std::move(weight));
  pair.bias = node->register_parameter("bias", at::empty({bias_size}));
  return pair;
}

EncoderLinear add_linear(torch::nn::Module& parent, const std::string& name, std::int64_t in,
                         std::int64_t out) {
  return add_pair(parent, name, at::empty({out, in}), out);
}

EncoderLinear add_norm(torch::nn::Module& parent, const std::string& name, std::int64_t size) {
  return add_pair(parent, name, at::empty({size}), size);
}

std::shared_ptr<const EncoderLayerWeights> add_layer(
    torch::nn::Module& parent, const std::string& name,
    const DeformableDetrEncoderLayerOptions& options) {
  const std::int64_t channels = options.embed_dims;
  const std::int64_t samples = options.num_heads * options.num_levels * options.num_points;
  auto weights = std::make_shared<EncoderLayerWeights>();
  const auto layer = add_node(parent, name);
  const auto attention = add_node(*layer, "self_attn");
  weights->sampling_offsets = add_linear(*attention, "sampling_offsets", channels, 2 * samples);
  weights->attention_weights = add_linear(*attention, "attention_weights", channels, samples);
  weights->value_proj = add_linear(*attention, "value_proj", channels, channels);
  weights->output_proj = add_linear(*attention, "output_proj", channels, channels);

  const auto ffn_layers = add_node(*add_node(*layer, "ffn"), "layers");
  const auto ffn_first = add_node(*ffn_layers, "0");
  weights->ffn0 = add_linear(*ffn_first, "0", channels, options.feedforward_channels);
  weights->ffn1 = add_linear(*ffn_layers, "1", options.feedforward_channels, channels);

  const auto norms = add_node(*layer, "norms");
  weights->norm0 = add_norm(*norms, "0", channels);
  weights->norm1 = add_norm(*norms, "1", channels);
  return weights;
}

void xavier_uniform(at::Tensor weight) {
  const double bound = std::sqrt(6.0 / static_cast<double>(weight.size(0) + weight.size(1)));
  weight.uniform_(-bound, bound);
}

// Head h looks in direction 2 pi h / heads, point p is p + 1 pixels out (largest coordinate), the
// same on all levels. In float32 and by libtorch's own cosine, for the reference's very bits.
at::Tensor sampling_grid(const DeformableDetrEncoderLayerOptions& options) {
  const at::Tensor angles = at::arange(options.num_heads, at::kFloat)
                                .mul(2 * std::numbers::pi / static_cast<double>(options.num_heads));
  at::Tensor directions = at::stack({angles.cos(), angles.sin()}, -1);
  directions = directions / directions.abs().amax(-1, /*keepdim=*/true);
  const at::Tensor steps = at::arange(1, options.num_points + 1, at::kFloat).view({-1, 1});
  return (directions.view({options.num_heads, 1, 1, 2}) * steps)
      .expand({options.num_heads, options.num_levels, options.num_points, 2})
      .flatten();
}

template <typename... Parts>
[[noreturn]] void refuse_options(const Parts&... parts) {
  throw UsageError("LT0420", concat("cannot make a Deformable DETR encoder: ", parts...));
}

void check_options(std::int64_t num_layers, const DeformableDetrEncoderLayerOptions& options) {
  const auto check_positive = [](const char* name, std::int64_t value) {
    if (value <= 0) {
      refuse_options(name, " is ", value, ", but must be at least 1");
    }
  };
  check_positive("num_layers", num_layers);
  check_positive("embed_dims", options.embed_dims);
  check_positive("num_heads", options.num_heads);
  check_positive("num_levels", options.num_levels);
  check_positive("num_points", options.num_points);
  check_positive("feedforward_channels", options.feedforward_channels);
  if (options.embed_dims % options.num_heads != 0) {
    refuse_options("embed_dims ", options.embed_dims, " is not a multiple of num_heads ",
                   options.num_heads);
  }
  if (!(options.dropout >= 0 && options.dropout <= 1)) {
    refuse_options("dropout is ", options.dropout, ", but must be from 0 to 1");
  }
}

// num_cp with "off" as 0.
std::int64_t checked_num_cp(std::int64_t num_cp, std::int64_t num_layers) {
  if (num_cp < -1 || num_cp > num_layers) {
    throw UsageError("LT0420",
                     concat("cannot checkpoint num_cp = ", num_cp, " layers of an encoder with ",
                            "num_layers = ", num_layers, ". Give -1 or 0 for none, up to ",
                            num_layers, " for all"),
                     {{"num_cp", num_cp}, {"num_layers", num_layers}});
  }
  return std::max<std::int64_t>(num_cp, 0);
}

std::string describe(const at::Tensor& tensor) {
  return tensor.defined()
             ? concat(tensor.sizes(), " ", tensor.scalar_type(), " on ", tensor.device())
             : "undefined";
}

template <typename... Parts>
[[noreturn]] void refuse_input(const char* id, const Parts&... parts) {
  throw UsageError(id, concat("cannot run the Deformable DETR encoder: ", parts...));
}

void check_query(const EncoderTokens& tokens, std::int64_t channels) {
  const at::Tensor& query = tokens.query;
  if (!query.defined() || query.dim() != 3 || query.size(2) != channels ||
      !query.is_floating_point() || !query.is_cpu()) {
    refuse_input("LT0421", "query must be (bs, N, ", channels, ") floating on the CPU, but is ",
                 describe(query));
  }
  const at::Tensor& pos = tokens.query_pos;
  if (pos.defined() &&
      (pos.sizes() != query.sizes() || !pos.is_floating_point() || !pos.is_cpu())) {
    refuse_input("LT0421", "query_pos must be ", query.sizes(),
                 " as query is, floating on the CPU, but is ", describe(pos));
  }
}

void check_mask(const EncoderTokens& tokens) {
  const at::Tensor& mask = tokens.key_padding_mask;
  if (!mask.defined()) {
    return;
  }
  const at::Tensor& query = tokens.query;
  if (mask.scalar_type() != at::kBool || mask.dim() != 2 || mask.size(0) != query.size(0) ||
      mask.size(1) != query.size(1) || !mask.is_cpu()) {
    refuse_input("LT0422", "key_padding_mask must be [", query.size(0), ", ", query.size(1),
                 "] Bool on the CPU, true where there is padding, but is ", describe(mask));
  }
}

void check_levels(const EncoderTokens& tokens, std::int64_t levels) {
  const at::Tensor& shapes = tokens.spatial_shapes;
  const auto is_table = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.scalar_type() == at::kLong && tensor.is_cpu();
  };
  if (!is_table(shapes) || shapes.dim() != 2 || shapes.size(0) != levels || shapes.size(1) != 2) {
    refuse_input("LT0423", "spatial_shapes must be [", levels,
                 ", 2] Long on the CPU, (height, width) of each level, but is ", describe(shapes));
  }
  const at::Tensor& starts = tokens.level_start_index;
  if (!is_table(starts) || starts.dim() != 1 || starts.size(0) != levels) {
    refuse_input("LT0423", "level_start_index must be [", levels, "] Long on the CPU, but is ",
                 describe(starts));
  }
  const at::Tensor shapes_row = shapes.contiguous();
  const at::Tensor starts_row = starts.contiguous();
  const auto* sizes = shapes_row.const_data_ptr<std::int64_t>();
  const auto* first = starts_row.const_data_ptr<std::int64_t>();
  const std::int64_t tokens_given = tokens.query.size(1);
  std::int64_t count = 0;
  for (std::int64_t level = 0; level < levels; ++level) {
    const std::int64_t height = sizes[2 * level];
    const std::int64_t width = sizes[2 * level + 1];
    if (height <= 0 || width <= 0 || height > tokens_given || width > tokens_given) {
      refuse_input("LT0423", "level ", level, " of spatial_shapes is ", height, "x", width,
                   ", which is not a part of query's ", tokens_given, " tokens");
    }
    if (first[level] != count) {
      refuse_input("LT0423", "level_start_index[", level, "] is ", first[level],
                   ", but the levels before it in spatial_shapes have ", count, " tokens");
    }
    count += height * width;
  }
  if (count != tokens_given) {
    refuse_input("LT0423", "the levels of spatial_shapes have ", count,
                 " tokens together, but query has ", tokens_given);
  }
}

void check_ratios(const EncoderTokens& tokens, std::int64_t levels) {
  const at::Tensor& ratios = tokens.valid_ratios;
  if (!ratios.defined() || ratios.dim() != 3 || ratios.size(0) != tokens.query.size(0) ||
      ratios.size(1) != levels || ratios.size(2) != 2 || !ratios.is_floating_point() ||
      !ratios.is_cpu()) {
    refuse_input("LT0424", "valid_ratios must be [", tokens.query.size(0), ", ", levels,
                 ", 2] floating on the CPU, (of the width, of the height), but is ",
                 describe(ratios));
  }
}

std::shared_ptr<const EncoderGeometry> make_geometry(
    const EncoderTokens& tokens, const DeformableDetrEncoderLayerOptions& options, bool training) {
  const at::NoGradGuard no_grad;
  auto geometry = std::make_shared<EncoderGeometry>();
  if (tokens.key_padding_mask.defined()) {
    geometry->padding = tokens.key_padding_mask.reshape({-1, 1});
  }
  geometry->spatial_shapes = tokens.spatial_shapes.contiguous();
  geometry->level_start_index = tokens.level_start_index.contiguous();
  // Locations below float32 would be off by a third of a pixel on a wide map.
  const at::ScalarType type = tokens.query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  geometry->reference_points =
      encoder_reference_points(geometry->spatial_shapes, tokens.valid_ratios.to(type))
          .unsqueeze(2)
          .unsqueeze(4);
  geometry->level_sizes = geometry->spatial_shapes.flip(1).to(type).unsqueeze(1);
  geometry->batch = tokens.query.size(0);
  geometry->dropout = training ? options.dropout : 0;
  return geometry;
}

at::Tensor dropped(at::Tensor input, double probability) {
  return probability > 0 ? std::get<0>(at::native_dropout(input, probability, true))
                         : std::move(input);
}

// `branch` is fresh and kept by no op. Under autocast it may be of a narrower dtype than `query`.
at::Tensor add_residual(at::Tensor branch, const at::Tensor& query) {
  return branch.scalar_type() == query.scalar_type() ? branch.add_(query) : branch + query;
}

// relu_ with a backward that needs no second tensor.
struct ReluInPlace : torch::autograd::Function<ReluInPlace> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor input) {
    input.relu_();
    context->mark_dirty({input});
    context->save_for_backward({input});
    context->set_materialize_grads(false);
    return input;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor& given = gradients[0];
    if (!given.defined()) {
      return {at::Tensor()};
    }
    const at::Tensor result = context->get_saved_variables()[0];
    const bool ours_alone = given.use_count() == 1 && given.storage().use_count() == 1 &&
                            given.is_non_overlapping_and_dense();
    if (c10::GradMode::is_enabled() || !ours_alone) {
      return {at::threshold_backward(given, result, 0)};
    }
    at::Tensor gradient = given;
    at::threshold_backward_out(gradient, gradient, result, 0);
    return {gradient};
  }
};

at::Tensor linear(const at::Tensor& input, const EncoderLinear& weights) {
  return at::linear(input, weights.weight, weights.bias);
}

// (bs, N, C) -> (bs * N, C); undefined stays so.
at::Tensor rows_of(const at::Tensor& tokens) {
  return tokens.defined() ? tokens.flatten(0, 1) : at::Tensor();
}

at::Tensor norm(const at::Tensor& input, const EncoderLinear& weights) {
  return at::layer_norm(input, weights.weight.sizes(), weights.weight, weights.bias, 1e-5);
}

// query (bs * N, C) -> query + attention.
at::Tensor attend(const at::Tensor& query, const at::Tensor& query_pos,
                  const EncoderLayerWeights& weights, const EncoderGeometry& geometry,
                  const DeformableDetrEncoderLayerOptions& options) {
  const std::int64_t batch = geometry.batch;
  const std::int64_t heads = options.num_heads;
  const std::int64_t levels = options.num_levels;
  const std::int64_t points = options.num_points;
  const std::int64_t tokens = query.size(0) / batch;

  at::Tensor value = linear(query, weights.value_proj);
  if (geometry.padding.defined()) {
    value.masked_fill_(geometry.padding, 0);
  }
  value = value.view({batch, tokens, heads, options.embed_dims / heads});

  at::Tensor locations;
  at::Tensor attention;
  {
    const at::Tensor asking = query_pos.defined() ? query + query_pos : query;
    locations = linear(asking, weights.sampling_offsets)
                    .view({batch, tokens, heads, levels, points, 2})
                    .div(geometry.level_sizes)
                    .add_(geometry.reference_points);
    attention = linear(asking, weights.attention_weights)
                    .view({batch, tokens, heads, levels * points})
                    .softmax(-1, locations.scalar_type())
                    .view({batch, tokens, heads, levels, points});
  }
  const at::Tensor sampled = ms_deform_attn(value, geometry.spatial_shapes,
                                            geometry.level_start_index, locations, attention);
  return add_residual(
      dropped(linear(sampled.view({batch * tokens, options.embed_dims}), weights.output_proj),
              geometry.dropout),
      query);
}

// `sum` is the query itself, or what norm1 of the layer `before` makes it of.
at::Tensor attention_sum(const at::Tensor& sum, const EncoderLayerWeights* before,
                         const at::Tensor& query_pos, const EncoderLayerWeights& weights,
                         const EncoderGeometry& geometry,
                         const DeformableDetrEncoderLayerOptions& options) {
  return attend(before != nullptr ? norm(sum, before->norm1) : sum, query_pos, weights, geometry,
                options);
}

at::Tensor feedforward_sum(const at::Tensor& sum, const EncoderLayerWeights& weights,
                           const EncoderGeometry& geometry) {
  const at::Tensor attended = norm(sum, weights.norm0);
  at::Tensor hidden = dropped(linear(attended, weights.ffn0), geometry.dropout);
  hidden = ReluInPlace::apply(hidden);
  return add_residual(dropped(linear(hidden, weights.ffn1), geometry.dropout), attended);
}

}  // namespace

DeformableDetrTransformerEncoderImpl::DeformableDetrTransformerEncoderImpl(
    std::int64_t num_layers, const DeformableDetrEncoderLayerOptions& layer, std::int64_t num_cp,
    WithoutDrawing)
    : torch::nn::Module("DeformableDetrTransformerEncoder"), options_(layer) {
  check_options(num_layers, layer);
  num_cp_ = checked_num_cp(num_cp, num_layers);
  const auto list = add_node(*this, "layers");
  for (std::int64_t i = 0; i < num_layers; ++i) {
    layers_.push_back(add_layer(*list, std::to_string(i), layer));
  }
}

DeformableDetrTransformerEncoderImpl::DeformableDetrTransformerEncoderImpl(
    std::int64_t num_layers, const DeformableDetrEncoderLayerOptions& layer, std::int64_t num_cp)
    : DeformableDetrTransformerEncoderImpl(num_layers, layer, num_cp, WithoutDrawing{}) {
  reset_parameters();
}

void DeformableDetrTransformerEncoderImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  const at::Tensor grid = sampling_grid(options_);
  for (const auto& layer : layers_) {
    at::Tensor(layer->sampling_offsets.weight).zero_();
    at::Tensor(layer->sampling_offsets.bias).copy_(grid);
    at::Tensor(layer->attention_weights.weight).zero_();
    at::Tensor(layer->attention_weights.bias).zero_();
    for (const EncoderLinear* projection : {&layer->value_proj, &layer->output_proj}) {
      xavier_uniform(projection->weight);
      at::Tensor(projection->bias).zero_();
    }
    for (const EncoderLinear* feedforward : {&layer->ffn0, &layer->ffn1}) {
      xavier_uniform(feedforward->weight);
      const double bound = 1 / std::sqrt(static_cast<double>(feedforward->weight.size(1)));
      at::Tensor(feedforward->bias).uniform_(-bound, bound);
    }
    for (const EncoderLinear* layer_norm : {&layer->norm0, &layer->norm1}) {
      at::Tensor(layer_norm->weight).fill_(1);
      at::Tensor(layer_norm->bias).zero_();
    }
  }
}

at::Tensor DeformableDetrTransformerEncoderImpl::run_layer(
    std::size_t index, const at::Tensor& sum,
    const std::shared_ptr<const EncoderLayerWeights>& before, const at::Tensor& query_pos,
    const std::shared_ptr<const EncoderGeometry>& geometry) const {
  const auto& weights = layers_[index];
  if (static_cast<std::int64_t>(index) >= num_cp_) {
    return feedforward_sum(
        attention_sum(sum, before.get(), query_pos, *weights, *geometry, options_), *weights,
        *geometry);
  }
  // The regions outlive this call, so they hold what they need by value.
  const auto attention = [before, weights, geometry, options = options_](
                             const at::Tensor& rows, const at::Tensor& positions) {
    return attention_sum(rows, before.get(), positions, *weights, *geometry, options);
  };
  const auto feedforward = [weights, geometry](const at::Tensor& rows) {
    return feedforward_sum(rows, *weights, *geometry);
  };
  const at::Tensor attended =
      query_pos.defined()
          ? checkpoint(attention, std::make_tuple(sum, query_pos))
          : checkpoint([attention](const at::Tensor& rows) { return attention(rows, {}); }, sum);
  return checkpoint(feedforward, attended);
}

std::shared_ptr<const EncoderGeometry> DeformableDetrTransformerEncoderImpl::checked_geometry(
    const EncoderTokens& tokens) const {
  check_query(tokens, options_.embed_dims);
  check_mask(tokens);
  check_levels(tokens, options_.num_levels);
  check_ratios(tokens, options_.num_levels);
  return make_geometry(tokens, options_, is_training());
}

at::Tensor DeformableDetrTransformerEncoderImpl::forward(const EncoderTokens& tokens) {
  const auto geometry = checked_geometry(tokens);
  const at::Tensor query_pos = rows_of(tokens.query_pos);
  at::Tensor sum = rows_of(tokens.query);
  std::shared_ptr<const EncoderLayerWeights> before;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    sum = run_layer(i, sum, before, query_pos, geometry);
    before = layers_[i];
  }
  return norm(sum, before->norm1).view(tokens.query.sizes());
}

at::Tensor DeformableDetrTransformerEncoderImpl::forward(const at::Tensor& query,
                                                         const at::Tensor& query_pos,
                                                         const at::Tensor& key_padding_mask,
                                                         const at::Tensor& spatial_shapes,
                                                         const at::Tensor& level_start_index,
                                                         const at::Tensor& valid_ratios) {
  return forward(EncoderTokens{query, query_pos, key_padding_mask, spatial_shapes,
                               level_start_index, valid_ratios});
}

std::vector<at::Tensor> DeformableDetrTransformerEncoderImpl::forward_layers(
    const EncoderTokens& tokens) {
  const auto geometry = checked_geometry(tokens);
  const at::Tensor query_pos = rows_of(tokens.query_pos);
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const at::Tensor query = rows_of(i == 0 ? tokens.query : outputs.back());
    outputs.push_back(norm(run_layer(i, query, nullptr, query_pos, geometry), layers_[i]->norm1)
                          .view(tokens.query.sizes()));
  }
  return outputs;
}

void DeformableDetrTransformerEncoderImpl::set_num_cp(std::int64_t num_cp) {
  num_cp_ = checked_num_cp(num_cp, num_layers());
}

std::map<std::string, at::Tensor> DeformableDetrTransformerEncoderImpl::state_dict() const {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : named_parameters()) {
    tensors.emplace(item.key(), item.value().detach());
  }
  return tensors;
}

void DeformableDetrTransformerEncoderImpl::load_state_dict(
    const std::map<std::string, at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> parameters = state_dict();
  for (const auto& [name, tensor] : match_encoder_weights(tensors, parameters)) {
    parameters.at(name).copy_(tensor);
  }
}

void DeformableDetrTransformerEncoderImpl::use_parameters(
    const std::map<std::string, at::Tensor>& tensors) {
  const std::map<std::string, at::Tensor> matched = match_encoder_weights(tensors, state_dict());
  std::vector<std::shared_ptr<const EncoderLayerWeights>> layers;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto pair = [&](const char* name) {
      const std::string prefix = concat("layers.", i, ".", name);
      return EncoderLinear{matched.at(prefix + ".weight"), matched.at(prefix + ".bias")};
    };
    layers.push_back(std::make_shared<EncoderLayerWeights>(EncoderLayerWeights{
        pair("self_attn.sampling_offsets"), pair("self_attn.attention_weights"),
        pair("self_attn.value_proj"), pair("self_attn.output_proj"), pair("norms.0"),
        pair("norms.1"), pair("ffn.layers.0.0"), pair("ffn.layers.1")}));
  }
  layers_ = std::move(layers);
}

void DeformableDetrTransformerEncoderImpl::copy_parameters_from(
    const torch::nn::Module& source, const std::optional<torch::Device>& device) {
  const at::NoGradGuard no_grad;
  const auto theirs = source.named_parameters();
  for (auto& item : named_parameters()) {
    const at::Tensor& value = theirs[item.key()];
    item.value().set_data(device ? value.to(*device, value.scalar_type(), /*non_blocking=*/false,
                                            /*copy=*/true)
                                 : value.clone());
    item.value().set_requires_grad(value.requires_grad());
  }
  train(source.is_training());
}

std::shared_ptr<torch::nn::Module> DeformableDetrTransformerEncoderImpl::clone(
    const std::optional<torch::Device>& device) const {
  // The constructor that draws nothing is private, out of make_shared's reach.
  const std::shared_ptr<DeformableDetrTransformerEncoderImpl> copy(
      new DeformableDetrTransformerEncoderImpl(num_layers(), options_, num_cp_, WithoutDrawing{}));
  copy->copy_parameters_from(*this, device);
  return copy;
}

void DeformableDetrTransformerEncoderImpl::clone_(torch::nn::Module& other,
                                                  const std::optional<torch::Device>& device) {
  // Called by a cloned parent on its own, freshly made encoder, with the original as `other`.
  const auto* original = dynamic_cast<const DeformableDetrTransformerEncoderImpl*>(&other);
  LOWTIDE_ASSERT(original != nullptr && original->num_layers() == num_layers());
  num_cp_ = original->num_cp_;
  copy_parameters_from(*original, device);
}

}  // namespace lowtide
