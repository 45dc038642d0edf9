// Cross entropy over chunks of logits.
//
// With q the smoothed and weighted target of a token and A = sum_c q_c, its loss is
//
//   A lse(x) - sum_c q_c x_c + z lse(x)^2,      lse = log sum exp,
//
// where a class y as target has q = (1 - e) w_y [c = y] + (e / V) w_c, and probabilities t have
// q = w_c ((1 - e) t_c + e / V). Its gradient by the logits, for a factor g of the cross entropy
// and h of the z-loss, is
//
//   p_c (g A + 2 h z lse) - g q_c,              p = softmax(x).
//
// So a chunk's buffer is logits, then exponentials, then gradients, and is multiplied by `weight`
// (hidden's gradient) and by the chunk of `hidden` (weight's).
//
// The passes between the products go over a few rows at a time, which stay in the processor's cache
// from one pass to the next.
//
// For bfloat16 inputs on processors with bfloat16 units the products take bfloat16 factors, with
// float32 sums and results: logits are never rounded, and their gradients are rounded once, as
// factors. What bounds them is memory, not arithmetic: so logits are made for a few tokens at a
// time, which stay in cache until they are bfloat16 gradients, and those lie together for a chunk
// of tokens, because each pass over weight's gradient is dear. `weight` is put once into the order
// that the product wants. Elsewhere narrow factors are made float32, a block of `weight` at a time.
//
// Two ways through:
//   - one pass: a chunk holds whole rows, the logsumexp is known at once, and gradients follow;
//   - two passes: first the logsumexp of each token, block by block of the vocabulary with a
//   running
//     maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), then the
//     logits again, block by block, for the gradients. So is backward where gradients were not made
//     in the forward.
//
// Tested by tests/nn/linear_cross_entropy_test.cpp and tests/python/large_layers_test.py against
// the plain pair in float64.

#include "lowtide/linear_cross_entropy.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/hook/gradient_graph.h"
#include "src/hook/half_products.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide {
namespace {

using at::Tensor;
using hook::GradientEdge;

constexpr Bytes kRowBlockBytes = 512_KiB;  // rows of logits that stay in cache
constexpr std::int64_t kTokensInCache = 256;
constexpr std::int64_t kWholeTiles = 64;    // tokens
constexpr Bytes kWeightBlockBytes = 8_MiB;  // of a narrow weight, made float32 at a time

[[noreturn]] void refuse(const char* id, const std::string& what) {
  throw UsageError(id, concat("cannot run linear_cross_entropy: ", what));
}

void check_tensor(const Tensor& tensor, const char* name) {
  if (!tensor.defined()) return;
  if (!tensor.is_cpu()) {
    refuse("LT0431", concat(name, " is on ", tensor.device(), "; it computes on the CPU"));
  }
  const c10::DispatchKeySet keys = tensor.key_set();
  if (keys.has(c10::DispatchKey::FuncTorchBatched) ||
      keys.has(c10::DispatchKey::FuncTorchGradWrapper) || keys.has(c10::DispatchKey::Python)) {
    refuse("LT0435", concat(name,
                            " is a tensor of torch.func's or of a subclass, whose ops this one "
                            "cannot see. Use the plain pair, linear and cross_entropy, there"));
  }
  if (tensor.is_floating_point() && tensor._fw_grad(0).defined()) {
    refuse("LT0435", concat(name,
                            " carries a forward-mode gradient (a dual tensor), and there is "
                            "none. Use reverse mode, or unpack the dual first"));
  }
  if (tensor.layout() != at::kStrided) {
    refuse("LT0431", concat(name, " has layout ", tensor.layout(), "; make it dense"));
  }
}

// What a call computes with, as plain values.
struct Problem {
  std::int64_t tokens = 0, width = 0, classes = 0;
  at::ScalarType compute = at::kFloat;
  bool probabilities = false;

  Tensor hidden;         // (tokens, width), its own dtype
  Tensor weight;         // (classes, width), its own dtype
  Tensor bias;           // (classes) in `compute`, or undefined
  Tensor class_weights;  // the same
  Tensor target;         // (tokens) int64, or (tokens, classes)
  Tensor rows;           // numbers of the tokens that count; undefined means all
  std::int64_t counting = 0;

  double smoothing = 0, z_loss = 0;
  double weights_sum = 0;  // of class_weights, or classes
  std::int64_t token_chunk = 1, class_chunk = 1;
  std::int64_t tokens_at_once = 1;  // of a chunk, whose logits exist together in `compute`
  // Products of bfloat16 factors with float32 sums; else of factors in `compute`.
  bool half_products = false;
  std::optional<hook::TransposedFactor> weight_factor;  // where whole rows are made

