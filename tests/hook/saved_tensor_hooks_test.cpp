// Providers of saved-tensor hooks, the op interceptor and generator states.

#include "src/hook/saved_tensor_hooks.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "src/hook/generator_state.h"
#include "src/hook/op_interceptor.h"

namespace lowtide::hook {
namespace {

struct Counts {
  int asked = 0, packed = 0, unpacked = 0, freed = 0;
};

class CountingHooks : public SavedTensorHooks {
 public:
  explicit CountingHooks(Counts& counts) : counts_(counts) {}
  ~CountingHooks() override { ++counts_.freed; }
  void call_pack_hook(const at::Tensor& tensor) override {
    ++counts_.packed;
    kept_ = tensor.tensor_data();
  }
  at::Tensor call_unpack_hook() override {
    ++counts_.unpacked;
    return kept_;
  }

 private:
  Counts& counts_;
  at::Tensor kept_;
};

class CountingProvider : public SavedTensorProvider {
 public:
  std::unique_ptr<SavedTensorHooks> make_hooks() override {
    ++counts.asked;
    if (declines) return nullptr;
    return std::make_unique<CountingHooks>(counts);
  }
  Counts counts;
  bool declines = false;
};

at::Tensor leaf() { return at::ones({3}).set_requires_grad(true); }

TEST_CASE(
    "a provider gets each saved tensor: packed once, unpacked in backward, freed with the graph") {
  CountingProvider provider;
  at::Tensor x = leaf(), y;
  {
    const SavedTensorScope scope(provider);
    y = (x.sin() * x).exp();  // x; sin(x) and x; exp's result
  }
  CHECK(provider.counts.packed == 4);
  y.sum().backward();
  CHECK(provider.counts.unpacked == 4);
  CHECK(provider.counts.freed == 4);
  CHECK(x.grad().allclose((x.cos() * x + x.sin()) * (x.sin() * x).exp()));
}

TEST_CASE("the innermost provider is asked first; one that declines passes the tensor on") {
  CountingProvider outer, inner;
  at::Tensor x = leaf();
  const SavedTensorScope outer_scope(outer);
  {
    const SavedTensorScope inner_scope(inner);
    CHECK(SavedTensorScope::innermost() == &inner);
    at::Tensor y = x.sin();
    CHECK(inner.counts.packed == 1);
    CHECK(outer.counts.asked == 0);
    inner.declines = true;
    at::Tensor z = x.cos();
    CHECK(inner.counts.asked == 2);
    CHECK(outer.counts.packed == 1);
  }
  CHECK(SavedTensorScope::innermost() == &outer);
}

TEST_CASE("when all decline, autograd keeps the tensor and checks its version") {
  CountingProvider provider;
  provider.declines = true;
  at::Tensor x = leaf();
  at::Tensor y;
  {
    const SavedTensorScope scope(provider);
    y = x.exp();
  }
  CHECK(provider.counts.asked == 1);
  y.mul_(2);
  CHECK_THROWS_AS(y.sum().backward(), c10::Error);
}

TEST_CASE("an exception that unwinds past a scope ends it, and other threads never see it") {
  CountingProvider provider;
  at::Tensor x = leaf();
  try {
    const SavedTensorScope scope(provider);
    std::thread([&] { at::Tensor y = x.sin(); }).join();
    CHECK(provider.counts.asked == 0);
    throw std::runtime_error("mine");
  } catch (const std::runtime_error&) {
  }
  CHECK(SavedTensorScope::innermost() == nullptr);
  at::Tensor y = x.sin();
  CHECK(provider.counts.asked == 0);
}

TEST_CASE(
    "a saved tensor obeys the providers in force, or keeps a reference with a version check") {
  at::Tensor x = at::ones({3});
  const SavedTensor plain(x);
  CHECK(plain.unpack().is_same(x));
  x.add_(1);
  CHECK_THROWS_AS(plain.unpack(), c10::Error);

  CountingProvider provider;
  const SavedTensorScope scope(provider);
  {
    const SavedTensor hooked(x);
    CHECK(hooked.unpack().equal(x));
    CHECK(provider.counts.unpacked == 1);
  }
  CHECK(provider.counts.freed == 1);
}

// Runs a backward inside a backward.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, int depth) {
    context->saved_data["depth"] = depth;
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& grads) {
    const auto depth = static_cast<int>(context->saved_data["depth"].toInt());
    const at::AutoGradMode grad(true);
    at::Tensor x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    if (depth > 0) {
      Reentrant::apply(x, depth - 1).sum().backward();
    } else {
      x.sin().sum().backward();
    }
    return {grads[0] * 2, at::Tensor()};
  }
};

TEST_CASE(
    "backwards inside backwards run through the forwarding engine, deeper than one thread takes") {
  CountingProvider provider;
  at::Tensor x = leaf(), y;
  {
    const SavedTensorScope scope(provider);
    y = Reentrant::apply(x, 80);
  }
  y.sum().backward();
  CHECK(provider.counts.unpacked == 1);
  CHECK(x.grad().equal(at::full({3}, 2.0)));
}

