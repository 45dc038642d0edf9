// What a region may do, and what backward makes of it.

#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "tests/checkpoint/both_ways.h"

namespace lowtide::testing {
namespace {

struct Mlp {
  at::Tensor w1 = parameter({8, 16}), w2 = parameter({16, 8});
  at::Tensor operator()(const at::Tensor& x) const { return x.matmul(w1).relu().matmul(w2); }
};

struct Batch {
  at::Tensor image;
  std::vector<at::Tensor> masks;
  int scale = 1;
};
template <class Visit>
void visit_tensors(Batch& batch, Visit&& visit) {
  visit(batch.image);
  visit(batch.masks);
}

TEST_CASE("gradients are the plain ones, and the function runs twice") {
  int runs = 0;
  same_both_ways([&](Run& run) {
    Mlp mlp;
    at::Tensor x = parameter({4, 8});
    at::Tensor y = run(
        [&, mlp](const at::Tensor& t) {
          ++runs;
          return mlp(t);
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), mlp.w1.grad(), mlp.w2.grad()};
  });
  CHECK(runs == 3);
}

TEST_CASE("what a region saves is not kept between forward and backward") {
  Mlp mlp;
  std::vector<WeakStorage> seen;
  at::Tensor x = parameter({4, 8});
  at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        at::Tensor hidden = t.matmul(mlp.w1).relu();
        seen.push_back(watch(hidden));
        return hidden.matmul(mlp.w2);
      },
      x);
  REQUIRE(seen.size() == 1);
  CHECK(seen[0].expired());
  y.sum().backward();
  CHECK(seen.size() == 2);
  CHECK(seen[1].expired());
}

TEST_CASE("backward of one block does not keep another block's activations alive") {
  for (const bool retain_graph : {false, true}) {
    Mlp first, second;
    std::vector<WeakStorage> of_second;
    bool second_was_gone = false;
    at::Tensor x = activation(parameter({4, 8}));
    at::Tensor y = checkpoint(
        [&](const at::Tensor& t) {
          if (of_second.size() == 2) second_was_gone = of_second[1].expired();
          return first(t);
        },
        x);
    y = checkpoint(
        [&](const at::Tensor& t) {
          at::Tensor hidden = t.matmul(second.w1).relu();
          of_second.push_back(watch(hidden));
          return hidden.matmul(second.w2);
        },
        y);
    y.sum().backward({}, retain_graph);
    REQUIRE(of_second.size() == 2);
    CHECK(second_was_gone);
  }
}

TEST_CASE("a region that was only partly visited gives its tensors back when backward ends") {
  at::Tensor a = parameter({4}), b = parameter({4});
  std::vector<WeakStorage> seen;
  auto both = checkpoint(
      [&](const at::Tensor& s, const at::Tensor& t) {
        at::Tensor u = s.exp();
        seen.push_back(watch(u));
        at::Tensor v = t.exp();
        return std::make_pair(u * 2, v * 2);
      },
      std::make_tuple(activation(a), activation(b)));
  torch::autograd::grad({both.second.sum()}, {b}, {}, /*retain_graph=*/true);
  REQUIRE(seen.size() == 2);
  CHECK(seen[1].expired());
  both.first.sum().backward();
  CHECK(same_bits(a.grad(), (a.exp() * 2).detach()));
}

TEST_CASE("nothing is left when the graph goes, with backward or without") {
  for (const bool with_backward : {false, true}) {
    auto token = std::make_shared<int>(0);
    at::Tensor kept = at::randn({4});
    WeakStorage input{c10::intrusive_ptr<c10::StorageImpl>()};
    {
      at::Tensor leaf = parameter({4, 8});
      at::Tensor x = activation(leaf);
      input = watch(x);
      at::Tensor y =
          checkpoint([token](at::Tensor& t) { return t.mul_(2).sin().exp().view({-1}); }, x);
      x = at::Tensor();
      if (with_backward) y.sum().backward();
    }
    CHECK(token.use_count() == 1);
    CHECK(input.expired());
  }
}