  bool one_pass() const { return class_chunk == classes; }
  void order_weight() {
    if (half_products && one_pass() && counting > tokens_at_once) weight_factor.emplace(weight);
  }
};

// A chunk of tokens, gathered.
struct Chunk {
  std::int64_t begin = 0, size = 0;  // in the tokens that count
  Tensor rows;
  Tensor hidden;         // (size, width) in `compute`, or bfloat16 for half_products
  Tensor target;         // (size) or (size, classes)
  Tensor target_weight;  // (size, 1): w_y, or undefined for ones
  Tensor target_mass;    // (size, 1): A
};

// The gradients under way, in `compute`; undefined where not wanted.
struct Gradients {
  Tensor hidden, weight, bias;
  bool begun = false;
};

Tensor as(const Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

Chunk chunk_at(const Problem& p, std::int64_t begin) {
  Chunk chunk;
  chunk.begin = begin;
  chunk.size = std::min(p.token_chunk, p.counting - begin);
  const auto take = [&](const Tensor& whole) {
    return chunk.rows.defined() ? whole.index_select(0, chunk.rows)
                                : whole.narrow(0, begin, chunk.size);
  };
  if (p.rows.defined()) chunk.rows = p.rows.narrow(0, begin, chunk.size);
  chunk.hidden = p.half_products ? take(p.hidden).contiguous() : as(take(p.hidden), p.compute);
  chunk.target = take(p.target);
  const double e = p.smoothing;
  if (p.probabilities) {
    // Block by block, so that no float copy of a narrow target's rows is made.
    chunk.target_mass = at::empty({chunk.size, 1}, p.hidden.options().dtype(p.compute));
    const std::int64_t step =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(kRowBlockBytes / 8) / p.classes);
    for (std::int64_t r = 0; r < chunk.size; r += step) {
      const std::int64_t n = std::min(step, chunk.size - r);
      const Tensor t = as(chunk.target.narrow(0, r, n), p.compute);
      Tensor mass = p.class_weights.defined() ? t.matmul(p.class_weights).unsqueeze(1)
                                              : t.sum(1, /*keepdim=*/true);
      chunk.target_mass.narrow(0, r, n).copy_(
          mass.mul_(1 - e).add_(e * p.weights_sum / static_cast<double>(p.classes)));
    }
  } else if (p.class_weights.defined()) {
    chunk.target_weight = p.class_weights.index_select(0, chunk.target).unsqueeze_(1);
    chunk.target_mass =
        chunk.target_weight * (1 - e) + e * p.weights_sum / static_cast<double>(p.classes);
  } else {
    chunk.target_mass = at::full({chunk.size, 1}, 1.0, p.hidden.options().dtype(p.compute));
  }
  return chunk;
}

// Calls f(first class, number, weight's rows in `compute`) over classes [begin, end).
template <class F>
void for_weight_blocks(const Problem& p, std::int64_t begin, std::int64_t end, F f) {
  if (p.weight.scalar_type() == p.compute) {
    f(begin, end - begin, p.weight.narrow(0, begin, end - begin));
    return;
  }
  const std::int64_t row = p.width * static_cast<std::int64_t>(c10::elementSize(p.compute));
  const std::int64_t step =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kWeightBlockBytes) / row);
  Tensor block = at::empty({std::min(step, end - begin), p.width},
                           p.weight.options().dtype(p.compute).requires_grad(false));
  for (std::int64_t c = begin; c < end; c += step) {
    const std::int64_t n = std::min(step, end - c);
    Tensor part = block.narrow(0, 0, n);
    part.copy_(p.weight.narrow(0, c, n));
    f(c, n, part);
  }
}

// Logits of some tokens, `hidden`, for classes [begin, begin + out.size(1)), without the bias.
void make_logits(const Problem& p, const Tensor& hidden, std::int64_t begin, Tensor& out) {
  if (p.weight_factor.has_value()) {
    p.weight_factor->product(hidden, out);
    return;
  }
  if (p.half_products) {
    hook::product_with_transposed(hidden, p.weight.narrow(0, begin, out.size(1)), out);
    return;
  }
  for_weight_blocks(p, begin, begin + out.size(1),
                    [&](std::int64_t c, std::int64_t n, const Tensor& weight) {
                      Tensor part = out.narrow(1, c - begin, n);
                      at::mm_out(part, hidden, weight.t());
                    });
}

template <class F>
void for_row_blocks(const Tensor& logits, F f) {
  const std::int64_t row = logits.size(1) * static_cast<std::int64_t>(logits.element_size());
  const std::int64_t step =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kRowBlockBytes) / row);
  for (std::int64_t r = 0; r < logits.size(0); r += step) {
    const std::int64_t n = std::min(step, logits.size(0) - r);
    f(r, n, logits.narrow(0, r, n));
  }
}

