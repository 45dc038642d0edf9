#include "lowtide/encoder_tokens.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/meshgrid.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <algorithm>
#include <utility>

#include "lowtide/error.h"
#include "src/base/text.h"

// Tested by tests/nn/encoder_tokens_test.cpp

namespace lowtide {
namespace {

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw UsageError("LT0428", concat("cannot make encoder tokens: ", parts...));
}

std::string describe(const at::Tensor& tensor) {
  return tensor.defined() ? concat(tensor.sizes(), " ", tensor.scalar_type()) : "undefined";
}

void check_inputs(const std::vector<at::Tensor>& feature_maps, const at::Tensor& level_embed,
                  std::size_t image_count, const SinePositionalEncoding& encoding) {
  if (feature_maps.empty()) {
    refuse("feature_maps is empty; give one map for each level");
  }
  const at::Tensor& first = feature_maps.front();
  for (std::size_t level = 0; level < feature_maps.size(); ++level) {
    const at::Tensor& map = feature_maps[level];
    if (!map.defined() || map.dim() != 4 || !map.is_floating_point() ||
        map.size(0) != first.size(0) || map.size(1) != first.size(1) ||
        map.scalar_type() != first.scalar_type() || map.numel() == 0) {
      refuse("feature_maps[", level, "] must be (bs, C, h, w) floating, not empty, with bs, C and ",
             "dtype as in feature_maps[0], which is ", describe(first), ", but is ", describe(map));
    }
  }
  if (static_cast<std::int64_t>(image_count) != first.size(0)) {
    refuse("image_sizes has ", image_count, " entries, but feature_maps hold ", first.size(0),
           " images");
  }
  const auto levels = static_cast<std::int64_t>(feature_maps.size());
  if (!level_embed.defined() || level_embed.dim() != 2 || level_embed.size(0) != levels ||
      level_embed.size(1) != first.size(1)) {
    refuse("level_embed must be (", levels, ", ", first.size(1),
           "), one row for each level, but is ", describe(level_embed));
  }
  if (2 * encoding.options().num_feats != first.size(1)) {
    refuse("the encoding has num_feats ", encoding.options().num_feats, ", which makes ",
           2 * encoding.options().num_feats, " channels, but feature_maps have ", first.size(1));
  }
}

// (bs, C, h, w) -> (bs, h * w, C).
at::Tensor tokens_of(const at::Tensor& map) { return map.flatten(2).transpose(1, 2); }

}  // namespace

EncoderTokens flatten_feature_maps(const std::vector<at::Tensor>& feature_maps,
                                   const at::Tensor& level_embed,
                                   const std::vector<ImageSize>& image_sizes, ImageSize batch_size,
                                   const SinePositionalEncoding& encoding) {
  check_inputs(feature_maps, level_embed, image_sizes.size(), encoding);
  const at::Tensor image_mask = image_padding_mask(image_sizes, batch_size);
  const bool padded = image_mask.any().item<bool>();
  const auto levels = static_cast<std::int64_t>(feature_maps.size());

  EncoderTokens tokens;
  tokens.spatial_shapes = at::empty({levels, 2}, at::kLong);
  tokens.level_start_index = at::empty({levels}, at::kLong);
  std::vector<at::Tensor> queries;
  std::vector<at::Tensor> positions;
  std::vector<at::Tensor> masks;
  std::int64_t start = 0;
  for (std::int64_t level = 0; level < levels; ++level) {
    const at::Tensor& map = feature_maps[static_cast<std::size_t>(level)];
    tokens.spatial_shapes[level][0] = map.size(2);
    tokens.spatial_shapes[level][1] = map.size(3);
    tokens.level_start_index[level] = start;
    start += map.size(2) * map.size(3);

    masks.push_back(level_padding_mask(image_mask, {map.size(2), map.size(3)}));
    queries.push_back(tokens_of(map));
    positions.push_back(tokens_of(encoding(masks.back())).to(map.scalar_type()) +
                        level_embed[level]);
  }
  tokens.query = at::cat(queries, 1);
  tokens.query_pos = at::cat(positions, 1);
  tokens.valid_ratios = valid_ratios_of(masks);
  if (padded) {
    for (at::Tensor& mask : masks) {
      mask = mask.flatten(1);
    }
    tokens.key_padding_mask = at::cat(masks, 1);
  }
  return tokens;
}

