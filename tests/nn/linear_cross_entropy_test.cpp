// linear_cross_entropy from C++ against the formula at its source's top, written out in float64
// with autograd, for every option; and its float64 gradients against differences.

#include "lowtide/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "lowtide/error.h"
#include "lowtide/memory_meter.h"

namespace lowtide {
namespace {

struct Problem {
  at::Tensor hidden, weight, target;
  LinearCrossEntropyOptions options;
};

Problem make_problem(std::int64_t tokens, std::int64_t width, std::int64_t classes,
                     at::ScalarType dtype, std::int64_t ignored = 0, bool probabilities = false) {
  at::manual_seed(0);
  Problem p;
  p.hidden = at::randn({tokens, width}).to(dtype);
  p.weight = (at::randn({classes, width}) * 0.4).to(dtype);
  p.target = at::randint(classes, {tokens}, at::kLong);
  if (ignored > 0) p.target.index_fill_(0, at::randperm(tokens).narrow(0, 0, ignored), -100);
  if (probabilities) p.target = at::softmax(at::randn({tokens, classes}), 1);
  return p;
}

// In float64, in one piece.
at::Tensor reference(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor& target, const LinearCrossEntropyOptions& options) {
  const std::int64_t classes = weight.size(0);
  const double e = options.label_smoothing;
  at::Tensor logits = hidden.mm(weight.t());
  if (bias.defined()) logits = logits + bias;
  const at::Tensor lse = logits.logsumexp(1);
  const at::Tensor log_p = logits - lse.unsqueeze(1);
  const at::Tensor w = options.class_weights.defined() ? options.class_weights.to(at::kDouble)
                                                       : at::ones({classes}, at::kDouble);
  at::Tensor q, counts, divisor;
  if (target.is_floating_point()) {
    q = target.to(at::kDouble) * (1 - e) + e / static_cast<double>(classes);
    counts = at::ones({hidden.size(0)}, at::kDouble);
    divisor = counts.sum();
  } else {
    counts = target.ne(options.ignore_index).to(at::kDouble);
    const at::Tensor y = target.masked_fill(target.eq(options.ignore_index), 0);
    q = at::one_hot(y, classes).to(at::kDouble) * (1 - e) + e / static_cast<double>(classes);
    divisor = (w.index_select(0, y) * counts).sum();
  }
  const at::Tensor cross_entropy = -(q * w * log_p).sum(1) * counts;
  const at::Tensor z = options.z_loss * lse.square() * counts;
  switch (options.reduction) {
    case Reduction::kNone:
      return cross_entropy + z;
    case Reduction::kMean:
      return cross_entropy.sum() / divisor + z.sum() / counts.sum();
    case Reduction::kSum:
      return (cross_entropy + z).sum();
  }
  return {};
}

struct Result {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;  // of hidden, weight, and bias if there is one
};

// With another factor for each loss, so that backward is not that of ones.
template <typename Loss>
Result run(const Problem& p, bool is_exact, const Loss& loss_of) {
  const auto leaf = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return (is_exact ? tensor.to(at::kDouble, false, true) : tensor.clone()).requires_grad_();
  };
  const at::Tensor hidden = leaf(p.hidden), weight = leaf(p.weight), bias = leaf(p.options.bias);
  const at::Tensor loss = loss_of(hidden, weight, bias);
  at::manual_seed(1);
  (loss * (at::rand(loss.sizes()) + 0.5).to(at::kBFloat16).to(loss.scalar_type())).sum().backward();
  Result result{loss.detach(), {hidden.grad(), weight.grad()}};
  if (bias.defined()) result.gradients.push_back(bias.grad());
  return result;
}

Result run_ours(const Problem& p) {
  return run(p, false,
             [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
               LinearCrossEntropyOptions options = p.options;
               options.bias = bias;
               return linear_cross_entropy(hidden, weight, p.target, options);
             });
}

double relative_error(const at::Tensor& found, const at::Tensor& exact) {
  const double scale = exact.norm().item<double>();
  const double error = (found.to(at::kDouble) - exact).norm().item<double>();
  return scale == 0 ? error : error / scale;
}

void check(const Problem& p, double loss_tolerance, double gradient_tolerance) {
  const Result exact =
      run(p, true, [&](const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias) {
        return reference(hidden, weight, bias, p.target, p.options);
      });
  const Result found = run_ours(p);
  const bool has_shape = found.loss.sizes() == exact.loss.sizes();
  CHECK(has_shape);
  CHECK(relative_error(found.loss, exact.loss) <= loss_tolerance);
  REQUIRE(found.gradients.size() == exact.gradients.size());
  const at::Tensor inputs[] = {p.hidden, p.weight, p.options.bias};
  for (std::size_t i = 0; i < exact.gradients.size(); ++i) {
    CAPTURE(i);
    const bool has_dtype = found.gradients[i].scalar_type() == inputs[i].scalar_type();
    CHECK(has_dtype);
    CHECK(relative_error(found.gradients[i], exact.gradients[i]) <= gradient_tolerance);
  }
}

// The ways through: all at once, chunks of tokens, blocks of the vocabulary too, and gradients made
// in backward.
void for_each_way(Problem& p, const std::function<void()>& f) {
  const Bytes row = static_cast<Bytes>(p.weight.size(0)) * 4;
  struct Way {
    Bytes chunk_bytes;
    std::int64_t vocabulary_chunk;
    bool gradients_in_forward;
  };
  for (const Way& way : {Way{64_MiB, 0, true}, Way{20 * row, 0, true}, Way{32 * row, 31, true},
                         Way{20 * row, 0, false}}) {
    CAPTURE(way.chunk_bytes);
    CAPTURE(way.vocabulary_chunk);
    CAPTURE(way.gradients_in_forward);
    p.options.chunk_bytes = way.chunk_bytes;
    p.options.vocabulary_chunk = way.vocabulary_chunk;
    p.options.gradients_in_forward = way.gradients_in_forward;
    f();
  }
}

// Every reduction, with and without smoothing, z-loss, weights of classes, bias, tokens left out.
void for_each_option(std::int64_t tokens, std::int64_t width, std::int64_t classes,
                     at::ScalarType dtype, const std::function<void(const Problem&)>& f) {
  for (const bool probabilities : {false, true}) {
    for (const std::int64_t ignored : {std::int64_t{0}, tokens / 4}) {
      if (probabilities && ignored > 0) continue;
      Problem p = make_problem(tokens, width, classes, dtype, ignored, probabilities);
      const at::Tensor bias = at::randn({classes}).to(dtype), weights = at::rand({classes}) + 0.1;
      for (int bits = 0; bits < 16; ++bits) {
        for (const Reduction reduction : {Reduction::kNone, Reduction::kMean, Reduction::kSum}) {
          CAPTURE(probabilities);
          CAPTURE(ignored);
          CAPTURE(bits);
          CAPTURE(static_cast<int>(reduction));
          p.options.reduction = reduction;
          p.options.label_smoothing = (bits & 1) != 0 ? 0.1 : 0.0;
          p.options.z_loss = (bits & 2) != 0 ? 1e-2 : 0.0;
          p.options.class_weights = (bits & 4) != 0 ? weights.to(dtype) : at::Tensor();
          p.options.bias = (bits & 8) != 0 ? bias : at::Tensor();
          for_each_way(p, [&] { f(p); });
        }
      }
    }
  }
}

TEST_CASE("linear_cross_entropy in float32 is within rounding of float64, for every option") {
  for_each_option(45, 24, 53, at::kFloat, [](const Problem& p) { check(p, 2e-6, 4e-6); });
}

TEST_CASE("linear_cross_entropy in float64 is float64's, for every option") {
  for_each_option(21, 8, 30, at::kDouble, [](const Problem& p) { check(p, 1e-13, 1e-13); });
}

// The loss is float32's; gradients are rounded once as factors and once at the end.
TEST_CASE("linear_cross_entropy sums bfloat16 in float32, for every option") {
  for_each_option(45, 24, 53, at::kBFloat16, [](const Problem& p) { check(p, 4e-6, 6e-3); });
}

TEST_CASE("linear_cross_entropy sums bfloat16 in float32 over many chunks and odd sizes") {
  for (const std::int64_t tokens : {1, 63, 300, 333}) {
    for (const std::int64_t classes : {501, 640}) {
      CAPTURE(tokens);
      CAPTURE(classes);
      Problem p = make_problem(tokens, 50, classes, at::kBFloat16, tokens / 5);
      p.options.bias = at::randn({classes}).to(at::kBFloat16);
      p.options.z_loss = 1e-3;
      for_each_way(p, [&] { check(p, 4e-6, 6e-3); });
    }
  }
}

TEST_CASE("linear_cross_entropy's float16 is summed in float32") {
  Problem p = make_problem(90, 24, 53, at::kHalf, 7);
  for_each_way(p, [&] { check(p, 4e-6, 1e-3); });
}

TEST_CASE("linear_cross_entropy leaves out what another ignore_index names") {
  Problem p = make_problem(40, 24, 53, at::kFloat);
  p.target.narrow(0, 3, 9).fill_(7);
  p.options.ignore_index = 7;
  for_each_way(p, [&] { check(p, 2e-6, 4e-6); });
  const Result found = run_ours(p);
  CHECK(found.gradients[0].narrow(0, 3, 9).eq(0).all().item<bool>());
}

TEST_CASE("linear_cross_entropy's gradients are the loss's differences") {
  Problem p = make_problem(6, 4, 7, at::kDouble, 1);
  p.options.bias = at::randn({7}, at::kDouble);
  p.options.class_weights = at::rand({7}, at::kDouble) + 0.1;
  p.options.label_smoothing = 0.2;
  p.options.z_loss = 0.05;
  const auto loss_of = [&] {
    return linear_cross_entropy(p.hidden, p.weight, p.target, p.options).item<double>();
  };
  for_each_way(p, [&] {
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      p.options.reduction = reduction;
      const at::Tensor inputs[] = {p.hidden, p.weight, p.options.bias};
      std::vector<at::Tensor> gradients;
      {
        Problem q = p;
        for (at::Tensor* input : {&q.hidden, &q.weight, &q.options.bias}) {
          *input = input->clone().requires_grad_();
        }
        linear_cross_entropy(q.hidden, q.weight, q.target, q.options).backward();
        gradients = {q.hidden.grad(), q.weight.grad(), q.options.bias.grad()};
      }
      for (int i = 0; i < 3; ++i) {
        auto* const values = inputs[i].mutable_data_ptr<double>();
        const auto* const found = gradients[static_cast<std::size_t>(i)].const_data_ptr<double>();
        for (std::int64_t j = 0; j < inputs[i].numel(); ++j) {
          constexpr double kStep = 1e-5;
          const double before = values[j];
          values[j] = before + kStep;
          const double above = loss_of();
          values[j] = before - kStep;
          const double below = loss_of();
          values[j] = before;
          CHECK(found[j] == doctest::Approx((above - below) / (2 * kStep)).epsilon(1e-6));
        }
      }
    }
  });
}

