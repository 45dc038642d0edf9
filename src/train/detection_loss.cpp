// The costs of the assignment are plain loops, not tensor operations: a few images of a thousand
// tokens and some twenty boxes are cheap, the (boxes x tokens x 4) intermediates of a tensor
// formulation would be the largest temporaries of the step, and one order of summation is fixed.
//
// Tested by tests/train/detection_loss_test.cpp.
#include "src/train/detection_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lowtide/error.h"
#include "src/base/assert.h"
#include "src/base/text.h"
#include "src/train/assignment.h"

namespace lowtide {
namespace {

struct Corners {
  float x1, y1, x2, y2;
};

Corners corners_of(const float* box) {
  return {box[0] - box[2] / 2, box[1] - box[3] / 2, box[0] + box[2] / 2, box[1] + box[3] / 2};
}

float giou_of(const Corners& a, const Corners& b) {
  const float shared = std::max(0.0f, std::min(a.x2, b.x2) - std::max(a.x1, b.x1)) *
                       std::max(0.0f, std::min(a.y2, b.y2) - std::max(a.y1, b.y1));
  const float either = (a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1) - shared;
  const float around =
      (std::max(a.x2, b.x2) - std::min(a.x1, b.x1)) * (std::max(a.y2, b.y2) - std::min(a.y1, b.y1));
  return shared / either - (around - either) / around;
}

// Costs above this mark a token that must not be chosen; real ones stay below 100.
constexpr float kNever = 1e6f;

std::vector<int> match_image(const float* logits, const float* boxes, const bool* usable,
                             const float* targets, int target_count, int token_count,
                             const LossWeights& weights) {
  const auto alpha = static_cast<float>(weights.focal_alpha);
  const auto gamma = static_cast<float>(weights.focal_gamma);
  std::vector<float> class_cost(static_cast<std::size_t>(token_count));
  for (int t = 0; t < token_count; ++t) {
    const float p = 1 / (1 + std::exp(-logits[t]));
    const float as_object = -alpha * std::pow(1 - p, gamma) * std::log(p + 1e-12f);
    const float as_nothing = -(1 - alpha) * std::pow(p, gamma) * std::log(1 - p + 1e-12f);
    class_cost[std::size_t(t)] = float(weights.classification) * (as_object - as_nothing);
  }
  std::vector<float> costs(static_cast<std::size_t>(target_count) *
                           static_cast<std::size_t>(token_count));
  for (int i = 0; i < target_count; ++i) {
    const float* target = targets + 4 * i;
    const Corners target_corners = corners_of(target);
    for (int t = 0; t < token_count; ++t) {
      float& cost = costs[std::size_t(i) * std::size_t(token_count) + std::size_t(t)];
      if (!usable[t]) {
        cost = kNever;
        continue;
      }
      const float* box = boxes + 4 * t;
      const float distance = std::abs(box[0] - target[0]) + std::abs(box[1] - target[1]) +
                             std::abs(box[2] - target[2]) + std::abs(box[3] - target[3]);
      cost = class_cost[std::size_t(t)] + float(weights.l1) * distance -
             float(weights.giou) * giou_of(corners_of(box), target_corners);
    }
  }
  return assign(costs, target_count, token_count);
}

}  // namespace

std::vector<std::int64_t> match_tokens(const Predictions& predictions,
                                       const std::vector<at::Tensor>& targets,
                                       const LossWeights& weights) {
  const c10::NoGradGuard no_grad;
  const std::int64_t tokens = predictions.logits.size(1);
  LOWTIDE_ASSERT(predictions.logits.size(0) == static_cast<std::int64_t>(targets.size()));
  const at::Tensor logits = predictions.logits.contiguous();
  const at::Tensor boxes = predictions.boxes.contiguous();
  const at::Tensor usable = predictions.usable.contiguous();
  std::vector<std::int64_t> matched;
  for (std::size_t image = 0; image < targets.size(); ++image) {
    const auto first = static_cast<std::int64_t>(image) * tokens;
    const std::int64_t count = targets[image].size(0);
    if (count == 0) continue;
    const bool* may_answer = usable.const_data_ptr<bool>() + first;
    const std::int64_t available = std::count(may_answer, may_answer + tokens, true);
    if (count > available) {
      throw UsageError(
          "LT0526", concat("cannot match the boxes of a crop: it has ", count, " boxes and only ",
                           available, " tokens to predict them. Raise --crop"));
    }
    const at::Tensor target = targets[image].contiguous();
    for (const int token : match_image(logits.const_data_ptr<float>() + first,
                                       boxes.const_data_ptr<float>() + 4 * first, may_answer,
                                       target.const_data_ptr<float>(), static_cast<int>(count),
                                       static_cast<int>(tokens), weights)) {
      matched.push_back(first + token);
    }
  }
  return matched;
}

at::Tensor focal_loss(const at::Tensor& logits, const at::Tensor& targets, double alpha,
                      double gamma) {
  const at::Tensor probability = at::sigmoid(logits);
  const at::Tensor off = probability * (1 - targets) + (1 - probability) * targets;  // 1 - p_t
  const at::Tensor share = targets * (2 * alpha - 1) + (1 - alpha);
  return at::binary_cross_entropy_with_logits(logits, targets, {}, {}, at::Reduction::None) *
         share * at::pow(off, gamma);
}

at::Tensor generalized_iou(const at::Tensor& a, const at::Tensor& b) {
  const auto low = [](const at::Tensor& box) {
    return box.slice(1, 0, 2) - box.slice(1, 2, 4) * 0.5;
  };
  const auto high = [](const at::Tensor& box) {
    return box.slice(1, 0, 2) + box.slice(1, 2, 4) * 0.5;
  };
  const auto product = [](const at::Tensor& sides) {
    return sides.select(1, 0) * sides.select(1, 1);
  };
  const at::Tensor shared =
      product((at::minimum(high(a), high(b)) - at::maximum(low(a), low(b))).clamp_min(0));
  const at::Tensor either = product(a.slice(1, 2, 4)) + product(b.slice(1, 2, 4)) - shared;
  const at::Tensor around = product(at::maximum(high(a), high(b)) - at::minimum(low(a), low(b)));
  return shared / either - (around - either) / around;
}

DetectionLoss detection_loss(const Predictions& predictions, const std::vector<at::Tensor>& targets,
                             const LossWeights& weights) {
  const std::vector<std::int64_t> matched = match_tokens(predictions, targets, weights);
  DetectionLoss loss;
  loss.boxes = static_cast<std::int64_t>(matched.size());
  const double normalizer = static_cast<double>(std::max<std::int64_t>(1, loss.boxes));

  at::Tensor wanted =
      at::zeros(predictions.logits.sizes(), predictions.logits.options().requires_grad(false));
  for (const std::int64_t token : matched) wanted.data_ptr<float>()[token] = 1;
  const at::Tensor counted = predictions.usable.to(predictions.logits.scalar_type());
  const at::Tensor classification =
      (focal_loss(predictions.logits, wanted, weights.focal_alpha, weights.focal_gamma) * counted)
          .sum() *
      (weights.classification / normalizer);
  loss.total = classification;
  loss.classification = classification.item<double>();
  if (matched.empty()) return loss;

  const at::Tensor index = at::tensor(matched, at::kLong);
  const at::Tensor found = predictions.boxes.reshape({-1, 4}).index_select(0, index);
  const at::Tensor truth = at::cat(targets, 0);
  const at::Tensor l1 = (found - truth).abs().sum() * (weights.l1 / normalizer);
  const at::Tensor giou = (1 - generalized_iou(found, truth)).sum() * (weights.giou / normalizer);
  loss.total = loss.total + l1 + giou;
  loss.l1 = l1.item<double>();
  loss.giou = giou.item<double>();
  return loss;
}

}  // namespace lowtide