EncoderTokens flatten_feature_maps(const std::vector<at::Tensor>& feature_maps,
                                   const at::Tensor& level_embed,
                                   const std::vector<ImageSize>& image_sizes,
                                   ImageSize batch_size) {
  if (feature_maps.empty() || !feature_maps.front().defined() || feature_maps.front().dim() != 4) {
    refuse("feature_maps[0] must be (bs, C, h, w), but is ",
           feature_maps.empty() ? "missing" : describe(feature_maps.front()));
  }
  const std::int64_t channels = feature_maps.front().size(1);
  if (channels % 4 != 0) {
    refuse("feature_maps have ", channels,
           " channels, but sines and cosines of y and x need a multiple of 4");
  }
  return flatten_feature_maps(feature_maps, level_embed, image_sizes, batch_size,
                              SinePositionalEncoding({.num_feats = channels / 2}));
}

at::Tensor image_padding_mask(const std::vector<ImageSize>& image_sizes, ImageSize batch_size) {
  if (batch_size.height <= 0 || batch_size.width <= 0) {
    refuse("batch_size is ", batch_size.height, "x", batch_size.width, ", but must be positive");
  }
  at::Tensor mask =
      at::ones({static_cast<std::int64_t>(image_sizes.size()), batch_size.height, batch_size.width},
               at::kBool);
  for (std::size_t i = 0; i < image_sizes.size(); ++i) {
    const ImageSize& size = image_sizes[i];
    if (size.height <= 0 || size.width <= 0 || size.height > batch_size.height ||
        size.width > batch_size.width) {
      refuse("image_sizes[", i, "] is ", size.height, "x", size.width,
             ", but must be positive and within the batch's ", batch_size.height, "x",
             batch_size.width);
    }
    mask[static_cast<std::int64_t>(i)]
        .slice(0, 0, size.height)
        .slice(1, 0, size.width)
        .fill_(false);
  }
  return mask;
}

at::Tensor level_padding_mask(const at::Tensor& image_mask, ImageSize level_size) {
  const std::int64_t sizes[] = {level_size.height, level_size.width};
  return at::upsample_nearest2d(image_mask.unsqueeze(1).to(at::kFloat), sizes)
      .squeeze(1)
      .to(at::kBool);
}

at::Tensor valid_ratios_of(const std::vector<at::Tensor>& level_masks) {
  std::vector<at::Tensor> ratios;
  for (const at::Tensor& mask : level_masks) {
    const at::Tensor valid = mask.logical_not();
    const at::Tensor rows = valid.select(2, 0).sum(1).to(at::kFloat) / mask.size(1);
    const at::Tensor columns = valid.select(1, 0).sum(1).to(at::kFloat) / mask.size(2);
    ratios.push_back(at::stack({columns, rows}, -1));
  }
  return at::stack(ratios, 1);
}

at::Tensor encoder_reference_points(const at::Tensor& spatial_shapes,
                                    const at::Tensor& valid_ratios) {
  const at::NoGradGuard no_grad;
  const auto* shapes = spatial_shapes.const_data_ptr<std::int64_t>();
  std::vector<at::Tensor> points;
  for (std::int64_t level = 0; level < spatial_shapes.size(0); ++level) {
    const std::int64_t height = shapes[2 * level];
    const std::int64_t width = shapes[2 * level + 1];
    const auto centres = [&](std::int64_t count) {
      return at::linspace(0.5, static_cast<double>(count) - 0.5, count, valid_ratios.options());
    };
    const std::vector<at::Tensor> grid = at::meshgrid({centres(height), centres(width)}, "ij");
    const at::Tensor ratio = valid_ratios.select(1, level).unsqueeze(1);  // (bs, 1, 2), x then y
    const at::Tensor y = grid[0].reshape({1, -1}) / (ratio.select(2, 1) * height);
    const at::Tensor x = grid[1].reshape({1, -1}) / (ratio.select(2, 0) * width);
    points.push_back(at::stack({x, y}, -1));
  }
  return at::cat(points, 1).unsqueeze(2) * valid_ratios.unsqueeze(1);
}

}  // namespace lowtide
