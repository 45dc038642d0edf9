#include "src/train/detection_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <cmath>

#include "src/train/adamw.h"
#include "tests/train/temporary_folder.h"

namespace lowtide {
namespace {

at::Tensor boxes(const std::vector<float>& values) { return at::tensor(values).view({-1, 4}); }

double giou(const std::vector<float>& a, const std::vector<float>& b) {
  return generalized_iou(boxes(a), boxes(b)).item<double>();
}

// Three tokens, of which the second lies on the box.
Predictions three_tokens() {
  return {at::tensor({-1.0f, 2.0f, 0.0f}).view({1, 3}).requires_grad_(true),
          boxes({.2f, .2f, .1f, .1f, .5f, .5f, .2f, .2f, .8f, .8f, .1f, .1f})
              .view({1, 3, 4})
              .requires_grad_(true),
          at::ones({1, 3}, at::kBool)};
}

}  // namespace

TEST_CASE("generalised IoU of hand-worked boxes") {
  CHECK(giou({.5f, .5f, .2f, .2f}, {.5f, .5f, .2f, .2f}) == doctest::Approx(1));
  // Two squares of side 2 that share half: IoU 1/3, hull 3 x 2 is all of the union.
  CHECK(giou({1, 1, 2, 2}, {2, 1, 2, 2}) == doctest::Approx(1.0 / 3));
  // Apart: union 8, hull 6 x 2 = 12.
  CHECK(giou({1, 1, 2, 2}, {5, 1, 2, 2}) == doctest::Approx(0 - 4.0 / 12));
  // Diagonal neighbours: union 8, hull 16.
  CHECK(giou({1, 1, 2, 2}, {3, 3, 2, 2}) == doctest::Approx(-0.5));
  // One inside the other: IoU 1/4, hull is the outer one.
  CHECK(giou({2, 2, 4, 4}, {2, 2, 2, 2}) == doctest::Approx(0.25));
}

TEST_CASE("focal loss is minus alpha_t (1 - p_t)^gamma log p_t") {
  for (const double logit : {-4.0, -0.5, 0.0, 1.0, 3.0}) {
    const double p = 1 / (1 + std::exp(-logit));
    const auto got = [&](double target, double gamma) {
      return focal_loss(at::full({1}, logit), at::full({1}, target), 0.25, gamma).item<double>();
    };
    CHECK(got(1, 2) == doctest::Approx(-0.25 * (1 - p) * (1 - p) * std::log(p)).epsilon(1e-5));
    CHECK(got(0, 2) == doctest::Approx(-0.75 * p * p * std::log(1 - p)).epsilon(1e-5));
    CHECK(got(1, 0) == doctest::Approx(-0.25 * std::log(p)).epsilon(1e-5));
  }
}

TEST_CASE("the loss of three tokens and one box is the sum of its terms") {
  const Predictions found = three_tokens();
  const DetectionLoss loss = detection_loss(found, {boxes({.5f, .5f, .2f, .3f})});
  CHECK(loss.boxes == 1);
  // 5 * |0.3 - 0.2|; GIoU = IoU = 2/3.
  CHECK(loss.l1 == doctest::Approx(0.5));
  CHECK(loss.giou == doctest::Approx(2 * (1 - 2.0 / 3)));
  double classification = 0;
  const double logits[] = {-1, 2, 0};
  for (int i = 0; i < 3; ++i) {
    const double p = 1 / (1 + std::exp(-logits[i]));
    classification +=
        i == 1 ? -0.25 * (1 - p) * (1 - p) * std::log(p) : -0.75 * p * p * std::log(1 - p);
  }
  CHECK(loss.classification == doctest::Approx(2 * classification));
  CHECK(loss.total.item<double>() == doctest::Approx(loss.classification + loss.l1 + loss.giou));
}

TEST_CASE("only the token that answers for a box is pulled to it") {
  Predictions found = three_tokens();
  detection_loss(found, {boxes({.5f, .5f, .2f, .3f})}).total.backward();
  const at::Tensor pull = found.boxes.grad().abs().sum(-1)[0];
  CHECK(pull[0].item<float>() == 0);
  CHECK(pull[1].item<float>() > 0);
  CHECK(pull[2].item<float>() == 0);
  CHECK(found.logits.grad()[0][1].item<float>() < 0);
  CHECK(found.logits.grad()[0][0].item<float>() > 0);
}

TEST_CASE("an unusable token answers for nothing and costs nothing") {
  Predictions found = three_tokens();
  found.usable = at::tensor({1, 0, 1}).to(at::kBool).view({1, 3});
  CHECK(match_tokens(found, {boxes({.5f, .5f, .2f, .2f})}) == std::vector<std::int64_t>{2});
  detection_loss(found, {boxes({.5f, .5f, .2f, .2f})}).total.backward();
  CHECK(found.logits.grad()[0][1].item<float>() == 0);
}

TEST_CASE("images without boxes have a loss, and gradients that are numbers") {
  Predictions found = three_tokens();
  const DetectionLoss loss = detection_loss(found, {at::zeros({0, 4})});
  loss.total.backward();
  CHECK(loss.boxes == 0);
  CHECK(loss.classification > 0);
  CHECK(loss.l1 == 0);
  CHECK(found.logits.grad().isfinite().all().item<bool>());
}

TEST_CASE("tokens of the second image are counted after those of the first") {
  Predictions found = three_tokens();
  found.logits = found.logits.detach().repeat({2, 1});
  found.boxes = found.boxes.detach().repeat({2, 1, 1});
  found.usable = found.usable.repeat({2, 1});
  CHECK(match_tokens(found, {at::zeros({0, 4}), boxes({.8f, .8f, .1f, .1f, .2f, .2f, .1f, .1f})}) ==
        std::vector<std::int64_t>{5, 3});
}

TEST_CASE("more boxes than tokens are refused with the way out") {
  const std::string error =
      error_of([] { detection_loss(three_tokens(), {at::full({4, 4}, 0.5)}); });
  CHECK(error.find("4 boxes and only 3 tokens") != std::string::npos);
  CHECK(error.find("[LT0526]") != std::string::npos);
}

TEST_CASE("two AdamW steps are the published ones") {
  at::Tensor value = at::full({1}, 2.0, at::kDouble).requires_grad_(true);
  AdamW optimizer({{"w", value, 0.5, true}}, {.learning_rate = 0.1, .weight_decay = 0.01});
  double x = 2;
  double m = 0;
  double v = 0;
  const double rate = 0.1 * 0.5 * 0.25;
  for (int t = 1; t <= 2; ++t) {
    const double g = 3.0 * t;
    value.mutable_grad() = at::full({1}, g, at::kDouble);
    optimizer.step(0.25);
    x -= rate * 0.01 * x;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    x -= rate * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
    CHECK(value.item<double>() == doctest::Approx(x).epsilon(1e-12));
  }
}

TEST_CASE("a tensor that does not decay, or has no gradient, is left alone") {
  at::Tensor bias = at::full({1}, 2.0).requires_grad_(true);
  at::Tensor idle = at::full({1}, 2.0).requires_grad_(true);
  AdamW optimizer({{"bias", bias, 1, false}, {"idle", idle, 1, true}},
                  {.learning_rate = 0.1, .weight_decay = 0.5});
  bias.mutable_grad() = at::zeros({1});
  optimizer.step(1);
  CHECK(bias.item<float>() == 2);
  CHECK(idle.item<float>() == 2);
  optimizer.drop_gradients();
  CHECK_FALSE(bias.grad().defined());
}

TEST_CASE("gradients are clipped by their joint norm") {
  at::Tensor a = at::zeros({1}).requires_grad_(true);
  at::Tensor b = at::zeros({1}).requires_grad_(true);
  a.mutable_grad() = at::full({1}, 3.0);
  b.mutable_grad() = at::full({1}, 4.0);
  const std::vector<TrainedTensor> both{{"a", a}, {"b", b}};
  CHECK(clip_gradients(both, 10) == doctest::Approx(5));
  CHECK(a.grad().item<float>() == 3);
  CHECK(clip_gradients(both, 1) == doctest::Approx(5));
  CHECK(a.grad().item<float>() == doctest::Approx(0.6));
  CHECK(b.grad().item<float>() == doctest::Approx(0.8));
}

}  // namespace lowtide
