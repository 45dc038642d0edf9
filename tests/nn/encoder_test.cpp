#include "lowtide/deformable_detr_encoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/nn/cloneable.h>

#include <string>
#include <vector>

#include "lowtide/error.h"
#include "lowtide/memory_meter.h"

namespace {

using lowtide::DeformableDetrEncoderLayerOptions;
using lowtide::DeformableDetrTransformerEncoder;
using lowtide::EncoderTokens;
using lowtide::UsageError;

using Tensors = std::map<std::string, at::Tensor>;

const DeformableDetrEncoderLayerOptions kSmall = {.embed_dims = 12,
                                                  .num_heads = 3,
                                                  .num_levels = 3,
                                                  .num_points = 2,
                                                  .feedforward_channels = 20,
                                                  .dropout = 0};

DeformableDetrEncoderLayerOptions with_dropout(double dropout) {
  DeformableDetrEncoderLayerOptions options = kSmall;
  options.dropout = dropout;
  return options;
}

// Two images of 24x32, the second padded from 17x20, on three levels.
EncoderTokens small_tokens(at::ScalarType type = at::kFloat) {
  at::manual_seed(7);
  std::vector<at::Tensor> maps;
  for (const auto& [height, width] : {std::pair(6, 8), {3, 4}, {2, 2}}) {
    maps.push_back(at::randn({2, 12, height, width}, type));
  }
  EncoderTokens tokens =
      lowtide::flatten_feature_maps(maps, at::randn({3, 12}, type), {{24, 32}, {17, 20}}, {24, 32});
  tokens.query = tokens.query.clone();
  tokens.query.set_requires_grad(true);
  tokens.query_pos = tokens.query_pos.clone();
  tokens.query_pos.set_requires_grad(true);
  return tokens;
}

// Away from the initial weights, at which gradients of offsets are one-sided.
void randomize(DeformableDetrTransformerEncoder& encoder) {
  const at::NoGradGuard no_grad;
  at::manual_seed(11);
  for (at::Tensor& parameter : encoder->parameters()) {
    parameter.add_(at::randn(parameter.sizes(), parameter.options()) * 0.2);
  }
}

// The encoder by the formulas, op for op, with grid_sample.
at::Tensor plain_encoder(const Tensors& weights, const DeformableDetrEncoderLayerOptions& options,
                         std::int64_t num_layers, const EncoderTokens& tokens) {
  const std::int64_t batch = tokens.query.size(0);
  const std::int64_t count = tokens.query.size(1);
  const std::int64_t heads = options.num_heads;
  const std::int64_t levels = options.num_levels;
  const std::int64_t points = options.num_points;
  const at::Tensor reference = lowtide::encoder_reference_points(
      tokens.spatial_shapes, tokens.valid_ratios.to(tokens.query.scalar_type()));
  at::Tensor x = tokens.query;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    const auto weight = [&](const std::string& name) {
      return weights.at("layers." + std::to_string(i) + "." + name);
    };
    const auto linear = [&](const at::Tensor& input, const std::string& name) {
      return at::linear(input, weight(name + ".weight"), weight(name + ".bias"));
    };
    const auto norm = [&](const at::Tensor& input, const std::string& name) {
      return at::layer_norm(input, {options.embed_dims}, weight(name + ".weight"),
                            weight(name + ".bias"));
    };
    at::Tensor value = linear(x, "self_attn.value_proj");
    if (tokens.key_padding_mask.defined()) {
      value = value.masked_fill(tokens.key_padding_mask.unsqueeze(2), 0);
    }
    value = value.view({batch, count, heads, options.embed_dims / heads});
    const at::Tensor query = x + tokens.query_pos;
    const at::Tensor offsets =
        linear(query, "self_attn.sampling_offsets").view({batch, count, heads, levels, points, 2});
    const at::Tensor attention = linear(query, "self_attn.attention_weights")
                                     .view({batch, count, heads, levels * points})
                                     .softmax(-1)
                                     .view({batch, count, heads, levels, points});
    at::Tensor sum = at::zeros({batch, heads, options.embed_dims / heads, count}, x.options());
    for (std::int64_t level = 0; level < levels; ++level) {
      const std::int64_t height = tokens.spatial_shapes[level][0].item<std::int64_t>();
      const std::int64_t width = tokens.spatial_shapes[level][1].item<std::int64_t>();
      const std::int64_t start = tokens.level_start_index[level].item<std::int64_t>();
      const at::Tensor size =
          at::tensor({static_cast<double>(width), static_cast<double>(height)}, x.options());
      const at::Tensor place = reference.select(2, level).unsqueeze(2).unsqueeze(3) +
                               offsets.select(3, level) / size;  // (bs, N, heads, points, 2)
      const at::Tensor map = value.slice(1, start, start + height * width)
                                 .permute({0, 2, 3, 1})
                                 .reshape({batch * heads, -1, height, width});
      const at::Tensor grid =
          (place * 2 - 1).permute({0, 2, 1, 3, 4}).reshape({batch * heads, count, points, 2});
      const at::Tensor sampled =
          at::grid_sampler(map, grid, 0, 0, false).view({batch, heads, -1, count, points});
      const at::Tensor share = attention.select(3, level).permute({0, 2, 1, 3}).unsqueeze(2);
      sum = sum + (sampled * share).sum(-1);
    }
    const at::Tensor attended =
        sum.permute({0, 3, 1, 2}).reshape({batch, count, options.embed_dims});
    x = norm(linear(attended, "self_attn.output_proj") + x, "norms.0");
    x = norm(linear(linear(x, "ffn.layers.0.0").relu(), "ffn.layers.1") + x, "norms.1");
  }
  return x;
}