TEST_CASE("backwards have numbers, and callbacks run when they end") {
  CHECK(current_backward_id() == -1);
  std::vector<std::int64_t> seen;
  int ended = 0;
  at::Tensor x = leaf();
  for (const bool keep : {true, false}) {
    at::Tensor y = x * 2;
    y.register_hook([&, keep](const at::Tensor& grad) {
      seen.push_back(current_backward_id());
      CHECK(current_backward_keeps_graph() == keep);
      at_end_of_backward([&] { ++ended; });
      return grad;
    });
    y.sum().backward({}, keep);
    CHECK(ended == static_cast<int>(seen.size()));
  }
  REQUIRE(seen.size() == 2);
  CHECK(seen[0] >= 0);
  CHECK(seen[0] != seen[1]);
}

TEST_CASE("versions are kept without the tensor, shared by views, and can be set back") {
  TensorVersion version;
  {
    at::Tensor x = at::ones({3});
    version = TensorVersion(x);
    CHECK(!version.changed());
    x.view({3, 1}).add_(1);
    CHECK(version.changed());
    CHECK(version.current() == version.recorded() + 1);
    version.restore(version.recorded());
    CHECK(!version.changed());
    CHECK(static_cast<std::uint32_t>(x._version()) == version.recorded());
  }
  CHECK(!version.changed());
}

struct Listing : OpObserver {
  void before(OpCall& call) override {
    if (call.top_level) top.push_back(op_name(*call.traits.schema));
    if (!call.inside_kernel) all.push_back(op_name(*call.traits.schema));
    if (refuses == op_name(*call.traits.schema)) throw std::runtime_error("refused");
  }
  void after(const OpCall&, std::size_t) override { ++ended; }
  std::vector<std::string> top, all;
  std::string refuses;
  int ended = 0;
};

TEST_CASE("an observer sees the calls of the user and the parts of composite ops") {
  Listing listing;
  at::Tensor x = leaf(), w = at::ones({3, 2});
  {
    const OpInterception interception(listing, OpInterception::Outer::kShare);
    at::Tensor y = x.view({1, 3}).matmul(w);
  }
  x.sin();
  CHECK(listing.top == std::vector<std::string>{"aten::view", "aten::matmul"});
  CHECK(listing.all == std::vector<std::string>{"aten::view", "aten::matmul", "aten::mm"});
  CHECK(listing.ended >= 3);
  CHECK(!OpInterception::active());
}

TEST_CASE("an observer may stop an op, and the next one runs as ever") {
  Listing listing;
  listing.refuses = "aten::sin";
  const at::Tensor x = leaf();
  const OpInterception interception(listing, OpInterception::Outer::kShare);
  CHECK_THROWS_WITH_AS(x.sin(), "refused", std::runtime_error);
  CHECK(OpInterception::current_op() == nullptr);
  CHECK(x.cos().defined());
  CHECK(listing.top == std::vector<std::string>{"aten::sin", "aten::cos"});
}

TEST_CASE("an inner observer shares the ops with outer ones or hides them") {
  Listing outer, inner;
  const at::Tensor x = leaf();
  const OpInterception outer_interception(outer, OpInterception::Outer::kShare);
  {
    const OpInterception shared(inner, OpInterception::Outer::kShare);
    x.sin();
  }
  {
    const OpInterception pausing(inner, OpInterception::Outer::kPause);
    x.cos();
  }
  {
    const UnobservedOps hidden;
    x.tan();
  }
  x.exp();
  CHECK(outer.top == std::vector<std::string>{"aten::sin", "aten::exp"});
  CHECK(inner.top == std::vector<std::string>{"aten::sin", "aten::cos"});
}

TEST_CASE(
    "traits say which arguments are written, statistics of batch norm included, and who draws") {
  struct Traits : OpObserver {
    void before(OpCall& call) override {
      last = call.traits;
      asked = call.asked_generator;
    }
    void after(const OpCall&, std::size_t) override {}
    OpTraits last{};
    at::Generator asked;
  } observer;
  at::Tensor x = at::ones({4, 3});
  const OpInterception interception(observer, OpInterception::Outer::kShare);
  x.add_(1);
  CHECK(observer.last.written_arguments == 1);
  CHECK(!observer.last.functional);
  at::native_batch_norm(x, {}, {}, at::zeros({3}), at::ones({3}), true, 0.1, 1e-5);
  x.sin();
  CHECK(observer.last.functional);
  const at::Generator own = at::detail::createCPUGenerator(1);
  x.bernoulli_(0.5, own);
  CHECK(observer.asked == own);
  x.bernoulli_(0.5);
  CHECK(observer.asked == default_generator());
}

TEST_CASE("a generator's state comes back, with what Box-Muller left over") {
  at::Generator generator = at::detail::createCPUGenerator(3);
  at::normal(0.0, 1.0, {1}, generator);
  const GeneratorState state(generator);
  const at::Tensor first = at::normal(0.0, 1.0, {5}, generator);
  CHECK(!state.same_as(GeneratorState(generator)));
  state.put_into(generator);
  CHECK(state.same_as(GeneratorState(generator)));
  CHECK(at::normal(0.0, 1.0, {5}, generator).equal(first));
  const at::Generator other = new_generator(generator);
  state.clone().put_into(other);
  CHECK(at::normal(0.0, 1.0, {5}, other).equal(first));
}

}  // namespace
}  // namespace lowtide::hook
