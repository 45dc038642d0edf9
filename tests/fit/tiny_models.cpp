#include "tests/fit/tiny_models.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lowtide {
namespace {

using at::Tensor;
using Parameters = std::vector<Tensor>;

Tensor parameter(Parameters& all, at::IntArrayRef sizes, double scale = 0.2) {
  all.push_back((at::randn(sizes) * scale).requires_grad_(true));
  return all.back();
}

Tensor input(at::IntArrayRef sizes, int step) {
  // Another batch each step, without touching the default generator.
  const auto count = c10::multiply_integers(sizes);
  return at::sin(at::arange(count, at::kFloat) * 0.37 + step).view(sizes);
}

Tensor labels(std::int64_t count, std::int64_t classes, int step) {
  return at::remainder(at::arange(count, at::kLong) * 7 + step, classes);
}

struct Linear {
  Linear(Parameters& all, std::int64_t in, std::int64_t out)
      : weight(parameter(all, {out, in}, 1.0 / std::sqrt(static_cast<double>(in)))),
        bias(parameter(all, {out}, 0.1)) {}
  Tensor operator()(const Tensor& x) const { return at::linear(x, weight, bias); }
  Tensor weight, bias;
};

struct Conv {
  Conv(Parameters& all, std::int64_t in, std::int64_t out, std::int64_t kernel = 3)
      : weight(parameter(all, {out, in, kernel, kernel},
                         1.0 / std::sqrt(static_cast<double>(in * kernel * kernel)))),
        padding(kernel / 2) {}
  Tensor operator()(const Tensor& x, std::int64_t stride = 1) const {
    return at::conv2d(x, weight, {}, stride, padding);
  }
  Tensor weight;
  std::int64_t padding;
};

struct BatchNorm {
  BatchNorm(TinyModel& model, std::int64_t channels)
      : weight((at::ones({channels})).requires_grad_(true)),
        bias(parameter(model.parameters, {channels}, 0.1)),
        mean(at::zeros({channels})),
        var(at::ones({channels})),
        count(at::zeros({}, at::kLong)) {
    model.parameters.push_back(weight);
    model.buffers.insert(model.buffers.end(), {mean, var, count});
  }
  Tensor operator()(const Tensor& x) {
    count.add_(1);
    return at::batch_norm(x, weight, bias, mean, var, true, 0.1, 1e-5, false);
  }
  Tensor weight, bias, mean, var, count;
};

struct LayerNorm {
  LayerNorm(Parameters& all, std::int64_t width)
      : weight(parameter(all, {width}, 1.0)), bias(parameter(all, {width}, 0.1)) {}
  Tensor operator()(const Tensor& x) const {
    return at::layer_norm(x, {weight.size(0)}, weight, bias);
  }
  Tensor weight, bias;
};

struct Attention {
  Attention(Parameters& all, std::int64_t width, std::int64_t head_count, double dropout_rate)
      : qkv(all, width, 3 * width),
        out(all, width, width),
        heads(head_count),
        dropout(dropout_rate) {}
  Tensor operator()(const Tensor& x) const {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts =
        qkv(x).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    auto weights = at::softmax(
        at::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(double(width / heads)), -1);
    weights = at::dropout(weights, dropout, true);
    return out(at::matmul(weights, parts[2]).transpose(1, 2).reshape({batch, length, width}));
  }
  Linear qkv, out;
  std::int64_t heads;
  double dropout;
};

Tensor max_pool(const Tensor& x) { return at::max_pool2d(x, 2); }

// An autograd function of the user's own, which saves an input, an output and a third tensor.
struct Swish : torch::autograd::Function<Swish> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    const Tensor gate = at::sigmoid(x);
    const Tensor y = x * gate;
    context->save_for_backward({x, gate, y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * (saved[1] + saved[2] * (1 - saved[1]))};
  }
};

TinyModel mlp() {
  TinyModel m;
  const Linear a(m.parameters, 64, 256), b(m.parameters, 256, 256), c(m.parameters, 256, 10);
  m.loss = [=](int step) {
    return at::cross_entropy_loss(c(at::relu(b(at::relu(a(input({64, 64}, step)))))),
                                  labels(64, 10, step));
  };
  return m;
}

