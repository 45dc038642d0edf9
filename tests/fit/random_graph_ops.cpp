#include "tests/fit/random_graph_ops.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <cmath>
#include <utility>

#include "lowtide/checkpoint.h"

namespace lowtide {
namespace {

using at::Tensor;
using Kind = GraphOp::Kind;
using Tensors = GraphOp::Tensors;
using Numbers = GraphOp::Numbers;
using State = GraphRunState;

constexpr std::int64_t kMostElements = 65536;

// ---- operands ----

bool is_real(const Tensor& t) { return at::isFloatingType(t.scalar_type()) && t.numel() > 0; }
bool is_float(const Tensor& t) { return t.scalar_type() == at::kFloat && t.numel() > 0; }
bool has_dims(const Tensor& t) { return is_real(t) && t.dim() >= 1; }
// Not expanded: each element can be written on its own.
bool is_writable(const Tensor& t) {
  if (!has_dims(t)) return false;
  for (std::int64_t d = 0; d < t.dim(); ++d) {
    if (t.stride(d) == 0 && t.size(d) > 1) return false;
  }
  return true;
}
bool is_matrix(const Tensor& t) { return is_real(t) && t.dim() == 2; }
bool is_float_matrix(const Tensor& t) { return is_float(t) && t.dim() == 2; }
bool is_image(const Tensor& t) { return is_float(t) && t.dim() == 4 && t.size(2) >= 4; }
bool needs_grad(const Tensor& t) { return is_real(t) && t.requires_grad(); }

bool can_broadcast(const Tensor& a, const Tensor& b) {
  std::int64_t elements = 1;
  const auto dims = std::max(a.dim(), b.dim());
  for (std::int64_t i = 1; i <= dims; ++i) {
    const auto m = i <= a.dim() ? a.size(-i) : 1;
    const auto n = i <= b.dim() ? b.size(-i) : 1;
    if (m != n && m != 1 && n != 1) return false;
    elements *= std::max(m, n);
  }
  return elements <= kMostElements;
}

// Whether `b` can be expanded to `a`, as what is written into it must.
bool fits_into(const Tensor& a, const Tensor& b) {
  if (b.dim() > a.dim()) return false;
  for (std::int64_t i = 1; i <= b.dim(); ++i) {
    if (b.size(-i) != a.size(-i) && b.size(-i) != 1) return false;
  }
  return true;
}

const Tensor* pick_broadcastable(GraphChooser& c, const Tensor& a) {
  return c.pick([&](const Tensor& t) { return is_real(t) && can_broadcast(a, t); });
}

const Tensor* pick_fitting(GraphChooser& c, const Tensor& a) {
  return c.pick([&](const Tensor& t) { return is_real(t) && fits_into(a, t); });
}

const Tensor* pick_like(GraphChooser& c, const Tensor& a) {
  return c.pick([&](const Tensor& t) {
    return t.sizes() == a.sizes() && t.scalar_type() == a.scalar_type();
  });
}

bool pick_dim(GraphChooser& c, const Tensor* t) {
  if (t == nullptr) return false;
  c.number(0, t->dim() - 1);
  return true;
}

double eighths(std::int64_t n) { return static_cast<double>(n) / 8; }

// Indices that depend on the numbers alone.
Tensor indices(std::int64_t count, std::int64_t below, std::int64_t start) {
  return at::remainder(at::arange(count, at::kLong) * 7 + start, below);
}

struct Swish : torch::autograd::Function<Swish> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const Tensor gate = at::sigmoid(x);
    const Tensor y = x * gate;
    context->save_for_backward({x, gate, y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * (saved[1] + saved[2] * (1 - saved[1]))};
  }
};

struct Bfloat16Autocast {
  Bfloat16Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Bfloat16Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, before);
    at::autocast::clear_cache();
  }
  Bfloat16Autocast(const Bfloat16Autocast&) = delete;
  Bfloat16Autocast& operator=(const Bfloat16Autocast&) = delete;
  bool before = at::autocast::is_autocast_enabled(at::kCPU);
};

// ---- the table ----

class Table {
 public:
  std::vector<GraphOp> take() { return std::move(ops_); }

  template <class Run>
  void op(std::string name, Kind kind, std::function<bool(GraphChooser&)> choose, Run run) {
    ops_.push_back({std::move(name), kind, std::move(choose), std::move(run)});
  }

  template <class F>
  void unary(std::string name, F f) {
    op(
        std::move(name), Kind::kMake, [](GraphChooser& c) { return c.pick(is_real) != nullptr; },
        [f](State&, Tensors& t, const Numbers&) { return Tensors{f(t[0])}; });
  }
  template <class F>
  void binary(std::string name, F f) {
    op(
        std::move(name), Kind::kMake,
        [](GraphChooser& c) {
          const Tensor* a = c.pick(is_real);
          return a != nullptr && pick_broadcastable(c, *a) != nullptr;
        },
        [f](State&, Tensors& t, const Numbers&) { return Tensors{f(t[0], t[1])}; });
  }
  // f(x, dim)
  template <class F>
  void along_dim(std::string name, F f, Kind kind = Kind::kMake) {
    op(
        std::move(name), kind, [](GraphChooser& c) { return pick_dim(c, c.pick(has_dims)); },
        [f](State&, Tensors& t, const Numbers& n) { return as_tensors(f(t[0], n[0])); });
  }
  // f(x, n) with n in [low, high]
  template <class F>
  void with_number(std::string name, std::int64_t low, std::int64_t high, F f,
                   Kind kind = Kind::kMake) {
    op(
        std::move(name), kind,
        [low, high](GraphChooser& c) {
          if (c.pick(has_dims) == nullptr) return false;
          c.number(low, high);
          return true;
        },
        [f](State& s, Tensors& t, const Numbers& n) { return as_tensors(call(f, s, t[0], n[0])); });
  }
  // f(target, n): writes, has no result
  template <class F>
  void write(std::string name, F f) {
    op(
        std::move(name), Kind::kWrite,
        [](GraphChooser& c) {
          if (c.pick(is_writable) == nullptr) return false;
          c.number(1, 7);
          return true;
        },
        [f](State& s, Tensors& t, const Numbers& n) {
          call(f, s, t[0], n[0]);
          return Tensors{};
        });
  }
  // f(target, other, n)
  template <class F>
  void write_from(std::string name, F f) {
    op(
        std::move(name), Kind::kWrite,
        [](GraphChooser& c) {
          const Tensor* a = c.pick(is_writable);
          if (a == nullptr || pick_fitting(c, *a) == nullptr) return false;
          c.number(1, 7);
          return true;
        },
        [f](State&, Tensors& t, const Numbers& n) {
          f(t[0], t[1], n[0]);
          return Tensors{};
        });
  }

