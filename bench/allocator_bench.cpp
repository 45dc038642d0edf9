// What counting costs: an allocation and its release through Lowtide's allocator beside libtorch's
// own, in one run. Every pair of lines "stock" and "counting" is one ratio.
//
//   allocator_bench --benchmark_repetitions=5 --benchmark_enable_random_interleaving=true
//                   --benchmark_report_aggregates_only=true
//
// Memory is not touched, so that the cost of counting is not hidden behind page faults.

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>
#include <c10/core/CPUAllocator.h>

#include "lowtide/memory_meter.h"
#include "src/hook/counting_allocator.h"
#include "src/hook/device_memory.h"

namespace {

using namespace lowtide;  // one program

c10::Allocator& stock() { return *c10::GetDefaultCPUAllocator(); }
c10::Allocator& counting() { return hook::counting_allocator(); }

void allocate_and_free(benchmark::State& state, c10::Allocator& allocator) {
  const auto size_bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    c10::DataPtr data = allocator.allocate(size_bytes);
    benchmark::DoNotOptimize(data.get());
  }
}

void BM_stock(benchmark::State& state) { allocate_and_free(state, stock()); }
void BM_counting(benchmark::State& state) { allocate_and_free(state, counting()); }

void BM_counting_with_meter(benchmark::State& state) {
  const MemoryMeter meter;
  allocate_and_free(state, counting());
}

// Each allocation reaches a new peak, the dearest case: the kinds are copied into the meter.
void BM_counting_new_peak_each_time(benchmark::State& state) {
  MemoryMeter meter;
  for (auto _ : state) {
    c10::DataPtr data = counting().allocate(static_cast<std::size_t>(state.range(0)));
    benchmark::DoNotOptimize(data.get());
    data.clear();
    meter.reset_peak();  // included in the time
  }
}

// The counts alone: what one allocation and its release add to the lock.
void BM_ledger_add_subtract(benchmark::State& state) {
  hook::MemoryLedger& ledger = hook::cpu_memory().ledger();
  for (auto _ : state) {
    ledger.add(64, MemoryKind::kProgram);
    ledger.subtract(64, MemoryKind::kProgram);
  }
}

void BM_kind_scope(benchmark::State& state) {
  for (auto _ : state) {
    const KindScope scope(MemoryKind::kSaved);
    benchmark::ClobberMemory();
  }
}

// A small op, as a step has thousands of.
void small_add(benchmark::State& state, c10::Allocator& allocator) {
  c10::Allocator* before = c10::GetCPUAllocator();
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, hook::kAllocatorPriority);
  {
    const at::Tensor a = at::ones({64});
    const at::Tensor b = at::ones({64});
    for (auto _ : state) {
      at::Tensor sum = at::add(a, b);
      benchmark::DoNotOptimize(sum.unsafeGetTensorImpl());
    }
  }
  c10::SetAllocator(c10::DeviceType::CPU, before, hook::kAllocatorPriority);
}

void BM_small_add_stock(benchmark::State& state) { small_add(state, stock()); }
void BM_small_add_counting(benchmark::State& state) { small_add(state, counting()); }

constexpr int kSmall = 256;
constexpr int kMedium = 16 << 10;
constexpr int kLarge = 1 << 20;
constexpr int kMapped = 256 << 20;

BENCHMARK(BM_stock)->Arg(kSmall)->Arg(kMedium)->Arg(kLarge)->Arg(kMapped);
BENCHMARK(BM_counting)->Arg(kSmall)->Arg(kMedium)->Arg(kLarge)->Arg(kMapped);
BENCHMARK(BM_counting_with_meter)->Arg(kSmall);
BENCHMARK(BM_counting_new_peak_each_time)->Arg(kSmall);
BENCHMARK(BM_stock)->Arg(kSmall)->Threads(2)->Threads(8)->UseRealTime();
BENCHMARK(BM_counting)->Arg(kSmall)->Threads(2)->Threads(8)->UseRealTime();
BENCHMARK(BM_ledger_add_subtract)->Threads(1)->Threads(2)->Threads(8)->UseRealTime();
BENCHMARK(BM_kind_scope);
BENCHMARK(BM_small_add_stock);
BENCHMARK(BM_small_add_counting);

}  // namespace

BENCHMARK_MAIN();