// Calls f(first token in the chunk, number, logits) for all tokens of `chunk` and the classes of
// `buffer`, which begin at `begin`; a few rows at a time, made in `buffer`. With `gradients` f
// leaves the gradients there, and the bias' are added.
template <class F>
void for_logits(const Problem& p, const Chunk& chunk, std::int64_t begin, const Tensor& buffer,
                Gradients* gradients, F f) {
  for (std::int64_t row = 0; row < chunk.size; row += p.tokens_at_once) {
    const std::int64_t rows = std::min(p.tokens_at_once, chunk.size - row);
    Tensor logits = buffer.narrow(0, 0, rows);
    make_logits(p, chunk.hidden.narrow(0, row, rows), begin, logits);
    for_row_blocks(logits,
                   [&](std::int64_t r, std::int64_t n, const Tensor& x) { f(row + r, n, x); });
    if (gradients != nullptr && gradients->bias.defined()) {
      gradients->bias.narrow(0, begin, logits.size(1)).add_(logits.sum(0));
    }
  }
}

// sum_c q_c x_c over the classes of `x`, which begin at `begin`: (rows, 1).
Tensor target_dot(const Problem& p, const Chunk& chunk, std::int64_t row, std::int64_t begin,
                  const Tensor& x) {
  const std::int64_t rows = x.size(0), classes = x.size(1);
  const double e = p.smoothing;
  const Tensor weights =
      p.class_weights.defined() ? p.class_weights.narrow(0, begin, classes) : Tensor();
  Tensor dot;
  if (p.probabilities) {
    const Tensor t = as(chunk.target.narrow(0, row, rows).narrow(1, begin, classes), p.compute) * x;
    dot = weights.defined() ? t.matmul(weights).unsqueeze(1) : t.sum(1, true);
    dot.mul_(1 - e);
  } else {
    const Tensor y = chunk.target.narrow(0, row, rows).unsqueeze(1);
    if (classes == p.classes) {
      dot = x.gather(1, y);
    } else {
      const Tensor inside = y.ge(begin).logical_and_(y.lt(begin + classes));
      dot = x.gather(1, (y - begin).clamp_(0, classes - 1)).masked_fill_(inside.logical_not(), 0);
    }
    if (chunk.target_weight.defined()) dot.mul_(chunk.target_weight.narrow(0, row, rows));
    dot.mul_(1 - e);
  }
  if (e > 0) {
    const Tensor all = weights.defined() ? x.matmul(weights).unsqueeze(1) : x.sum(1, true);
    dot.add_(all, e / static_cast<double>(p.classes));
  }
  return dot;
}

// Makes the gradients by the logits of `p`, which holds softmax(x) divided by `scale` (rows, 1) and
// begins at class `begin`. g, h: (rows, 1), see the top.
void to_gradients(const Problem& p, const Chunk& chunk, std::int64_t row, std::int64_t begin,
                  Tensor& x, const Tensor& scale, const Tensor& lse, const Tensor& g,
                  const Tensor& h) {
  const std::int64_t rows = x.size(0), classes = x.size(1);
  const double e = p.smoothing;
  Tensor factor = chunk.target_mass.narrow(0, row, rows) * g;
  if (p.z_loss != 0) factor.add_(h * lse, 2 * p.z_loss);
  if (scale.defined()) factor.mul_(scale);
  x.mul_(factor);
  const Tensor weights =
      p.class_weights.defined() ? p.class_weights.narrow(0, begin, classes) : Tensor();
  if (p.probabilities) {
    Tensor q = as(chunk.target.narrow(0, row, rows).narrow(1, begin, classes), p.compute)
                   .mul(1 - e)
                   .add_(e / static_cast<double>(p.classes));
    if (weights.defined()) q.mul_(weights);
    x.sub_(q.mul_(g));
    return;
  }
  if (e > 0) {
    const Tensor spread = g * (e / static_cast<double>(p.classes));
    if (weights.defined()) {
      x.addr_(spread.squeeze(1), weights, 1, -1);
    } else {
      x.sub_(spread);
    }
  }
  Tensor at_target = g * (e - 1);
  if (chunk.target_weight.defined()) at_target.mul_(chunk.target_weight.narrow(0, row, rows));
  const Tensor y = chunk.target.narrow(0, row, rows).unsqueeze(1);
  if (classes == p.classes) {
    x.scatter_add_(1, y, at_target);
  } else {
    const Tensor outside = y.lt(begin).logical_or_(y.ge(begin + classes));
    x.scatter_add_(1, (y - begin).clamp_(0, classes - 1), at_target.masked_fill_(outside, 0));
  }
}