 private:
  static Tensors as_tensors(Tensor t) { return {std::move(t)}; }
  static Tensors as_tensors(Tensors t) { return t; }
  static Tensors as_tensors(std::tuple<Tensor, Tensor> t) {
    return {std::get<0>(t), std::get<1>(t)};
  }
  static Tensors as_tensors(std::tuple<Tensor, Tensor, Tensor> t) {
    return {std::get<0>(t), std::get<1>(t), std::get<2>(t)};
  }
  template <class F>
  static decltype(auto) call(F& f, State& state, Tensor& t, std::int64_t n) {
    if constexpr (std::is_invocable_v<F&, State&, Tensor&, std::int64_t>) {
      return f(state, t, n);
    } else {
      return f(t, n);
    }
  }

  std::vector<GraphOp> ops_;
};

void add_pointwise(Table& table) {
  table.unary("sin", [](const Tensor& x) { return at::sin(x); });
  table.unary("cos", [](const Tensor& x) { return at::cos(x); });
  table.unary("tanh", [](const Tensor& x) { return at::tanh(x); });
  table.unary("sigmoid", [](const Tensor& x) { return at::sigmoid(x); });
  table.unary("exp_down", [](const Tensor& x) { return at::exp(-at::abs(x)); });
  table.unary("relu", [](const Tensor& x) { return at::relu(x); });
  table.unary("gelu", [](const Tensor& x) { return at::gelu(x); });
  table.unary("silu", [](const Tensor& x) { return at::silu(x); });
  table.unary("mish", [](const Tensor& x) { return at::mish(x); });
  table.unary("softplus", [](const Tensor& x) { return at::softplus(x); });
  table.unary("elu", [](const Tensor& x) { return at::elu(x); });
  table.unary("leaky_relu", [](const Tensor& x) { return at::leaky_relu(x, 0.2); });
  table.unary("hardtanh", [](const Tensor& x) { return at::hardtanh(x); });
  table.unary("log_sigmoid", [](const Tensor& x) { return at::log_sigmoid(x); });
  table.unary("sqrt1", [](const Tensor& x) { return at::sqrt(at::abs(x) + 1); });
  table.unary("log1", [](const Tensor& x) { return at::log(at::square(x) + 1); });
  table.unary("erf", [](const Tensor& x) { return at::erf(x); });
  table.unary("reciprocal1", [](const Tensor& x) { return at::reciprocal(at::square(x) + 1); });
  table.unary("neg", [](const Tensor& x) { return at::neg(x); });
  table.unary("clone", [](const Tensor& x) { return at::clone(x); });
  table.unary("contiguous", [](const Tensor& x) { return x.contiguous(); });
  table.unary("tanh_of_int", [](const Tensor& x) {
    return at::tanh(x) + at::arange(x.numel(), at::kLong).view(x.sizes()).remainder(5) * 0.125;
  });
  table.unary("to_double", [](const Tensor& x) { return x.to(at::kDouble); });
  table.unary("to_float", [](const Tensor& x) { return x.to(at::kFloat); });
  table.unary("through_bfloat16",
              [](const Tensor& x) { return x.to(at::kBFloat16).sin().to(x.scalar_type()); });
  table.unary("spectrum", [](const Tensor& x) {
    return x.dim() == 0 ? x.sin() : at::tanh(at::abs(at::fft_rfft(x)));
  });
  table.unary("as_complex", [](const Tensor& x) {
    const Tensor z = at::complex(at::tanh(x), at::sin(x));
    return at::real(at::conj(z) * at::exp(z * 0.25));
  });
  table.with_number("mul_scalar", -7, 7,
                    [](const Tensor& x, std::int64_t n) { return at::mul(x, eighths(n)); });
  table.with_number("add_scalar", -7, 7,
                    [](const Tensor& x, std::int64_t n) { return at::add(x, eighths(n)); });
  table.with_number("clamp", 1, 7, [](const Tensor& x, std::int64_t n) {
    return at::clamp(x, -eighths(n), eighths(n));
  });
  table.with_number("pow", 1, 3,
                    [](const Tensor& x, std::int64_t n) { return at::pow(at::tanh(x), n); });
  table.with_number("threshold", -4, 4, [](const Tensor& x, std::int64_t n) {
    return at::threshold(x, eighths(n), 0.5);
  });

  table.binary("add", [](const Tensor& a, const Tensor& b) { return at::add(a, b); });
  table.binary("sub", [](const Tensor& a, const Tensor& b) { return at::sub(a, b, 0.5); });
  table.binary("mul", [](const Tensor& a, const Tensor& b) { return at::mul(a, b); });
  table.binary("div1", [](const Tensor& a, const Tensor& b) { return at::div(a, b.square() + 1); });
  table.binary("maximum", [](const Tensor& a, const Tensor& b) { return at::maximum(a, b); });
  table.binary("where", [](const Tensor& a, const Tensor& b) { return at::where(a > b, a, b); });
  table.binary("hypot", [](const Tensor& a, const Tensor& b) { return at::hypot(a, b + 0.5); });
  table.binary("lerp", [](const Tensor& a, const Tensor& b) {
    return at::lerp(a.expand(at::infer_size(a.sizes(), b.sizes())), b, 0.25);
  });
  table.binary("addcmul",
               [](const Tensor& a, const Tensor& b) { return at::addcmul(a, a, b, 0.5); });
  table.binary("swiglu", [](const Tensor& a, const Tensor& b) { return at::silu(a) * b; });
}

