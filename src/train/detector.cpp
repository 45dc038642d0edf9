// Backbone: convolution, group normalisation and ReLU throughout, since batches are too small for
// batch statistics.
//
//   stem    3x3/2 -> 32, 3x3/2 -> 64, one residual block      stride 4
//   stage   3x3/2 -> 96, residual block                       stride 8    level 0
//           3x3/2 -> 128, residual block                      stride 16   level 1
//           3x3/2 -> 192, residual block                      stride 32   level 2
//   neck    1x1 -> width on each; 3x3/2 on the last stage     stride 64   level 3
//
// Head, after mmdetection's gen_encoder_output_proposals: the token at (i, j) of level l proposes a
// box at its own centre with sides 0.05 * 2^l of the image; it is left out when that lies outside
// (0.01, 0.99). The head adds to the proposal's logits, so that an untrained head, whose last layer
// is zero, predicts the proposals.
//
// Tested by tests/train/trainer_test.cpp.
#include "src/train/detector.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logit.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "lowtide/deformable_detr_encoder.h"
#include "lowtide/encoder_tokens.h"
#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr std::int64_t kLevels = 4;
constexpr std::int64_t kGroups = 8;

// The parameters of the parts below, by name, in the order in which they were made.
class Registry {
 public:
  at::Tensor add(const std::string& name, at::Tensor value) {
    value.requires_grad_(true);
    tensors_.push_back({name, value, 1.0, value.dim() > 1 && name != "level_embed"});
    return value;
  }
  std::vector<TrainedTensor>& tensors() { return tensors_; }

 private:
  std::vector<TrainedTensor> tensors_;
};

at::Tensor uniform(at::IntArrayRef shape, double limit) {
  return at::empty(shape).uniform_(-limit, limit);
}

struct Norm {
  Norm(Registry& registry, const std::string& name, std::int64_t channels)
      : weight(registry.add(name + ".weight", at::ones({channels}))),
        bias(registry.add(name + ".bias", at::zeros({channels}))) {}
  at::Tensor weight, bias;
};

// Convolution without bias, then group normalisation.
struct ConvNorm {
  ConvNorm(Registry& registry, const std::string& name, std::int64_t in, std::int64_t out,
           std::int64_t kernel, std::int64_t stride_pixels, std::int64_t norm_groups = kGroups)
      : weight(registry.add(
            name + ".conv.weight",
            uniform({out, in, kernel, kernel}, std::sqrt(6.0 / double(in * kernel * kernel))))),
        norm(registry, name + ".gn", out),
        stride(stride_pixels),
        padding(kernel / 2),
        groups(norm_groups) {}
  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor y = at::conv2d(x, weight, {}, stride, padding);
    return at::group_norm(y, groups, norm.weight, norm.bias);
  }
  at::Tensor weight;
  Norm norm;
  std::int64_t stride, padding, groups;
};

struct Stage {
  Stage(Registry& registry, const std::string& name, std::int64_t in, std::int64_t out)
      : down(registry, name + ".down", in, out, 3, 2),
        first(registry, name + ".block.0", out, out, 3, 1),
        second(registry, name + ".block.1", out, out, 3, 1) {}
  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor y = at::relu(down(x));
    return at::relu(y + second(at::relu(first(y))));
  }
  ConvNorm down, first, second;
};

struct Linear {
  Linear(Registry& registry, const std::string& name, std::int64_t in, std::int64_t out,
         double limit)
      : weight(registry.add(name + ".weight", uniform({out, in}, limit))),
        bias(registry.add(name + ".bias", at::zeros({out}))) {}
  at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
  at::Tensor weight, bias;
};

double xavier(std::int64_t in, std::int64_t out) { return std::sqrt(6.0 / double(in + out)); }

void check_options(const DetectorOptions& options) {
  const auto fail = [](const char* what, const std::string& value, const char* range) {
    throw UsageError("LT0520",
                     concat("cannot build the detector with ", what, " ", value, ": ", range));
  };
  if (options.width < 32 || options.width % 32 != 0 || options.width > 1024) {
    fail("width", concat(options.width), "it must be a multiple of 32 from 32 to 1024");
  }
  if (options.encoder_layers < 1 || options.encoder_layers > 64) {
    fail("layers", concat(options.encoder_layers), "1 to 64 are possible");
  }
  if (options.feedforward < 1) fail("feedforward", concat(options.feedforward), "1 is the least");
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    fail("dropout", concat(options.dropout), "it must be at least 0 and below 1");
  }
}

}  // namespace