TEST_CASE("linear_cross_entropy holds a chunk of logits, not the logits") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    constexpr std::int64_t kTokens = 1024, kWidth = 32, kClasses = 8000;
    Problem p = make_problem(kTokens, kWidth, kClasses, dtype);
    p.hidden.requires_grad_();
    p.weight.requires_grad_();
    p.options.chunk_bytes = 1_MiB;
    MemoryMeter meter;
    const Bytes before = meter.live_bytes();
    linear_cross_entropy(p.hidden, p.weight, p.target, p.options).backward();
    const Bytes extra = meter.peak_bytes() - before;
    // The gradients; of weight in float32 too, where it is narrow; the chunk, and small blocks.
    const auto weights = static_cast<Bytes>(p.weight.numel());
    CHECK(extra < weights * (dtype == at::kFloat ? 4 : 6) + 2 * p.hidden.nbytes() + 4_MiB);
    CHECK(extra < Bytes{kTokens} * kClasses * 4 / 4);
  }
}

TEST_CASE("linear_cross_entropy refuses what it cannot do, by id") {
  const Problem p = make_problem(4, 8, 10, at::kFloat);
  const auto id_of = [&](const auto& call) -> std::string {
    try {
      call();
    } catch (const UsageError& error) {
      return error.id();
    }
    return "";
  };
  CHECK(id_of([&] { linear_cross_entropy(p.hidden, p.weight.narrow(1, 0, 7), p.target); }) ==
        "LT0430");
  CHECK(id_of([&] { linear_cross_entropy(p.hidden, p.weight, p.target.to(at::kInt)); }) ==
        "LT0431");
  CHECK(id_of([&] { linear_cross_entropy(p.hidden, p.weight, p.target + 10); }) == "LT0432");
  LinearCrossEntropyOptions options;
  options.label_smoothing = 2;
  CHECK(id_of([&] { linear_cross_entropy(p.hidden, p.weight, p.target, options); }) == "LT0433");
}

}  // namespace
}  // namespace lowtide