void add_matrix(Table& table) {
  table.op(
      "matmul", Kind::kMake,
      [](GraphChooser& c) {
        const Tensor* a = c.pick(is_matrix);
        return a != nullptr && c.pick([&](const Tensor& b) {
          return b.scalar_type() == a->scalar_type() && (b.dim() == 2 || b.dim() == 3) &&
                 b.size(-2) == a->size(1);
        }) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) { return Tensors{at::matmul(t[0], t[1]) * 0.25}; });
  table.unary("gram", [](const Tensor& x) {
    if (x.dim() < 2) return at::sin(x);
    return at::matmul(x, x.transpose(-2, -1)) / static_cast<double>(x.size(-1));
  });
  const auto choose_linear = [](GraphChooser& c) {
    const Tensor* x = c.pick([](const Tensor& t) { return is_float(t) && t.dim() >= 2; });
    if (x == nullptr || x->size(-1) < 4 || x->size(-1) > 512) return false;
    static constexpr std::array<std::int64_t, 4> kWidths{16, 32, 64, 128};
    const auto out = kWidths[static_cast<std::size_t>(c.number(0, 3))];
    return c.slot(GraphSlot::Kind::kLeaf, {out, x->size(-1)}, at::kFloat) != nullptr &&
           c.slot(GraphSlot::Kind::kLeaf, {out}, at::kFloat) != nullptr;
  };
  table.op("linear", Kind::kMake, choose_linear, [](State&, Tensors& t, const Numbers&) {
    return Tensors{at::linear(t[0], t[1], t[2])};
  });
  table.op("addmm_out_of_views", Kind::kMake, choose_linear,
           [](State&, Tensors& t, const Numbers&) {
             return Tensors{at::addmm(t[2], t[0].flatten(0, -2), t[1].t())};
           });
  table.op("autocast_linear", Kind::kMake, choose_linear, [](State&, Tensors& t, const Numbers&) {
    const Bfloat16Autocast autocast;
    return Tensors{
        at::tanh(at::linear(at::gelu(at::linear(t[0], t[1], t[2])), t[1].t())).to(at::kFloat)};
  });
  table.op("checkpointed_linear", Kind::kMake, choose_linear,
           [](State&, Tensors& t, const Numbers&) {
             return Tensors{checkpoint(
                 [](const Tensor& x, const Tensor& w, const Tensor& b) {
                   return at::tanh(at::dropout(at::linear(at::sin(x), w, b), 0.2, true));
                 },
                 std::make_tuple(t[0], t[1], t[2]))};
           });
  table.op(
      "bmm", Kind::kMake,
      [](GraphChooser& c) {
        return c.pick([](const Tensor& t) { return is_real(t) && t.dim() == 3; }) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) {
        return Tensors{at::softmax(at::bmm(t[0], t[0].transpose(1, 2)), -1)};
      });
  table.op(
      "attention", Kind::kMake,
      [](GraphChooser& c) {
        return c.pick([](const Tensor& t) {
          return is_float_matrix(t) && t.size(1) % 8 == 0 && t.size(0) <= 128;
        }) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) {
        const Tensor x = t[0].reshape({t[0].size(0), 2, -1}).transpose(0, 1).unsqueeze(0);
        return Tensors{at::scaled_dot_product_attention(x, x * 0.5, at::sin(x), {}, 0.1)};
      });
  table.op(
      "lstm", Kind::kMake,
      [](GraphChooser& c) {
        const Tensor* x =
            c.pick([](const Tensor& t) { return is_float_matrix(t) && t.size(1) <= 64; });
        return x != nullptr && x->size(0) <= 64 &&
               c.slot(GraphSlot::Kind::kLeaf, {64, x->size(1)}, at::kFloat) != nullptr &&
               c.slot(GraphSlot::Kind::kLeaf, {64, 16}, at::kFloat) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) {
        const Tensor h = at::zeros({1, 1, 16});
        return Tensors{std::get<0>(
            at::lstm(t[0].unsqueeze(1), {h, h}, {t[1], t[2]}, false, 1, 0.0, true, false, false))};
      });
  table.op(
      "image", Kind::kView,
      [](GraphChooser& c) {
        const Tensor* x = c.pick(is_float_matrix);
        if (x == nullptr) return false;
        for (const std::int64_t channels : {2, 4, 1}) {
          if (x->size(1) % channels != 0) continue;
          const auto side = static_cast<std::int64_t>(
              std::lround(std::sqrt(static_cast<double>(x->size(1) / channels))));
          if (side < 4 || side * side * channels != x->size(1)) continue;
          c.number(channels, channels);
          c.number(side, side);
          return true;
        }
        return false;
      },
      [](State&, Tensors& t, const Numbers& n) {
        return Tensors{t[0].reshape({t[0].size(0), n[0], n[1], n[1]})};
      });
  table.op(
      "conv2d", Kind::kMake,
      [](GraphChooser& c) {
        const Tensor* x = c.pick(is_image);
        if (x == nullptr || x->size(1) > 8) return false;
        c.number(1, 2);
        return c.slot(GraphSlot::Kind::kLeaf, {4, x->size(1), 3, 3}, at::kFloat) != nullptr;
      },
      [](State&, Tensors& t, const Numbers& n) {
        return Tensors{at::conv2d(t[0], t[1], {}, n[0], 1)};
      });
  table.op(
      "max_pool2d", Kind::kMake, [](GraphChooser& c) { return c.pick(is_image) != nullptr; },
      [](State&, Tensors& t, const Numbers&) { return Tensors{at::max_pool2d(t[0], 2)}; });
  table.op(
      "max_pool2d_with_indices", Kind::kMake,
      [](GraphChooser& c) { return c.pick(is_image) != nullptr; },
      [](State&, Tensors& t, const Numbers&) {
        auto [values, where] = at::max_pool2d_with_indices(t[0], 2);
        return Tensors{values, where};
      });
  table.op(
      "avg_pool2d", Kind::kMake, [](GraphChooser& c) { return c.pick(is_image) != nullptr; },
      [](State&, Tensors& t, const Numbers&) { return Tensors{at::avg_pool2d(t[0], 2)}; });
  table.op(
      "upsample", Kind::kMake,
      [](GraphChooser& c) {
        return c.pick([](const Tensor& t) {
          return is_image(t) && t.numel() * 4 <= kMostElements;
        }) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) {
        return Tensors{at::upsample_bilinear2d(t[0], {t[0].size(2) * 2, t[0].size(3) * 2}, false)};
      });
}