TinyModel deep_mlp(int layers) {
  TinyModel m;
  std::vector<Linear> all;
  for (int i = 0; i < layers; ++i) all.emplace_back(m.parameters, 64, 64);
  m.loss = [=](int step) {
    Tensor x = input({128, 64}, step);
    for (const Linear& layer : all) x = x + at::gelu(layer(x));
    return x.square().mean();
  };
  return m;
}

TinyModel conv_net(bool in_place) {
  TinyModel m;
  const Conv a(m.parameters, 3, 16), b(m.parameters, 16, 16), c(m.parameters, 16, 32);
  BatchNorm na(m, 16), nb(m, 16), nc(m, 32);
  const Linear head(m.parameters, 32, 10);
  m.loss = [=](int step) mutable {
    const auto act = [&](Tensor x) { return in_place ? at::relu_(x) : at::relu(x); };
    Tensor x = act(na(a(input({8, 3, 24, 24}, step))));
    x = act(nb(b(x)));
    x = act(nc(c(x, 2)));
    return at::cross_entropy_loss(head(x.mean({2, 3})), labels(8, 10, step));
  };
  return m;
}

TinyModel residual_net() {
  TinyModel m;
  const Conv stem(m.parameters, 3, 16);
  std::vector<Conv> convs;
  std::vector<BatchNorm> norms;
  for (int i = 0; i < 6; ++i) {
    convs.emplace_back(m.parameters, 16, 16);
    norms.emplace_back(m, 16);
  }
  const Linear head(m.parameters, 16, 10);
  m.loss = [=](int step) mutable {
    Tensor x = stem(input({8, 3, 24, 24}, step));
    for (std::size_t i = 0; i < convs.size(); i += 2) {
      Tensor y = norms[i](convs[i](x)).relu_();
      y = norms[i + 1](convs[i + 1](y));
      y.add_(x);
      x = at::relu_(y);
    }
    return at::cross_entropy_loss(head(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1)),
                                  labels(8, 10, step));
  };
  return m;
}

TinyModel u_net() {
  TinyModel m;
  const Conv down1(m.parameters, 3, 8), down2(m.parameters, 8, 16), bottom(m.parameters, 16, 16);
  const Conv up1(m.parameters, 32, 8), up2(m.parameters, 16, 4, 1);
  m.loss = [=](int step) {
    const Tensor x1 = at::relu(down1(input({4, 3, 32, 32}, step)));
    const Tensor x2 = at::relu(down2(max_pool(x1)));
    Tensor x = at::relu(bottom(max_pool(x2)));
    x = at::upsample_nearest2d(x, {16, 16});
    x = at::relu(up1(at::cat({x, x2}, 1)));
    x = at::upsample_bilinear2d(x, {32, 32}, false);
    x = up2(at::cat({x, x1}, 1));
    return at::nll_loss2d(at::log_softmax(x, 1), labels(4 * 32 * 32, 4, step).view({4, 32, 32}));
  };
  return m;
}

TinyModel transformer(double dropout, bool pre_norm) {
  TinyModel m;
  struct Block {
    LayerNorm n1, n2;
    Attention attention;
    Linear up, down;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back({LayerNorm(m.parameters, 64), LayerNorm(m.parameters, 64),
                      Attention(m.parameters, 64, 4, dropout), Linear(m.parameters, 64, 256),
                      Linear(m.parameters, 256, 64)});
  }
  m.loss = [=](int step) {
    Tensor x = input({4, 32, 64}, step);
    for (const Block& b : blocks) {
      if (pre_norm) {
        x = x + at::dropout(b.attention(b.n1(x)), dropout, true);
        x = x + at::dropout(b.down(at::gelu(b.up(b.n2(x)))), dropout, true);
      } else {
        x = b.n1(x + at::dropout(b.attention(x), dropout, true));
        x = b.n2(x + at::dropout(b.down(at::relu(b.up(x))), dropout, true));
      }
    }
    return x.square().mean();
  };
  return m;
}