// Memory and all gradients, parameters first, of one step.
std::vector<at::Tensor> step(DeformableDetrTransformerEncoder& encoder, EncoderTokens tokens) {
  encoder->zero_grad();
  tokens.query = tokens.query.detach().clone();
  tokens.query.set_requires_grad(true);
  if (tokens.query_pos.defined()) {
    tokens.query_pos = tokens.query_pos.detach().clone();
    tokens.query_pos.set_requires_grad(true);
  }
  at::manual_seed(3);
  const at::Tensor memory = encoder->forward(tokens);
  at::manual_seed(4);
  memory.backward(at::randn(memory.sizes(), memory.options()));
  std::vector<at::Tensor> results = {memory.detach(), tokens.query.grad()};
  if (tokens.query_pos.defined()) {
    results.push_back(tokens.query_pos.grad());
  }
  for (const at::Tensor& parameter : encoder->parameters()) {
    results.push_back(parameter.grad().clone());
  }
  results.push_back(at::rand({1}));  // where the generator stands afterwards
  return results;
}

void check_identical(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(a[i].equal(b[i]));
  }
}

template <typename Work>
void check_refused(const Work& work, const std::string& id, const std::string& part) {
  try {
    work();
    FAIL("not refused: ", part);
  } catch (const UsageError& error) {
    const std::string message = error.what();
    CHECK(error.id() == id);
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
}

// A user's module around the encoder.
struct Detector : torch::nn::Cloneable<Detector> {
  Detector() { reset(); }
  void reset() override {
    encoder = register_module("encoder", DeformableDetrTransformerEncoder(1, kSmall));
  }
  DeformableDetrTransformerEncoder encoder{nullptr};
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// `state` by Hugging Face's names, those of transformers 5 or before.
Tensors hugging_face_names(const Tensors& state, const std::string& prefix, bool recent) {
  Tensors result;
  for (const auto& [name, tensor] : state) {
    std::string theirs = replaced(name, "norms.0.", "self_attn_layer_norm.");
    theirs = replaced(theirs, "norms.1.", "final_layer_norm.");
    theirs = replaced(theirs, "ffn.layers.0.0.", recent ? "mlp.fc1." : "fc1.");
    theirs = replaced(theirs, "ffn.layers.1.", recent ? "mlp.fc2." : "fc2.");
    result[prefix + theirs] = tensor;
  }
  return result;
}

Tensors with_prefix(const Tensors& state, const std::string& prefix) {
  Tensors result;
  for (const auto& [name, tensor] : state) {
    result[prefix + name] = tensor;
  }
  return result;
}

}  // namespace

TEST_CASE("memory and gradients are those of the plain formulas, on uneven sizes") {
  const EncoderTokens tokens = small_tokens(at::kDouble);
  DeformableDetrTransformerEncoder encoder(2, kSmall);
  encoder->to(at::kDouble);
  randomize(encoder);
  const at::Tensor memory = encoder->forward(tokens);
  const at::Tensor gout = at::randn(memory.sizes(), at::kDouble);
  memory.backward(gout);

  Tensors twins;
  for (const auto& [name, tensor] : encoder->state_dict()) {
    twins[name] = tensor.clone().set_requires_grad(true);
  }
  EncoderTokens twin_tokens = tokens;
  twin_tokens.query = tokens.query.detach().clone().set_requires_grad(true);
  twin_tokens.query_pos = tokens.query_pos.detach().clone().set_requires_grad(true);
  const at::Tensor expected = plain_encoder(twins, kSmall, 2, twin_tokens);
  expected.backward(gout);

  CHECK(at::allclose(memory, expected, 1e-9, 1e-10));
  CHECK(at::allclose(tokens.query.grad(), twin_tokens.query.grad(), 1e-9, 1e-10));
  CHECK(at::allclose(tokens.query_pos.grad(), twin_tokens.query_pos.grad(), 1e-9, 1e-10));
  for (const auto& item : encoder->named_parameters()) {
    CAPTURE(item.key());
    CHECK(at::allclose(item.value().grad(), twins.at(item.key()).grad(), 1e-9, 1e-10));
  }
}

TEST_CASE("gradients are bitwise the same for every num_cp, and leave the generator alike") {
  for (const double dropout : {0.0, 0.3}) {
    for (const bool with_pos : {true, false}) {
      CAPTURE(dropout);
      CAPTURE(with_pos);
      EncoderTokens tokens = small_tokens();
      if (!with_pos) {
        tokens.query_pos = at::Tensor();
        tokens.key_padding_mask = at::Tensor();
      }
      DeformableDetrTransformerEncoder encoder(3, with_dropout(dropout));
      randomize(encoder);
      const std::vector<at::Tensor> plain = step(encoder, tokens);
      for (const std::int64_t num_cp : {-1, 0, 1, 2, 3}) {
        CAPTURE(num_cp);
        encoder->set_num_cp(num_cp);
        check_identical(step(encoder, tokens), plain);
      }
    }
  }
}

TEST_CASE("dropout acts in training only, and at 0 draws nothing") {
  const EncoderTokens tokens = small_tokens();
  DeformableDetrTransformerEncoder encoder(1, with_dropout(0.5));
  CHECK_FALSE(encoder->forward(tokens).equal(encoder->forward(tokens)));
  encoder->eval();
  CHECK(encoder->forward(tokens).equal(encoder->forward(tokens)));
  DeformableDetrTransformerEncoder dry(1, kSmall);
  at::manual_seed(5);
  const at::Tensor expected = at::rand({1});
  at::manual_seed(5);
  dry->forward(tokens);
  CHECK(at::rand({1}).equal(expected));
}

TEST_CASE("dropout of everything leaves the residuals and their norms") {
  const EncoderTokens tokens = small_tokens();
  DeformableDetrTransformerEncoder encoder(1, with_dropout(1));
  randomize(encoder);
  const Tensors state = encoder->state_dict();
  const auto norm = [&](const at::Tensor& input, const std::string& name) {
    return at::layer_norm(input, {12}, state.at("layers.0.norms." + name + ".weight"),
                          state.at("layers.0.norms." + name + ".bias"));
  };
  CHECK(encoder->forward(tokens).equal(norm(norm(tokens.query, "0"), "1")));
}

TEST_CASE("frozen parameters and inputs get no gradient, the others the same as before") {
  const EncoderTokens tokens = small_tokens();
  DeformableDetrTransformerEncoder encoder(2, kSmall, 2);
  randomize(encoder);
  const std::vector<at::Tensor> all = step(encoder, tokens);
  encoder->zero_grad();
  at::Tensor frozen = encoder->named_parameters()["layers.0.self_attn.value_proj.weight"];
  frozen.set_requires_grad(false);
  const at::Tensor memory =
      encoder->forward(tokens.query.detach(), tokens.query_pos.detach(), tokens.key_padding_mask,
                       tokens.spatial_shapes, tokens.level_start_index, tokens.valid_ratios);
  at::manual_seed(4);
  memory.backward(at::randn(memory.sizes()));
  CHECK(memory.equal(all[0]));
  CHECK_FALSE(frozen.grad().defined());
  std::size_t i = 3;
  for (const at::Tensor& parameter : encoder->parameters()) {
    if (!parameter.is_same(frozen)) {
      CHECK(parameter.grad().equal(all[i]));
    }
    ++i;
  }
}

TEST_CASE("a layer keeps for backward what its formula says, and num_cp the inputs of its halves") {
  const DeformableDetrEncoderLayerOptions options = {.embed_dims = 64,
                                                     .num_heads = 4,
                                                     .num_levels = 1,
                                                     .num_points = 4,
                                                     .feedforward_channels = 256,
                                                     .dropout = 0.1};
  const std::int64_t tokens_count = 40 * 50;
  const EncoderTokens tokens = lowtide::flatten_feature_maps(
      {at::randn({1, 64, 40, 50})}, at::zeros({1, 64}), {{40, 50}}, {40, 50});
  const auto kept_bytes = [&](double dropout, std::int64_t num_cp) {
    DeformableDetrEncoderLayerOptions layer = options;
    layer.dropout = dropout;
    DeformableDetrTransformerEncoder encoder(3, layer, num_cp);
    lowtide::MemoryMeter meter;
    const auto before = static_cast<std::int64_t>(meter.live_bytes());
    const at::Tensor memory = encoder->forward(tokens);
    return static_cast<std::int64_t>(meter.live_bytes()) - before;
  };
  // Floats a token and layer: query + pos, value, samples, both norms' inputs and outputs (7), the
  // hidden layer (4), and (3 x 16 of 64) locations and weights; and both norms' mean and deviation.
  const std::int64_t layer_bytes = tokens_count * 4 * (7 * 64 + 256 + 3 * 16 + 4);
  const std::int64_t slack_bytes = tokens_count * 4 * 4 + 16384;  // geometry
  CHECK(kept_bytes(0, 0) <= 3 * layer_bytes + slack_bytes);
  // Dropout adds a byte an element at its three places, and no second hidden layer.
  CHECK(kept_bytes(0.1, 0) - kept_bytes(0, 0) == 3 * tokens_count * (64 + 256 + 64));
  // The sum before each norm, and the memory.
  CHECK(kept_bytes(0.1, 3) <= (3 * 2 + 1) * tokens_count * 4 * 64 + slack_bytes);
}

TEST_CASE(
    "backward holds one gradient of the hidden layer's size, and a replay one half's tensors") {
  const std::int64_t hidden = 2048;
  const std::int64_t count = 40 * 50;
  const DeformableDetrEncoderLayerOptions options = {.embed_dims = 32,
                                                     .num_heads = 2,
                                                     .num_levels = 1,
                                                     .num_points = 1,
                                                     .feedforward_channels = hidden,
                                                     .dropout = 0};
  const EncoderTokens tokens = lowtide::flatten_feature_maps(
      {at::randn({1, 32, 40, 50})}, at::zeros({1, 32}), {{40, 50}}, {40, 50});
  const std::int64_t hidden_bytes = count * hidden * 4;
  for (const std::int64_t num_cp : {0, 2}) {
    CAPTURE(num_cp);
    DeformableDetrTransformerEncoder encoder(2, options, num_cp);
    const at::Tensor memory = encoder->forward(tokens);
    lowtide::MemoryMeter meter;
    const auto before = static_cast<std::int64_t>(meter.live_bytes());
    memory.backward(at::randn(memory.sizes()));
    const std::int64_t rise = static_cast<std::int64_t>(meter.peak_bytes()) - before;
    // Plain: the gradient alone. Checkpointed: the hidden layer comes back first.
    const std::int64_t expected = num_cp == 0 ? hidden_bytes : 2 * hidden_bytes;
    CHECK(rise >= expected);
    CHECK(rise <= expected + hidden_bytes / 2);
  }
}

TEST_CASE("a gradient that someone else holds is left as it was") {
  // Hooks keep the gradients of both layers' outputs: nothing in backward may write to them.
  const EncoderTokens tokens = small_tokens();
  DeformableDetrTransformerEncoder encoder(2, kSmall);
  randomize(encoder);
  const std::vector<at::Tensor> expected = step(encoder, tokens);
  std::vector<std::pair<at::Tensor, at::Tensor>> held;
  const std::vector<at::Tensor> outputs = encoder->forward_layers(tokens);
  for (const at::Tensor& output : outputs) {
    output.register_hook(
        [&held](const at::Tensor& gradient) { held.emplace_back(gradient, gradient.clone()); });
  }
  at::manual_seed(4);
  outputs.back().backward(at::randn(outputs.back().sizes()));
  REQUIRE(held.size() == 2);
  for (const auto& [gradient, copy] : held) {
    CHECK(gradient.equal(copy));
  }
  CHECK(expected[0].equal(outputs.back()));
}

TEST_CASE("forward_layers gives every layer's output, the memory last") {
  const EncoderTokens tokens = small_tokens();
  DeformableDetrTransformerEncoder encoder(3, kSmall, 1);
  const std::vector<at::Tensor> outputs = encoder->forward_layers(tokens);
  REQUIRE(outputs.size() == 3);
  CHECK(outputs[2].equal(encoder->forward(tokens)));
  CHECK_FALSE(outputs[0].equal(outputs[1]));
}

TEST_CASE("names and sizes of the parameters are mmdetection's") {
  const DeformableDetrTransformerEncoder encoder(6);
  std::int64_t count = 0;
  for (const at::Tensor& parameter : encoder->parameters()) {
    count += parameter.numel();
  }
  CHECK(count == 4'541'184);
  const Tensors state = encoder->state_dict();
  CHECK(state.size() == 6 * 16);
  const std::pair<const char*, std::vector<std::int64_t>> kExpected[] = {
      {"layers.0.self_attn.sampling_offsets.weight", {256, 256}},
      {"layers.0.self_attn.attention_weights.weight", {128, 256}},
      {"layers.5.self_attn.value_proj.bias", {256}},
      {"layers.5.self_attn.output_proj.weight", {256, 256}},
      {"layers.5.norms.0.weight", {256}},
      {"layers.5.norms.1.bias", {256}},
      {"layers.5.ffn.layers.0.0.weight", {1024, 256}},
      {"layers.5.ffn.layers.1.weight", {256, 1024}}};
  for (const auto& [name, shape] : kExpected) {
    CAPTURE(name);
    REQUIRE(state.count(name) == 1);
    CHECK(state.at(name).sizes() == at::IntArrayRef(shape));
  }
}

TEST_CASE("initial weights are mmdetection's: a grid of offsets, flat attention, xavier") {
  const DeformableDetrTransformerEncoder encoder(1);
  const Tensors state = encoder->state_dict();
  const auto weight = [&](const char* name) { return state.at(std::string("layers.0.") + name); };
  CHECK(weight("self_attn.sampling_offsets.weight").eq(0).all().item<bool>());
  CHECK(weight("self_attn.attention_weights.weight").eq(0).all().item<bool>());
  CHECK(weight("self_attn.attention_weights.bias").eq(0).all().item<bool>());
  const at::Tensor grid = weight("self_attn.sampling_offsets.bias").view({8, 4, 4, 2});
  const double kDirections[8][2] = {{1, 0},  {1, 1},   {0, 1},  {-1, 1},
                                    {-1, 0}, {-1, -1}, {0, -1}, {1, -1}};
  for (std::int64_t head = 0; head < 8; ++head) {
    for (std::int64_t level = 0; level < 4; ++level) {
      for (std::int64_t point = 0; point < 4; ++point) {
        for (std::int64_t axis = 0; axis < 2; ++axis) {
          const double step_size = static_cast<double>(point + 1);
          CHECK(grid[head][level][point][axis].item<double>() ==
                doctest::Approx(kDirections[head][axis] * step_size).epsilon(1e-5));
        }
      }
    }
  }
  for (const auto& [name, fan_sum] : {std::pair("self_attn.value_proj", 512),
                                      {"self_attn.output_proj", 512},
                                      {"ffn.layers.0.0", 1280},
                                      {"ffn.layers.1", 1280}}) {
    CAPTURE(name);
    const at::Tensor values = weight((std::string(name) + ".weight").c_str());
    const double bound = std::sqrt(6.0 / fan_sum);
    CHECK(values.abs().max().item<double>() <= bound);
    CHECK(values.abs().max().item<double>() > 0.99 * bound);
    CHECK(values.std().item<double>() == doctest::Approx(bound / std::sqrt(3.0)).epsilon(0.02));
  }
  CHECK(weight("self_attn.value_proj.bias").eq(0).all().item<bool>());
  CHECK(weight("ffn.layers.0.0.bias").abs().max().item<double>() <= 1.0 / 16);
  CHECK(weight("ffn.layers.0.0.bias").ne(0).any().item<bool>());
  CHECK(weight("norms.0.weight").eq(1).all().item<bool>());
  CHECK(weight("norms.1.bias").eq(0).all().item<bool>());
}

TEST_CASE("num_cp above num_layers or below -1 is refused with both numbers") {
  check_refused([] { DeformableDetrTransformerEncoder(6, kSmall, 7); }, "LT0420",
                "cannot checkpoint num_cp = 7 layers of an encoder with num_layers = 6. Give -1 or "
                "0 for none, up to 6 for all");
  check_refused([] { DeformableDetrTransformerEncoder(6, kSmall, -2); }, "LT0420",
                "num_cp = -2 layers of an encoder with num_layers = 6");
  DeformableDetrTransformerEncoder encoder(2, kSmall, 2);
  CHECK(encoder->num_cp() == 2);
  check_refused([&] { encoder->set_num_cp(3); }, "LT0420", "num_cp = 3");
  CHECK(encoder->num_cp() == 2);
  encoder->set_num_cp(-1);
  CHECK(encoder->num_cp() == 0);
}

TEST_CASE("options out of their range are refused by name") {
  const auto refused = [](const char* part, auto change) {
    DeformableDetrEncoderLayerOptions options = kSmall;
    change(options);
    check_refused([&] { DeformableDetrTransformerEncoder(1, options); }, "LT0420", part);
  };
  check_refused([] { DeformableDetrTransformerEncoder(0, kSmall); }, "LT0420",
                "num_layers is 0, but must be at least 1");
  refused("embed_dims is 0", [](auto& options) { options.embed_dims = 0; });
  refused("num_heads is -1", [](auto& options) { options.num_heads = -1; });
  refused("num_levels is 0", [](auto& options) { options.num_levels = 0; });
  refused("num_points is 0", [](auto& options) { options.num_points = 0; });
  refused("feedforward_channels is 0", [](auto& options) { options.feedforward_channels = 0; });
  refused("embed_dims 12 is not a multiple of num_heads 5",
          [](auto& options) { options.num_heads = 5; });
  refused("dropout is 1.5, but must be from 0 to 1", [](auto& options) { options.dropout = 1.5; });
  refused("dropout is nan", [](auto& options) { options.dropout = std::nan(""); });
}

TEST_CASE("inputs that do not fit are refused, naming the argument, what it must be and is") {
  DeformableDetrTransformerEncoder encoder(1, kSmall);
  const auto refused = [&](const char* id, const char* part, auto change) {
    EncoderTokens tokens = small_tokens();
    change(tokens);
    check_refused([&] { encoder->forward(tokens); }, id, part);
    check_refused([&] { encoder->forward_layers(tokens); }, id, part);
  };
  refused("LT0421", "query must be (bs, N, 12) floating on the CPU, but is undefined",
          [](auto& tokens) { tokens.query = at::Tensor(); });
  refused("LT0421", "but is [2, 64, 6] Float on cpu",
          [](auto& tokens) { tokens.query = tokens.query.slice(2, 0, 6); });
  refused("LT0421", "query must be (bs, N, 12) floating",
          [](auto& tokens) { tokens.query = tokens.query.to(at::kLong); });
  refused("LT0421", "query_pos must be [2, 64, 12] as query is",
          [](auto& tokens) { tokens.query_pos = tokens.query_pos.slice(1, 1); });
  refused("LT0422",
          "key_padding_mask must be [2, 64] Bool on the CPU, true where there is padding,"
          " but is [2, 64] Byte on cpu",
          [](auto& tokens) { tokens.key_padding_mask = tokens.key_padding_mask.to(at::kByte); });
  refused("LT0422", "but is [2, 63] Bool",
          [](auto& tokens) { tokens.key_padding_mask = tokens.key_padding_mask.slice(1, 1); });
  refused("LT0423", "spatial_shapes must be [3, 2] Long",
          [](auto& tokens) { tokens.spatial_shapes = tokens.spatial_shapes.slice(0, 1); });
  refused("LT0423",
          "spatial_shapes must be [3, 2] Long on the CPU, (height, width) of each level,"
          " but is [3, 2] Int",
          [](auto& tokens) { tokens.spatial_shapes = tokens.spatial_shapes.to(at::kInt); });
  refused("LT0423", "level 1 of spatial_shapes is -3x4",
          [](auto& tokens) { tokens.spatial_shapes[1][0] = -3; });
  refused("LT0423", "the levels of spatial_shapes have 62 tokens together, but query has 64",
          [](auto& tokens) { tokens.spatial_shapes[2][0] = 1; });
  refused("LT0423", "level_start_index must be [3] Long",
          [](auto& tokens) { tokens.level_start_index = tokens.level_start_index.slice(0, 1); });
  refused("LT0423",
          "level_start_index[2] is 61, but the levels before it in spatial_shapes have 60",
          [](auto& tokens) { tokens.level_start_index[2] = 61; });
  refused("LT0424", "valid_ratios must be [2, 3, 2] floating",
          [](auto& tokens) { tokens.valid_ratios = tokens.valid_ratios.slice(1, 1); });
  refused("LT0424", "but is undefined", [](auto& tokens) { tokens.valid_ratios = at::Tensor(); });
}

TEST_CASE("a clone has parameters of its own and draws nothing from the generator") {
  const EncoderTokens tokens = small_tokens();
  DeformableDetrTransformerEncoder encoder(2, kSmall, 1);
  randomize(encoder);
  at::Tensor frozen = encoder->named_parameters()["layers.1.norms.0.bias"];
  frozen.set_requires_grad(false);
  encoder->eval();
  const at::Tensor memory = encoder->forward(tokens);
  at::manual_seed(5);
  const at::Tensor expected = at::rand({1});
  at::manual_seed(5);
  DeformableDetrTransformerEncoder copy(
      std::dynamic_pointer_cast<lowtide::DeformableDetrTransformerEncoderImpl>(encoder->clone()));
  CHECK(at::rand({1}).equal(expected));
  CHECK(copy->num_cp() == 1);
  CHECK_FALSE(copy->is_training());
  CHECK_FALSE(copy->named_parameters()["layers.1.norms.0.bias"].requires_grad());
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : encoder->parameters()) {
      parameter.zero_();
    }
  }
  CHECK(copy->forward(tokens).equal(memory));
  CHECK_FALSE(encoder->forward(tokens).equal(memory));
}

