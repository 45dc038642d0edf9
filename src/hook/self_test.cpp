// Tested by self_test_test.cpp.

#include "src/hook/self_test.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/version.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "src/base/text.h"
#include "src/hook/counting_allocator.h"
#include "src/hook/device_memory.h"
#include "src/hook/gradient_graph.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide::hook {

namespace {

struct Outcome {
  bool passed;
  std::string detail;
};

// The version that is running, from its own code rather than from the headers built with.
Outcome check_version() {
  const std::uint64_t running = aoti_torch_abi_version();
  const auto part = [running](int byte) { return static_cast<int>(running >> (8 * byte) & 0xff); };
  const std::string found = concat(part(7), ".", part(6), ".", part(5));
  const bool same = part(7) == TORCH_VERSION_MAJOR && part(6) == TORCH_VERSION_MINOR;
  return {same, same ? concat(found, ", built for " TORCH_VERSION)
                     : concat(found, " is running, but this build is for " TORCH_VERSION
                                     ": build Lowtide again, or install torch==" TORCH_VERSION)};
}

Outcome check_allocator() {
  const Registration registration = current_registration();
  return {registration.is_ours, registration.is_ours
                                    ? "counts libtorch's CPU tensors"
                                    : concat("libtorch uses ", registration.other,
                                             ": run without the tool that it belongs to")};
}

Outcome check_block() {
  const at::Tensor tensor = at::empty({7, 11});
  const at::Tensor view = tensor.slice(0, 3);
  const MemoryBlock* block = cpu_memory().find_block(view.storage().data_ptr());
  if (block == nullptr) {
    return {false, "a new tensor's storage has no header of Lowtide's"};
  }
  return {block->size_bytes == 7 * 11 * 4,
          concat(block->size_bytes, " bytes found for a tensor of 308")};
}

Outcome check_counts() {
  MemoryLedger& ledger = cpu_memory().ledger();
  PeakWatch watch;
  ledger.begin_watch(watch);
  const Bytes start = ledger.live();
  Bytes during = 0;
  {
    const MemoryKind outer = exchange_current_kind(MemoryKind::kWorkspace);
    const at::Tensor tensor = at::empty({1000});
    exchange_current_kind(outer);
    during = ledger.live() - start;
  }
  const Bytes after = ledger.live() - start;
  const Bytes peak = ledger.at_peak(watch).total() - start;
  ledger.end_watch(watch);
  return {during == 4000 && after == 0 && peak == 4000,
          concat("a tensor of 4000 bytes: live rose by ", during, ", peak by ", peak, ", ", after,
                 " left after it")};
}

struct Calls {
  int packs = 0;
  int unpacks = 0;
};

class CountingHooks final : public SavedTensorHooks {
 public:
  explicit CountingHooks(std::shared_ptr<Calls> calls) : calls_(std::move(calls)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    ++calls_->packs;
    kept_ = tensor.detach();
  }
  at::Tensor call_unpack_hook() override {
    ++calls_->unpacks;
    return kept_;
  }

 private:
  std::shared_ptr<Calls> calls_;
  at::Tensor kept_;
};

class CountingProvider final : public SavedTensorProvider {
 public:
  std::unique_ptr<SavedTensorHooks> make_hooks() override {
    return std::make_unique<CountingHooks>(calls);
  }
  std::shared_ptr<Calls> calls = std::make_shared<Calls>();
};

Outcome check_saved_tensor_hooks() {
  const at::Tensor x = at::full({3}, 2.0).set_requires_grad(true);
  CountingProvider provider;
  at::Tensor y;
  {
    const SavedTensorScope scope(provider);
    y = at::mul(x, x).mul(x);
  }
  y.sum().backward();
  const double gradient = x.grad().defined() ? x.grad()[0].item<double>() : 0.0;
  const Calls& calls = *provider.calls;
  return {calls.packs == 4 && calls.unpacks == 4 && gradient == 12.0,
          concat(calls.packs, " tensors packed and ", calls.unpacks,
                 " unpacked of 4; gradient of x^3 at 2 is ", gradient)};
}

// Takes what the rest of the graph has added to its edge's gradient, and passes 10 times it on.
class TakingFunction final : public GraphFunction {
 public:
  std::string name() const override { return "lowtide::SelfTest"; }
  std::vector<at::Tensor> backward(std::vector<at::Tensor>, const std::vector<GradientEdge>& edges,
                                   const std::vector<bool>&) override {
    return {take_pending_gradient(edges.at(0)) * 10};
  }
  void release() override {}
};

Outcome check_gradient_graph() {
  const at::Tensor x = at::full({3}, 2.0).set_requires_grad(true);
  const at::Tensor ours = at::full({3}, 1.0);
  attach(std::make_shared<TakingFunction>(), {gradient_edge(x)}, {ours});
  // The newer node runs first: 4 is in the buffer when ours runs.
  at::add(at::mul(x, 4.0), ours).sum().backward();
  const double gradient = x.grad().defined() ? x.grad()[0].item<double>() : 0.0;
  return {gradient == 40.0,
          concat("a gradient under way of 4, times 10, gives ", gradient, " of 40")};
}

Outcome describe_cpu() { return {true, at::get_cpu_capability()}; }

Outcome describe_threads() {
  return {at::get_num_threads() > 0, concat(at::get_num_threads(), " for operations, ",
                                            at::get_num_interop_threads(), " between them")};
}

SelfCheck run(const std::string& name, const std::function<Outcome()>& check) {
  try {
    const Outcome outcome = check();
    return {name, outcome.passed, outcome.detail};
  } catch (const c10::Error& error) {
    return {name, false, concat("threw: ", error.what_without_backtrace())};
  } catch (const std::exception& error) {
    return {name, false, concat("threw: ", error.what())};
  }
}

}  // namespace

std::vector<SelfCheck> self_test() {
  std::vector<SelfCheck> checks = {run("torch version", check_version)};
  const bool usable = checks.front().passed;
  const auto add = [&](const std::string& name, Outcome (*check)()) {
    checks.push_back(usable ? run(name, check)
                            : SelfCheck{name, false, "not run: libtorch is of another version"});
  };
  add("allocator", check_allocator);
  add("block header", check_block);
  add("memory counts", check_counts);
  add("saved-tensor hooks", check_saved_tensor_hooks);
  add("gradient graph", check_gradient_graph);
  add("cpu capability", describe_cpu);
  add("threads", describe_threads);
  return checks;
}

}  // namespace lowtide::hook