// What gradients by logits are rounded to as factors: rows of an even number of classes, the last
// one 0 where there is one more. Undefined where they are factors as they are.
Tensor half_rows(const Problem& p, std::int64_t rows, std::int64_t classes) {
  if (!p.half_products) return {};
  const std::int64_t even = classes + classes % 2;
  const Tensor padded =
      at::empty({rows, even}, p.hidden.options().dtype(at::kBFloat16).requires_grad(false));
  if (even > classes) padded.select(1, even - 1).zero_();
  return padded.narrow(1, 0, classes);
}

// Adds what follows from the gradients by the logits of `chunk`, for classes from `begin` on: `d`,
// in bfloat16 for half_products. The bias' come from for_logits().
void multiply(const Problem& p, const Chunk& chunk, std::int64_t begin, const Tensor& d,
              Gradients& out) {
  const bool first_classes = begin == 0;
  if (out.hidden.defined()) {
    // Rows of the whole where they lie together, else gathered ones.
    Tensor rows = chunk.rows.defined() || out.hidden.scalar_type() != p.compute
                      ? Tensor()
                      : out.hidden.narrow(0, chunk.begin, chunk.size);
    const bool direct = rows.defined();
    if (!direct) rows = at::empty({chunk.size, p.width}, d.options().dtype(p.compute));
    bool begun = direct && !first_classes;
    if (p.half_products) {
      hook::product(d, p.weight.narrow(0, begin, d.size(1)), rows, begun);
    } else
      for_weight_blocks(p, begin, begin + d.size(1),
                        [&](std::int64_t c, std::int64_t n, const Tensor& weight) {
                          const Tensor part = d.narrow(1, c - begin, n);
                          if (begun) {
                            rows.addmm_(part, weight);
                          } else {
                            at::mm_out(rows, part, weight);
                          }
                          begun = true;
                        });
    if (!direct) {
      if (chunk.rows.defined()) {
        out.hidden.index_add_(0, chunk.rows, as(rows, out.hidden.scalar_type()));
      } else {
        out.hidden.narrow(0, chunk.begin, chunk.size).add_(rows);
      }
    }
  }
  if (out.weight.defined()) {
    Tensor part = out.weight.narrow(0, begin, d.size(1));
    if (p.half_products) {
      hook::transposed_product(d, chunk.hidden, part, chunk.begin > 0);
    } else if (chunk.begin == 0) {
      at::mm_out(part, d.t(), chunk.hidden);
    } else {
      part.addmm_(d.t(), chunk.hidden);
    }
  }
}

// The factors of the tokens that count: of the cross entropy, and of the z-loss.
struct Factors {
  Tensor g, h;  // (counting, 1)
};

Gradients begin_gradients(const Problem& p, bool hidden, bool weight, bool bias) {
  Gradients out;
  const auto options = p.hidden.options().requires_grad(false);
  if (hidden) {
    // In float32 while blocks of the vocabulary are added; else a chunk's rows are done at once.
    const bool at_once = p.one_pass() && p.weight.scalar_type() == p.compute;
    const auto dtype = at_once ? p.hidden.scalar_type() : p.compute;
    const bool zero = p.rows.defined() || dtype != p.compute;
    out.hidden = zero ? at::zeros({p.tokens, p.width}, options.dtype(dtype))
                      : at::empty({p.tokens, p.width}, options.dtype(dtype));
  }
  if (weight) {
    out.weight = p.counting == 0 ? at::zeros({p.classes, p.width}, options.dtype(p.compute))
                                 : at::empty({p.classes, p.width}, options.dtype(p.compute));
  }
  if (bias) out.bias = at::zeros({p.classes}, options.dtype(p.compute));
  if (hidden && p.counting == 0) out.hidden.zero_();
  return out;
}

// Losses of the tokens that count, (counting, 1), and their logsumexps. With `factors`, also the
// gradients.
struct Losses {
  Tensor cross_entropy, z, lse;
};

