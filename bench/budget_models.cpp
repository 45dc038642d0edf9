#include "bench/budget_models.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "lowtide/checkpoint.h"
#include "lowtide/deformable_detr_encoder.h"
#include "lowtide/encoder_tokens.h"
#include "src/base/text.h"

namespace lowtide::bench {
namespace {

using at::Tensor;
using Block = std::function<Tensor(const Tensor&)>;

// Makes parameters, and remembers them.
class Weights {
 public:
  explicit Weights(StepModel& model) : model_(model) { at::manual_seed(1); }

  Tensor normal(at::IntArrayRef shape, double deviation) {
    return add(at::randn(shape).mul_(deviation));
  }
  Tensor constant(std::int64_t size, double value) { return add(at::full({size}, value)); }
  Tensor statistics(std::int64_t size, double value) {
    model_.buffers.push_back(at::full({size}, value));
    return model_.buffers.back();
  }

 private:
  Tensor add(const Tensor& tensor) {
    model_.parameters.push_back(tensor.set_requires_grad(true));
    return tensor;
  }
  StepModel& model_;
};

Tensor run_blocks(const std::vector<Block>& blocks, Tensor x, int checkpoint_every) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const bool checkpointed =
        checkpoint_every > 0 && i % static_cast<std::size_t>(checkpoint_every) == 0;
    x = checkpointed ? checkpoint(blocks[i], x) : blocks[i](x);
  }
  return x;
}

Block transformer_block(Weights& weights, std::int64_t width, std::int64_t heads,
                        std::int64_t hidden) {
  struct Linear {
    Tensor weight, bias;
    Tensor operator()(const Tensor& x) const { return at::linear(x, weight, bias); }
  };
  struct Norm {
    Tensor weight, bias;
    Tensor operator()(const Tensor& x) const {
      return at::layer_norm(x, weight.sizes(), weight, bias);
    }
  };
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    return Linear{weights.normal({out, in}, 0.02), weights.constant(out, 0)};
  };
  const auto norm = [&] { return Norm{weights.constant(width, 1), weights.constant(width, 0)}; };
  return [norm1 = norm(), qkv = linear(width, 3 * width), projection = linear(width, width),
          norm2 = norm(), widen = linear(width, hidden), narrow = linear(hidden, width),
          heads](const Tensor& x) {
    const auto batch = x.size(0), length = x.size(1), size = x.size(2);
    const std::vector<Tensor> parts = qkv(norm1(x))
                                          .view({batch, length, 3, heads, size / heads})
                                          .permute({2, 0, 3, 1, 4})
                                          .unbind(0);
    const Tensor attended = at::scaled_dot_product_attention(parts[0], parts[1], parts[2])
                                .transpose(1, 2)
                                .reshape({batch, length, size});
    const Tensor y = x + projection(attended);
    return y + narrow(at::gelu(widen(norm2(y))));
  };
}

struct Convolution {
  Tensor weight;
  std::int64_t stride;
  Tensor norm_weight, norm_bias, mean, variance;

  // Convolution and batch norm.
  Tensor operator()(const Tensor& x) const {
    const std::int64_t padding = weight.size(2) / 2;
    const Tensor y = at::conv2d(x, weight, {}, stride, padding);
    return at::batch_norm(y, norm_weight, norm_bias, mean, variance, /*training=*/true,
                          /*momentum=*/0.1, /*eps=*/1e-5, /*cudnn_enabled=*/false);
  }
};

Convolution convolution(Weights& weights, std::int64_t in, std::int64_t out, std::int64_t size,
                        std::int64_t stride) {
  const double deviation = std::sqrt(2.0 / static_cast<double>(in * size * size));
  return {weights.normal({out, in, size, size}, deviation),
          stride,
          weights.constant(out, 1),
          weights.constant(out, 0),
          weights.statistics(out, 0),
          weights.statistics(out, 1)};
}

Block residual_block(Weights& weights, std::int64_t in, std::int64_t out, std::int64_t stride) {
  const Convolution first = convolution(weights, in, out, 3, stride);
  const Convolution second = convolution(weights, out, out, 3, 1);
  if (in == out) {
    return [=](const Tensor& x) { return second(first(x).relu_()).add_(x).relu_(); };
  }
  const Convolution shortcut = convolution(weights, in, out, 1, stride);
  return [=](const Tensor& x) { return second(first(x).relu_()).add_(shortcut(x)).relu_(); };
}

struct TreeState {
  Tensor h, c;
};

// Tai, Socher and Manning (2015), binary: gates i, o, u and one forget gate a child.
struct TreeCell {
  enum Gate { kInput, kOutput, kUpdate, kForgetLeft, kForgetRight, kGates };
  std::array<Tensor, kGates> of_leaf, of_left, of_right, bias;

  TreeState leaf(const Tensor& x) const {
    const auto gate = [&](Gate g) { return at::mm(x, of_leaf[g]) + bias[g]; };
    const Tensor c = gate(kInput).sigmoid() * gate(kUpdate).tanh();
    return {gate(kOutput).sigmoid() * c.tanh(), c};
  }
  TreeState join(const TreeState& left, const TreeState& right) const {
    const auto gate = [&](Gate g) {
      return at::mm(left.h, of_left[g]) + at::mm(right.h, of_right[g]) + bias[g];
    };
    const Tensor c = gate(kInput).sigmoid() * gate(kUpdate).tanh() +
                     gate(kForgetLeft).sigmoid() * left.c + gate(kForgetRight).sigmoid() * right.c;
    return {gate(kOutput).sigmoid() * c.tanh(), c};
  }
};

}  // namespace

