// Exact smaller forms of arrays: GB/s of the whole array (10^9 bytes), and the part of it that they
// take, beside lz4 and zstd (level 1) where those were found at configure time.
//
//   packing_bench --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
//
// Kinds of data, 32 MiB each, more than the caches hold: "normal" are random normal floats, "relu"
// those with negative ones cut off, "dropout" a mask of 0 and 1 / 0.9, "bool" one of bytes 0 and 1.

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "src/base/checksum.h"
#include "src/stash/packing.h"

#ifdef LOWTIDE_BENCH_LZ4
#include <lz4.h>
#endif
#ifdef LOWTIDE_BENCH_ZSTD
#include <zstd.h>
#endif

namespace {

using namespace lowtide;  // one program
using Buffer = std::vector<unsigned char>;

constexpr Bytes kBytes = 32 << 20;
enum Kind { kNormal, kRelu, kDropout, kBool, kKinds };
constexpr const char* kNames[] = {"normal", "relu", "dropout", "bool"};
constexpr unsigned kElementSizes[] = {4, 4, 4, 1};

const Buffer& data_of(std::int64_t kind) {
  static const std::vector<Buffer> all = [] {
    std::vector<Buffer> made(kKinds, Buffer(kBytes));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (Bytes i = 0; i < kBytes / 4; ++i) {
      const float value = normal(random);
      const float relu = value > 0 ? value : 0;
      const float dropout = random() % 10 != 0 ? 1 / 0.9f : 0;
      std::memcpy(made[kNormal].data() + 4 * i, &value, 4);
      std::memcpy(made[kRelu].data() + 4 * i, &relu, 4);
      std::memcpy(made[kDropout].data() + 4 * i, &dropout, 4);
    }
    for (unsigned char& byte : made[kBool]) byte = random() % 2;
    return made;
  }();
  return all[static_cast<std::size_t>(kind)];
}

void report(benchmark::State& state, Bytes packed) {
  state.SetLabel(kNames[state.range(0)]);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(kBytes) / 1e9,
                                              benchmark::Counter::kIsIterationInvariantRate);
  state.counters["part"] = static_cast<double>(packed) / static_cast<double>(kBytes);
}

void copy(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  Buffer to(kBytes);
  for (auto _ : state) {
    std::memcpy(to.data(), data.data(), kBytes);
    benchmark::ClobberMemory();
  }
  report(state, kBytes);
}
BENCHMARK(copy)->Arg(kNormal);

void checksum_of(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(checksum(data.data(), kBytes));
  report(state, kBytes);
}
BENCHMARK(checksum_of)->Arg(kNormal);

// Eight cache lines that are in no cache: another place each time.
void probe(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  const unsigned size = kElementSizes[state.range(0)];
  constexpr Bytes kArray = 1 << 20;
  Bytes at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(probe_packing(data.data() + at, kArray, size));
    at = (at + (kArray / 2) + 64 * 1237) % (kBytes - kArray) / 64 * 64;
  }
  state.SetLabel(kNames[state.range(0)]);
}
BENCHMARK(probe)->DenseRange(0, kKinds - 1);

const PackingKernels& kernels_of(const benchmark::State& state) {
  return state.range(1) != 0 ? best_packing_kernels() : plain_packing_kernels();
}

void find(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  std::optional<Packing> packing;
  for (auto _ : state) {
    packing = find_packing(data.data(), kBytes, kElementSizes[state.range(0)], kernels_of(state));
    benchmark::DoNotOptimize(packing);
  }
  report(state, packing ? packing->packed_bytes : kBytes);
}
BENCHMARK(find)->ArgsProduct({{kNormal, kRelu, kDropout, kBool}, {1, 0}});

void pack_it(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  const auto packing = find_packing(data.data(), kBytes, kElementSizes[state.range(0)]);
  Buffer packed(packing->packed_bytes);
  for (auto _ : state) {
    if (!pack(*packing, data.data(), packed.data(), kernels_of(state)))
      state.SkipWithError("changed");
    benchmark::ClobberMemory();
  }
  report(state, packing->packed_bytes);
}
BENCHMARK(pack_it)->ArgsProduct({{kRelu, kDropout, kBool}, {1, 0}});

void unpack_it(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  const auto packing = find_packing(data.data(), kBytes, kElementSizes[state.range(0)]);
  Buffer packed(packing->packed_bytes);
  if (!pack(*packing, data.data(), packed.data())) state.SkipWithError("changed");
  Buffer to(kBytes);
  for (auto _ : state) {
    unpack(*packing, packed.data(), to.data(), kernels_of(state));
    benchmark::ClobberMemory();
  }
  if (to != data) state.SkipWithError("other bytes came back");
  report(state, packing->packed_bytes);
}
BENCHMARK(unpack_it)->ArgsProduct({{kRelu, kDropout, kBool}, {1, 0}});

#ifdef LOWTIDE_BENCH_LZ4
void lz4_pack(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  Buffer packed(static_cast<std::size_t>(LZ4_compressBound(kBytes)));
  int bytes = 0;
  for (auto _ : state) {
    bytes = LZ4_compress_default(reinterpret_cast<const char*>(data.data()),
                                 reinterpret_cast<char*>(packed.data()), kBytes,
                                 static_cast<int>(packed.size()));
  }
  report(state, static_cast<Bytes>(bytes));
}
BENCHMARK(lz4_pack)->DenseRange(0, kKinds - 1);

void lz4_unpack(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  Buffer packed(static_cast<std::size_t>(LZ4_compressBound(kBytes)));
  const int bytes = LZ4_compress_default(reinterpret_cast<const char*>(data.data()),
                                         reinterpret_cast<char*>(packed.data()), kBytes,
                                         static_cast<int>(packed.size()));
  Buffer to(kBytes);
  for (auto _ : state) {
    benchmark::DoNotOptimize(LZ4_decompress_safe(reinterpret_cast<const char*>(packed.data()),
                                                 reinterpret_cast<char*>(to.data()), bytes,
                                                 kBytes));
  }
  if (to != data) state.SkipWithError("other bytes came back");
  report(state, static_cast<Bytes>(bytes));
}
BENCHMARK(lz4_unpack)->DenseRange(0, kKinds - 1);
#endif

#ifdef LOWTIDE_BENCH_ZSTD
void zstd_pack(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  Buffer packed(ZSTD_compressBound(kBytes));
  std::size_t bytes = 0;
  for (auto _ : state) {
    bytes = ZSTD_compress(packed.data(), packed.size(), data.data(), kBytes, 1);
  }
  report(state, bytes);
}
BENCHMARK(zstd_pack)->DenseRange(0, kKinds - 1);

void zstd_unpack(benchmark::State& state) {
  const Buffer& data = data_of(state.range(0));
  Buffer packed(ZSTD_compressBound(kBytes));
  const std::size_t bytes = ZSTD_compress(packed.data(), packed.size(), data.data(), kBytes, 1);
  Buffer to(kBytes);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ZSTD_decompress(to.data(), kBytes, packed.data(), bytes));
  }
  if (to != data) state.SkipWithError("other bytes came back");
  report(state, bytes);
}
BENCHMARK(zstd_unpack)->DenseRange(0, kKinds - 1);
#endif

}  // namespace

BENCHMARK_MAIN();