TEST_CASE("adding a region's result to its input in place is no cycle") {
  auto token = std::make_shared<int>(0);
  {
    at::Tensor x = activation(parameter({4, 8}));
    x.add_(checkpoint([token](const at::Tensor& t) { return t.sin().exp(); }, x));
  }
  CHECK(token.use_count() == 1);
}

TEST_CASE("what the replay computed goes as backward passes by") {
  std::vector<WeakStorage> seen;
  bool was_gone = false;
  at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        at::Tensor u = t.exp();
        at::Tensor v = u.exp();
        if (seen.empty()) {
          u.register_hook([&](const at::Tensor& grad) {
            was_gone = seen.size() == 2 && seen[1].expired();
            return grad;
          });
        }
        seen.push_back(watch(v));
        return v.sin();
      },
      activation(parameter({4})));
  y.sum().backward();
  CHECK(was_gone);
}

TEST_CASE("a region frees its inputs with the graph while the output is kept") {
  at::Tensor leaf = parameter({4, 8});
  at::Tensor x = activation(leaf);
  const WeakStorage input = watch(x);
  at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin().exp(); }, x);
  x = at::Tensor();
  CHECK(!input.expired());
  y.sum().backward();
  CHECK(input.expired());
}

TEST_CASE("inputs that need no grad, and frozen parameters") {
  same_both_ways([](Run& run) {
    Mlp mlp;
    at::Tensor y = run([mlp](const at::Tensor& t) { return mlp(t); }, at::randn({4, 8}));
    y.sum().backward();
    return std::vector<at::Tensor>{y, mlp.w1.grad(), mlp.w2.grad()};
  });
  same_both_ways([](Run& run) {
    Mlp mlp;
    mlp.w1.set_requires_grad(false);
    at::Tensor x = parameter({4, 8});
    at::Tensor y = run([mlp](const at::Tensor& t) { return mlp(t); }, activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), mlp.w1.grad(), mlp.w2.grad()};
  });
  at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin(); }, at::randn({4}));
  CHECK(!y.requires_grad());
}

TEST_CASE("with grad mode off a region is a plain call") {
  const at::NoGradGuard no_grad;
  int runs = 0;
  at::Tensor y = checkpoint(
      [&](const at::Tensor& t) {
        ++runs;
        return t.sin();
      },
      parameter({4}));
  CHECK(!y.requires_grad());
  CHECK(runs == 1);
}

TEST_CASE("autograd::grad and backward(inputs=...)") {
  same_both_ways([](Run& run) {
    Mlp mlp;
    at::Tensor x = parameter({4, 8});
    at::Tensor y = run([mlp](const at::Tensor& t) { return mlp(t); }, activation(x));
    const auto grads =
        torch::autograd::grad({y.sum()}, {x, mlp.w1, mlp.w2}, {}, /*retain_graph=*/true);
    y.sin().sum().backward({}, std::nullopt, false, std::vector<at::Tensor>{mlp.w2});
    CHECK(!x.grad().defined());
    return std::vector<at::Tensor>{grads[0], grads[1], grads[2], mlp.w2.grad()};
  });
}

TEST_CASE("double backward") {
  same_both_ways([](Run& run) {
    at::Tensor w = parameter({8, 8}), x = parameter({4, 8});
    at::Tensor y =
        run([w](const at::Tensor& t) { return t.matmul(w).tanh().exp(); }, activation(x));
    const auto first = torch::autograd::grad({y.sum()}, {x, w}, {}, std::nullopt, true);
    (first[0].pow(2).sum() + first[1].pow(2).sum()).backward();
    return std::vector<at::Tensor>{first[0], first[1], x.grad(), w.grad()};
  });
}

