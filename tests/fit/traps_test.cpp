// What trials of the budget tripped over, each as a test. docs/design/budget_traps.md lists them.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/Resize.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>
#include <malloc.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "lowtide/budget.h"
#include "lowtide/checkpoint.h"
#include "lowtide/error.h"
#include "tests/fit/both_ways.h"

using namespace lowtide;           // the tests of one header
using namespace lowtide::testing;  // and their twin runs

namespace {

struct Autocast {
  Autocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

struct DefaultDouble {
  DefaultDouble() { c10::set_default_dtype(caffe2::TypeMeta::Make<double>()); }
  ~DefaultDouble() { c10::set_default_dtype(caffe2::TypeMeta::Make<float>()); }
  DefaultDouble(const DefaultDouble&) = delete;
  DefaultDouble& operator=(const DefaultDouble&) = delete;
};

int side_effects = 0;

Tensor counted_double(const Tensor& x) {
  ++side_effects;
  return x * 2;
}

void double_in_secret(const Tensor& x) {
  auto* const data = x.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] *= 2;
}

void double_openly(Tensor& x) { double_in_secret(x); }

}  // namespace

TORCH_LIBRARY(lowtide_traps, library) {
  library.def("counted_double(Tensor x) -> Tensor");
  library.def("double_in_secret(Tensor x) -> ()");
  library.def("double_openly(Tensor(a!) x) -> ()");
}

TORCH_LIBRARY_IMPL(lowtide_traps, CPU, library) {
  library.impl("counted_double", &counted_double);
  library.impl("double_in_secret", &double_in_secret);
  library.impl("double_openly", &double_openly);
}

namespace {

template <class Signature, class... Arguments>
auto call_custom(const char* name, Arguments&&... arguments) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>().call(
      std::forward<Arguments>(arguments)...);
}

}  // namespace

// ---- T1: what an op reads beside its arguments ----

TEST_CASE("T1: a kernel that asks for grad mode finds the mode it first ran under") {
  same_both_ways([](Held& held) {
    const Tensors weights{(at::randn({4 * 48, 24}) * 0.2).requires_grad_(true),
                          (at::randn({4 * 48, 48}) * 0.2).requires_grad_(true)};
    const Tensor x = at::sin(at::arange(20 * 8 * 24, at::kFloat)).view({20, 8, 24});
    const Tensor h = at::zeros({1, 8, 48});
    Tensor y = std::get<0>(at::lstm(x * 2, {h, h}, weights, false, 1, 0.0, true, false, false));
    const Tensor loss = at::square(at::sin(y)).mean();
    y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, weights[0].grad(), weights[1].grad()};
  });
}

TEST_CASE("T1: a default dtype that was changed since does not reach ops that run again") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor half = at::full({kSide, kSide}, 0.5);
    Tensor ramp = at::arange(kSide * kSide).view({kSide, kSide}) * 0.001;
    const Tensor loss = (w * half).sum() + (w * ramp).sum();
    half = ramp = Tensor();
    {
      const DefaultDouble changed;
      held.drop_all();
      loss.backward();
    }
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T1: what ran without autocast runs again without it, and the other way round") {
  const auto program = [](bool forward_inside) {
    return [forward_inside](Held& held) {
      const Tensor w = parameter();
      Tensor loss;
      {
        std::optional<Autocast> autocast;
        if (forward_inside) autocast.emplace();
        const Tensor y = at::gelu(at::linear(at::relu(at::linear(batch(), w)), w));
        loss = at::square(y).mean();
      }
      held.drop_all();
      std::optional<Autocast> autocast;
      if (!forward_inside) autocast.emplace();
      loss.backward();
      return Tensors{loss, w.grad()};
    };
  };
  same_both_ways(program(true));
  same_both_ways(program(false));
}

// ---- T2: a saved tensor has no version of its own ----

TEST_CASE("T2: statistics that batch norm saved and moved since are seen as they are now") {
  same_results([](Held& held) {
    const std::int64_t channels = 512;
    const Tensor w = at::ones({channels}).requires_grad_(true);
    const Tensor mean = at::zeros({channels}), var = at::ones({channels});
    const Tensor x = at::randn({16, channels}) * w;
    const Tensor evaluated = at::batch_norm(x, w, {}, mean, var, false, 0.1, 1e-5, false);
    const Tensor trained = at::batch_norm(at::sin(x), w, {}, mean, var, true, 0.1, 1e-5, false);
    const Tensor loss = at::square(evaluated).mean() + at::sin(trained).sum();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad(), mean, var};
  });
}

TEST_CASE("T2: a write through .data() to a saved tensor is seen by backward") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor y = at::exp(w * 1);  // saves its result
    y.data().mul_(2);
    const Tensor loss = (y * y.detach()).sum();
    y.data().add_(0.5);
    y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T2: ops that pack their own result before they end are made again") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor y = w * 2;
    at::relu_(y);
    y = y * w;
    at::sigmoid_(y);
    y = at::tanh(y * w);
    const Tensor loss = at::exp(y).sum();
    y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T2: noise that rrelu fills in after autograd packed it is seen") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor y = w * 2;
    at::rrelu_(y, 0.1, 0.4, true);
    const Tensor loss = (at::rrelu(y - 0.1, 0.1, 0.4, true) * y).sum();
    y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T2: a parameter whose data is exchanged is seen with the new data") {
  same_both_ways([](Held& held) {
    Tensor w = parameter();
    const Tensor other = batch();
    const Tensor y = at::sin(at::matmul(batch() * 2, w));
    const Tensor loss = (y * w).sum();
    held.drop_all();
    w.set_data(other);
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad(), w};
  });
}

TEST_CASE("T2: a saved activation, or input, whose data is exchanged is seen with the new data") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor x = batch() * 2;  // needs no grad
    Tensor y = at::sin(w * 3);
    const Tensor loss = (x * w).sum() + (y * w * y).sum();
    x.set_data(at::cos(batch()));
    y.set_data(at::exp(batch()));
    x = y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T2: exchanged data of the same storage, of small tensors and of other memory is seen") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    Tensor turned = at::sin(batch());
    Tensor small = at::cos(at::ones({4, 4}));
    std::vector<float> numbers(kSide * kSide, 3);
    Tensor foreign = at::from_blob(numbers.data(), {kSide, kSide});
    const Tensor loss =
        (turned * w).sum() + (small * w.slice(0, 0, 4).slice(1, 0, 4)).sum() + (foreign * w).sum();
    turned.set_data(turned.t());
    small.set_data(at::full({4, 4}, 5.0));
    foreign.set_data(batch());
    turned = small = foreign = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T2: exchanged data of a tensor that another thread made is seen") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    Tensor h;
    std::thread([&] {
      h = w;
      for (int i = 0; i < 500; ++i) h = h * 1.0;
    }).join();
    const Tensor loss = (h * w).sum();
    h.set_data(batch());
    h = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T2: what was made from a parameter's old data is made from it again") {
  same_both_ways([](Held& held) {
    Tensor w = parameter();
    const Tensor v = parameter();
    const Tensor loss = (at::sin(w.detach()) * v).sum();
    held.drop_all();
    w.set_data(batch());
    loss.backward();
    return Tensors{loss, v.grad(), w};
  });
}

// ---- T3 ----