void add_reductions(Table& table) {
  table.along_dim("sum", [](const Tensor& x, std::int64_t d) { return at::sum(x, {d}, true); });
  table.along_dim("mean", [](const Tensor& x, std::int64_t d) { return at::mean(x, {d}, true); });
  table.along_dim("amax", [](const Tensor& x, std::int64_t d) { return at::amax(x, {d}, true); });
  table.along_dim("logsumexp",
                  [](const Tensor& x, std::int64_t d) { return at::logsumexp(x, {d}, true); });
  table.along_dim("norm",
                  [](const Tensor& x, std::int64_t d) { return at::norm(x + 0.25, 2, {d}, true); });
  table.along_dim("prod", [](const Tensor& x, std::int64_t d) {
    return at::prod(at::tanh(x) * 0.25 + 1, d, true);
  });
  table.along_dim("softmax", [](const Tensor& x, std::int64_t d) { return at::softmax(x, d); });
  table.along_dim("log_softmax",
                  [](const Tensor& x, std::int64_t d) { return at::log_softmax(x, d); });
  table.along_dim("cumsum",
                  [](const Tensor& x, std::int64_t d) { return at::sin(at::cumsum(x, d)); });
  table.along_dim("cumprod", [](const Tensor& x, std::int64_t d) {
    return at::cumprod(at::tanh(x) * 0.125 + 1, d);
  });
  table.along_dim("flip", [](const Tensor& x, std::int64_t d) { return at::flip(x, {d}); });
  table.along_dim("roll", [](const Tensor& x, std::int64_t d) { return at::roll(x, {3}, {d}); });
  table.along_dim("max", [](const Tensor& x, std::int64_t d) { return at::max(x, d, true); });
  table.along_dim("median", [](const Tensor& x, std::int64_t d) {
    return at::median(x.contiguous(), d, true);  // of an expanded tensor it is not repeatable
  });
  table.along_dim("cummax", [](const Tensor& x, std::int64_t d) { return at::cummax(x, d); });
  table.along_dim("sort", [](const Tensor& x, std::int64_t d) {
    return at::sort(x, /*stable=*/true, d, false);
  });
  table.along_dim(
      "topk", [](const Tensor& x, std::int64_t d) { return at::topk(x, (x.size(d) + 1) / 2, d); });
  table.along_dim("var_mean", [](const Tensor& x, std::int64_t d) {
    return at::var_mean(x, at::IntArrayRef{d}, /*correction=*/0, true);
  });
  table.unary("aminmax_span", [](const Tensor& x) {
    auto [low, high] = at::aminmax(x);
    return (x - low) / (high - low + 1);
  });
  table.unary("cross_entropy", [](const Tensor& x) {
    if (x.dim() != 2) return at::square(x).mean();
    return at::cross_entropy_loss(x, indices(x.size(0), x.size(1), 1));
  });
  table.binary("smooth_l1", [](const Tensor& a, const Tensor& b) {
    return at::smooth_l1_loss(a, b.detach().expand_as(a), at::Reduction::None);
  });
}

void add_norms(Table& table) {
  table.op(
      "layer_norm", Kind::kMake,
      [](GraphChooser& c) {
        const Tensor* x = c.pick([](const Tensor& t) { return is_float(t) && t.dim() >= 2; });
        return x != nullptr && x->size(-1) > 1 &&
               c.slot(GraphSlot::Kind::kLeaf, {x->size(-1)}, at::kFloat) != nullptr &&
               c.slot(GraphSlot::Kind::kLeaf, {x->size(-1)}, at::kFloat) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) {
        auto [y, mean, rstd] = at::native_layer_norm(t[0], {t[0].size(-1)}, t[1], t[2], 1e-5);
        return Tensors{y, mean, rstd};
      });
  const auto choose_batch_norm = [](GraphChooser& c) {
    const Tensor* x = c.pick([](const Tensor& t) {
      return is_float(t) && (t.dim() == 2 || t.dim() == 4) && t.size(0) > 1;
    });
    if (x == nullptr) return false;
    const std::vector<std::int64_t> channels{x->size(1)};
    for (const auto kind : {GraphSlot::Kind::kLeaf, GraphSlot::Kind::kLeaf,
                            GraphSlot::Kind::kBuffer, GraphSlot::Kind::kBuffer}) {
      if (c.slot(kind, channels, at::kFloat) == nullptr) return false;
    }
    c.number(0, 3);  // 0: evaluation
    return true;
  };
  table.op("batch_norm", Kind::kMake, choose_batch_norm, [](State&, Tensors& t, const Numbers& n) {
    return Tensors{at::batch_norm(t[0], t[1], t[2], t[3], t[4], n[0] != 0, 0.1, 1e-5, false)};
  });
  table.op("native_batch_norm", Kind::kMake, choose_batch_norm,
           [](State&, Tensors& t, const Numbers&) {
             auto [y, mean, inverse] =
                 at::native_batch_norm(t[0], t[1], t[2], t[3], t[4], true, 0.1, 1e-5);
             return Tensors{y, mean, inverse};
           });
  table.op(
      "instance_norm", Kind::kMake,
      [](GraphChooser& c) {
        const Tensor* x = c.pick(is_image);
        return x != nullptr &&
               c.slot(GraphSlot::Kind::kBuffer, {x->size(1)}, at::kFloat) != nullptr &&
               c.slot(GraphSlot::Kind::kBuffer, {x->size(1)}, at::kFloat) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) {
        return Tensors{at::instance_norm(t[0], {}, {}, t[1], t[2], true, 0.1, 1e-5, false)};
      });
  table.op(
      "group_norm", Kind::kMake,
      [](GraphChooser& c) {
        return c.pick([](const Tensor& t) {
          return is_float(t) && t.dim() >= 2 && t.size(1) % 2 == 0;
        }) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) { return Tensors{at::group_norm(t[0], 2)}; });
}