TEST_CASE("gradients asked for inside a region") {
  for (const bool early_stop : {true, false}) {
    same_both_ways(
        [](Run& run) {
          at::Tensor w = parameter({8, 8}), x = parameter({4, 8});
          at::Tensor y = run(
              [w](const at::Tensor& t) {
                at::Tensor z = t.matmul(w).tanh();
                at::Tensor g = torch::autograd::grad({z.exp().sum()}, {t}, {}, true, true)[0];
                return (z * g).sin();
              },
              activation(x));
          y.sum().backward();
          return std::vector<at::Tensor>{y, x.grad(), w.grad()};
        },
        CheckpointOptions{.early_stop = early_stop});
  }
}

TEST_CASE("nesting three deep, with random ops") {
  same_both_ways([](Run& run) {
    Mlp a, b, c;
    at::Tensor x = parameter({4, 8});
    at::Tensor y = run(
        [&](const at::Tensor& s) {
          at::Tensor u = at::dropout(a(s), 0.3, true);
          u = run(
              [&](const at::Tensor& t) {
                at::Tensor v = at::dropout(b(t), 0.3, true);
                return run([&](const at::Tensor& r) { return at::dropout(c(r), 0.3, true).sin(); },
                           v)
                    .exp();
              },
              u);
          return u.tanh();
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y,           x.grad(),    a.w1.grad(), a.w2.grad(),
                                   b.w1.grad(), b.w2.grad(), c.w1.grad(), c.w2.grad()};
  });
}

TEST_CASE("an outer replay stops where the last inner region's inputs are there") {
  int tail_runs = 0, inner_runs = 0;
  at::Tensor x = parameter({4});
  at::Tensor y = checkpoint(
      [&](const at::Tensor& s) {
        at::Tensor u = checkpoint(
            [&](const at::Tensor& t) {
              ++inner_runs;
              return t.sin().exp();
            },
            s.exp());
        ++tail_runs;
        return u + 1;
      },
      activation(x));
  y.sum().backward();
  CHECK(tail_runs == 1);
  CHECK(inner_runs == 2);
}

TEST_CASE("a region called twice, and one that shares its parameters") {
  same_both_ways([](Run& run) {
    Mlp mlp;
    const auto block = [mlp](const at::Tensor& t) { return at::dropout(mlp(t), 0.5, true); };
    at::Tensor x = parameter({4, 8});
    at::Tensor y = run(block, run(block, activation(x)));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad(), mlp.w1.grad(), mlp.w2.grad()};
  });
}

TEST_CASE("in-place ops and views, inside and returned") {
  same_both_ways([](Run& run) {
    at::Tensor w = parameter({8, 8}), x = parameter({4, 8});
    at::Tensor y = run(
        [w](const at::Tensor& t) {
          at::Tensor u = t.matmul(w);
          u.add_(1);
          u.narrow(1, 0, 4).mul_(3);
          return (u.relu() * 1).t();
        },
        activation(x));
    y.mul_(2);  // nothing has saved y, and scaling needs the factor only
    at::Tensor z = run([](const at::Tensor& t) { return t.sin().reshape({2, -1}); }, y);
    z.add_(1);
    z.sum().backward();
    return std::vector<at::Tensor>{z, x.grad(), w.grad()};
  });
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({4, 8});
    at::Tensor whole = activation(x);
    at::Tensor part = run([](const at::Tensor& t) { return t.select(0, 1); }, whole);
    part.mul_(5);  // a view of the input came out, and the input changes with it
    whole.sin().sum().backward();
    return std::vector<at::Tensor>{whole, x.grad()};
  });
}

TEST_CASE("nested outputs: tuple, map, optional, undefined, none") {
  using Outputs = std::tuple<at::Tensor, std::map<std::string, at::Tensor>,
                             std::optional<at::Tensor>, std::vector<at::Tensor>, int>;
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({4});
    Outputs out = run(
        [](const at::Tensor& t) {
          return Outputs(t.sin(), {{"a", t.exp()}, {"b", t.cos()}}, t.tanh(),
                         {t.sigmoid(), at::Tensor()}, 5);
        },
        activation(x));
    CHECK(std::get<4>(out) == 5);
    CHECK(!std::get<3>(out)[1].defined());
    (std::get<0>(out) + std::get<1>(out)["a"] + *std::get<2>(out) * std::get<3>(out)[0])
        .sum()
        .backward();
    return std::vector<at::Tensor>{x.grad()};
  });
  at::Tensor x = parameter({4}), total = at::zeros({4});
  checkpoint([&](const at::Tensor& t) { total = t.exp(); }, x);
  total.sum().backward();
  CHECK(same_bits(x.grad(), x.exp().detach()));
}

