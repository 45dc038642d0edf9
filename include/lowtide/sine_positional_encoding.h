#pragma once
// The sine position encoding of DETR: tells attention where on the image a token lies.
//
//   SinePositionalEncoding encoding({.num_feats = 128});
//   at::Tensor pos = encoding(mask);   // mask (bs, h, w) -> pos (bs, 256, h, w)
//
// Same numbers as mmdetection's class of the same name. It has no parameters to train; the level
// embedding is added by flatten_feature_maps (lowtide/encoder_tokens.h).

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lowtide/export.h"

namespace lowtide {

// The defaults are those of mmdetection's Deformable DETR configurations.
struct SinePositionalEncodingOptions {
  // Channels for each of y and x: half of embed_dims. Positive and even.
  std::int64_t num_feats = 128;
  // Ratio of the longest wavelength to the shortest. Above 0.
  double temperature = 10000;
  // Scales positions so that the last valid row and column are about `scale`, which makes them
  // independent of the image's size. `scale`, `eps` and `offset` count only when this is set.
  bool normalize = true;
  double scale = 6.283185307179586;  // 2 pi
  double eps = 1e-6;                 // keeps rows without a valid pixel from dividing by 0
  double offset = -0.5;              // added to the count from 1: -0.5 means pixel centres
};

class LOWTIDE_API SinePositionalEncoding {
 public:
  // Throws UsageError (LT0427) for options outside the ranges given above.
  explicit SinePositionalEncoding(const SinePositionalEncodingOptions& options = {});

  // Encodes the positions of `padding_mask`, (bs, h, w) bool, true = padding. Returns
  // (bs, 2 * num_feats, h, w) float32: y channels, then x, each sine and cosine in turn; a
  // permuted view whose channels lie together. Where a whole row or column is padding, its tokens
  // hold noise (a division by eps): mask them, never compare them.
  // Throws UsageError (LT0428) for another shape or dtype.
  at::Tensor operator()(const at::Tensor& padding_mask) const;

  const SinePositionalEncodingOptions& options() const { return options_; }

 private:
  SinePositionalEncodingOptions options_;
};

}  // namespace lowtide