TinyModel fused_attention() {
  TinyModel m;
  const Linear qkv(m.parameters, 64, 192);
  m.loss = [=](int step) {
    const auto parts =
        qkv(input({4, 64, 64}, step)).view({4, 64, 3, 4, 16}).permute({2, 0, 3, 1, 4});
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
        .square()
        .mean();
  };
  return m;
}

TinyModel recurrent(bool gru) {
  TinyModel m;
  const int gates = gru ? 3 : 4;
  std::vector<Tensor> weights{
      parameter(m.parameters, {gates * 48, 24}), parameter(m.parameters, {gates * 48, 48}),
      parameter(m.parameters, {gates * 48}, 0.1), parameter(m.parameters, {gates * 48}, 0.1)};
  const Linear head(m.parameters, 48, 8);
  m.loss = [=](int step) {
    const Tensor x = input({20, 8, 24}, step);
    const Tensor h = at::zeros({1, 8, 48});
    const Tensor y = gru ? std::get<0>(at::gru(x, h, weights, true, 1, 0.0, true, false, false))
                         : std::get<0>(at::lstm(x, {h, at::zeros({1, 8, 48})}, weights, true, 1,
                                                0.0, true, false, false));
    return at::cross_entropy_loss(head(y).flatten(0, 1), labels(160, 8, step));
  };
  return m;
}

TinyModel unrolled_cell() {
  TinyModel m;
  const Linear in(m.parameters, 16, 48), hidden(m.parameters, 48, 48);
  m.loss = [=](int step) {
    const Tensor x = input({30, 16, 16}, step);
    Tensor h = at::zeros({16, 48});
    for (std::int64_t t = 0; t < x.size(0); ++t) h = at::tanh(in(x[t]) + hidden(h));
    return h.square().mean();
  };
  return m;
}

TinyModel embedding_bag() {
  TinyModel m;
  const Tensor table = parameter(m.parameters, {200, 32});
  const Linear head(m.parameters, 32, 5);
  m.loss = [=](int step) {
    const Tensor indices = labels(256, 200, step);
    const Tensor offsets = at::arange(0, 256, 8, at::kLong);
    const Tensor bags = std::get<0>(at::embedding_bag(table, indices, offsets, false, 1));
    return at::cross_entropy_loss(head(at::tanh(bags)), labels(32, 5, step));
  };
  return m;
}

TinyModel tied_embedding() {
  TinyModel m;
  const Tensor table = parameter(m.parameters, {100, 32});
  const Linear body(m.parameters, 32, 32);
  m.loss = [=](int step) {
    const Tensor tokens = labels(64, 100, step);
    const Tensor x = at::gelu(body(at::embedding(table, tokens)));
    return at::cross_entropy_loss(at::matmul(x, table.t()), labels(64, 100, step + 1));
  };
  return m;
}

TinyModel norms() {
  TinyModel m;
  const Conv a(m.parameters, 4, 16), b(m.parameters, 16, 16);
  const Tensor gw = parameter(m.parameters, {16}, 1.0), gb = parameter(m.parameters, {16});
  const Tensor iw = parameter(m.parameters, {16}, 1.0), ib = parameter(m.parameters, {16});
  const Tensor mean = at::zeros({16}), var = at::ones({16});
  m.buffers = {mean, var};
  const LayerNorm layer(m.parameters, 20);
  m.loss = [=](int step) {
    Tensor x = at::relu(at::group_norm(a(input({4, 4, 20, 20}, step)), 4, gw, gb));
    x = at::instance_norm(b(x), iw, ib, mean, var, true, 0.1, 1e-5, false);
    x = layer(at::silu(x));
    return at::rms_norm(x, {20}).square().mean() + x.abs().mean();
  };
  return m;
}

// One layer, then an op mix of its own: what most cases below need.
TinyModel mix(std::function<Tensor(const Tensor& x, int step)> body, std::int64_t width = 256) {
  TinyModel m;
  const Linear in(m.parameters, 32, width), out(m.parameters, width, width);
  m.loss = [=](int step) {
    const Tensor x = in(input({64, 32}, step));
    return body(at::tanh(out(at::sin(x))), step).square().mean();
  };
  return m;
}

