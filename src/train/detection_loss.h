#pragma once
// What predictions cost: the loss of Deformable DETR for one class.
//
//   DetectionLoss loss = detection_loss(predictions, targets, {});
//   loss.total.backward();
//
// Each true box is answered for by one token (assignment.h); that token is pulled to the box and
// all others to "nothing here".

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lowtide {

// One score and one box a token. B images, N tokens.
struct Predictions {
  at::Tensor logits;  // (B, N) float32: sigmoid of it is the probability of an object
  at::Tensor boxes;  // (B, N, 4) float32: centre x, centre y, width, height, in [0, 1] of the image
  at::Tensor usable;  // (B, N) bool: false where a token has no proposal (padding, image border)
};

// Weights of the terms, in the loss and in the costs of the assignment alike; mmdetection's.
struct LossWeights {
  double classification = 2;
  double l1 = 5;
  double giou = 2;
  double focal_alpha = 0.25;  // share of the positive tokens
  double focal_gamma = 2;     // how strongly tokens that are right already are left alone
};

struct DetectionLoss {
  at::Tensor total;  // scalar, with graph
  // The terms with their weights, without graph; they add up to the total.
  double classification = 0;
  double l1 = 0;
  double giou = 0;
  std::int64_t boxes = 0;
};

// `targets[i]` are the boxes of image i, (boxes, 4) float32 in the form of Predictions::boxes; none
// is legal. All terms are divided by the number of boxes in the batch, at least 1.
// Throws UsageError (LT0526) when an image has more boxes than usable tokens.
DetectionLoss detection_loss(const Predictions& predictions, const std::vector<at::Tensor>& targets,
                             const LossWeights& weights = {});

// The token of each box, image after image, as indices into the B * N tokens of the batch.
std::vector<std::int64_t> match_tokens(const Predictions& predictions,
                                       const std::vector<at::Tensor>& targets,
                                       const LossWeights& weights = {});

// Focal loss (Lin et al., 2017) of `logits` against `targets` of 0 and 1, elementwise:
// -alpha_t (1 - p_t)^gamma log p_t.
at::Tensor focal_loss(const at::Tensor& logits, const at::Tensor& targets, double alpha,
                      double gamma);

// Generalised IoU (Rezatofighi et al., 2019) of two lists of boxes, row by row; boxes (M, 4) in the
// form of Predictions::boxes. Returns (M), in (-1, 1].
at::Tensor generalized_iou(const at::Tensor& a, const at::Tensor& b);

}  // namespace lowtide