TEST_CASE("nested inputs: containers, optional, undefined, structs, and what is no tensor") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({4}), y = parameter({4}), z = parameter({4});
    at::Tensor result = run(
        [](const Batch& batch, const std::map<std::string, at::Tensor>& named,
           const std::optional<at::Tensor>& maybe, const at::Tensor& undefined,
           const std::pair<at::Tensor, double>& scaled, const std::string& text, bool flag) {
          CHECK(!undefined.defined());
          CHECK(text == "words");
          at::Tensor sum = batch.image.sin() * batch.scale + batch.masks.at(1).exp();
          sum = sum * named.at("z").tanh() + scaled.first.cos() * scaled.second;
          return flag && maybe.has_value() ? sum * maybe->exp() : sum;
        },
        std::make_tuple(Batch{activation(x), {at::ones({4}), activation(y)}, 3},
                        std::map<std::string, at::Tensor>{{"z", activation(z)}},
                        std::optional<at::Tensor>(activation(x)), at::Tensor(),
                        std::make_pair(activation(y), 0.5), std::string("words"), true));
    result.sum().backward();
    return std::vector<at::Tensor>{result, x.grad(), y.grad(), z.grad()};
  });
}

TEST_CASE("tensors in a struct with visit_tensors are inputs: they go when the graph goes") {
  at::Tensor leaf = parameter({4});
  Batch batch{activation(leaf), {}, 1};
  const WeakStorage image = watch(batch.image);
  at::Tensor y = checkpoint([](Batch& b) { return b.image.sin().exp(); }, batch);
  batch.image = at::Tensor();
  CHECK(!image.expired());
  y.sum().backward();
  CHECK(image.expired());
}

TEST_CASE("retain_graph: each backward replays, with the same gradients") {
  int runs = 0;
  same_both_ways([&](Run& run) {
    Mlp mlp;
    at::Tensor x = parameter({4, 8});
    at::Tensor y = run(
        [&runs, mlp](const at::Tensor& t) {
          ++runs;
          return at::dropout(mlp(t), 0.5, true).sin();
        },
        activation(x));
    for (int i = 0; i < 3; ++i) y.sum().backward({}, /*retain_graph=*/i < 2);
    return std::vector<at::Tensor>{x.grad(), mlp.w1.grad()};
  });
  CHECK(runs == 1 + 1 + 3);
}

TEST_CASE("a second backward without retain_graph is refused in PyTorch's words") {
  at::Tensor x = parameter({4});
  at::Tensor y = checkpoint([](const at::Tensor& t) { return t.sin().exp(); }, activation(x));
  y.sum().backward();
  CHECK_THROWS_WITH_AS(y.sum().backward(),
                       doctest::Contains("backward through the graph a second time"), c10::Error);
}

TEST_CASE("each parameter's gradient hook fires once") {
  Mlp mlp;
  int fired = 0;
  mlp.w1.register_hook([&](const at::Tensor& grad) {
    ++fired;
    return grad;
  });
  at::Tensor y = checkpoint([&](const at::Tensor& t) { return mlp(t); }, at::randn({4, 8}));
  y.sum().backward();
  CHECK(fired == 1);
}

TEST_CASE("the replay stops at the last tensor that backward needs") {
  for (const bool early_stop : {true, false}) {
    int tail_runs = 0;
    at::Tensor x = parameter({4});
    at::Tensor y = checkpoint(
        [&](const at::Tensor& t) {
          at::Tensor u = t.sin().exp();
          ++tail_runs;
          return u + 1;
        },
        activation(x), CheckpointOptions{.early_stop = early_stop});
    y.sum().backward();
    CHECK(tail_runs == (early_stop ? 1 : 2));
    CHECK(same_bits(x.grad(), (x.cos() * x.sin().exp()).detach()));
  }
}