TEST_CASE("T3: with two threads too, where plain PyTorch repeats itself") {
  const auto program = [](Held& held) {
    at::set_num_threads(2);
    const Tensor w = (at::randn({256, 256}) * 0.2).requires_grad_(true);
    Tensor y = w;
    for (int i = 0; i < 4; ++i) y = at::sin(y * 1.5) + at::exp(-y.square());
    const Tensor loss = y.sum();
    y = Tensor();
    held.drop_all();
    at::set_num_threads(1);  // ops run again with the threads they first had
    loss.backward();
    return Tensors{loss, w.grad()};
  };
  check_same(run(program, From::kPlain), run(program, From::kPlain));
  same_both_ways(program);
}

// ---- T4 ----

TEST_CASE("T4: what composite ops save inside is dropped and made again") {
  struct Case {
    const char* name;
    std::function<Tensor(const Tensor& x, const Tensor& w)> forward;
  };
  const auto image = [](const Tensor& x) { return x.view({4, 16, 8, 8}); };
  const std::vector<Case> cases{
      {"linear",
       [](const Tensor& x, const Tensor& w) { return at::linear(x.view({8, 8, 64}), w); }},
      {"matmul", [](const Tensor& x,
                    const Tensor& w) { return at::matmul(x.view({8, 8, 64}).transpose(0, 1), w); }},
      {"matmul of expanded operands",
       [](const Tensor& x, const Tensor& w) {
         return at::matmul(x.view({8, 8, 64}), w.expand({8, 64, 64}));
       }},
      {"chunk",
       [](const Tensor& x, const Tensor& w) {
         const auto parts = at::chunk(x * w, 2, 1);
         return at::sin(parts[0]) * parts[1];
       }},
      {"narrow",
       [](const Tensor& x, const Tensor& w) { return at::exp(at::narrow(x * w, 0, 8, 32)); }},
      {"max_pool2d",
       [image](const Tensor& x, const Tensor& w) { return at::max_pool2d(image(x * w), 2); }},
      {"rms_norm", [](const Tensor& x, const Tensor& w) { return at::rms_norm(x * w, {kSide}); }},
      {"channel_shuffle",
       [image](const Tensor& x, const Tensor& w) {
         return at::native_channel_shuffle(image(x).detach(), 4).view_as(w) * w;
       }},
      {"silu, twice differentiated",
       [](const Tensor& x, const Tensor& w) {
         const Tensor y = at::silu(x * w);
         return torch::autograd::grad({at::sin(y).sum()}, {w}, {}, true, true)[0];
       }},
      {"mish, twice differentiated",
       [](const Tensor& x, const Tensor& w) {
         const Tensor y = at::mish(x * w);
         return torch::autograd::grad({at::sin(y).sum()}, {w}, {}, true, true)[0];
       }},
      {"max over a dimension, twice differentiated",
       [](const Tensor& x, const Tensor& w) {
         const Tensor y = std::get<0>(at::max(x * w * w, 1));
         return torch::autograd::grad({at::exp(y).sum()}, {w}, {}, true, true)[0];
       }},
  };
  for (const Case& which : cases) {
    CAPTURE(which.name);
    same_both_ways([&](Held& held) {
      const Tensor w = parameter();
      const Tensor loss = at::square(at::sin(which.forward(at::cos(w), w))).mean();
      held.drop_all();
      // All that is left: the parameter, and scalars.
      if (held.budgeted()) CHECK(held.added_bytes() < kBlock + 4096);
      loss.backward();
      return Tensors{loss, w.grad()};
    });
  }
}

// ---- T5, T6 ----

TEST_CASE("T5: saved tensors that need no grad, such as dropout's masks, are dropped") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor y = at::dropout(w, 0.3, true) * at::rand_like(w).gt(0.5);
    const Tensor loss = (y * at::randn_like(y)).sum();
    y = Tensor();
    held.drop_all();
    if (held.budgeted()) CHECK(held.added_bytes() < kBlock + 4096);
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T6: numbers do not take part in type promotion when an op runs again") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor ints = at::arange(kSide * kSide, at::kLong).view({kSide, kSide});
    Tensor scaled = ints * 0.5;
    Tensor shifted = at::scalar_tensor(0.25, at::kDouble) + batch();  // a tensor of no dimension
    CHECK(scaled.dtype() == at::kFloat);
    const Tensor loss = (w * scaled).sum() + (w * shifted).sum();
    ints = scaled = shifted = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T6: conjugated and negated views are made again as such") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor z = at::complex(w, at::sin(w));
    Tensor conjugated = at::conj(z * 2);
    CHECK(conjugated.is_conj());
    Tensor negated = at::imag(conjugated);
    CHECK(negated.is_neg());
    Tensor product = conjugated * at::exp(z) + negated * z;
    const Tensor loss = at::abs(product * at::conj(product)).mean();
    z = conjugated = negated = product = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

// ---- T7: writes to what others were made from ----

TEST_CASE("T7: before a source is written, what was made from it comes back") {
  struct Case {
    const char* name;
    std::function<void(Tensor& source)> write;
  };
  const std::vector<Case> cases{
      {"in place", [](Tensor& s) { s.mul_(5); }},
      {"through .data()", [](Tensor& s) { s.data().mul_(5); }},
      {"through detach()", [](Tensor& s) { s.detach().mul_(5); }},
      {"through a view", [](Tensor& s) { s.slice(0, 8, 16).select(1, 3).add_(5); }},
      {"as one of a list", [](Tensor& s) { at::_foreach_mul_(Tensors{at::ones({4}), s}, 5); }},
      {"as out=", [](Tensor& s) { at::sin_out(s, batch()); }},
      {"as out= of a product", [](Tensor& s) { at::matmul_out(s, batch(), batch()); }},
      {"as one of two out=",
       [](Tensor& s) {
         Tensor where = at::empty({0}, at::kLong);
         at::sort_out(s, where, batch(), 0, true);
       }},
      {"by copy_", [](Tensor& s) { s.copy_(batch()); }},
      {"by index_put_",
       [](Tensor& s) { s.index_put_({at::arange(8, at::kLong)}, at::full({}, 3.0)); }},
      {"by a random op", [](Tensor& s) { s.normal_(); }},
      {"by another library's op",
       [](Tensor& s) { call_custom<void(Tensor&)>("lowtide_traps::double_openly", s); }},
      {"as running mean of batch norm",
       [](Tensor& s) {
         Tensor mean = s.view({kSide * kSide}).slice(0, 0, 512);
         at::native_batch_norm(at::randn({4, 512}), {}, {}, mean, at::ones({512}), true, 0.1, 1e-5);
       }},
      {"as running mean of instance norm",
       [](Tensor& s) {
         const Tensor mean = s.view({kSide * kSide}).slice(0, 0, 512);
         at::instance_norm(at::randn({2, 512, 3}), {}, {}, mean, at::ones({512}), true, 0.1, 1e-5,
                           false);
       }},
      {"resized", [](Tensor& s) { s.resize_({kSide, 2 * kSide}).fill_(1); }},
      {"in inference mode",
       [](Tensor& s) {
         const c10::InferenceMode inference;
         s.mul_(5);
       }},
  };
  for (const Case& which : cases) {
    CAPTURE(which.name);
    same_both_ways([&](Held& held) {
      const Tensor w = parameter();
      Tensor source = batch();
      const Tensor loss = (at::sin(source * 2) * w).sum() + (at::exp(source) * w).sum();
      held.drop_all();
      {
        const c10::NoGradGuard no_grad;
        which.write(source);
      }
      held.drop_all();
      loss.backward();
      return Tensors{loss, w.grad(), source};
    });
  }
}

