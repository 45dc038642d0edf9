#pragma once
// The twin of every test here: the same program plain and with its regions checkpointed.
//
//   same_both_ways([](Run& run) {
//     at::Tensor x = parameter({4, 8});
//     run([](const at::Tensor& t) { return t.sin(); }, x).sum().backward();
//     return std::vector<at::Tensor>{x.grad()};
//   });

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "lowtide/checkpoint.h"
#include "lowtide/error.h"

namespace lowtide::testing {

struct Run {
  bool checkpointed = true;
  CheckpointOptions options{};

  template <class F, class In>
  auto operator()(F fn, In inputs) {
    if (checkpointed) return checkpoint(std::move(fn), std::move(inputs), options);
    return detail::call(fn, inputs);
  }
};

inline at::Tensor parameter(at::IntArrayRef shape) {
  return at::randn(shape).set_requires_grad(true);
}

// A tensor that is no leaf, as activations are.
inline at::Tensor activation(const at::Tensor& leaf) { return leaf * 1; }

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.requires_grad() == b.requires_grad() &&
         a.sizes() == b.sizes() && a.equal(b);
}

inline at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

// Runs `program` plain and checkpointed from the same seed. Everything that it returns, and the
// generator that it leaves, must be equal bit for bit.
template <class Program>
void same_both_ways(Program program, CheckpointOptions options = {}) {
  std::vector<at::Tensor> results[2];
  for (const bool checkpointed : {false, true}) {
    at::manual_seed(7);
    Run run{checkpointed, options};
    results[checkpointed] = program(run);
    results[checkpointed].push_back(generator_state());
  }
  REQUIRE(results[0].size() == results[1].size());
  REQUIRE(results[0].size() > 1);
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(results[0][i], results[1][i]));
  }
}

// The id of the Lowtide error that `action` throws, or "" if it throws none.
template <class Action>
std::string error_id(Action action, std::string* message = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.id();
  }
  return "";
}

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
inline WeakStorage watch(const at::Tensor& tensor) { return tensor.storage().getWeakStorageImpl(); }

}  // namespace lowtide::testing