void add_random(Table& table) {
  table.with_number("dropout", 1, 6, [](const Tensor& x, std::int64_t n) {
    return at::dropout(x, eighths(n), true);
  });
  table.unary("alpha_dropout", [](const Tensor& x) { return at::alpha_dropout(x, 0.2, true); });
  table.unary("rrelu", [](const Tensor& x) { return at::rrelu(x, 0.1, 0.4, true); });
  table.unary("noise", [](const Tensor& x) { return x + at::randn_like(x) * 0.1; });
  table.unary("random_mask", [](const Tensor& x) { return x * at::rand_like(x).gt(0.4); });
  table.unary("gumbel_softmax", [](const Tensor& x) {
    if (x.dim() == 0) return x.sin();
    return at::softmax(x - at::empty_like(x).exponential_().log(), -1);
  });
  table.unary("shuffled", [](const Tensor& x) {
    if (x.dim() == 0) return x.cos();
    return at::index_select(x, 0, at::randperm(x.size(0), at::kLong));
  });
  table.with_number("own_dropout", 2, 7, [](State& s, Tensor& x, std::int64_t n) {
    return x * at::empty_like(x).bernoulli_(eighths(n), s.generator);
  });
  table.with_number("own_noise", 1, 2, [](State& s, Tensor& x, std::int64_t n) {
    return x * at::randn(x.sizes(), s.generator, x.options().requires_grad(false)) * eighths(n);
  });
  table.unary("drawn_normal", [](const Tensor& x) { return at::normal(x.detach(), 0.5) * x; });
}