TEST_CASE("T7: a write during backward, as by an optimizer that runs inside it, counts too") {
  same_both_ways([](Held& held) {
    Tensor w = parameter();
    const Tensor v = parameter();
    // First in the forward, last in backward: reads what was made from w.
    Tensor y = v * at::sin(w.detach());
    y = y + at::cos(y);
    const Tensor used_last = y * at::exp(w.detach() * 0.5);
    Tensor loss = (used_last + w).sum();
    w.register_hook([&w, &held](const Tensor& g) {
      const c10::NoGradGuard no_grad;
      held.drop_all();
      w.sub_(g, 0.5);
      held.drop_all();
    });
    y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad(), v.grad(), w};
  });
}

// ---- T8, T9: changes that nobody announces ----

TEST_CASE(
    "T8: a batch over foreign memory that is refilled before backward never gives another "
    "gradient") {
  std::vector<float> memory(kSide * kSide);
  same_or_divergence([&](Held& held) {
    std::fill(memory.begin(), memory.end(), 0.5f);
    const Tensor w = parameter();
    Tensor x = at::from_blob(memory.data(), {kSide, kSide});
    const Tensor loss = (at::exp(x * 2) * w).sum();
    x = Tensor();
    held.drop_all();
    std::fill(memory.begin(), memory.end(), 3.0f);
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T8: foreign memory that is refilled after backward is no error") {
  std::vector<float> memory(kSide * kSide);
  same_both_ways([&](Held& held) {
    const Tensor w = parameter();
    Tensors losses;
    for (int step = 0; step < 3; ++step) {
      std::fill(memory.begin(), memory.end(), 0.5f + static_cast<float>(step));
      const Tensor x = at::from_blob(memory.data(), {kSide, kSide});
      losses.push_back((at::exp(x * 0.5) * w).sum());
      held.drop_all();
      losses.back().backward();
    }
    losses.push_back(w.grad());
    return losses;
  });
}

TEST_CASE("T8: a write by pointer to what was made from a batch never gives another gradient") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    Tensor x = batch();
    const Tensor loss = (at::exp(x) * w).sum();
    held.drop_all();
    x.mutable_data_ptr<float>()[17] = 2;
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T8: a write by pointer to a saved tensor itself is seen, or is an error") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    Tensor h = at::exp(batch());
    const Tensor loss = (h * w).sum();
    h.detach().mutable_data_ptr<float>()[17] = 2;
    h = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T8: what another library wrote without saying so never gives another gradient") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    const Tensor x = batch();
    const Tensor loss = (at::exp(x) * w).sum();
    held.drop_all();
    call_custom<void(const Tensor&)>("lowtide_traps::double_in_secret", x);
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE(
    "T8: a batch that is refilled does not go unseen where only an op's workspace was dropped") {
  std::vector<float> memory(20 * 8 * 24);
  same_or_divergence([&](Held& held) {
    std::fill(memory.begin(), memory.end(), 0.5f);
    const Tensors weights{(at::randn({4 * 48, 24}) * 0.2).requires_grad_(true),
                          (at::randn({4 * 48, 48}) * 0.2).requires_grad_(true)};
    const Tensor x = at::from_blob(memory.data(), {20, 8, 24});
    const Tensor h = at::zeros({1, 8, 48});
    auto [y, hidden, cell] = at::lstm(x, {h, h}, weights, false, 1, 0.0, true, false, false);
    const Tensor loss = at::square(y).mean();
    held.drop_all();  // not y, hidden and cell: they are held here
    std::fill(memory.begin(), memory.end(), 1.5f);
    loss.backward();
    return Tensors{loss, weights[0].grad(), weights[1].grad()};
  });
}

namespace {

void resize_storage(const Tensor& tensor, std::size_t size_bytes) {
  at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), size_bytes);
}

}  // namespace

TEST_CASE("T9: a storage that is emptied after forward and filled again before backward") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    const Tensor shard = batch();
    const Tensor full = at::empty({kSide, kSide});
    full.copy_(shard);
    const Tensor loss = (at::exp(full) * w).sum() + (full * w).sum();
    held.drop_all();
    resize_storage(full, 0);
    held.drop_all();
    resize_storage(full, kBlock);
    full.data().copy_(shard);
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T9: a source that is emptied and stays so is an error or no loss") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    const Tensor full = batch();
    const Tensor loss = (at::exp(full) * w).sum();
    held.drop_all();
    resize_storage(full, 0);
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE(
    "T9: a source that is emptied and filled with other values never gives another gradient") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    const Tensor full = batch();
    const Tensor loss = (at::exp(full) * w).sum();
    held.drop_all();
    resize_storage(full, 0);
    resize_storage(full, kBlock);
    full.fill_(2);
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T9: a saved tensor that is emptied and filled again is seen with what it has now") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    Tensor full = at::exp(batch());
    const Tensor loss = (full * w).sum();
    {
      const Tensor same = full.data();
      resize_storage(same, 0);
      held.drop_all();
      resize_storage(same, kBlock);
      same.fill_(2);
    }
    full = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T9: a tensor that is given another one's storage") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    Tensor x = batch();
    Tensor y = at::cos(batch());
    const Tensor loss = (at::exp(x) * w).sum() + (at::exp(y) * w).sum();
    held.drop_all();
    {
      const c10::NoGradGuard no_grad;
      x.set_(y);
      x.mul_(3);
    }
    const Tensor more = (at::exp(x) * w).sum() + (at::sin(y) * w).sum();
    held.drop_all();
    {
      const c10::NoGradGuard no_grad;
      y.add_(1);
      x.set_(at::ones({kSide, kSide}).storage(), 0, {kSide, kSide}, {kSide, 1});
      x.add_(1);
    }
    held.drop_all();
    (loss + more).backward();
    return Tensors{loss, more, w.grad(), x, y};
  });
}

// ---- T10 ----

