// Budgets under threads, forks, failures, depth and length.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <malloc.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <optional>
#include <thread>

#include "lowtide/budget.h"
#include "lowtide/error.h"
#include "tests/fit/training.h"
#include "tests/hook/child_process.h"

using namespace lowtide;  // the tests of one header
using lowtide::testing::in_child_process;

namespace {

// What is dropped is made again, not packed.
BudgetOptions recomputing() {
  BudgetOptions options;
  options.pack = false;
  return options;
}

constexpr Bytes kBlock = 256 * 256 * sizeof(float);

Bytes live() { return MemoryMeter().live_bytes(); }

// Bytes that malloc has handed out: the runtime's own memory and libtorch's objects.
std::size_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

at::Tensor small_weight(std::int64_t elements) {
  return at::full({elements}, 0.5).requires_grad_(true);
}

at::Tensor gradient_of_chain(int depth, std::int64_t elements, std::optional<Bytes> room) {
  const at::Tensor w = small_weight(elements);
  std::optional<MemoryBudget> budget;
  if (room.has_value()) budget.emplace(live() + *room, recomputing());
  at::Tensor y = w * 2;
  for (int i = 0; i < depth; ++i) y = at::sin(y);
  y.sum().backward();
  if (room.has_value()) CHECK(budget->report().recomputed_ops > 0);
  budget.reset();
  return w.grad();
}

}  // namespace