void add_views(Table& table) {
  table.unary("detach", [](const Tensor& x) { return x.detach(); });
  table.unary("alias", [](const Tensor& x) { return at::alias(x); });
  table.unary("data", [](const Tensor& x) { return x.data(); });
  const auto two_dims = [](GraphChooser& c) {
    const Tensor* x = c.pick([](const Tensor& t) { return is_real(t) && t.dim() >= 2; });
    return pick_dim(c, x) && pick_dim(c, x);
  };
  table.op("transpose", Kind::kView, two_dims, [](State&, Tensors& t, const Numbers& n) {
    return Tensors{t[0].transpose(n[0], n[1])};
  });
  table.op("movedim", Kind::kView, two_dims, [](State&, Tensors& t, const Numbers& n) {
    return Tensors{at::movedim(t[0], n[0], n[1])};
  });
  table.op("diagonal", Kind::kView, two_dims, [](State&, Tensors& t, const Numbers& n) {
    return Tensors{at::diagonal(t[0], 0, n[0], n[1])};
  });
  table.op(
      "slice", Kind::kView,
      [](GraphChooser& c) {
        const Tensor* x = c.pick(has_dims);
        if (x == nullptr) return false;
        const auto d = c.number(0, x->dim() - 1);
        if (x->size(d) < 4) return false;
        const auto begin = c.number(0, x->size(d) / 2);
        c.number(begin + 1, x->size(d));
        c.number(1, 2);
        return true;
      },
      [](State&, Tensors& t, const Numbers& n) {
        return Tensors{t[0].slice(n[0], n[1], n[2], n[3])};
      });
  table.op(
      "select", Kind::kView,
      [](GraphChooser& c) {
        const Tensor* x = c.pick(has_dims);
        if (x == nullptr) return false;
        const auto d = c.number(0, x->dim() - 1);
        c.number(0, x->size(d) - 1);
        return x->numel() / x->size(d) >= 16;
      },
      [](State&, Tensors& t, const Numbers& n) { return Tensors{t[0].select(n[0], n[1])}; });
  table.op(
      "expand", Kind::kView,
      [](GraphChooser& c) {
        const Tensor* x = c.pick(
            [](const Tensor& t) { return is_real(t) && t.dim() <= 3 && t.numel() <= 16384; });
        if (x == nullptr) return false;
        c.number(2, 4);
        return true;
      },
      [](State&, Tensors& t, const Numbers& n) {
        std::vector<std::int64_t> sizes = t[0].sizes().vec();
        sizes.insert(sizes.begin(), n[0]);
        return Tensors{t[0].expand(sizes)};
      });
  table.op(
      "view", Kind::kView,
      [](GraphChooser& c) {
        const Tensor* x = c.pick([](const Tensor& t) { return has_dims(t) && t.is_contiguous(); });
        if (x == nullptr) return false;
        static constexpr std::array<std::int64_t, 4> kRows{8, 16, 32, 64};
        const auto rows = kRows[static_cast<std::size_t>(c.number(0, 3))];
        return x->numel() % rows == 0;
      },
      [](State&, Tensors& t, const Numbers& n) {
        return Tensors{t[0].view({std::int64_t{8} << n[0], -1})};
      });
  table.op(
      "reshape3", Kind::kView,
      [](GraphChooser& c) {
        return c.pick([](const Tensor& t) { return is_matrix(t) && t.size(1) % 4 == 0; }) !=
               nullptr;
      },
      [](State&, Tensors& t, const Numbers&) {
        return Tensors{t[0].reshape({t[0].size(0), 4, -1}).transpose(0, 1)};
      });
  table.unary("flatten", [](const Tensor& x) { return at::flatten(x); });
  table.unary("unsqueeze", [](const Tensor& x) { return at::unsqueeze(x, 0).squeeze(-1); });
  table.op(
      "unfold", Kind::kView,
      [](GraphChooser& c) {
        const Tensor* x = c.pick(
            [](const Tensor& t) { return is_matrix(t) && t.size(1) >= 8 && t.numel() <= 16384; });
        if (x == nullptr) return false;
        c.number(2, 4);
        c.number(1, 4);
        return true;
      },
      [](State&, Tensors& t, const Numbers& n) { return Tensors{t[0].unfold(1, n[0], n[1])}; });
  table.op(
      "as_strided", Kind::kView,
      [](GraphChooser& c) {
        const Tensor* x = c.pick([](const Tensor& t) {
          return is_real(t) && t.is_contiguous() && t.numel() >= 64 && t.numel() <= 16384;
        });
        if (x == nullptr) return false;
        c.number(1, 4);
        return true;
      },
      [](State&, Tensors& t, const Numbers& n) {
        // Windows of 16 that overlap.
        return Tensors{t[0].as_strided({(t[0].numel() - 16) / (n[0] * 4) + 1, 16}, {n[0] * 4, 1},
                                       t[0].storage_offset())};
      });
  table.along_dim(
      "chunk", [](const Tensor& x, std::int64_t d) { return at::chunk(x, 3, d); }, Kind::kView);
  table.along_dim(
      "split", [](const Tensor& x, std::int64_t d) { return at::split(x, (x.size(d) + 1) / 2, d); },
      Kind::kView);
  table.along_dim(
      "unsafe_chunk", [](const Tensor& x, std::int64_t d) { return at::unsafe_chunk(x, 2, d); },
      Kind::kView);
  table.along_dim(
      "tensor_split",
      [](const Tensor& x, std::int64_t d) { return at::tensor_split(x, std::int64_t{2}, d); },
      Kind::kView);
  table.op(
      "unbind", Kind::kView,
      [](GraphChooser& c) {
        return c.pick([](const Tensor& t) {
          return is_real(t) && t.dim() >= 2 && t.size(0) <= 4;
        }) != nullptr;
      },
      [](State&, Tensors& t, const Numbers&) { return Tensors{at::unbind(t[0], 0)}; });
}

void add_indexing(Table& table) {
  const auto two_alike = [](GraphChooser& c) {
    const Tensor* a = c.pick([](const Tensor& t) { return has_dims(t) && t.numel() <= 32768; });
    if (a == nullptr || pick_like(c, *a) == nullptr) return false;
    c.number(0, a->dim() - 1);
    return true;
  };
  table.op("cat", Kind::kMake, two_alike, [](State&, Tensors& t, const Numbers& n) {
    return Tensors{at::cat({t[0], t[1], t[0]}, n[0]).slice(n[0], 1)};
  });
  table.op("stack", Kind::kMake, two_alike, [](State&, Tensors& t, const Numbers& n) {
    return Tensors{at::stack({t[0], t[1]}, n[0])};
  });
  table.op("scatter_add", Kind::kMake, two_alike, [](State&, Tensors& t, const Numbers& n) {
    const auto d = n[0];
    const Tensor index =
        at::remainder(at::arange(t[1].numel(), at::kLong), t[0].size(d)).view(t[1].sizes());
    return Tensors{at::scatter_add(t[0], d, index, t[1])};
  });
  table.op("index_add", Kind::kMake, two_alike, [](State&, Tensors& t, const Numbers& n) {
    return Tensors{at::index_add(t[0], n[0], indices(t[1].size(n[0]), t[0].size(n[0]), 3), t[1])};
  });
  table.op("masked_scatter", Kind::kMake, two_alike, [](State&, Tensors& t, const Numbers&) {
    return Tensors{at::masked_scatter(t[0], t[0].gt(0.1), t[1])};
  });
  table.along_dim("index_select", [](const Tensor& x, std::int64_t d) {
    return at::index_select(x, d, indices((x.size(d) + 1) / 2, x.size(d), 1));
  });
  table.along_dim("gather", [](const Tensor& x, std::int64_t d) {
    return at::gather(x, d, at::argsort(x.detach(), /*stable=*/true, d, false));
  });
  table.along_dim("gather_drawn", [](const Tensor& x, std::int64_t d) {
    return at::gather(x, d, at::randint(x.size(d), x.sizes(), at::kLong));
  });
  table.unary("index_rows", [](const Tensor& x) {
    if (x.dim() == 0) return x.sin();
    return x.index({indices((x.size(0) + 1) / 2, x.size(0), 2)});
  });
  table.unary("index_mask", [](const Tensor& x) { return x.index({x.gt(0)}).sum() * 0.125 + x; });
  table.unary("masked_fill",
              [](const Tensor& x) { return at::masked_fill(x, x.detach() < -0.25, 0.5); });
  table.unary("index_put", [](const Tensor& x) {
    if (x.dim() == 0) return x.sin();
    return at::index_put(x, {indices(3, x.size(0), 1)}, at::full({}, 0.25, x.options()));
  });
  table.unary("tril", [](const Tensor& x) { return x.dim() < 2 ? x.sin() : at::tril(x); });
  table.unary("pad", [](const Tensor& x) {
    return x.dim() == 0 ? x.sin() : at::constant_pad_nd(x, {1, 2}, 0.5);
  });
  table.with_number("repeat", 2, 3, [](const Tensor& x, std::int64_t n) {
    std::vector<std::int64_t> times(static_cast<std::size_t>(x.dim()), 1);
    times[0] = n;
    return x.numel() > 16384 ? at::sin(x) : x.repeat(times);
  });
  table.op(
      "embedding", Kind::kMake,
      [](GraphChooser& c) {
        c.number(0, 9);
        return c.slot(GraphSlot::Kind::kLeaf, {48, 32}, at::kFloat) != nullptr;
      },
      [](State&, Tensors& t, const Numbers& n) {
        return Tensors{at::embedding(t[0], indices(64, 48, n[0]))};
      });
}