TEST_CASE("T10: a chain of 20,000 ops without grad is made again without recursion, or kept") {
  same_results([](Held& held) {
    const Tensor w = at::ones({16, 16}).requires_grad_(true);
    Tensor x = at::ones({16, 16});
    {
      const c10::NoGradGuard no_grad;
      for (int i = 0; i < 20'000; ++i) x = x * 0.9999;
    }
    const Tensor loss = (x * w).sum();
    x = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T10: what is known of a loop without grad does not grow with its length") {
  at::set_num_threads(1);
  const Held held(From::kRecipe);
  Tensor x = at::ones({16, 16});
  const c10::NoGradGuard no_grad;
  const auto grown = [&](int count) {
    const auto before = mallinfo2().uordblks;
    for (int i = 0; i < count; ++i) x = x * 0.9999;
    const auto after = mallinfo2().uordblks;
    return after > before ? after - before : 0;
  };
  grown(20'000);
  CHECK(grown(80'000) < 8u << 20);
}

// ---- T11 ----

TEST_CASE("T11: kernels that call ops and allocate on several threads") {
  const auto program = [](Held& held) {
    at::set_num_threads(2);
    const Tensor w = parameter();
    Tensor y = at::exp(w * 2);
    const Tensor loss = at::sin(y).sum();
    const Tensor sums = at::zeros({64});
    y = Tensor();
    at::parallel_for(0, 64, 1, [&](std::int64_t begin, std::int64_t end) {
      const c10::NoGradGuard no_grad;
      for (std::int64_t i = begin; i < end; ++i) {
        const Tensor part = at::full({kSide, kSide}, static_cast<double>(i)).sin_();
        sums.mutable_data_ptr<float>()[i] = part.sum().item<float>();
      }
    });
    held.drop_all();
    loss.backward();
    at::set_num_threads(1);
    return Tensors{loss, w.grad(), sums};
  };
  same_both_ways(program);
}

// ---- T12 ----

TEST_CASE("T12: running statistics move once, whatever is made again") {
  same_both_ways([](Held& held) {
    const std::int64_t channels = 512;
    const Tensor w = at::ones({channels}).requires_grad_(true);
    const Tensor mean = at::zeros({channels}), var = at::ones({channels});
    const Tensor count = at::zeros({}, at::kLong);
    const Tensor instance_mean = at::zeros({channels}), instance_var = at::ones({channels});
    Tensors losses;
    for (int step = 0; step < 3; ++step) {
      Tensor x = at::randn({8, channels}) * w;
      for (int layer = 0; layer < 2; ++layer) {
        count.add_(1);
        const double momentum = 1.0 / count.item<double>();  // a cumulative average
        x = at::sin(at::batch_norm(x, w, {}, mean, var, true, momentum, 1e-5, false));
      }
      Tensor y = at::instance_norm(x.view({2, channels, 4}), w, {}, instance_mean, instance_var,
                                   true, 0.1, 1e-5, false);
      losses.push_back(at::exp(y).mean());
      x = y = Tensor();
      held.drop_all();
      losses.back().backward();
    }
    Tensors results = losses;
    results.insert(results.end(), {w.grad(), mean, var, count, instance_mean, instance_var});
    return results;
  });
}

// ---- T13 ----

TEST_CASE("T13: ops with out= arguments and several writes") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor a = at::empty({0}), b = at::empty({kSide, kSide}), values = at::empty({0});
    Tensor where = at::empty({0}, at::kLong);
    {
      const c10::NoGradGuard no_grad;
      at::mul_out(a, batch(), batch());  // grows a
      at::sin_out(b, a);
      at::sort_out(values, where, b, 1, false);  // writes two
      at::add_out(b, b, values);
      at::_foreach_mul_(Tensors{a, values}, 0.5);
    }
    const Tensor loss = (w * a).sum() + (w * b).sum() + (at::exp(w * values) * at::cos(b)).sum() +
                        (w * where).sum();
    a = b = values = where = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T13: another library's op, which may have side effects, never runs again") {
  same_both_ways([](Held& held) {
    side_effects = 0;
    const Tensor w = parameter();
    Tensor y =
        at::exp(call_custom<Tensor(const Tensor&)>("lowtide_traps::counted_double", batch()));
    const Tensor loss = (y * w).sum();
    y = Tensor();
    held.drop_all();
    loss.backward();
    CHECK(side_effects == 1);
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T13: an op in place that failed leaves what was made from its target right") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor y = batch() * 2;
    const Tensor loss = (at::exp(y) * w).sum();
    y.add_(1);
    held.drop_all();
    CHECK_THROWS_AS(y.add_(at::ones({3, 5})), c10::Error);
    CHECK_THROWS_AS(at::add_out(y, at::ones({7}), at::ones({3})), c10::Error);
    const Tensor more = (at::cos(y) * w).sum();
    held.drop_all();
    (loss + more).backward();
    return Tensors{loss, more, w.grad(), y};
  });
}

// ---- T14, T15, T16 ----

TEST_CASE(
    "T14: near and below the floor a step is refused, or runs again a bounded number of ops") {
  at::set_num_threads(1);
  constexpr unsigned kLayers = 64;
  constexpr unsigned kSteps = 3;
  const auto train = [](std::optional<Bytes> room) {
    at::manual_seed(7);
    const Tensor w = parameter();
    const MemoryMeter meter;
    std::optional<MemoryBudget> budget;
    if (room.has_value()) budget.emplace(meter.live_bytes() + *room);
    std::pair<Tensor, BudgetReport> outcome;
    try {
      for (unsigned step = 0; step < kSteps; ++step) {
        Tensor y = w;
        for (unsigned i = 0; i < kLayers; ++i) y = at::sin(y * 1.25);
        const Tensor loss = y.sum();
        y = Tensor();
        loss.backward();
      }
      outcome.first = w.grad().clone();
    } catch (const BudgetError&) {
      w.mutable_grad() = Tensor();
    }
    if (budget.has_value()) outcome.second = budget->report();
    budget.reset();
    at::ones({1}).requires_grad_(true).sum().backward();
    return outcome;
  };
  const Tensor plain = train(std::nullopt).first;
  int refused = 0;
  int finished = 0;
  for (const int blocks : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48}) {
    CAPTURE(blocks);
    const auto [gradient, report] = train(blocks * kBlock);
    (gradient.defined() ? finished : refused) += 1;
    if (gradient.defined()) CHECK(same_bits(gradient, plain));
    // With room for nothing, each layer's two ops run again for each layer behind it. No more.
    CHECK(report.recomputed_ops <= kSteps * kLayers * kLayers);
  }
  CHECK(refused > 0);
  CHECK(finished > 5);
}

TEST_CASE("T15: a storage with very many writes in place") {
  const BudgetReport report = same_results([](Held& held) {
    const Tensor w = parameter();
    Tensor sum = at::zeros({kSide, kSide});
    Tensor loss = at::zeros({});
    for (int i = 0; i < 300; ++i) {
      sum.select(0, i % kSide).add_(batch().select(0, i % 7));
      if (i % 100 == 50) loss = loss + (at::exp(sum) * w).sum();
    }
    loss = loss + (sum * w).sum();
    sum = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
  CHECK(report.recomputed_ops < 2000);
}

TEST_CASE("T16: writes to tiny tensors count like any other") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor scale = at::full({}, 2.0), row = at::ones({kSide});
    const Tensor loss = (at::sin(batch() * scale) * w).sum() + (at::exp(row - batch()) * w).sum();
    held.drop_all();
    scale.mul_(3);
    row.data().add_(1);
    held.drop_all();
    const Tensor more = (at::sin(batch() * scale) * w).sum() + (at::exp(row - batch()) * w).sum();
    held.drop_all();
    at::_foreach_add_(Tensors{scale, row}, 1.0);
    held.drop_all();
    (loss + more).backward();
    return Tensors{loss, more, w.grad(), scale, row};
  });
}

// ---- T17, T18 ----

TEST_CASE("T17: random ops give their numbers again and leave every generator as it was") {
  same_both_ways([](Held& held) {
    at::Generator own = at::detail::createCPUGenerator(5);
    const Tensor w = parameter();
    Tensor a = at::dropout(w * 2, 0.4, true);
    Tensor b = at::empty_like(w.detach()).bernoulli_(0.7, own);
    Tensor c = at::randn({kSide, kSide}, own);  // an odd count leaves half a Box-Muller pair
    Tensor d =
        at::normal(batch(), 0.5, own) + at::randn({kSide * kSide + 1}).slice(0, 1).view_as(w);
    Tensor e = at::index_select(w, 0, at::randperm(kSide, at::kLong));
    Tensor y = at::sin(a * b) * c + at::exp(d * w) * at::tanh(e);
    const Tensor loss = (at::multinomial(at::softmax(y.detach(), 1), 8) * y.slice(1, 0, 8)).sum();
    // The program itself draws during backward, between bring-backs.
    Tensors drawn;
    y.register_hook([&](const Tensor& g) {
      drawn.push_back(at::rand({8}));
      drawn.push_back(at::rand({8}, own));
      return g + at::randn_like(g) * 0.1;
    });
    a = b = c = d = e = y = Tensor();
    held.drop_all();
    loss.backward();
    Tensors results{loss, w.grad(), own.get_state()};
    results.insert(results.end(), drawn.begin(), drawn.end());
    return results;
  });
}

TEST_CASE("T18: overloads of one name are not taken for one another") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    const Tensor x = at::abs(batch()) + 0.5;
    Tensors parts{at::add(x, x),
                  at::add(x, 2.5),
                  at::pow(x, x),
                  at::pow(x, 2.5),
                  at::pow(2.5, x),
                  at::sub(x, x, 0.5),
                  at::sum(x, {1}, true) * x,
                  at::sum(x) * x,
                  std::get<0>(at::max(x, 1, true)) * x};
    Tensor loss = at::zeros({});
    for (const Tensor& part : parts) loss = loss + (at::exp(part * 0.1) * w).sum();
    parts.clear();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

// ---- T19: tensors of other kinds ----

TEST_CASE("T19: sparse, quantized, nested and meta tensors pass through") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor base = at::exp(w * 0.5);
    const Tensor sparse = at::sparse_coo_tensor(
        at::arange(128, at::kLong).remainder(64).view({2, 64}), at::ones({64}), {kSide, kSide});
    Tensor a = at::_sparse_mm(sparse, base);
    Tensor b = at::quantize_per_tensor(batch(), 0.05, 10, at::kQInt8).dequantize() * base;
    const Tensor nested = at::_nested_tensor_from_tensor_list({base.slice(0, 0, 16), base * 2});
    Tensor c = at::nested_to_padded_tensor(nested, 0.25);
    Tensor sparse_of_base = at::sin(base).to_sparse();
    Tensor d = at::_sparse_sum(sparse_of_base) * base;
    const Tensor m = at::empty({kSide, kSide}, at::TensorOptions(at::kMeta)).requires_grad_(true);
    at::sin(m * m).sum().backward();
    CHECK(m.grad().is_meta());
    const Tensor loss =
        at::square(a).sum() + at::sin(b).sum() + at::square(c).sum() + at::exp(d * 1e-4).sum();
    a = b = c = d = base = sparse_of_base = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T19: sparse gradients") {
  same_both_ways([](Held& held) {
    const Tensor table = parameter();
    Tensor rows = at::embedding(table, at::arange(64, at::kLong).remainder(7), -1, false, true);
    const Tensor loss = at::exp(rows * rows).sum();
    rows = Tensor();
    held.drop_all();
    loss.backward();
    CHECK(table.grad().is_sparse());
    return Tensors{loss, table.grad().to_dense()};
  });
}

TEST_CASE("T19: views by as_strided, unfold and unsafe_chunk, written in place") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor y = w * 2;
    y.as_strided({kSide, 16}, {kSide, 2}, 3).mul_(0.5);
    Tensor z = at::sin(y);
    z.unfold(1, 4, 8).add_(0.25);
    Tensor u = z * w;
    auto parts = at::unsafe_chunk(u, 2, 0);
    parts[0].mul_(3);
    parts[1].tanh_();
    const Tensor loss =
        (at::exp(parts[0]) * parts[1]).sum() + at::cos(z.as_strided({80, 8}, {9, 5})).sum();
    y = z = u = Tensor();
    parts.clear();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T19: lazily cloned tensors") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    Tensor x = batch();
    Tensor y = at::exp(x);
    const Tensor loss = (y * w).sum() + (at::sin(x) * w).sum();
    Tensor x_clone = at::_lazy_clone(x), y_clone = at::_lazy_clone(y);
    const Tensor more = (at::exp(x_clone) * w).sum() + (at::sin(y_clone) * w).sum();
    held.drop_all();
    x.mul_(2);
    y_clone.mul_(3);
    y.data().mul_(2);
    y = y_clone = Tensor();
    held.drop_all();
    (loss + more).backward();
    return Tensors{loss, more, w.grad(), x, x_clone};
  });
}