TEST_CASE("a chain of 10,000 ops is brought back without recursion") {
  at::set_num_threads(1);
  const at::Tensor plain = gradient_of_chain(10'000, 512, std::nullopt);
  const Bytes whole = 10'000 * 512 * sizeof(float);
  CHECK(same_bits(plain, gradient_of_chain(10'000, 512, whole / 4)));
}

TEST_CASE("100,000 saved tensors in one step") {
  at::set_num_threads(1);
  const auto gradient = [](bool budgeted) {
    const at::Tensor w = small_weight(512);
    std::optional<MemoryBudget> budget;
    if (budgeted) budget.emplace(live() + 60'000 * 512 * sizeof(float));
    at::Tensor sum = at::zeros({512});
    for (int i = 0; i < 50'000; ++i) sum = sum + at::sin(w * 2).cos();
    sum.sum().backward();
    if (budgeted) CHECK(budget->report().drops > 1000);
    budget.reset();
    return w.grad();
  };
  CHECK(same_bits(gradient(false), gradient(true)));
}

TEST_CASE("a loop of 100,000 ops that saves nothing keeps a bounded number of records") {
  at::set_num_threads(1);
  const MemoryBudget budget(live() + 100 * kBlock);
  const c10::NoGradGuard no_grad;
  at::Tensor x = at::ones({512});
  at::Tensor y = at::ones({512});
  const auto scale = [&](int times) {
    for (int i = 0; i < times; ++i) x = x * 0.999;
  };
  // Two tensors that are written from each other in turn.
  const auto entangle = [&](int times) {
    for (int i = 0; i < times; ++i) {
      x = x + y;
      y = y * 0.5;
      y.add_(x);
      x.mul_(0.1);
    }
  };
  for (const auto& loop : std::vector<std::function<void(int)>>{scale, entangle}) {
    loop(20'000);
    const std::size_t before = heap_bytes();
    loop(80'000);
    CHECK(heap_bytes() < before + (1 << 20));
  }
}

TEST_CASE("1,000 steps leave Lowtide's own memory as it was") {
  at::set_num_threads(1);
  const at::Tensor w = at::full({64, 64}, 0.01).requires_grad_(true);
  at::Tensor momentum = at::zeros_like(w);
  const MemoryBudget budget(live() + 12 * 64 * 64 * sizeof(float), recomputing());
  const auto step = [&] {
    w.mutable_grad() = at::Tensor();
    at::Tensor y = w.mm(w);
    for (int i = 0; i < 8; ++i) y = at::dropout(at::sin(y), 0.1, true).mm(w);
    y.sum().backward();
    const c10::NoGradGuard no_grad;
    momentum.mul_(0.9).add_(w.grad());
    const_cast<at::Tensor&>(w).add_(momentum, -1e-4);
  };
  for (int i = 0; i < 100; ++i) step();
  const std::size_t before = heap_bytes();
  const Bytes live_before = live();
  for (int i = 0; i < 900; ++i) step();
  CHECK(budget.report().drops > 1000);
  CHECK(live() <= live_before);
  CHECK(heap_bytes() < before + (64 << 10));
}

TEST_CASE("eight threads train under one budget, each with the bits of its own plain run") {
  at::set_num_threads(1);
  constexpr int kThreads = 8;
  const auto train_one = [](int index, const std::function<void()>& graph_stands) {
    at::Tensor w = at::full({128, 128}, 0.01 * (index + 1)).requires_grad_(true);
    for (int step = 0; step < 4; ++step) {
      w.mutable_grad() = at::Tensor();
      at::Tensor y = w * 2;
      for (int i = 0; i < 16; ++i) y = at::sin(y).mm(w);
      graph_stands();
      y.sum().backward();
    }
    return w.grad();
  };
  std::vector<at::Tensor> plain;
  for (int i = 0; i < kThreads; ++i) plain.push_back(train_one(i, [] {}));
  std::vector<at::Tensor> budgeted(kThreads);
  std::atomic<int> refused{0};
  {
    const Bytes block = 128 * 128 * sizeof(float);
    const MemoryBudget budget(live() + kThreads * 32 * block);
    std::barrier all_graphs(kThreads);  // of 33 blocks each
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        at::set_num_threads(1);
        try {
          budgeted[static_cast<std::size_t>(i)] =
              train_one(i, [&] { all_graphs.arrive_and_wait(); });
        } catch (const BudgetError&) {
          ++refused;
          all_graphs.arrive_and_drop();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(budget.report().peak_bytes <= budget.report().limit_bytes);
    CHECK(budget.report().drops > 0);
  }
  CHECK(refused == 0);
  for (int i = 0; i < kThreads; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (budgeted[at].defined()) CHECK(same_bits(plain[at], budgeted[at]));
  }
}

TEST_CASE("a backward on another thread brings back what the first one dropped") {
  at::set_num_threads(1);
  const auto gradient = [](bool budgeted) {
    const at::Tensor w = at::full({256, 256}, 0.5).requires_grad_(true);
    std::optional<MemoryBudget> budget;
    if (budgeted) budget.emplace(live() + 10 * kBlock, recomputing());
    at::Tensor y = w * 2;
    for (int i = 0; i < 20; ++i) y = at::sin(y);
    const at::Tensor loss = y.sum();
    y = at::Tensor();
    std::thread([&] {
      at::set_num_threads(1);
      loss.backward();
    }).join();
    if (budgeted) CHECK(budget->report().recomputed_ops > 0);
    budget.reset();
    return w.grad();
  };
  CHECK(same_bits(gradient(false), gradient(true)));
}

TEST_CASE("a child forked in the middle of a step goes on and gets the same gradient") {
  at::set_num_threads(1);
  const at::Tensor plain = gradient_of_chain(20, 256 * 256, std::nullopt);
  const at::Tensor w = small_weight(256 * 256);
  const MemoryBudget budget(live() + 10 * kBlock, recomputing());
  at::Tensor y = w * 2;
  for (int i = 0; i < 20; ++i) y = at::sin(y);
  const at::Tensor loss = y.sum();
  CHECK(budget.report().drops > 0);
  CHECK(in_child_process([&] {
    loss.backward();
    // The child has no limit.
    const at::Tensor large = at::ones({256 * 256 * 40});
    return same_bits(w.grad(), plain) && large.sum().item<float>() > 0;
  }));
  loss.backward();
  CHECK(same_bits(w.grad(), plain));
}

TEST_CASE("an allocation refused anywhere in a step is an error, and the next step is right") {
  at::set_num_threads(1);
  const at::Tensor w = at::full({64, 64}, 0.1).requires_grad_(true);
  const auto step = [&] {
    w.mutable_grad() = at::Tensor();
    at::Tensor y = w.mm(w).relu_();
    for (int i = 0; i < 4; ++i) y = at::softmax(at::sin(y).mm(w), 1);
    at::layer_norm(y, {64}).pow(2).sum().backward();
    return w.grad().clone();
  };
  const at::Tensor plain = step();
  w.mutable_grad() = at::Tensor();
  const Bytes base = live();
  MemoryMeter meter;
  step();
  w.mutable_grad() = at::Tensor();
  const Bytes peak = meter.peak_bytes();
  // Each limit refuses another allocation first.
  int refused = 0;
  int passed = 0;
  for (Bytes limit = base; limit <= peak; limit += 1024) {
    {
      const MemoryBudget budget(limit);
      try {
        const at::Tensor gradient = step();
        CHECK(same_bits(gradient, plain));
        ++passed;
      } catch (const BudgetError&) {
        ++refused;
      }
      CHECK(budget.report().peak_bytes <= std::max(limit, base));
    }
    clear_stopped_backward();
    w.mutable_grad() = at::Tensor();
  }
  CHECK(refused > 10);
  CHECK(passed > 10);
  CHECK(live() == base);
  CHECK(same_bits(step(), plain));
}
