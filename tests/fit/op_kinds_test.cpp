// Ops of every kind, dropped and run again: some leave bytes in their results that nobody fills,
// return what their schema does not show, or read more than their arguments.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/fit/both_ways.h"

using namespace lowtide;           // the tests of one header
using namespace lowtide::testing;  // and their twin runs

namespace {

struct Case {
  std::string name;
  // Of a matrix that needs grad and one that does not, both kSide x kSide.
  std::function<Tensor(const Tensor& x, const Tensor& c)> run;
};

Tensor image(const Tensor& x) { return x.view({4, 16, 8, 8}); }

// The first elements of `c`, as a kernel of these sizes.
Tensor kernel(const Tensor& c, at::IntArrayRef sizes) {
  return c.flatten().slice(0, 0, c10::multiply_integers(sizes)).view(sizes);
}

Tensor corner(const Tensor& x, std::int64_t rows, std::int64_t columns) {
  return x.slice(0, 0, rows).slice(1, 0, columns);
}

Tensor counting(std::int64_t count, std::int64_t below) {
  return at::arange(count, at::kLong).remainder(below);
}

// Symmetric, positive, with distinct eigenvalues.
Tensor definite(const Tensor& x) {
  const Tensor y = corner(x, 32, 32);
  return at::matmul(y, y.t()) + at::eye(32) * 4 + at::diag(at::arange(32, at::kFloat));
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"ctc_loss of several lengths",
       [](const Tensor& x, const Tensor&) {
         const std::vector<std::int64_t> lengths{16, 9, 12, 16, 7, 14, 10, 16};
         const std::vector<std::int64_t> target_lengths{6, 2, 3, 5, 1, 4, 2, 6};
         return at::ctc_loss(at::log_softmax(x.view({16, 8, 32}), 2),
                             counting(48, 31).add(1).view({8, 6}), lengths, target_lengths);
       }},
      {"embedding_bag, max",
       [](const Tensor& x, const Tensor&) {
         return std::get<0>(
             at::embedding_bag(x, counting(100, 64), at::arange(0, 100, 5, at::kLong), false, 2));
       }},
      {"embedding_bag, mean, with an empty bag",
       [](const Tensor& x, const Tensor&) {
         const Tensor offsets = at::arange(0, 60, 3, at::kLong);
         offsets.select(0, 5).fill_(12);
         return std::get<0>(at::embedding_bag(x, counting(60, 64), offsets, false, 1));
       }},
      {"gru",
       [](const Tensor& x, const Tensor& c) {
         return std::get<0>(
             at::gru(x.view({8, 8, 64}), at::zeros({1, 8, 32}),
                     Tensors{corner(at::cat({c, c}), 96, 64), corner(at::cat({c, c}), 96, 32)},
                     false, 1, 0.0, true, false, false));
       }},
      {"gru_cell",
       [](const Tensor& x, const Tensor& c) {
         return at::gru_cell(x, corner(c, 64, 32), corner(at::cat({c, c}), 96, 64),
                             corner(at::cat({c, c}), 96, 32));
       }},
      {"lstm_cell",
       [](const Tensor& x, const Tensor& c) {
         const Tensor h = corner(c, 64, 16);
         return std::get<1>(at::lstm_cell(x, Tensors{h, h}, c, h));
       }},
      {"qr", [](const Tensor& x, const Tensor&) { return std::get<0>(at::linalg_qr(x)); }},
      {"singular values",
       [](const Tensor& x, const Tensor&) { return std::get<1>(at::linalg_svd(definite(x))); }},
      {"eigenvalues",
       [](const Tensor& x, const Tensor&) { return std::get<0>(at::linalg_eigh(definite(x))); }},
      {"lu", [](const Tensor& x,
                const Tensor&) { return std::get<0>(at::linalg_lu_factor(definite(x))); }},
      {"solve", [](const Tensor& x,
                   const Tensor& c) { return at::linalg_solve(definite(x), corner(c, 32, 64)); }},
      {"slogdet",
       [](const Tensor& x, const Tensor&) { return std::get<1>(at::linalg_slogdet(definite(x))); }},
      {"matrix_exp",
       [](const Tensor& x, const Tensor&) { return at::linalg_matrix_exp(x * 0.01); }},
      {"cdist", [](const Tensor& x, const Tensor& c) { return at::cdist(x, c); }},
      {"conv1d",
       [](const Tensor& x, const Tensor& c) {
         return at::conv1d(x.view({4, 16, 64}), kernel(c, {8, 16, 4}));
       }},
      {"conv2d, groups and dilation",
       [](const Tensor& x, const Tensor& c) {
         return at::conv2d(image(x), kernel(c, {16, 4, 3, 3}), {}, 1, 2, 2, 4);
       }},
      {"conv2d, depthwise",
       [](const Tensor& x, const Tensor& c) {
         return at::conv2d(image(x), kernel(c, {16, 1, 3, 3}), {}, 1, 1, 1, 16);
       }},
      {"conv2d, channels last",
       [](const Tensor& x, const Tensor& c) {
         return at::conv2d(image(x).contiguous(at::MemoryFormat::ChannelsLast),
                           kernel(c, {16, 16, 3, 3}), {}, 1, 1);
       }},
      {"conv3d",
       [](const Tensor& x, const Tensor& c) {
         return at::conv3d(x.view({2, 4, 8, 8, 8}), kernel(c, {8, 4, 3, 3, 3}));
       }},
      {"conv_transpose2d",
       [](const Tensor& x, const Tensor& c) {
         return at::conv_transpose2d(image(x), kernel(c, {16, 8, 3, 3}), {}, 2);
       }},
      {"max_unpool2d",
       [](const Tensor& x, const Tensor&) {
         const auto [y, where] = at::max_pool2d_with_indices(image(x), 2);
         return at::max_unpool2d(at::sin(y), where, {8, 8});
       }},
      {"fractional_max_pool2d",
       [](const Tensor& x, const Tensor&) {
         return std::get<0>(
             at::fractional_max_pool2d(image(x), {2, 2}, {4, 4}, at::rand({4, 16, 2})));
       }},
      {"adaptive pools",
       [](const Tensor& x, const Tensor&) {
         return std::get<0>(at::adaptive_max_pool2d(image(x), {3, 3})) *
                at::adaptive_avg_pool2d(image(x), {3, 3});
       }},
      {"pools that overlap",
       [](const Tensor& x, const Tensor&) {
         return at::avg_pool2d(image(x), 3, 2, 1, true, false).mean() +
                at::max_pool2d(image(x), 3, 2, 1, 1, false);
       }},
      {"grid_sampler_3d",
       [](const Tensor& x, const Tensor& c) {
         return at::grid_sampler(x.view({2, 4, 8, 8, 8}), kernel(c, {2, 4, 4, 4, 3}), 0, 0, false);
       }},
      {"upsamplings and pixel_shuffle",
       [](const Tensor& x, const Tensor&) {
         return at::upsample_bicubic2d(image(x), {12, 12}, false).mean() +
                at::upsample_nearest2d(image(x), {12, 12}) * at::pixel_shuffle(image(x), 2).mean();
       }},
      {"losses with classes",
       [](const Tensor& x, const Tensor&) {
         return at::multi_margin_loss(x, at::arange(64, at::kLong)) +
                at::multilabel_margin_loss(x, counting(64 * 64, 5).sub(1).view({64, 64})) +
                at::nll_loss(at::log_softmax(x, 1), at::arange(64, at::kLong),
                             at::ones({64}) * 0.5);
       }},
      {"attention, causal",
       [](const Tensor& x, const Tensor&) {
         const Tensor q = x.view({2, 4, 32, 16});
         return at::scaled_dot_product_attention(q, q * 0.5, at::sin(q), {}, 0.0, true);
       }},
      {"attention with a mask",
       [](const Tensor& x, const Tensor& c) {
         const Tensor q = x.view({2, 4, 32, 16});
         return at::scaled_dot_product_attention(q, q * 0.5, at::sin(q), corner(c, 32, 32));
       }},
      {"fused multi-head attention",
       [](const Tensor& x, const Tensor& c) {
         const Tensor q = x.view({4, 16, 64}), frozen = q.detach();
         return std::get<0>(at::_native_multi_head_attention(frozen, frozen, frozen, 64, 4,
                                                             at::cat({c, c, c}), at::zeros({192}),
                                                             c, at::zeros({64}))) *
                q;
       }},
      {"weight norm",
       [](const Tensor& x, const Tensor& c) { return at::_weight_norm(x, corner(c, 64, 1), 0); }},
      {"cumulative ops",
       [](const Tensor& x, const Tensor&) {
         return at::logcumsumexp(x, 1) + std::get<0>(at::cummin(x, 0)) * at::cumsum(x, 1);
       }},
      {"kthvalue, mode and nanmedian",
       [](const Tensor& x, const Tensor&) {
         return std::get<0>(at::kthvalue(x, 5, 1)) + std::get<0>(at::mode(x, 1)) * at::nanmedian(x);
       }},
      {"scatter_reduce",
       [](const Tensor& x, const Tensor& c) {
         const Tensor index = counting(64 * 64, 64).view({64, 64});
         return at::scatter_reduce(x, 0, index, c * 2, "prod") +
                at::scatter_reduce(x, 1, index, c, "amax");
       }},
      {"indexing with holes",
       [](const Tensor& x, const Tensor&) {
         const Tensor rows = at::arange(8, at::kLong);
         return at::index(x.view({8, 8, 64}),
                          c10::List<std::optional<Tensor>>{std::nullopt, rows, rows});
       }},
      {"put and take",
       [](const Tensor& x, const Tensor& c) {
         const Tensor index = at::arange(40, at::kLong) * 7;
         return at::put(x, index, kernel(c, {40})) * at::take(x, index).sum();
       }},
      {"bilinear", [](const Tensor& x,
                      const Tensor& c) { return at::bilinear(x, c, kernel(c, {1, 64, 64}), {}); }},
      {"kron and tensordot",
       [](const Tensor& x, const Tensor& c) {
         return at::kron(corner(x, 8, 8), corner(c, 8, 8)) * at::tensordot(x, c, {0, 1}, {1, 0});
       }},
      {"special functions",
       [](const Tensor& x, const Tensor& c) {
         const Tensor p = at::sigmoid(x) * 0.9 + 0.05;
         return at::digamma(p + 1) + at::erfinv(p) + at::xlogy(p, p) + at::polygamma(1, p + 1) +
                at::atan2(x, c) + at::fmod(x, 0.3) + at::logit(p) + at::special_i1(x) + at::sinc(x);
       }},
      {"a complex view of a real tensor, written in place",
       [](const Tensor& x, const Tensor&) {
         const Tensor y = x * 1;
         Tensor z = at::view_as_complex(y.view({64, 32, 2}));
         z.mul_(c10::complex<double>(0.5, 0.25));
         return at::exp(y) * at::view_as_real(z * z).sum();
       }},
      {"stft",
       [](const Tensor& x, const Tensor&) {
         return at::view_as_real(at::stft(x.flatten(), 64, 16, 64, at::hann_window(64), true,
                                          "reflect", false, true, true));
       }},
      {"lists of tensors",
       [](const Tensor& x, const Tensor& c) {
         const Tensors products = at::_foreach_mul(Tensors{x, c}, Tensors{c, x});
         const Tensors powers = at::_foreach_exp(products);
         return powers[0] * powers[1] + at::block_diag({corner(x, 4, 64), products[1]}).sum();
       }},
      {"results whose size depends on values",
       [](const Tensor& x, const Tensor& c) {
         const Tensor rows = std::get<0>(at::_unique2(counting(64, 9)));
         return at::repeat_interleave(x, 2, 0).sum() + at::masked_select(x, c > 0).exp().sum() +
                x.index_select(0, rows) *
                    x.index_select(0, at::nonzero(c.select(0, 1) > 0).view({-1})).sum();
       }},
      {"random ops of every kind",
       [](const Tensor& x, const Tensor& c) {
         const Tensor p = at::sigmoid(c);
         return x * at::bernoulli(p) + at::poisson(p * 4) * x + at::_standard_gamma(p + 1) * x +
                at::binomial(at::full_like(p, 5), p) * x + at::_sample_dirichlet(p + 0.5) * x +
                at::empty_like(p).log_normal_() * x + at::empty_like(p).cauchy_().clamp(-2, 2) * x +
                at::empty_like(p).geometric_(0.5) * x + at::empty_like(p).random_(0, 5) * x +
                at::randint_like(p, 9) * x + at::feature_dropout(x, 0.3, true);
       }},
  };
  return all;
}

}  // namespace

TEST_CASE("ops of every kind are dropped and made again") {
  for (const Case& which : cases()) {
    CAPTURE(which.name);
    same_both_ways([&](Held& held) {
      const Tensor w = parameter();
      const Tensor constant = at::cos(batch());
      Tensor y = at::sin(which.run(at::tanh(w * 1.5), constant));
      const Tensor loss = at::square(y).sum() + at::exp(w * 0.5).sum();
      y = Tensor();
      held.drop_all();
      loss.backward();
      return Tensors{loss, w.grad()};
    });
  }
}
