// What a checkpointed region costs beside the work that it does again.
//
//   build/release/bin/checkpoint_bench --benchmark_min_time=0.5
//   python bench/checkpoint_peer.py build/release/bin/checkpoint_bench     # beside Python's
//
// A step is forward and backward of one block, Linear + ReLU + Linear, on one thread. `twice` is
// the plain step with the block's forward run once more and thrown away: what any checkpointing
// must pay. The cost per region is `checkpointed` less `twice`; the early stop can make it negative
// for large blocks. Times are CPU times.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "lowtide/checkpoint.h"

namespace {

enum Kind { kPlain, kTwice, kCheckpointed, kForwardPlain, kForwardCheckpointed };

struct Block {
  explicit Block(std::int64_t width)
      : w1(parameter({width, width})),
        b1(parameter({width})),
        w2(parameter({width, width})),
        b2(parameter({width})) {}
  static at::Tensor parameter(at::IntArrayRef shape) {
    return at::randn(shape).mul_(0.1).set_requires_grad(true);
  }
  at::Tensor operator()(const at::Tensor& x) const {
    return at::linear(at::relu(at::linear(x, w1, b1)), w2, b2);
  }
  at::Tensor w1, b1, w2, b2;
};

void step(benchmark::State& state, Kind kind) {
  at::set_num_threads(1);
  const std::int64_t rows = state.range(0), width = state.range(1);
  const Block block(width);
  const at::Tensor leaf = at::randn({rows, width}).set_requires_grad(true);
  const at::Tensor seed = at::ones({rows, width});
  for (auto _ : state) {
    const at::Tensor x = leaf * 1;
    at::Tensor y;
    if (kind == kCheckpointed || kind == kForwardCheckpointed) {
      y = lowtide::checkpoint(block, x);
    } else {
      y = block(x);
    }
    if (kind == kForwardPlain || kind == kForwardCheckpointed) continue;
    if (kind == kTwice) benchmark::DoNotOptimize(block(x));
    y.backward(seed);
  }
}

BENCHMARK_CAPTURE(step, plain, kPlain)->Args({8, 64})->Args({256, 256});
BENCHMARK_CAPTURE(step, twice, kTwice)->Args({8, 64})->Args({256, 256});
BENCHMARK_CAPTURE(step, checkpointed, kCheckpointed)->Args({8, 64})->Args({256, 256});
BENCHMARK_CAPTURE(step, forward_plain, kForwardPlain)->Args({8, 64})->Args({256, 256});
BENCHMARK_CAPTURE(step, forward_checkpointed, kForwardCheckpointed)
    ->Args({8, 64})
    ->Args({256, 256});

}  // namespace

BENCHMARK_MAIN();