Losses forward(const Problem& p, const Factors* factors, Gradients* gradients) {
  const auto options = p.hidden.options().dtype(p.compute).requires_grad(false);
  Losses losses{at::empty({p.counting, 1}, options), {}, at::empty({p.counting, 1}, options)};
  if (p.counting == 0) {
    losses.z = losses.cross_entropy;
    return losses;
  }
  Tensor buffer = at::empty({std::min(p.tokens_at_once, p.counting), p.class_chunk}, options);
  for (std::int64_t begin = 0; begin < p.counting; begin += p.token_chunk) {
    const Chunk chunk = chunk_at(p, begin);
    Tensor cross_entropy = losses.cross_entropy.narrow(0, begin, chunk.size);
    Tensor lse = losses.lse.narrow(0, begin, chunk.size);
    if (p.one_pass()) {
      const Tensor half = gradients == nullptr ? Tensor() : half_rows(p, chunk.size, p.class_chunk);
      for_logits(p, chunk, 0, buffer, gradients, [&](std::int64_t r, std::int64_t n, Tensor x) {
        if (p.bias.defined()) x.add_(p.bias);
        const Tensor dot = target_dot(p, chunk, r, 0, x);
        const Tensor highest = x.amax({1}, true);
        x.sub_(highest).exp_();
        const Tensor sum = x.sum(1, true);
        const Tensor row_lse = sum.log().add_(highest);
        lse.narrow(0, r, n).copy_(row_lse);
        // (A lse - dot) without the cancellation of large logits: with dot' = dot - A highest.
        const Tensor mass = chunk.target_mass.narrow(0, r, n);
        cross_entropy.narrow(0, r, n).copy_(sum.log().mul_(mass).sub_(dot - mass * highest));
        if (gradients != nullptr) {
          to_gradients(p, chunk, r, 0, x, sum.reciprocal(), row_lse,
                       factors->g.narrow(0, begin + r, n), factors->h.narrow(0, begin + r, n));
          if (half.defined()) half.narrow(0, r, n).copy_(x);
        }
      });
      if (gradients != nullptr) {
        multiply(p, chunk, 0, half.defined() ? half : buffer.narrow(0, 0, chunk.size), *gradients);
      }
      continue;
    }
    Tensor highest, sum, dot;
    for (std::int64_t c = 0; c < p.classes; c += p.class_chunk) {
      const std::int64_t classes = std::min(p.class_chunk, p.classes - c);
      Tensor logits = buffer.narrow(0, 0, chunk.size).narrow(1, 0, classes);
      make_logits(p, chunk.hidden, c, logits);
      if (p.bias.defined()) logits.add_(p.bias.narrow(0, c, classes));
      const Tensor block_dot = target_dot(p, chunk, 0, c, logits);
      const Tensor block_highest = logits.amax({1}, true);
      if (c == 0) {
        highest = block_highest;
        dot = block_dot;
        sum = logits.sub_(highest).exp_().sum(1, true);
        continue;
      }
      const Tensor higher = at::maximum(highest, block_highest);
      sum = sum.mul_((highest - higher).exp_()).add_(logits.sub_(higher).exp_().sum(1, true));
      highest = higher;
      dot.add_(block_dot);
    }
    at::add_out(lse, sum.log(), highest);
    cross_entropy.copy_(sum.log().mul_(chunk.target_mass).sub_(dot - chunk.target_mass * highest));
  }
  if (p.z_loss != 0) losses.z = losses.lse.square().mul_(p.z_loss);
  return losses;
}

// Gradients from the logsumexps, with the logits made again.
void backward_again(const Problem& p, const Tensor& lse, const Factors& factors,
                    Gradients& gradients) {
  if (p.counting == 0) return;
  Tensor buffer = at::empty({std::min(p.tokens_at_once, p.counting), p.class_chunk},
                            p.hidden.options().dtype(p.compute).requires_grad(false));
  for (std::int64_t begin = 0; begin < p.counting; begin += p.token_chunk) {
    const Chunk chunk = chunk_at(p, begin);
    for (std::int64_t c = 0; c < p.classes; c += p.class_chunk) {
      const std::int64_t classes = std::min(p.class_chunk, p.classes - c);
      const Tensor part = buffer.narrow(1, 0, classes);
      const Tensor half = half_rows(p, chunk.size, classes);
      for_logits(p, chunk, c, part, &gradients, [&](std::int64_t r, std::int64_t n, Tensor x) {
        const Tensor row_lse = lse.narrow(0, begin + r, n);
        if (p.bias.defined()) x.add_(p.bias.narrow(0, c, classes));
        x.sub_(row_lse).exp_();
        to_gradients(p, chunk, r, c, x, Tensor(), row_lse, factors.g.narrow(0, begin + r, n),
                     factors.h.narrow(0, begin + r, n));
        if (half.defined()) half.narrow(0, r, n).copy_(x);
      });
      multiply(p, chunk, c, half.defined() ? half : part.narrow(0, 0, chunk.size), gradients);
    }
  }
}

// ---- The call ----

class NoAutocast {
 public:
  NoAutocast() : below_(c10::autocast_dispatch_keyset) {}

 private:
  const c10::impl::ExcludeDispatchKeyGuard below_;
};

class LinearCrossEntropy final : public hook::GraphFunction {
 public:
  std::string name() const override { return "lowtide::LinearCrossEntropy"; }

