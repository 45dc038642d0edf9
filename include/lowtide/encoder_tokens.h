#pragma once
// The glue from feature maps to the encoder's tokens: masks, positions, level tables.
//
//   // maps: 4 tensors (bs, 256, h, w) from the neck; images of 80x97 and 43x120 padded to 80x120
//   EncoderTokens tokens = flatten_feature_maps(maps, level_embed, {{80, 97}, {43, 120}}, {80,
//   120}); at::Tensor memory = encoder->forward(tokens);
//
// Tokens are ordered level by level, each row by row. It holds no parameters: `level_embed` is the
// caller's.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lowtide/export.h"
#include "lowtide/sine_positional_encoding.h"

namespace lowtide {

// Pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;
};

// What the encoder takes. N is the number of tokens, L of levels, C of channels.
struct EncoderTokens {
  at::Tensor query;              // (bs, N, C)
  at::Tensor query_pos;          // (bs, N, C), or undefined
  at::Tensor key_padding_mask;   // (bs, N) bool, true = padding; undefined when nothing is padded
  at::Tensor spatial_shapes;     // (L, 2) int64, (height, width)
  at::Tensor level_start_index;  // (L) int64, the first token of each level
  at::Tensor valid_ratios;       // (bs, L, 2) float32, the unpadded part (of the width, the height)
};

// Flattens `feature_maps`, level 0 first, each (bs, C, h, w). `level_embed` (L, C) is added to the
// positions and gets gradients. `image_sizes` are the images' own sizes in the batch, which was
// padded at the right and bottom to `batch_size`. C must be twice the encoding's num_feats.
// Throws UsageError (LT0428) naming the argument, what was expected and what came.
// Copies the maps once; under autograd nothing else is kept.
LOWTIDE_API EncoderTokens flatten_feature_maps(const std::vector<at::Tensor>& feature_maps,
                                               const at::Tensor& level_embed,
                                               const std::vector<ImageSize>& image_sizes,
                                               ImageSize batch_size,
                                               const SinePositionalEncoding& encoding);

// As above, with an encoding of mmdetection's defaults for C channels.
LOWTIDE_API EncoderTokens flatten_feature_maps(const std::vector<at::Tensor>& feature_maps,
                                               const at::Tensor& level_embed,
                                               const std::vector<ImageSize>& image_sizes,
                                               ImageSize batch_size);

// Which pixels of a padded batch are padding: (bs, H, W) bool. Throws UsageError (LT0428) for an
// image that is empty or larger than the batch.
LOWTIDE_API at::Tensor image_padding_mask(const std::vector<ImageSize>& image_sizes,
                                          ImageSize batch_size);

// `image_mask` (bs, H, W) resized to a level by nearest neighbour: (bs, height, width) bool.
LOWTIDE_API at::Tensor level_padding_mask(const at::Tensor& image_mask, ImageSize level_size);

// The valid part of each level's first row and first column, from the levels' masks (bs, h, w):
// (bs, L, 2) float32 as (of the width, of the height).
LOWTIDE_API at::Tensor valid_ratios_of(const std::vector<at::Tensor>& level_masks);

// Where each token samples by default: its own centre, relative to the valid part of each level.
// `spatial_shapes` (L, 2) int64 on the CPU, `valid_ratios` (bs, L, 2); returns (bs, N, L, 2) as
// (x, y) in the dtype of `valid_ratios`. No gradient flows.
LOWTIDE_API at::Tensor encoder_reference_points(const at::Tensor& spatial_shapes,
                                                const at::Tensor& valid_ratios);

}  // namespace lowtide