// ---- autograd's own corners ----

TEST_CASE("a retained graph gives the same gradients each time, dropped in between") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor y = at::dropout(at::sin(w * 2), 0.3, true);
    const Tensor loss = at::exp(y * w).sum();
    y = Tensor();
    Tensors results{loss};
    for (int i = 0; i < 3; ++i) {
      held.drop_all();
      loss.backward({}, /*retain_graph=*/i < 2);
      results.push_back(w.grad().clone());
    }
    return results;
  });
}

TEST_CASE("double backward goes through what was dropped, forward's and backward's") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter(), v = parameter();
    Tensor y = at::tanh(at::matmul(at::sin(w * 2), v));
    const Tensor loss = at::exp(y).sum();
    y = Tensor();
    held.drop_all();
    Tensors first = torch::autograd::grad({loss}, {w, v}, {}, true, /*create_graph=*/true);
    held.drop_all();
    Tensors second = torch::autograd::grad({(first[0] * first[1]).sum()}, {w, v}, {}, true,
                                           /*create_graph=*/true);
    held.drop_all();
    const Tensor penalty = at::square(second[0]).sum() + at::sin(second[1]).sum();
    first.clear();
    second.clear();
    held.drop_all();
    penalty.backward();
    return Tensors{loss, penalty, w.grad(), v.grad()};
  });
}

namespace {

// Saves an input, an output, an intermediate and a tensor from elsewhere.
struct Mixed : torch::autograd::Function<Mixed> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const Tensor& x, const Tensor& scale) {
    const Tensor gate = at::sigmoid(x);
    const Tensor y = x * gate * scale;
    context->save_for_backward({x, gate, y, scale});
    return {y, gate};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& gate = saved[1];
    const Tensor slope = gate * (1 - gate);
    const Tensor from_y = grads[0] * (gate * saved[3] + x * slope * saved[3]);
    return {from_y + grads[1] * slope, (grads[0] * saved[2] / saved[3]).sum()};
  }
};

}  // namespace

TEST_CASE("a custom autograd function that saves inputs, outputs and others") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    const Tensor scale = at::full({}, 1.5).requires_grad_(true);
    auto both = Mixed::apply(w * 2, scale);
    const Tensor loss = (at::exp(both[0] * 0.1) * at::cos(both[1])).sum();
    both.clear();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad(), scale.grad()};
  });
}