TinyModel gradient_accumulation() {
  TinyModel m = transformer(0.1, true);
  const auto one = m.loss;
  m.loss = [one](int step) { return one(step) + one(step + 100) + one(step + 200); };
  return m;
}

TinyModel gradient_penalty() {
  TinyModel m;
  const Linear a(m.parameters, 32, 128), b(m.parameters, 128, 1);
  m.loss = [=](int step) {
    const Tensor x = input({64, 32}, step).requires_grad_(true);
    const Tensor y = b(at::tanh(a(x)));
    const Tensor gradient =
        torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return y.mean() + (gradient.norm(2, 1) - 1).square().mean();
  };
  return m;
}

TinyModel two_graphs() {
  TinyModel m;
  const Linear g1(m.parameters, 16, 128), g2(m.parameters, 128, 32);
  const Linear d1(m.parameters, 32, 128), d2(m.parameters, 128, 1);
  m.loss = [=](int step) {
    const Tensor fake = g2(at::relu(g1(input({64, 16}, step))));
    const auto judge = [&](const Tensor& x) { return d2(at::leaky_relu(d1(x), 0.2)); };
    // Both graphs are alive at once; one ends at a detach.
    return at::softplus(judge(fake.detach())).mean() + at::softplus(-judge(fake)).mean();
  };
  return m;
}

TinyModel retained_graph() {
  TinyModel m = deep_mlp(4);
  m.backward = [](const Tensor& loss) {
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  };
  return m;
}

TinyModel custom_function() {
  TinyModel m;
  const Linear a(m.parameters, 32, 256), b(m.parameters, 256, 8);
  m.loss = [=](int step) { return b(Swish::apply(a(input({64, 32}, step)))).square().mean(); };
  return m;
}

TinyModel embedding_with_scatter() {
  TinyModel m;
  const Linear a(m.parameters, 16, 64), b(m.parameters, 64, 4);
  m.loss = [=](int step) {
    const Tensor nodes = a(input({100, 16}, step));
    const Tensor from = labels(400, 100, step), to = labels(400, 100, step + 3);
    const Tensor sums = at::zeros({100, 64}).index_add(0, to, nodes.index_select(0, from));
    return b(at::relu(sums + nodes)).square().mean();
  };
  return m;
}

TinyModel vae() {
  TinyModel m;
  const Linear in(m.parameters, 64, 128), mu(m.parameters, 128, 32), sigma(m.parameters, 128, 32);
  const Linear out(m.parameters, 32, 128), last(m.parameters, 128, 64);
  m.loss = [=](int step) {
    const Tensor x = at::sigmoid(input({64, 64}, step));
    const Tensor h = at::relu(in(x));
    const Tensor mean = mu(h), log_var = sigma(h);
    const Tensor z = mean + at::randn_like(mean) * at::exp(0.5 * log_var);
    const Tensor y = at::sigmoid(last(at::relu(out(z))));
    return at::binary_cross_entropy(y, x, {}, at::Reduction::Sum) / 64 -
           0.5 * (1 + log_var - mean.square() - log_var.exp()).sum() / 64;
  };
  return m;
}

TinyModel no_grad_part() {
  TinyModel m;
  const Linear a(m.parameters, 32, 256), b(m.parameters, 256, 16);
  m.loss = [=](int step) {
    const Tensor h = at::relu(a(input({64, 32}, step)));
    Tensor target;
    {
      const c10::NoGradGuard off;
      target = at::softmax(b(h * 0.5) * 2, -1);
    }
    return (at::log_softmax(b(h), -1) * target).sum().neg();
  };
  return m;
}

TinyModel user_generator() {
  TinyModel m;
  const Linear a(m.parameters, 32, 256), b(m.parameters, 256, 16);
  m.loss = [=](int step) {
    at::Generator own = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step) + 5);
    const Tensor h = a(input({64, 32}, step));
    const Tensor mask = at::empty_like(h).bernoulli_(0.7, own);
    const Tensor noise = at::randn(h.sizes(), own, h.options());
    return b(at::relu(h * mask + noise * 0.1)).square().mean();
  };
  return m;
}

}  // namespace