TEST_CASE("a cloned module around the encoder computes with the clone's weights") {
  const EncoderTokens tokens = small_tokens();
  Detector detector;
  randomize(detector.encoder);
  detector.encoder->set_num_cp(1);
  const at::Tensor memory = detector.encoder->forward(tokens);
  const auto copy = std::dynamic_pointer_cast<Detector>(detector.clone());
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : detector.parameters()) {
      parameter.zero_();
    }
  }
  CHECK(copy->encoder->num_cp() == 1);
  CHECK(copy->encoder->forward(tokens).equal(memory));
  copy->encoder->forward(tokens).sum().backward();
  CHECK(copy->named_parameters()["encoder.layers.0.norms.1.bias"].grad().defined());
}

TEST_CASE("parameters follow to(), and bfloat16 samples at float32 locations") {
  EncoderTokens tokens = small_tokens();
  DeformableDetrTransformerEncoder encoder(2, kSmall, 1);
  randomize(encoder);
  const at::Tensor expected = encoder->forward(tokens);
  encoder->to(at::kBFloat16);
  tokens.query = tokens.query.detach().to(at::kBFloat16).set_requires_grad(true);
  tokens.query_pos = tokens.query_pos.detach().to(at::kBFloat16);
  const at::Tensor memory = encoder->forward(tokens);
  CHECK((memory.scalar_type() == at::kBFloat16));
  CHECK((memory.to(at::kFloat) - expected).abs().max().item<double>() < 0.2);
  memory.sum().backward();
  CHECK(tokens.query.grad().isfinite().all().item<bool>());
}