void add_writes(Table& table) {
  table.write("add_", [](Tensor& x, std::int64_t n) { x.add_(eighths(n)); });
  table.write("mul_", [](Tensor& x, std::int64_t n) { x.mul_(eighths(n)); });
  table.write("sin_", [](Tensor& x, std::int64_t) { x.sin_(); });
  table.write("tanh_", [](Tensor& x, std::int64_t) { x.tanh_(); });
  table.write("sigmoid_", [](Tensor& x, std::int64_t) { x.sigmoid_(); });
  table.write("relu_", [](Tensor& x, std::int64_t) { x.relu_(); });
  table.write("leaky_relu_", [](Tensor& x, std::int64_t) { at::leaky_relu_(x, 0.1); });
  table.write("clamp_", [](Tensor& x, std::int64_t n) { x.clamp_(-eighths(n), eighths(n)); });
  table.write("fill_", [](Tensor& x, std::int64_t n) { x.fill_(eighths(n)); });
  table.write("zero_", [](Tensor& x, std::int64_t) { x.zero_(); });
  table.write("neg_", [](Tensor& x, std::int64_t) { x.neg_(); });
  table.write("bernoulli_", [](Tensor& x, std::int64_t n) { x.bernoulli_(eighths(n)); });
  table.write("normal_", [](Tensor& x, std::int64_t) { x.normal_(); });
  table.write("uniform_own_",
              [](State& s, Tensor& x, std::int64_t) { x.uniform_(-1, 1, s.generator); });
  table.write("dropout_", [](Tensor& x, std::int64_t n) { at::dropout_(x, eighths(n), true); });
  table.write("rrelu_", [](Tensor& x, std::int64_t) { at::rrelu_(x, 0.1, 0.4, true); });
  table.write("masked_fill_",
              [](Tensor& x, std::int64_t n) { x.masked_fill_(x.detach() > eighths(n), 0.5); });
  table.write("index_fill_",
              [](Tensor& x, std::int64_t n) { x.index_fill_(0, indices(2, x.size(0), n), 0.25); });
  table.write("index_put_", [](Tensor& x, std::int64_t n) {
    x.index_put_({indices(2, x.size(0), n)}, at::full({}, 0.75, x.options().requires_grad(false)));
  });
  table.write("write_row_",
              [](Tensor& x, std::int64_t n) { x.select(0, n % x.size(0)).mul_(0.5).add_(0.25); });
  table.write("write_columns_", [](Tensor& x, std::int64_t n) {
    x.slice(-1, 0, std::max<std::int64_t>(1, x.size(-1) / 2)).mul_(eighths(n));
  });
  table.write("write_transposed_",
              [](Tensor& x, std::int64_t n) { x.transpose(0, -1).mul_(eighths(n)); });
  table.write("two_writes_", [](Tensor& x, std::int64_t n) { x.mul_(eighths(n)).add_(0.125); });
  table.write("cumsum_", [](Tensor& x, std::int64_t n) { x.mul_(eighths(n) / 4).cumsum_(0); });
  table.write("out_sin", [](Tensor& x, std::int64_t) { at::sin_out(x, x); });
  table.write("squeeze_", [](Tensor& x, std::int64_t) { x.unsqueeze_(0).squeeze_(0); });

  table.write_from("add_from_",
                   [](Tensor& x, Tensor& y, std::int64_t n) { x.add_(y, eighths(n)); });
  table.write_from("mul_from_", [](Tensor& x, Tensor& y, std::int64_t) { x.mul_(y); });
  table.write_from("copy_", [](Tensor& x, Tensor& y, std::int64_t) { x.copy_(y); });
  table.write_from("copy_half_", [](Tensor& x, Tensor& y, std::int64_t) {
    const auto half = std::max<std::int64_t>(1, x.size(-1) / 2);
    x.slice(-1, 0, half).copy_(y.expand_as(x).slice(-1, 0, half));
  });
  table.write_from(
      "lerp_", [](Tensor& x, Tensor& y, std::int64_t n) { x.lerp_(y.expand_as(x), eighths(n)); });
  table.write_from("addcmul_",
                   [](Tensor& x, Tensor& y, std::int64_t n) { x.addcmul_(y, y, eighths(n)); });
  table.write_from("masked_from_", [](Tensor& x, Tensor& y, std::int64_t) {
    x.masked_fill_(y.detach().gt(0), 0.125);
  });
  table.write_from("index_add_", [](Tensor& x, Tensor& y, std::int64_t n) {
    x.index_add_(0, at::arange(x.size(0), at::kLong), y.expand_as(x), eighths(n));
  });
  table.write_from("out_add",
                   [](Tensor& x, Tensor& y, std::int64_t n) { at::add_out(x, x, y, eighths(n)); });
  table.write_from("out_mul",
                   [](Tensor& x, Tensor& y, std::int64_t) { at::mul_out(x, y.expand_as(x), y); });
  table.write_from("foreach_lerp_", [](Tensor& x, Tensor& y, std::int64_t) {
    Tensors targets{x, x};
    at::_foreach_mul_(targets, 0.75);
    if (y.sizes() == x.sizes()) at::_foreach_add_(Tensors{x}, Tensors{y});
  });
  table.write_from("set_data", [](Tensor& x, Tensor& y, std::int64_t) {
    x.set_data(y.detach().expand_as(x).clone());
  });
  table.write_from("resized_out", [](Tensor& x, Tensor& y, std::int64_t) {
    Tensor wide = at::empty({0}, x.options().requires_grad(false));
    at::cat_out(wide, {x.detach(), y.detach().expand_as(x)}, 0);
    x.copy_(wide.slice(0, 0, x.size(0)));
  });

  // Buffers made by empty() and filled piece by piece.
  table.unary("filled_empty", [](const Tensor& x) {
    Tensor y = at::empty_like(x.detach());
    y.copy_(x.detach());
    return y.mul_(0.5);
  });
  table.unary("filled_halves", [](const Tensor& x) {
    if (x.dim() == 0) return x.cos();
    Tensor y = at::empty(x.sizes(), x.options().requires_grad(false));
    const auto half = x.size(0) / 2;
    y.slice(0, half).copy_(x.slice(0, half));
    y.slice(0, 0, half).fill_(0.5);
    return y.sin() * x;
  });
  table.unary("collected", [](const Tensor& x) {
    if (x.dim() == 0) return x.cos();
    Tensor y = at::zeros(x.sizes(), x.options().requires_grad(false));
    for (std::int64_t i = 0; i < std::min<std::int64_t>(4, x.size(0)); ++i) {
      y.select(0, i).copy_(x.select(0, i).sin());
    }
    return y;
  });
  table.unary("out_into_new", [](const Tensor& x) {
    const c10::NoGradGuard no_grad;
    Tensor y = at::empty({0}, x.options().requires_grad(false));
    at::sin_out(y, x.detach());
    return y;
  });
  table.unary("out_of_two", [](const Tensor& x) {
    if (x.dim() == 0) return x.sin();
    const c10::NoGradGuard no_grad;
    Tensor values = at::empty({0}, x.options().requires_grad(false));
    Tensor where = at::empty({0}, x.options().dtype(at::kLong).requires_grad(false));
    at::sort_out(values, where, x.detach(), 0, true);
    return values;
  });
}