TEST_CASE("backward on another thread than forward's") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor y = at::dropout(at::exp(w * 0.5), 0.2, true);
    Tensor loss = at::sin(y * w).sum();
    y = Tensor();
    held.drop_all();
    std::thread([&] {
      at::set_num_threads(1);
      loss.backward();
    }).join();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("two threads that train at once under one budget") {
  same_both_ways([](Held& held) {
    std::array<Tensors, 2> results;
    const Tensors weights{parameter(), parameter()};
    const auto train = [&](std::size_t which) {
      at::set_num_threads(1);
      const Tensor& w = weights[which];
      at::Generator own = at::detail::createCPUGenerator(which);
      for (int step = 0; step < 20; ++step) {
        Tensor y = w;
        for (int i = 0; i < 6; ++i) {
          y = at::sin(y * w) * at::empty_like(w.detach()).bernoulli_(0.9, own);
        }
        Tensor loss = at::exp(y).mean();
        y = Tensor();
        if (which == 0 && step % 5 == 0) held.drop_all();
        loss.backward();
        const c10::NoGradGuard no_grad;
        const_cast<Tensor&>(w).sub_(w.grad(), 0.1);
        results[which].push_back(loss.detach());
      }
    };
    std::thread other(train, 1);
    // The fill of drop_all() takes the other thread's room too: without a budget of its own it
    // would be refused, so it is joined first when there is one.
    if (held.budgeted()) other.join();
    train(0);
    if (!held.budgeted()) other.join();
    Tensors all = results[0];
    all.insert(all.end(), results[1].begin(), results[1].end());
    all.insert(all.end(), weights.begin(), weights.end());
    return all;
  });
}

TEST_CASE("checkpointed regions inside a budget") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter(), v = parameter();
    const auto region = [&v](const Tensor& x) {
      return at::dropout(at::tanh(at::matmul(at::sin(x), v)), 0.2, true);
    };
    Tensor y = at::exp(w * 0.5);
    y = checkpoint(region, y);
    y = at::cos(y * w);
    y = checkpoint(region, y);
    const Tensor loss = at::exp(y).sum();
    y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad(), v.grad()};
  });
}

TEST_CASE("an exception in the middle of a step leaves the next step right") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    const auto forward = [&] {
      Tensor y = at::dropout(at::exp(w * 0.5), 0.2, true);
      return at::sin(y * w);
    };
    Tensors results;
    try {
      const Tensor y = forward();
      held.drop_all();
      throw std::runtime_error("the user's own");
    } catch (const std::runtime_error&) {
    }
    try {
      const Tensor y = forward();
      const Tensor z = at::exp(y);
      y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("in backward"); });
      held.drop_all();
      z.sum().backward();
    } catch (const std::exception&) {
    }
    at::ones({1}).requires_grad_(true).sum().backward();
    CHECK_THROWS_AS(at::matmul(forward(), at::ones({3, 3})), c10::Error);
    for (int step = 0; step < 2; ++step) {
      const Tensor loss = at::exp(forward()).sum();
      held.drop_all();
      loss.backward();
      results.push_back(loss);
      results.push_back(w.grad().clone());
    }
    return results;
  });
}

TEST_CASE("a write to the result of an op whose other results were dropped") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    auto [values, where] = at::sort(batch() * 3, 1);
    Tensor exponentials = at::exp(values);
    const Tensor loss = (exponentials * w).sum() + at::gather(w, 1, where).sum();
    where = exponentials = Tensor();
    held.drop_all();
    values.mul_(2);
    values.slice(0, 0, 4).zero_();
    const Tensor more = (at::sin(values) * w).sum();
    values = Tensor();
    held.drop_all();
    (loss + more).backward();
    return Tensors{loss, more, w.grad()};
  });
}

TEST_CASE("results of an op that nobody needs, whose places in the tables went to others") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor where = at::argsort(batch() * 3, /*stable=*/true, 1, false);  // sorted values: gone
    Tensors losses{at::exp(w).sum(), at::tanh(w).sum(), at::sigmoid(w).sum()};
    losses.push_back(at::gather(w, 1, where).sum());
    where = Tensor();
    held.drop_all();
    torch::autograd::backward(losses, {});
    return Tensors{w.grad()};
  });
}

TEST_CASE("the median of an expanded tensor, which is not the same twice, is kept") {
  Held held(From::kRecipe);
  const Tensor w = parameter();
  // Doubles, and so many: it depends on what the kernel finds behind them.
  Tensor medians =
      std::get<0>(at::median(at::rand({64}, at::kDouble).repeat({8}).expand({3, 512}), 0));
  const Tensor loss = (w.view({-1, 512}) * medians).sum();
  medians = Tensor();
  held.drop_all();
  CHECK_NOTHROW(loss.backward());
}

TEST_CASE("a buffer from empty() that is partly written by pointer is an error or right") {
  same_or_divergence([](Held& held) {
    const Tensor w = parameter();
    Tensor y = at::empty({kSide, kSide});
    std::fill_n(y.mutable_data_ptr<float>(), y.numel(), 0.25f);
    y.slice(0, 0, 8).fill_(2);
    const Tensor loss = (y * w).sum();
    y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("a tensor filled by pointer after empty() is kept") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    Tensor y = at::empty({kSide, kSide});
    std::fill_n(y.mutable_data_ptr<float>(), y.numel(), 0.25f);
    const Tensor loss = (y * w).sum() + (at::exp(y) * w).sum();
    y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("inference mode while tensors of a graph are dropped") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    const Tensor x = batch();
    const Tensor loss = (at::exp(x * 2) * w).sum();
    held.drop_all();
    Tensor seen;
    {
      const c10::InferenceMode inference;
      seen = at::tanh(at::matmul(x, w));
      seen.add_(1);
      held.drop_all();
    }
    loss.backward();
    return Tensors{loss, w.grad(), seen};
  });
}

TEST_CASE("a graph that was begun without a budget, or under another one") {
  at::set_num_threads(1);
  const auto train = [](bool budgeted) {
    at::manual_seed(7);
    const Tensor w = parameter();
    auto held = std::make_unique<Held>(From::kPlain);
    Tensor y = at::dropout(at::sin(w * 2), 0.3, true);
    held.reset();
    held = std::make_unique<Held>(budgeted ? From::kRecipe : From::kPlain);
    y = at::exp(y * w);
    held->drop_all();
    held.reset();
    held = std::make_unique<Held>(budgeted ? From::kRecipe : From::kPlain);
    Tensor loss = at::sin(y).sum();
    y = Tensor();
    held->drop_all();
    held.reset();
    held = std::make_unique<Held>(budgeted ? From::kRecipe : From::kPlain);
    held->drop_all();
    loss.backward();
    return Tensors{loss, w.grad()};
  };
  const Tensors plain = train(false), budgeted = train(true);
  CHECK(same_bits(plain[0], budgeted[0]));
  CHECK(same_bits(plain[1], budgeted[1]));
}

TEST_CASE("a graph that is let go without backward gives its bytes back") {
  at::set_num_threads(1);
  Held held(From::kRecipe);
  const Tensor w = parameter();
  const Bytes before = held.added_bytes();
  {
    Tensor y = w;
    for (int i = 0; i < 8; ++i) y = at::sin(y * 2) * w;
    held.drop_all();
  }
  CHECK(held.report().drops > 0);
  CHECK(held.added_bytes() == before);
}

TEST_CASE("what several steps leave behind is what the plain run leaves") {
  at::set_num_threads(1);
  const auto left = [](bool budgeted) {
    Held held(budgeted ? From::kRecipe : From::kPlain);
    const Tensor w = parameter();
    for (int step = 0; step < 4; ++step) {
      Tensor y = w * 2;
      y.add_(batch()).relu_();
      y = y * 1;
      y.slice(0, 0, 8).mul_(3);
      const Tensor loss = at::exp(at::layer_norm(y, {kSide})).sum();
      held.drop_all();
      loss.backward();
      const c10::NoGradGuard no_grad;
      const_cast<Tensor&>(w).sub_(w.grad(), 0.01);
    }
    return held.added_bytes();
  };
  CHECK(left(false) == left(true));
}