struct Detector::Parts {
  explicit Parts(const DetectorOptions& options)
      : stem(registry, "backbone.stem", 3, 32, 3, 2),
        stage1(registry, "backbone.stage1", 32, 64),
        stage2(registry, "backbone.stage2", 64, 96),
        stage3(registry, "backbone.stage3", 96, 128),
        stage4(registry, "backbone.stage4", 128, 192),
        neck{ConvNorm(registry, "neck.convs.0", 96, options.width, 1, 1, 32),
             ConvNorm(registry, "neck.convs.1", 128, options.width, 1, 1, 32),
             ConvNorm(registry, "neck.convs.2", 192, options.width, 1, 1, 32),
             ConvNorm(registry, "neck.extra_convs.0", 192, options.width, 3, 2, 32)},
        level_embed(registry.add("level_embed", at::empty({kLevels, options.width}).normal_())),
        encoder(options.encoder_layers,
                DeformableDetrEncoderLayerOptions{.embed_dims = options.width,
                                                  .feedforward_channels = options.feedforward,
                                                  .dropout = options.dropout},
                options.num_cp) {
    for (const auto& item : encoder->named_parameters()) {
      TrainedTensor trained{"encoder." + item.key(), item.value(), 1.0, item.value().dim() > 1};
      if (item.key().find("sampling_offsets") != std::string::npos) trained.rate_factor = 0.1;
      registry.tensors().push_back(std::move(trained));
    }
    const std::int64_t c = options.width;
    memory_fc = std::make_unique<Linear>(registry, "memory_trans_fc", c, c, xavier(c, c));
    memory_norm = std::make_unique<Norm>(registry, "memory_trans_norm", c);
    score = std::make_unique<Linear>(registry, "cls_branch", c, 1, xavier(c, 1));
    score->bias.set_data(at::full({1}, -std::log(99.0)));
    box.emplace_back(registry, "reg_branch.0", c, c, xavier(c, c));
    box.emplace_back(registry, "reg_branch.2", c, c, xavier(c, c));
    box.emplace_back(registry, "reg_branch.4", c, 4, 0.0);
  }

  Registry registry;
  ConvNorm stem;
  Stage stage1, stage2, stage3, stage4;
  ConvNorm neck[kLevels];
  at::Tensor level_embed;
  DeformableDetrTransformerEncoder encoder;
  std::unique_ptr<Linear> memory_fc;
  std::unique_ptr<Norm> memory_norm;
  std::unique_ptr<Linear> score;
  std::vector<Linear> box;
};

Detector::Detector(const DetectorOptions& options) {
  check_options(options);
  parts_ = std::make_unique<Parts>(options);
}

Detector::~Detector() = default;

void Detector::set_num_cp(std::int64_t num_cp) { parts_->encoder->set_num_cp(num_cp); }

void Detector::set_training(bool training) { parts_->encoder->train(training); }

const std::vector<TrainedTensor>& Detector::parameters() const {
  return parts_->registry.tensors();
}

namespace {

// The proposals of every token, (B, N, 4), from the encoder's level tables.
at::Tensor token_proposals(const EncoderTokens& tokens) {
  const std::int64_t batch = tokens.valid_ratios.size(0);
  std::vector<at::Tensor> levels;
  for (std::int64_t l = 0; l < kLevels; ++l) {
    const auto h = tokens.spatial_shapes[l][0].item<std::int64_t>();
    const auto w = tokens.spatial_shapes[l][1].item<std::int64_t>();
    const at::Tensor valid = tokens.valid_ratios.select(1, l);  // (B, 2): w, h
    const at::Tensor x =
        (at::arange(w, at::kFloat) + 0.5).unsqueeze(0) / (valid.slice(1, 0, 1) * double(w));
    const at::Tensor y =
        (at::arange(h, at::kFloat) + 0.5).unsqueeze(0) / (valid.slice(1, 1, 2) * double(h));
    const at::Tensor side = at::full({1, 1, 1}, 0.05 * std::pow(2.0, double(l)));
    levels.push_back(
        at::stack({x.unsqueeze(1).expand({batch, h, w}), y.unsqueeze(2).expand({batch, h, w}),
                   side.expand({batch, h, w}), side.expand({batch, h, w})},
                  -1)
            .reshape({batch, h * w, 4}));
  }
  return at::cat(levels, 1);
}

}  // namespace