const std::vector<TinyModelCase>& tiny_models() {
  static const std::vector<TinyModelCase> all{
      {"mlp", mlp},
      {"deep residual mlp", [] { return deep_mlp(12); }},
      {"conv net, batch norm", [] { return conv_net(false); }},
      {"conv net, batch norm, in-place relu", [] { return conv_net(true); }},
      {"residual net, in-place add and relu", residual_net},
      {"u-net", u_net},
      {"pre-norm transformer, dropout", [] { return transformer(0.1, true); }},
      {"post-norm transformer", [] { return transformer(0.0, false); }},
      {"scaled dot product attention", fused_attention},
      {"lstm", [] { return recurrent(false); }},
      {"gru", [] { return recurrent(true); }},
      {"unrolled cell", unrolled_cell},
      {"embedding bag", embedding_bag},
      {"tied embedding", tied_embedding},
      {"group, instance, layer and rms norm", norms},
      {"gradient accumulation", gradient_accumulation},
      {"gradient penalty", gradient_penalty},
      {"two graphs", two_graphs},
      {"retained graph", retained_graph},
      {"custom function", custom_function},
      {"index_add over a graph", embedding_with_scatter},
      {"variational autoencoder", vae},
      {"no-grad part", no_grad_part},
      {"user's generator", user_generator},
      {"rrelu",
       [] { return mix([](const Tensor& x, int) { return at::rrelu(x, 0.1, 0.4, true); }); }},
      {"rrelu in place",
       [] {
         return mix([](const Tensor& x, int) {
           Tensor y = x * 2;
           return at::rrelu_(y, 0.1, 0.4, true);
         });
       }},
      {"random mask",
       [] {
         return mix([](const Tensor& x, int) { return x * at::rand_like(x).gt(0.3) + at::sin(x); });
       }},
      {"masked fill and where",
       [] {
         return mix([](const Tensor& x, int) {
           return at::where(x > 0, at::exp(x), at::masked_fill(x, x < -0.5, 1.0) * x);
         });
       }},
      {"index write",
       [] {
         return mix([](const Tensor& x, int step) {
           Tensor y = at::sin(x);
           y.index_put_({labels(16, 64, step)}, at::full({256}, 0.5));
           return y * x;
         });
       }},
      {"slice write",
       [] {
         return mix([](const Tensor& x, int) {
           Tensor y = at::cos(x);
           y.slice(0, 8, 24).mul_(2);
           y.select(1, 3).add_(1);
           return at::exp(y);
         });
       }},
      {"chain of in-place ops",
       [] {
         return mix([](const Tensor& x, int) {
           Tensor y = x * 1.5;
           y.add_(0.5).mul_(0.9);
           Tensor z = at::sin(y);
           z.mul_(2).add_(x);
           return at::tanh(z);
         });
       }},
      {"in-place reading what was made from it",
       [] {
         return mix([](const Tensor& x, int) {
           Tensor y = x * 1.5;
           const Tensor z = y.detach().sin();
           y.add_(z);
           return at::exp(y) * z;
         });
       }},
      {"unfold and fold",
       [] {
         return mix([](const Tensor& x, int) {
           const Tensor columns =
               at::im2col(x.view({64, 1, 16, 16}), {3, 3}, {1, 1}, {1, 1}, {1, 1});
           return at::col2im(at::sin(columns), {16, 16}, {3, 3}, {1, 1}, {1, 1}, {1, 1});
         });
       }},
      {"tensor unfold",
       [] { return mix([](const Tensor& x, int) { return at::sin(x.unfold(1, 8, 4)).exp(); }); }},
      {"fft",
       [] {
         return mix([](const Tensor& x, int) {
           return at::fft_irfft(at::fft_rfft(x) * at::fft_rfft(at::sin(x)));
         });
       }},
      {"complex",
       [] {
         return mix([](const Tensor& x, int) {
           const Tensor z = at::complex(x, at::sin(x));
           return at::abs(at::conj(z) * z.exp());
         });
       }},
      {"cumsum and cumprod",
       [] {
         return mix(
             [](const Tensor& x, int) { return at::cumsum(x, 1) + at::cumprod(x * 0.1 + 1, 0); });
       }},
      {"sort and topk",
       [] {
         return mix([](const Tensor& x, int) {
           return std::get<0>(at::sort(x, 1)).exp() + std::get<0>(at::topk(x, 16, 1)).sum() * x;
         });
       }},
      {"chunk, split and unbind",
       [] {
         return mix([](const Tensor& x, int) {
           const auto parts = at::chunk(x, 4, 1);
           const auto rows = at::split(at::sin(x), 16, 0);
           Tensor sum = at::cat({parts[3] * parts[0], parts[1].exp(), parts[2]}, 1);
           return sum.slice(0, 0, 16) * rows[2].slice(1, 0, 192) + at::stack(x.unbind(0)).mean();
         });
       }},
      {"expand and repeat",
       [] {
         return mix([](const Tensor& x, int) {
           return (x.unsqueeze(1).expand({64, 4, 256}) * x.mean(0)).sin() *
                  x.repeat({1, 4}).view({64, 4, 256});
         });
       }},
      {"einsum and bmm",
       [] {
         return mix([](const Tensor& x, int) {
           const Tensor y = x.view({4, 16, 256});
           return at::softmax(at::bmm(y, y.transpose(1, 2)), -1) +
                  at::einsum("bid,bjd->bij", {y, at::sin(y)});
         });
       }},
      {"losses of every kind",
       [] {
         return mix([](const Tensor& x, int step) {
           const Tensor t = input({64, 256}, step);
           return at::l1_loss(x, t) + at::mse_loss(x.exp(), t) + at::smooth_l1_loss(x * 3, t) +
                  at::huber_loss(x * 2, t) +
                  at::binary_cross_entropy_with_logits(x, at::sigmoid(t)) +
                  at::kl_div(at::log_softmax(x, 1), at::softmax(t, 1)) +
                  at::soft_margin_loss(x, at::sign(t)) + at::cosine_similarity(x, t, 1).mean() +
                  at::hinge_embedding_loss(x, at::sign(t)) +
                  at::triplet_margin_loss(x, t, at::sin(x));
         });
       }},
      {"activations of every kind",
       [] {
         return mix([](const Tensor& x, int) {
           return at::elu(x) + at::selu(x * 2) + at::celu(x * 3) + at::silu(x) + at::mish(x) +
                  at::softplus(x) + at::hardtanh(x * 2) + at::leaky_relu(x, 0.1) +
                  at::glu(at::cat({x, x}, 1)) + at::hardswish(x) + at::hardsigmoid(x) +
                  at::log_sigmoid(x) + at::softmax(x, 1) + at::prelu(x, at::full({1}, 0.25));
         });
       }},
      {"pooling",
       [] {
         return mix([](const Tensor& x, int) {
           const Tensor y = at::sin(x.view({64, 1, 16, 16}));
           return max_pool(y) * at::avg_pool2d(y, {2, 2}) +
                  std::get<0>(at::adaptive_max_pool2d(y, {8, 8}));
         });
       }},
      {"bilinear sampling",
       [] {
         return mix([](const Tensor& x, int) {
           const Tensor y = at::sin(x.view({4, 16, 16, 16}));
           const Tensor grid =
               at::tanh(x.view({4, 16, 16, 16}).slice(1, 0, 2).permute({0, 2, 3, 1}));
           return at::grid_sampler_2d(y, grid, 0, 0, false);
         });
       }},
      {"linear algebra",
       [] {
         return mix([](const Tensor& x, int) {
           const Tensor gram =
               at::matmul(x.t(), x).slice(0, 0, 32).slice(1, 0, 32) + at::eye(32) * 10;
           return at::linalg_inv(gram) + at::linalg_cholesky(gram);
         });
       }},
  };
  return all;
}

}  // namespace lowtide