// ---- T20: which tensor a saved tensor is ----

namespace {

// Its gradient is a tensor that it saved.
struct Product : torch::autograd::Function<Product> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& w) {
    context->save_for_backward({x});
    return (x * w).sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& /*grads*/) {
    return {Tensor(), context->get_saved_variables()[0]};
  }
};

}  // namespace

TEST_CASE("T20: a gradient that is a saved batch is no part of that batch") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    const Tensor x = batch();
    Tensor loss = Product::apply(x, w);
    held.drop_all();
    loss.backward();
    const Tensor first = w.grad().clone();
    w.grad().zero_();
    loss = Product::apply(x, w);
    loss.backward();
    return Tensors{loss, x, first, w.grad()};
  });
}

TEST_CASE("T20: a gradient that is a saved tensor of a retained graph is no part of that graph") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    const Tensor loss = Product::apply(at::exp(batch()), w) + (at::exp(w * 2)).sum();
    Tensors results{loss};
    held.drop_all();
    for (int i = 0; i < 3; ++i) {
      loss.backward({}, true);
      results.push_back(w.grad().clone());
      w.grad().zero_();
      w.mutable_grad() = Tensor();
    }
    return results;
  });
}

TEST_CASE("T20: one tensor that two functions saved is one tensor when it is back") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter(), v = parameter();
    Tensor x = at::exp(batch());
    Tensor a = Product::apply(x, w);
    Tensor b = Product::apply(x, v);
    x = Tensor();
    held.drop_all();
    a.backward({}, true);
    b.backward();
    w.grad().zero_();  // not v's gradient, nor what the graph keeps
    w.mutable_grad() = Tensor();
    a.backward();
    return Tensors{a, b, w.grad(), v.grad()};
  });
}

// ---- T21: tensors that leave the graph, or enter it, after they were saved ----

TEST_CASE("T21: a saved tensor that was detached in place is an error, as it is plainly") {
  for (const bool budgeted : {false, true}) {
    CAPTURE(budgeted);
    Held held(budgeted ? From::kRecipe : From::kPlain);
    const Tensor w = parameter();
    Tensor x = w * 2;
    const Tensor y = (x * x).sum();
    x.detach_();
    x = Tensor();
    held.drop_all();
    CHECK_THROWS_WITH_AS(y.backward(), doctest::Contains("detached in-place"), c10::Error);
  }
}

TEST_CASE("T21: a gradient that is to be differentiated needs its tensors as they were saved") {
  for (const bool later : {false, true}) {
    Held held(From::kRecipe);
    const Tensor w = parameter();
    const Tensor c = at::sin(batch()).requires_grad_(!later);
    const Tensor y = (w * c).sum();
    c.requires_grad_(later);
    held.drop_all();
    const auto gradient = [&](bool create_graph) {
      return torch::autograd::grad({y}, {w}, {}, true, create_graph);
    };
    CHECK(same_bits(gradient(false)[0], c.detach()));
    try {
      gradient(true);
      FAIL("not noticed");
    } catch (const DivergenceError& error) {
      CHECK(error.id() == "LT0317");
    }
    c.requires_grad_(!later);
    CHECK(same_bits(gradient(true)[0].detach(), c.detach()));
  }
}

// ---- T9, continued ----

TEST_CASE("T9: a saved activation that is moved to other memory, as to shared memory") {
  const auto program = [](bool dropped_before) {
    return [dropped_before](Held& held) {
      const Tensor w = parameter();
      Tensor h = at::exp(w * 0.1), k = at::sin(h);
      const Tensor loss = (k * k + h * h).sum();
      if (dropped_before) held.drop_all();
      c10::Storage storage = h.storage();
      c10::DataPtr moved = c10::GetDefaultCPUAllocator()->allocate(storage.nbytes());
      std::memcpy(moved.get(), storage.data(), storage.nbytes());
      storage.set_data_ptr(std::move(moved));
      h.data().mul_(1.5);
      h = k = Tensor();
      storage = c10::Storage();
      held.drop_all();
      loss.backward();
      return Tensors{loss, w.grad()};
    };
  };
  same_results(program(false));
  same_results(program(true));
}

// ---- T13, continued ----

TEST_CASE("T13: buffers of which only a part is ever written") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    Tensors old(8);
    for (Tensor& t : old) t = at::full({kSide, 96}, 3.0);
    old.clear();
    Tensor padded = at::empty({kSide, 80});
    padded.slice(1, 0, kSide).copy_(at::tanh(batch()));
    Tensor gaps = at::empty_strided({kSide, kSide}, {96, 1}).normal_();
    const Tensor loss = (w * padded.slice(1, 0, kSide)).square().sum() + (w * gaps.exp()).sum();
    padded = gaps = Tensor();
    held.drop_all();
    for (int i = 0; i < 8; ++i) old.push_back(at::full({kSide, 96}, 0.5 * i));
    old.clear();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T13: results that lie in a larger storage are kept") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    Tensor folded =
        at::col2im(at::exp(w).view({1, 64, 64}), {11, 11}, {4, 4}, {1, 1}, {0, 0}, {1, 1});
    const Tensor loss = (folded * folded).sum();
    folded = Tensor();
    held.drop_all();
    Tensors other(8);
    for (Tensor& t : other) t = at::full({4 * kSide, kSide}, 0.5);
    other.clear();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

TEST_CASE("T13: least squares, which is not the same twice, is kept") {
  at::set_num_threads(1);
  Held held(From::kRecipe);
  const Tensor w = parameter();
  Tensor solved = std::get<0>(at::linalg_lstsq(w.detach() + at::eye(kSide), at::sin(batch())));
  const Tensor loss = (solved * w).sum();
  solved = Tensor();
  held.drop_all();
  const Tensor other = at::full({1001}, 0.5);
  CHECK_NOTHROW(loss.backward());
}

TEST_CASE("T13: ops that write beside what they return do so once") {
  const auto program = [](const char* name, const char* overload) {
    return [=](Held& held) {
      const std::int64_t channels = 512;
      const Tensor w = at::ones({channels}).requires_grad_(true);
      const Tensor mean = at::zeros({channels}), var = at::ones({channels});
      Tensor x = at::randn({16, channels}) * w;
      const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
      std::vector<c10::IValue> stack{x, w, c10::IValue(), mean, var};
      if (std::string_view(overload).empty() && op.schema().arguments()[5].name() == "training") {
        stack.emplace_back(true);
      }
      stack.emplace_back(0.1);
      stack.emplace_back(1e-5);
      op.callBoxed(stack);
      Tensor y = at::sin(stack.front().toTensor());
      stack.clear();
      const Tensor loss = (y * y).sum();
      x = y = Tensor();
      held.drop_all();
      loss.backward();
      return Tensors{loss, w.grad(), mean, var};
    };
  };
  same_both_ways(program("aten::_native_batch_norm_legit", ""));
  same_both_ways(program("aten::_batch_norm_with_update", ""));
}