StepModel transformer(bool small) {
  const std::int64_t block_count = small ? 4 : 12;
  const std::int64_t width = small ? 256 : 512;
  const std::int64_t batch = small ? 4 : 8;
  const std::int64_t length = small ? 256 : 512;
  constexpr std::int64_t kHeads = 8;
  StepModel model;
  Weights weights(model);
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < block_count; ++i) {
    blocks.push_back(transformer_block(weights, width, kHeads, 4 * width));
  }
  const Tensor norm_weight = weights.constant(width, 1), norm_bias = weights.constant(width, 0);
  const Tensor input = at::randn({batch, length, width});
  const Tensor target = at::randn({batch, length, width});
  model.description =
      concat(block_count, " pre-norm blocks, width ", width, ", ", batch, " sequences of ", length);
  model.loss = [=, blocks = std::move(blocks)](int checkpoint_every) {
    const Tensor x = run_blocks(blocks, input, checkpoint_every);
    return at::mse_loss(at::layer_norm(x, {width}, norm_weight, norm_bias), target);
  };
  return model;
}

StepModel residual_conv_net(bool small) {
  const std::int64_t batch = small ? 8 : 32;
  const std::int64_t size = small ? 64 : 128;
  const std::vector<std::int64_t> widths =
      small ? std::vector<std::int64_t>{64, 128} : std::vector<std::int64_t>{64, 128, 256};
  constexpr int kBlocksOfAWidth = 3;
  StepModel model;
  Weights weights(model);
  const Convolution stem = convolution(weights, 3, 64, 7, 2);
  std::vector<Block> blocks;
  std::int64_t in = 64;
  for (const std::int64_t out : widths) {
    for (int i = 0; i < kBlocksOfAWidth; ++i) {
      blocks.push_back(residual_block(weights, in, out, in == out ? 1 : 2));
      in = out;
    }
  }
  const Tensor head = weights.normal({1000, in}, 0.02), head_bias = weights.constant(1000, 0);
  const Tensor images = at::randn({batch, 3, size, size});
  const Tensor labels = at::randint(1000, {batch}, at::kLong);
  model.description =
      concat("ResNet-18's blocks to width ", in, ", ", batch, " images of ", size, "x", size);
  model.loss = [=, blocks = std::move(blocks)](int checkpoint_every) {
    Tensor x = at::max_pool2d(stem(images).relu_(), 3, 2, 1);
    x = run_blocks(blocks, std::move(x), checkpoint_every);
    return at::cross_entropy_loss(at::linear(x.mean({2, 3}), head, head_bias), labels);
  };
  return model;
}

StepModel deformable_encoder(bool small) {
  constexpr std::int64_t kLevels = 4, kChannels = 256;
  const std::int64_t layers = small ? 2 : 6;
  const ImageSize image = small ? ImageSize{200, 333} : ImageSize{800, 1333};
  StepModel model;
  at::manual_seed(1);
  DeformableDetrTransformerEncoder encoder(layers, DeformableDetrEncoderLayerOptions{.dropout = 0});
  std::vector<Tensor> maps;
  ImageSize level = {(image.height + 7) / 8, (image.width + 7) / 8};
  for (std::int64_t i = 0; i < kLevels; ++i) {
    maps.push_back(at::randn({1, kChannels, level.height, level.width}));
    level = {(level.height + 1) / 2, (level.width + 1) / 2};
  }
  const EncoderTokens tokens =
      flatten_feature_maps(maps, at::randn({kLevels, kChannels}), {image}, image);
  tokens.query.set_requires_grad(true);
  tokens.query_pos.set_requires_grad(true);
  const Tensor gout = at::randn(tokens.query.sizes());
  model.parameters = encoder->parameters();
  model.parameters.push_back(tokens.query);
  model.parameters.push_back(tokens.query_pos);
  model.description =
      concat("deformable encoder, ", layers, " layers, ", image.height, "x", image.width);
  // The encoder checkpoints its first layers, so every second one means the first half.
  model.loss = [=](int checkpoint_every) mutable {
    encoder->set_num_cp(checkpoint_every == 0 ? 0 : layers / checkpoint_every);
    return at::dot(encoder->forward(tokens).flatten(), gout.flatten());
  };
  return model;
}

StepModel tree_lstm(bool small) {
  constexpr std::int64_t kSize = 128;
  const std::size_t leaf_count = small ? 15 : 45;
  StepModel model;
  Weights weights(model);
  TreeCell cell;
  const double deviation = 1 / std::sqrt(static_cast<double>(kSize));
  for (std::size_t gate = 0; gate < TreeCell::kGates; ++gate) {
    if (gate < TreeCell::kForgetLeft)
      cell.of_leaf[gate] = weights.normal({kSize, kSize}, deviation);
    cell.of_left[gate] = weights.normal({kSize, kSize}, deviation);
    cell.of_right[gate] = weights.normal({kSize, kSize}, deviation);
    cell.bias[gate] = weights.constant(kSize, 0);
  }
  std::vector<Tensor> leaves;
  for (std::size_t i = 0; i < leaf_count; ++i) leaves.push_back(at::randn({kSize, kSize}));
  model.description = concat("binary TreeLSTM, ", leaf_count, " leaves, states of 64 KiB");
  model.loss = [=](int) {
    std::vector<TreeState> states;
    for (const Tensor& leaf : leaves) states.push_back(cell.leaf(leaf));
    while (states.size() > 1) {
      std::vector<TreeState> joined;
      for (std::size_t i = 0; i + 1 < states.size(); i += 2) {
        joined.push_back(cell.join(states[i], states[i + 1]));
      }
      if (states.size() % 2 == 1) joined.push_back(states.back());
      states = std::move(joined);
    }
    return states.front().h.mean();
  };
  return model;
}

}  // namespace lowtide::bench