void add_autograd(Table& table) {
  table.unary("swish", [](const Tensor& x) { return Swish::apply(x); });
  table.unary("checkpointed", [](const Tensor& x) {
    return checkpoint([](const Tensor& t) { return at::tanh(at::sin(t) * t); }, x);
  });
  table.unary("without_grad", [](const Tensor& x) {
    const c10::NoGradGuard no_grad;
    return at::tanh(x * 0.5) + 0.25;
  });
  table.unary("grad_hook", [](const Tensor& x) {
    const Tensor y = x * 1;
    if (y.requires_grad()) y.register_hook([](const Tensor& g) { return g * 0.5; });
    return y;
  });
  table.unary("retain_grad", [](const Tensor& x) {
    const Tensor y = at::sin(x);
    if (y.requires_grad()) y.retain_grad();
    return y;
  });
  table.op(
      "grad", Kind::kMake,
      [](GraphChooser& c) {
        if (c.pick([](const Tensor& t) { return needs_grad(t) && !t.is_leaf(); }) == nullptr ||
            c.pick(needs_grad) == nullptr) {
          return false;
        }
        c.number(0, 1);
        return true;
      },
      [](State&, Tensors& t, const Numbers& n) {
        auto grads = torch::autograd::grad({t[0].sin().sum()}, {t[1]}, {}, true, n[0] == 1, true);
        return Tensors{std::move(grads[0])};
      });
  for (const int terms : {1, 2, 3, 4, 6}) {
    table.op(
        "loss" + std::to_string(terms), Kind::kLoss,
        [terms](GraphChooser& c) {
          for (int i = 0; i < terms; ++i) {
            if (c.pick(needs_grad) == nullptr) return false;
          }
          c.number(0, 2);
          return true;
        },
        [](State&, Tensors& t, const Numbers& n) {
          Tensor sum;
          for (const Tensor& x : t) {
            const Tensor y = x.to(at::kFloat);
            Tensor term = n[0] == 0   ? at::square(y).mean()
                          : n[0] == 1 ? (y * at::cos(y)).mean()
                                      : at::sin(y).sum() * 0.01;
            sum = sum.defined() ? sum + term : std::move(term);
          }
          return Tensors{std::move(sum)};
        });
  }
  table.op(
      "backward", Kind::kBackward, [](GraphChooser&) { return false; },
      [](State& s, Tensors& t, const Numbers& n) {
        s.losses.push_back(t[0].item<double>());
        t[0].backward({}, /*retain_graph=*/n[0] == 1);
        return Tensors{};
      });
  table.op(
      "release", Kind::kRelease, [](GraphChooser&) { return false; },
      [](State&, Tensors&, const Numbers&) { return Tensors{}; });
}

}  // namespace

const std::vector<GraphOp>& graph_ops() {
  static const std::vector<GraphOp> ops = [] {
    Table table;
    add_pointwise(table);
    add_matrix(table);
    add_reductions(table);
    add_norms(table);
    add_random(table);
    add_views(table);
    add_indexing(table);
    add_writes(table);
    add_autograd(table);
    return table.take();
  }();
  return ops;
}

const GraphOp* find_graph_op(std::string_view name) {
  for (const GraphOp& op : graph_ops()) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

}  // namespace lowtide