TEST_CASE("T13: a write that cannot be recorded for want of room is not forgotten") {
  at::set_num_threads(1);
  const Tensor w = parameter();
  const MemoryMeter meter;
  const auto begin = [&] {
    BudgetOptions options;
    options.verify_replay = true;  // copies what is written in place
    return MemoryBudget(meter.live_bytes() + 64 * kBlock + kBlock / 2, options);
  };
  const MemoryBudget budget = begin();
  const auto fill = [] {
    Tensors all;
    try {
      for (;;) all.push_back(at::empty({kSide, kSide}));
    } catch (const BudgetError&) {
    }
    return all;
  };
  Tensor y = at::exp(batch());
  Tensors room = fill();
  y.mul_(3);
  room.clear();
  const Tensor expected = y.clone();
  const Tensor loss = (y * w).sum();
  y = Tensor();
  room = fill();
  room.clear();
  loss.backward();
  CHECK(same_bits(w.grad(), expected));
}

// ---- T1, continued ----

TEST_CASE("T1: denormal numbers that were flushed since, or were when an op first ran") {
  const auto program = [](bool first) {
    return [first](Held& held) {
      const Tensor w = parameter();
      at::globalContext().setFlushDenormal(first);
      Tensor y = (batch() * 1e-20 * 1e-20) * w, z = y * 1.5;
      const Tensor loss = (y * z + w * z).sum() * 1e30;
      y = z = Tensor();
      held.drop_all();
      at::globalContext().setFlushDenormal(!first);
      loss.backward();
      at::globalContext().setFlushDenormal(false);
      return Tensors{loss, w.grad()};
    };
  };
  same_both_ways(program(false));
  same_both_ways(program(true));
}

TEST_CASE("T1: float32 precisions by backend are put back, and what follows another goes on so") {
  using Backend = at::Float32Backend;
  using Op = at::Float32Op;
  using Precision = at::Float32Precision;
  at::Context& context = at::globalContext();
  const auto set = [&](Op op, Precision precision) {
    context.setFloat32Precision(Backend::MKLDNN, op, precision);
  };
  const auto matmul = [&] { return context.float32Precision(Backend::MKLDNN, Op::MATMUL); };
  const auto program = [&](Op level) {
    return [&, level](Held& held) {
      const Tensor w = parameter();
      Tensor y = at::exp(at::tanh(at::matmul(batch(), w)));
      set(level, Precision::BF16);  // older names of the setting now disagree, and throw
      y.data().mul_(2);
      const Tensor loss = (y * at::sin(y)).sum();
      y = Tensor();
      held.drop_all();
      loss.backward();
      CHECK(matmul() == Precision::BF16);
      set(level, Precision::NONE);
      const bool follows = matmul() == context.float32Precision(Backend::MKLDNN, Op::ALL);
      set(Op::ALL, Precision::TF32);
      CHECK(matmul() == Precision::TF32);  // no replay has fixed it
      set(Op::ALL, Precision::NONE);
      CHECK(follows);
      return Tensors{loss, w.grad()};
    };
  };
  same_both_ways(program(Op::ALL));
  same_both_ways(program(Op::MATMUL));
}

TEST_CASE("T1: backward inside inference mode") {
  same_both_ways([](Held& held) {
    const Tensor w = parameter();
    Tensor h = at::tanh(at::matmul(batch() * 2, w));
    Tensor y = at::exp(h);
    const Tensor loss = (h * y).sum();
    h = y = Tensor();
    held.drop_all();
    const c10::InferenceMode inference;
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}

// ---- T17, continued ----

TEST_CASE("T17: while random ops run again their generators stand as the program left them") {
  static Tensor expected, expected_own;
  static at::Generator own;
  static int seen = 0, changed = 0;
  own = at::detail::createCPUGenerator(5);
  same_both_ways([](Held& held) {
    own.set_current_seed(5);
    const Tensor w = parameter();
    Tensor y = at::dropout(w * 2, 0.4, true) * at::randn({kSide, kSide});
    y = y * at::rand_like(y) * at::empty_like(w.detach()).normal_(0, 1, own);
    const Tensor loss = (at::exp(y) * y).sum();
    y = Tensor();
    held.drop_all();
    expected = at::detail::getDefaultCPUGenerator().get_state();
    expected_own = own.get_state();
    seen = changed = 0;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& op)
                                       -> std::unique_ptr<at::ObserverContext> {
          const std::string_view name = op.name();
          if (name != "aten::bernoulli_" && name != "aten::randn" && name != "aten::rand_like" &&
              name != "aten::normal_") {
            return nullptr;
          }
          ++seen;
          changed += !at::detail::getDefaultCPUGenerator().get_state().equal(expected) ||
                     !own.get_state().equal(expected_own);
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
    loss.backward();
    at::removeCallback(handle);
    CHECK(changed == 0);
    return Tensors{loss, w.grad()};
  });
  CHECK(seen >= 4);  // in the last run, whose ops run again
  expected = expected_own = Tensor();
  own = at::Generator();
}

TEST_CASE("T17: what a checkpointed region draws when it runs again is recorded as drawn") {
  at::set_num_threads(1);
  const Tensor w = parameter(), v = parameter();
  const MemoryMeter meter;
  BudgetOptions options;
  options.verify_replay = true;
  const MemoryBudget budget(meter.live_bytes() + 256 * kBlock, options);
  const auto region = [&](const Tensor& x) {
    const Tensor h = at::dropout(at::tanh(at::matmul(x, w)), 0.4, true);
    return at::sin(at::exp(h) * at::rand_like(h) * h);
  };
  const Tensor loss = at::square(checkpoint(region, at::matmul(batch(), v))).sum();
  CHECK_NOTHROW(loss.backward());
  CHECK_NOTHROW((w * w).sum().backward());  // what verifying has found is told here
}

// ---- what is kept elsewhere ----

namespace {

// Ones and zeros that no op was seen to write.
Tensor unseen_mask() {
  Tensor x = at::empty({kSide, kSide});
  auto* const data = x.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = i % 3 == 0 ? 1.0F : 0.0F;
  return x;
}

}  // namespace

TEST_CASE("T13: a buffer that was filled unseen and read does not begin with a later fill") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    Tensor x = unseen_mask();
    Tensor h = at::exp(x);
    x.normal_();
    Tensor y = at::sin(h);
    const Tensor loss = (w * y).sum();
    h = y = Tensor();
    held.drop_all();
    loss.backward();
    return Tensors{loss, w.grad(), x};
  });
}

TEST_CASE("T22: what is packed stays itself when what it was made from is written") {
  same_results([](Held& held) {
    const Tensor w = parameter(), v = parameter();
    Tensor x = unseen_mask();
    Tensor h = at::relu(x);
    Tensor y = h + batch();
    const Tensor loss = (w * h).sum() + (v * y).sum();
    h = y = Tensor();
    held.drop_one();
    x.add_(1);
    loss.backward();
    return Tensors{loss, w.grad(), v.grad(), x};
  });
}

TEST_CASE("T22: a checkpointed region's input that is packed is not an exchanged one") {
  same_results([](Held& held) {
    const Tensor w = parameter();
    Tensor y = at::relu(w);
    const Tensor loss =
        checkpoint([](const Tensor& x) { return at::exp(at::sin(x) * x); }, y).sum();
    y = Tensor();
    held.drop_one();
    loss.backward();
    return Tensors{loss, w.grad()};
  });
}