  std::vector<Tensor> backward(std::vector<Tensor> arrived, const std::vector<GradientEdge>&,
                               const std::vector<bool>& wanted) override;
  void release() override {
    made.reset();
    saved.clear();
    lse = Tensor();
    problem = Problem();
    released = true;
  }

  Problem problem;  // without hidden, weight and bias, which are in `saved`
  Reduction reduction = Reduction::kMean;
  std::vector<std::int64_t> hidden_sizes;
  std::vector<hook::SavedTensor> saved;
  at::ScalarType dtypes[3] = {};
  std::optional<Gradients> made;
  Factors factors;  // for an arriving gradient of 1; undefined for kNone
  Tensor lse;
  bool released = false;
};

Tensor flat(const Tensor& hidden, std::int64_t width) { return hidden.reshape({-1, width}); }

std::vector<Tensor> LinearCrossEntropy::backward(std::vector<Tensor> arrived,
                                                 const std::vector<GradientEdge>&,
                                                 const std::vector<bool>& wanted) {
  if (c10::GradMode::is_enabled()) {
    throw UsageError("LT0434",
                     "cannot differentiate the gradients of linear_cross_entropy: it has no double "
                     "backward. Leave out create_graph=True, or use the plain pair, linear and "
                     "cross_entropy");
  }
  TORCH_CHECK(
      !released,
      "Trying to backward through the graph a second time (or directly access saved tensors "
      "after they have already been freed). Saved intermediate values of the graph are freed "
      "when you call .backward() or autograd.grad(). Specify retain_graph=True if you need "
      "to backward through the graph a second time or if you need to access saved tensors "
      "after calling backward.");
  std::vector<Tensor> results(wanted.size());
  const Tensor gradient = std::move(arrived.at(0));
  if (!gradient.defined()) return results;
  const NoAutocast no_autocast;
  const at::NoGradGuard no_grad;
  const bool keep = hook::current_backward_keeps_graph();

  Gradients gradients;
  double scale = 1;
  if (made.has_value()) {
    // Gives them away, so that they become .grad without a copy.
    if (keep) {
      gradients = *made;
    } else {
      gradients = std::move(*made);
      made.reset();
    }
    scale = gradient.item<double>();
  } else {
    Problem p = problem;
    p.hidden = flat(saved[0].unpack(), p.width);
    p.weight = saved[1].unpack();
    if (saved[2].unpack().defined()) p.bias = as(saved[2].unpack(), p.compute);
    Factors with = factors;
    if (reduction == Reduction::kNone) {
      Tensor each = as(gradient, p.compute).reshape({-1, 1});
      if (p.rows.defined()) each = each.index_select(0, p.rows);
      with = {each, each};
    } else {
      with = {factors.g * gradient, factors.h * gradient};
    }
    p.order_weight();
    gradients = begin_gradients(p, wanted[0], wanted[1], wanted[2]);
    backward_again(p, lse, with, gradients);
    p.weight_factor.reset();
  }
  Tensor* const all[3] = {&gradients.hidden, &gradients.weight, &gradients.bias};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!wanted[i] || !all[i]->defined()) continue;
    Tensor& result = *all[i];
    if (scale != 1) result = keep ? result * scale : result.mul_(scale);
    if (result.scalar_type() != dtypes[i]) {
      result = result.to(dtypes[i]);
    } else if (keep && made.has_value() && scale == 1) {
      result = result.clone();
    }
    results[i] = i == 0 ? result.view(hidden_sizes) : std::move(result);
  }
  return results;
}

