#include "src/hook/block_cache.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lowtide/budget.h"
#include "lowtide/memory_meter.h"
#include "src/hook/counting_allocator.h"

namespace lowtide::hook {
namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kPage = 4096;

Bytes resident_bytes() {
  std::ifstream file("/proc/self/statm");
  Bytes all = 0, resident = 0;
  file >> all >> resident;
  return resident * kPage;
}

TEST_CASE("a capacity is at least what was asked for, at most a 32nd more, and its own capacity") {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const int power = 16 + static_cast<int>(random() % 30);
    const Bytes bytes = (Bytes{1} << power) + random() % (Bytes{1} << power);
    const Bytes capacity = BlockCache::capacity_for(bytes);
    REQUIRE(capacity >= bytes);
    REQUIRE(capacity - bytes < std::max(kPage, bytes / 32 + 1));
    REQUIRE(capacity % kPage == 0);
    REQUIRE(BlockCache::capacity_for(capacity) == capacity);
  }
}

TEST_CASE("takes the newest of its capacity, gives back the oldest, keeps at most what may stay") {
  BlockCache cache;
  // The slow twin: (base, capacity), the oldest first.
  std::vector<std::pair<void*, Bytes>> kept;
  std::vector<std::pair<void*, Bytes>> taken;
  std::mt19937 random(2);
  const auto sum = [&] {
    Bytes bytes = 0;
    for (const auto& [base, capacity] : kept) bytes += capacity;
    return bytes;
  };
  for (int i = 0; i < 20'000; ++i) {
    if (taken.empty() || random() % 2 == 0) {
      const Bytes capacity = BlockCache::capacity_for((64 + 16 * (random() % 40)) << 10);
      Bytes touched = 0;
      void* base = cache.take(capacity, touched);
      const auto newest = std::find_if(kept.rbegin(), kept.rend(),
                                       [&](const auto& block) { return block.second == capacity; });
      REQUIRE((base == nullptr) == (newest == kept.rend()));
      if (base == nullptr) {
        base = BlockCache::map(capacity);
        REQUIRE(base != nullptr);
      } else {
        REQUIRE(base == newest->first);
        kept.erase(std::next(newest).base());
      }
      std::memset(base, 1, capacity);
      taken.emplace_back(base, capacity);
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      const auto [base, capacity] = taken.back();
      taken.pop_back();
      const Bytes may_stay = random() % (8 * kMiB);
      cache.put(base, capacity, capacity, may_stay);
      if (capacity <= may_stay) {
        while (sum() > may_stay - capacity) kept.erase(kept.begin());
        kept.emplace_back(base, capacity);
      }
    }
    REQUIRE(cache.kept_bytes() == sum());
  }
  const Bytes all = cache.kept_bytes();
  CHECK(cache.trim(0) == all);
  CHECK(cache.kept_bytes() == 0);
  for (const auto& [base, capacity] : taken) BlockCache::unmap(base, capacity);
}

TEST_CASE("eight threads never hold one block twice") {
  BlockCache cache;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2'000; ++i) {
        const Bytes capacity = BlockCache::capacity_for((64 + 64 * (i % 3)) << 10);
        Bytes touched = 0;
        void* base = cache.take(capacity, touched);
        if (base == nullptr) base = BlockCache::map(capacity);
        auto* word = static_cast<volatile int*>(base);
        *word = t;
        std::this_thread::yield();
        if (*word != t) ++wrong;
        cache.put(base, capacity, capacity, 4 * kMiB);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  cache.trim(0);
}

struct WithReuse {
  bool before = set_block_reuse(true);
  ~WithReuse() { set_block_reuse(before); }
};

TEST_CASE("a step's tensors get the blocks of the step before; room is kept to what was needed") {
  const WithReuse on;
  if (set_block_reuse(true); !set_block_reuse(true)) {
    MESSAGE("skipped: blocks are not reused in this build");
    return;
  }
  const auto step = [] {
    std::vector<at::Tensor> tensors;
    std::vector<const void*> places;
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(at::ones({(i + 1) * 100'000}));
      places.push_back(tensors.back().const_data_ptr());
    }
    std::sort(places.begin(), places.end());
    return places;
  };
  const auto first = step();
  CHECK(reusable_bytes() >= 8 * 9 / 2 * 400'000);
  CHECK(step() == first);
  const Bytes needed = MemoryMeter().live_bytes() + 8 * 9 / 2 * 400'000;
  CHECK(MemoryMeter().live_bytes() + reusable_bytes() <= needed + needed / 16);
}

TEST_CASE("free blocks go when a limit or another size needs the room") {
  const WithReuse on;
  if (!set_block_reuse(true)) {
    MESSAGE("skipped: blocks are not reused in this build");
    return;
  }
  {
    const at::Tensor large = at::ones({64 << 18});
  }  // 64 MiB
  CHECK(reusable_bytes() >= 64 * kMiB);
  const Bytes before = resident_bytes();
  {
    const at::Tensor other = at::ones({48 << 18});
    CHECK(reusable_bytes() <= 17 * kMiB);
    CHECK(resident_bytes() <= before + kMiB);
  }
  {
    const MemoryBudget budget(MemoryMeter().live_bytes() + 8 * kMiB);
    const at::Tensor small = at::ones({4 << 18});
    CHECK(reusable_bytes() <= 4 * kMiB + kMiB);
  }
  set_block_reuse(false);
  CHECK(reusable_bytes() == 0);
  CHECK(resident_bytes() < before - 32 * kMiB);
}

}  // namespace
}  // namespace lowtide::hook