TEST_CASE("weights load by mmdetection's and Hugging Face's names, under any prefix") {
  DeformableDetrTransformerEncoder source(2, kSmall);
  randomize(source);
  const Tensors state = source->state_dict();
  Tensors detector = hugging_face_names(state, "model.encoder.", true);
  detector["model.decoder.layers.0.encoder_attn.sampling_offsets.weight"] = at::zeros({1});
  detector["class_embed.0.weight"] = at::zeros({1});
  Tensors doubles;
  for (const auto& [name, tensor] : state) {
    doubles[name] = tensor.to(at::kDouble);
  }
  const std::vector<Tensors> files = {state,
                                      doubles,
                                      with_prefix(state, "encoder."),
                                      with_prefix(state, "module."),
                                      with_prefix(state, "module.encoder."),
                                      hugging_face_names(state, "", true),
                                      hugging_face_names(state, "encoder.", false),
                                      detector};
  for (const Tensors& file : files) {
    CAPTURE(file.begin()->first);
    DeformableDetrTransformerEncoder target(2, kSmall);
    target->load_state_dict(file);
    for (const auto& [name, tensor] : target->state_dict()) {
      CHECK(tensor.equal(state.at(name)));
    }
  }
}

TEST_CASE("all that is wrong with weights is told at once, and nothing is changed") {
  DeformableDetrTransformerEncoder encoder(2, kSmall);
  const Tensors state = encoder->state_dict();
  Tensors before;
  for (const auto& [name, tensor] : state) {
    before[name] = tensor.clone();
  }
  Tensors file = with_prefix(state, "encoder.");
  for (auto& [name, tensor] : file) {
    tensor = tensor + 1;
  }
  file.erase("encoder.layers.1.norms.0.bias");
  file["encoder.layers.2.norms.0.bias"] = at::zeros({12});
  file["encoder.layers.0.self_attn_layer_norm.bias"] = at::zeros({12});
  file["encoder.layers.0.norms.1.bias"] = at::zeros({13});
  file["encoder.layers.0.norms.1.weight"] = at::zeros({12}, at::kLong);
  file["decoder.layers.0.norms.0.bias"] = at::zeros({12});
  const auto load = [&] { encoder->load_state_dict(file); };
  check_refused(load, "LT0426", "(prefix 'encoder.')");
  check_refused(load, "LT0426", "1 missing: layers.1.norms.0.bias;");
  check_refused(load, "LT0426", "2 unexpected: ");
  check_refused(load, "LT0426", "encoder.layers.2.norms.0.bias");
  check_refused(load, "LT0426",
                "encoder.layers.0.self_attn_layer_norm.bias (a second layers.0.norms.0.bias)");
  check_refused(load, "LT0426",
                "2 of wrong shape or dtype: encoder.layers.0.norms.1.bias is [13] "
                "Float instead of [12] floating");
  check_refused(load, "LT0426",
                "is [12] Long instead of [12] floating. Make the encoder with the "
                "options of the weights; nothing was changed");
  for (const auto& [name, tensor] : encoder->state_dict()) {
    CHECK(tensor.equal(before.at(name)));
  }
}

TEST_CASE("tensors with no encoder, or with two, are refused") {
  DeformableDetrTransformerEncoder encoder(1, kSmall);
  check_refused([&] { encoder->load_state_dict({}); }, "LT0425",
                "none of the 0 tensors is named [prefix.]layers.{i}.self_attn.sampling_offsets");
  Tensors two = with_prefix(encoder->state_dict(), "a.encoder.");
  two.merge(with_prefix(encoder->state_dict(), "b.encoder."));
  check_refused([&] { encoder->load_state_dict(two); }, "LT0425",
                "2 encoders, with the prefixes 'a.encoder.', 'b.encoder.'. Give only one");
}