Problem make_problem(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                     const LinearCrossEntropyOptions& options) {
  for (const auto& [tensor, name] :
       {std::pair(&hidden, "hidden"), std::pair(&weight, "weight"), std::pair(&target, "target"),
        std::pair(&options.bias, "bias"), std::pair(&options.class_weights, "class_weights")}) {
    check_tensor(*tensor, name);
  }
  if (!hidden.defined() || !weight.defined() || !target.defined()) {
    refuse("LT0430", "hidden, weight or target is undefined");
  }
  if (hidden.dim() < 1 || weight.dim() != 2 || hidden.size(-1) != weight.size(1) ||
      weight.size(0) < 1 || weight.size(1) < 1) {
    refuse("LT0430", concat("hidden must be (..., D) and weight (V, D), but they are ",
                            hidden.sizes(), " and ", weight.sizes()));
  }
  Problem p;
  p.width = weight.size(1);
  p.classes = weight.size(0);
  p.tokens = hidden.numel() / p.width;
  const auto leading = hidden.sizes().slice(0, static_cast<std::size_t>(hidden.dim() - 1));
  p.probabilities = target.is_floating_point();
  if (p.probabilities) {
    if (target.dim() != hidden.dim() || target.sizes().slice(0, leading.size()) != leading ||
        target.size(-1) != p.classes) {
      refuse("LT0430", concat("a target of probabilities must be hidden's sizes with V for D, ",
                              leading, " and ", p.classes, ", but is ", target.sizes()));
    }
    if (target.requires_grad()) {
      refuse("LT0431", "target needs grad, and gets none. Detach it");
    }
    if (options.ignore_index >= 0) {
      refuse("LT0433", concat("ignore_index is ", options.ignore_index,
                              ", but the target is probabilities, of which none can be ignored"));
    }
  } else {
    if (target.scalar_type() != at::kLong) {
      refuse("LT0431", concat("target must be int64 classes or floating probabilities, but is ",
                              target.scalar_type()));
    }
    if (target.sizes() != leading) {
      refuse("LT0430", concat("target must have hidden's leading sizes ", leading, ", but is ",
                              target.sizes()));
    }
  }
  for (const auto& [tensor, name] :
       {std::pair(&hidden, "hidden"), std::pair(&weight, "weight"),
        std::pair(&options.bias, "bias"), std::pair(&options.class_weights, "class_weights")}) {
    if (!tensor->defined()) continue;
    const at::ScalarType dtype = tensor->scalar_type();
    if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 &&
        dtype != at::kHalf) {
      refuse("LT0431", concat(name, " is ", dtype, "; give float32, float64, bfloat16 or float16"));
    }
    if (dtype == at::kDouble) p.compute = at::kDouble;
    if (name[0] != 'h' && name[0] != 'w' && (tensor->dim() != 1 || tensor->size(0) != p.classes)) {
      refuse("LT0430", concat(name, " must be (V) = (", p.classes, "), but is ", tensor->sizes()));
    }
  }
  if (options.class_weights.defined() && options.class_weights.requires_grad()) {
    refuse("LT0431", "class_weights need grad, and get none. Detach them");
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    refuse("LT0433",
           concat("label_smoothing is ", options.label_smoothing, ", but must be in [0, 1]"));
  }
  if (!(options.z_loss >= 0)) {
    refuse("LT0433", concat("z_loss is ", options.z_loss, ", but must not be negative"));
  }
  if (options.vocabulary_chunk < 0 || options.chunk_bytes == 0) {
    refuse("LT0433", concat("vocabulary_chunk is ", options.vocabulary_chunk, " and chunk_bytes ",
                            options.chunk_bytes, "; give positive ones, or vocabulary_chunk 0"));
  }
  p.smoothing = options.label_smoothing;
  p.z_loss = options.z_loss;

  // Whole rows while at least a few fit; else blocks of the vocabulary too.
  constexpr std::int64_t kFewRows = 16;
  const auto elements = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(options.chunk_bytes / c10::elementSize(p.compute)));
  p.class_chunk = p.classes;
  if (options.vocabulary_chunk > 0) {
    p.class_chunk = std::min(options.vocabulary_chunk, p.classes);
  } else if (elements / p.classes < std::min(kFewRows, std::max<std::int64_t>(p.tokens, 1))) {
    p.class_chunk = std::clamp<std::int64_t>(elements / kFewRows, 1, p.classes);
  }
  const std::int64_t most = std::max<std::int64_t>(p.tokens, 1);
  p.token_chunk = std::clamp<std::int64_t>(elements / p.class_chunk, 1, most);
  p.tokens_at_once = p.token_chunk;
  p.half_products = hidden.scalar_type() == at::kBFloat16 &&
                    weight.scalar_type() == at::kBFloat16 && p.compute == at::kFloat &&
                    p.width % 2 == 0 && weight.stride(1) == 1 && hook::has_bfloat16_products();
  if (p.half_products && p.one_pass()) {
    // The chunk is of bfloat16 gradients; half as much again is for the logits.
    p.token_chunk = std::clamp<std::int64_t>(2 * elements / p.class_chunk, 1, most);
    if (p.token_chunk > kWholeTiles) p.token_chunk -= p.token_chunk % kWholeTiles;
    p.tokens_at_once = std::clamp<std::int64_t>(elements / 2 / p.class_chunk, 1,
                                                std::min(kTokensInCache, p.token_chunk));
  }
  return p;
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyOptions& options) {
  Problem p = make_problem(hidden, weight, target, options);
  const Tensor* const inputs[3] = {&hidden, &weight, &options.bias};
  bool needs[3] = {};
  bool any = false;
  for (std::size_t i = 0; i < 3; ++i) {
    needs[i] = c10::GradMode::is_enabled() && inputs[i]->defined() && inputs[i]->requires_grad();
    any = any || needs[i];
  }

  const NoAutocast no_autocast;
  const at::NoGradGuard no_grad;
  p.hidden = flat(hidden, p.width);
  p.weight = weight;
  const auto values = p.hidden.options().dtype(p.compute).requires_grad(false);
  if (options.bias.defined()) p.bias = as(options.bias, p.compute);
  if (options.class_weights.defined()) p.class_weights = as(options.class_weights, p.compute);
  p.weights_sum = p.class_weights.defined() ? p.class_weights.sum(at::kDouble).item<double>()
                                            : static_cast<double>(p.classes);
  p.target = p.probabilities ? target.reshape({-1, p.classes}) : target.reshape({-1});
  p.counting = p.tokens;
  double target_weights = static_cast<double>(p.tokens);
  if (!p.probabilities && p.tokens > 0) {
    const Tensor counts = p.target.ne(options.ignore_index);
    const std::int64_t counting = counts.sum().item<std::int64_t>();
    if (counting < p.tokens) {
      p.rows = counts.nonzero().squeeze(1);
      p.counting = counting;
    }
    const Tensor classes = p.rows.defined() ? p.target.index_select(0, p.rows) : p.target;
    if (counting > 0) {
      const std::int64_t lowest = classes.min().item<std::int64_t>();
      const std::int64_t highest = classes.max().item<std::int64_t>();
      if (lowest < 0 || highest >= p.classes) {
        refuse("LT0432", concat("target has the class ", lowest < 0 ? lowest : highest,
                                ", but classes are 0 to ", p.classes - 1, ", or ignore_index ",
                                options.ignore_index));
      }
    }
    target_weights = static_cast<double>(counting);
    if (p.class_weights.defined()) {
      target_weights = p.class_weights.index_select(0, classes).sum(at::kDouble).item<double>();
    }
  }

  const bool mean = options.reduction == Reduction::kMean;
  const double tokens = static_cast<double>(p.counting);
  Factors factors;
  if (options.reduction != Reduction::kNone) {
    factors.g = at::full({p.counting, 1}, mean ? 1 / target_weights : 1.0, values);
    factors.h = at::full({p.counting, 1}, mean ? 1 / tokens : 1.0, values);
  }
  const bool at_once = any && options.gradients_in_forward && options.reduction != Reduction::kNone;
  p.order_weight();
  std::optional<Gradients> gradients;
  if (at_once) gradients = begin_gradients(p, needs[0], needs[1], needs[2]);
  Losses losses = forward(p, &factors, at_once && p.one_pass() ? &*gradients : nullptr);
  if (at_once && !p.one_pass()) backward_again(p, losses.lse, factors, *gradients);
  p.weight_factor.reset();

  Tensor result;
  if (options.reduction == Reduction::kNone) {
    if (p.z_loss != 0) losses.cross_entropy.add_(losses.z);
    result = losses.cross_entropy;
    if (p.rows.defined()) {
      result = at::zeros({p.tokens, 1}, values).index_copy_(0, p.rows, result);
    }
    result = result.reshape(hidden.sizes().slice(0, static_cast<std::size_t>(hidden.dim() - 1)));
  } else {
    // 0 / 0 where no token counts, as cross_entropy.
    double sum = losses.cross_entropy.sum(at::kDouble).item<double>();
    if (mean) sum /= target_weights;
    if (p.z_loss != 0) {
      sum += losses.z.sum(at::kDouble).item<double>() / (mean ? tokens : 1.0);
    }
    result = at::scalar_tensor(sum, values);
  }
  if (!any) return result;

  auto node = std::make_shared<LinearCrossEntropy>();
  node->reduction = options.reduction;
  node->hidden_sizes = hidden.sizes().vec();
  for (std::size_t i = 0; i < 3; ++i) {
    if (inputs[i]->defined()) node->dtypes[i] = inputs[i]->scalar_type();
  }
  if (at_once) {
    // Rounded once, here, so that no wider sums wait for the backward.
    Tensor* const all[3] = {&gradients->hidden, &gradients->weight, &gradients->bias};
    for (std::size_t i = 0; i < 3; ++i) {
      if (all[i]->defined()) *all[i] = as(*all[i], node->dtypes[i]);
    }
    node->made = std::move(*gradients);
  } else {
    node->lse = std::move(losses.lse);
    node->factors = std::move(factors);
    for (const Tensor* input : inputs) node->saved.emplace_back(*input);
    p.hidden = p.weight = p.bias = Tensor();
    node->problem = std::move(p);
  }
  std::vector<GradientEdge> edges;
  for (std::size_t i = 0; i < 3; ++i) {
    edges.push_back(needs[i] ? hook::gradient_edge(*inputs[i]) : GradientEdge());
  }
  hook::attach(std::move(node), std::move(edges), {result});
  return result;
}

}  // namespace lowtide