TEST_CASE("an op that fills a tensor after autograd packed it is replayed right") {
  // rrelu saves its noise before the kernel writes it; here it is the last thing saved.
  for (const bool more_after : {false, true}) {
    CAPTURE(more_after);
    same_both_ways([&](Run& run) {
      at::Tensor x = parameter({64});
      at::Tensor y = run(
          [&](const at::Tensor& t) {
            at::Tensor u = at::rrelu(t, 0.1, 0.9, /*training=*/true);
            return more_after ? u.sin().exp() : u;
          },
          activation(x));
      (y * at::arange(64)).sum().backward();
      return std::vector<at::Tensor>{y, x.grad()};
    });
  }
}

TEST_CASE("in-place versions of ops that save their own result") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({64});
    at::Tensor y = run(
        [](const at::Tensor& t) {
          at::Tensor u = t * 2;
          u.sigmoid_();
          u = u.exp() * 1;
          at::rrelu_(u, 0.1, 0.9, true);
          return u;
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad()};
  });
}

// y = x * scale, and saves what it gave out.
struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, double scale) {
    context->saved_data["scale"] = scale;
    at::Tensor y = x * scale;
    context->save_for_backward({x, y});
    return y;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto again = context->get_saved_variables();
    CHECK(same_bits(saved[1].detach(), again[1].detach()));
    return {grads[0] * context->saved_data["scale"].toDouble() * saved[1].cos(), at::Tensor()};
  }
};

TEST_CASE("custom autograd functions, even if they unpack twice") {
  for (const bool retain_graph : {false, true}) {
    same_both_ways([&](Run& run) {
      at::Tensor x = parameter({4});
      at::Tensor y =
          run([](const at::Tensor& t) { return Scale::apply(t.sin(), 3.0); }, activation(x));
      y.sum().backward({}, retain_graph);
      return std::vector<at::Tensor>{y, x.grad()};
    });
  }
}

TEST_CASE("changing a saved tensor in place afterwards is refused as plain autograd refuses it") {
  for (const bool checkpointed : {false, true}) {
    Run run{checkpointed};
    at::Tensor x = parameter({4});
    at::Tensor y = run([](const at::Tensor& t) { return t.exp(); }, activation(x));
    y.mul_(2);
    CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("modified by an inplace operation"),
                         c10::Error);

    at::Tensor w = parameter({4});
    at::Tensor z = run([w](const at::Tensor& t) { return t * w; }, activation(x));
    {
      const at::NoGradGuard no_grad;
      w.add_(1);
    }
    CHECK_THROWS_WITH_AS(z.sum().backward(), doctest::Contains("modified by an inplace operation"),
                         c10::Error);
  }
}

TEST_CASE("changing an input in place afterwards is refused, not replayed wrong") {
  at::Tensor x = parameter({4});
  at::Tensor a = activation(x);
  at::Tensor y = checkpoint([](const at::Tensor& t) { return (t + 1).exp(); }, a);
  a.mul_(2);
  CHECK(error_id([&] { y.sum().backward(); }) == "LT0203");
}

TEST_CASE("a region that changes its input in place") {
  for (const bool retain_graph : {false, true}) {
    same_both_ways([&](Run& run) {
      at::Tensor x = parameter({4, 8});
      at::Tensor a = activation(x);
      at::Tensor y = run(
          [](at::Tensor& t, const at::Tensor& same) {
            at::Tensor before = (same + 1).exp();
            t.mul_(3);
            return before + same.exp().tanh();  // sees the change: one storage
          },
          std::make_tuple(a, a));
      y.sum().backward({}, retain_graph);
      if (retain_graph) y.sum().backward();
      return std::vector<at::Tensor>{y, a, x.grad()};
    });
  }
}