Predictions Detector::forward(const ImageBatch& batch) {
  Parts& parts = *parts_;
  const at::Tensor stride8 = parts.stage2(parts.stage1(at::relu(parts.stem(batch.pixels))));
  const at::Tensor stride16 = parts.stage3(stride8);
  const at::Tensor stride32 = parts.stage4(stride16);
  const std::vector<at::Tensor> maps{parts.neck[0](stride8), parts.neck[1](stride16),
                                     parts.neck[2](stride32), parts.neck[3](stride32)};

  std::vector<ImageSize> sizes;
  for (std::size_t i = 0; i < batch.valid_widths.size(); ++i) {
    sizes.push_back({batch.valid_heights[i], batch.valid_widths[i]});
  }
  const SinePositionalEncoding encoding({.num_feats = parts.level_embed.size(1) / 2});
  const EncoderTokens tokens = flatten_feature_maps(
      maps, parts.level_embed, sizes, {batch.pixels.size(2), batch.pixels.size(3)}, encoding);
  at::Tensor memory = parts.encoder->forward(tokens);

  Predictions predictions;
  const at::Tensor proposals = token_proposals(tokens);
  predictions.usable = (proposals.gt(0.01).logical_and(proposals.lt(0.99))).all(-1);
  if (tokens.key_padding_mask.defined()) {
    predictions.usable = predictions.usable.logical_and(tokens.key_padding_mask.logical_not());
  }
  memory = memory * predictions.usable.unsqueeze(-1).to(at::kFloat);
  memory = at::layer_norm(parts.memory_fc->operator()(memory), {memory.size(-1)},
                          parts.memory_norm->weight, parts.memory_norm->bias);
  predictions.logits = (*parts.score)(memory).squeeze(-1);
  const at::Tensor shift = parts.box[2](at::relu(parts.box[1](at::relu(parts.box[0](memory)))));
  // Unusable tokens propose 0.5 instead of an infinite logit; nothing reads them.
  const at::Tensor safe = at::where(predictions.usable.unsqueeze(-1), proposals, at::full({}, 0.5));
  predictions.boxes = at::sigmoid(shift + at::logit(safe));
  return predictions;
}

ImageBatch make_batch(const std::vector<Crop>& crops) {
  const c10::NoGradGuard no_grad;
  constexpr float kMean[] = {123.675f, 116.28f, 103.53f};
  constexpr float kDeviation[] = {58.395f, 57.12f, 57.375f};
  const auto count = static_cast<std::int64_t>(crops.size());
  const std::int64_t size = crops.front().image.width;
  ImageBatch batch;
  batch.pixels = at::zeros({count, 3, size, size});
  auto* out = batch.pixels.data_ptr<float>();
  for (const Crop& crop : crops) {
    for (int channel = 0; channel < 3; ++channel) {
      for (int y = 0; y < crop.valid_height; ++y) {
        for (int x = 0; x < crop.valid_width; ++x) {
          out[y * size + x] =
              (float(crop.image.at(x, y)[channel]) - kMean[channel]) / kDeviation[channel];
        }
      }
      out += size * size;
    }
    batch.valid_widths.push_back(crop.valid_width);
    batch.valid_heights.push_back(crop.valid_height);
    at::Tensor target = at::empty({static_cast<std::int64_t>(crop.boxes.size()), 4});
    auto* value = target.data_ptr<float>();
    const auto w = static_cast<float>(crop.valid_width);
    const auto h = static_cast<float>(crop.valid_height);
    for (const Box& box : crop.boxes) {
      *value++ = (box.x1 + box.x2) / 2 / w;
      *value++ = (box.y1 + box.y2) / 2 / h;
      *value++ = (box.x2 - box.x1) / w;
      *value++ = (box.y2 - box.y1) / h;
    }
    batch.targets.push_back(std::move(target));
  }
  return batch;
}

}  // namespace lowtide