TEST_CASE("an inner region that changes its input in place") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({4, 8});
    at::Tensor y = run(
        [&](const at::Tensor& s) {
          at::Tensor u = s + 1;
          at::Tensor v = run(
              [](at::Tensor& t) {
                at::Tensor before = (t + 1).exp();
                t.mul_(3);
                return before * t.tanh();
              },
              u);
          return v.sin() + u;
        },
        activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad()};
  });
}

TEST_CASE("meta tensors pass through") {
  const auto meta = at::TensorOptions().device(at::kMeta);
  at::Tensor x = at::empty({4, 8}, meta).set_requires_grad(true), w = at::empty({8, 8}, meta);
  at::Tensor y = checkpoint(
      [&](at::Tensor t) { return at::dropout(t.matmul(w).relu_(), 0.5, true).sin(); }, x * 1);
  CHECK(y.is_meta());
  y.sum().backward();
  CHECK(x.grad().is_meta());
  CHECK(x.grad().sizes() == x.sizes());
}

TEST_CASE("backward from another thread") {
  same_both_ways([](Run& run) {
    Mlp mlp;
    at::Tensor x = parameter({4, 8});
    at::Tensor y = run([&](const at::Tensor& t) { return at::dropout(mlp(t), 0.5, true).sin(); },
                       activation(x));
    std::thread([&] { y.sum().backward(); }).join();
    return std::vector<at::Tensor>{y, x.grad(), mlp.w1.grad()};
  });
}

TEST_CASE("two threads train at once") {
  const auto train = [](std::uint64_t seed) {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    at::Tensor w = at::randn({8, 8}, generator).set_requires_grad(true);
    for (int step = 0; step < 20; ++step) {
      at::Tensor x = at::randn({4, 8}, generator);
      at::Tensor y = checkpoint([&](const at::Tensor& t) { return t.matmul(w).tanh().exp(); }, x);
      y.sum().backward();
      const at::NoGradGuard no_grad;
      w.sub_(w.grad() * 0.01);
      w.mutable_grad() = at::Tensor();
    }
    return w.detach();
  };
  const at::Tensor alone = train(1), other_alone = train(2);
  at::Tensor together, other_together;
  std::thread one([&] { together = train(1); }), two([&] { other_together = train(2); });
  one.join();
  two.join();
  CHECK(same_bits(alone, together));
  CHECK(same_bits(other_alone, other_together));
}

TEST_CASE("state that the function changes in itself starts anew in the replay") {
  same_both_ways([](Run& run) {
    at::Tensor x = parameter({4});
    at::Tensor y =
        run([calls = 0](const at::Tensor& t) mutable { return (t * ++calls).sin().exp(); },
            activation(x));
    y.sum().backward();
    return std::vector<at::Tensor>{y, x.grad()};
  });
}

TEST_CASE("a move-only function, and none but captured tensors") {
  at::Tensor x = parameter({4});
  auto factor = std::make_unique<double>(2);
  at::Tensor y = checkpoint([x, factor = std::move(factor)] { return (x * *factor).sin().exp(); },
                            std::tuple<>());
  y.sum().backward();
  CHECK(same_bits(x.grad(), ((x * 2).sin().exp() * (x * 2).cos() * 2).detach()));
}

TEST_CASE("an exception in the first run leaves nothing behind") {
  at::Tensor x = parameter({4});
  const auto token = std::make_shared<int>(0);
  CHECK_THROWS_AS(checkpoint(
                      [token](const at::Tensor& t) -> at::Tensor {
                        at::Tensor u = t.sin().exp();
                        throw std::runtime_error("mine");
                      },
                      x),
                  std::runtime_error);
  CHECK(token.use_count() == 1);
  at::Tensor y = x.exp();  // saved by autograd itself again
  y.sum().backward();
  CHECK(same_bits(x.grad(), y.detach()));
}

}  // namespace
}  // namespace lowtide::testing
