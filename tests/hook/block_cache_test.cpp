#include "src/hook/block_cache.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <map>
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

TEST_CASE("a capacity is at least what was asked for, at most a 128th more, and its own capacity") {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const int power = 16 + static_cast<int>(random() % 30);
    const Bytes bytes = (Bytes{1} << power) + random() % (Bytes{1} << power);
    const Bytes capacity = BlockCache::capacity_for(bytes);
    REQUIRE(capacity >= bytes);
    REQUIRE(capacity - bytes < std::max(kPage, bytes / 128 + 1));
    REQUIRE(capacity % kPage == 0);
    REQUIRE(BlockCache::capacity_for(capacity) == capacity);
  }
}

// Blocks by place, none over another.
class Ranges {
 public:
  void add(void* base, Bytes capacity) {
    auto* begin = static_cast<char*>(base);
    const auto after = ranges_.lower_bound(begin);
    if (after != ranges_.end()) REQUIRE(begin + capacity <= after->first);
    if (after != ranges_.begin()) {
      const auto before = std::prev(after);
      REQUIRE(before->first + before->second <= begin);
    }
    ranges_[begin] = capacity;
  }
  void remove(void* base) { ranges_.erase(static_cast<char*>(base)); }

 private:
  std::map<char*, Bytes> ranges_;
};

TEST_CASE("no two blocks overlap, and no more is kept than may stay, whatever is cut and joined") {
  BlockCache cache;
  struct Taken {
    unsigned char* base;
    Bytes capacity;
    unsigned char mark;
  };
  std::vector<Taken> taken;
  Ranges ranges;
  std::mt19937 random(2);
  int reused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (taken.empty() || random() % 2 == 0) {
      const Bytes capacity = BlockCache::capacity_for(Bytes{64 + 16 * (random() % 300)} << 10);
      const Bytes kept = cache.kept_bytes();
      void* base = cache.take(capacity);
      if (base != nullptr) {
        REQUIRE(cache.kept_bytes() <= kept - capacity);
        REQUIRE(cache.kept_bytes() + BlockCache::kSmallest > kept - capacity);
        ++reused;
      } else {
        base = BlockCache::map(capacity);
        REQUIRE(base != nullptr);
      }
      ranges.add(base, capacity);
      const auto mark = static_cast<unsigned char>(random());
      std::memset(base, mark, capacity);
      taken.push_back({static_cast<unsigned char*>(base), capacity, mark});
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      const Taken block = taken.back();
      taken.pop_back();
      REQUIRE(block.base[0] == block.mark);
      REQUIRE(block.base[block.capacity / 2] == block.mark);
      REQUIRE(block.base[block.capacity - 1] == block.mark);
      ranges.remove(block.base);
      const Bytes kept = cache.kept_bytes();
      const Bytes may_stay = random() % (64 * kMiB);
      cache.put(block.base, block.capacity, may_stay);
      REQUIRE(cache.kept_bytes() <= may_stay);
      REQUIRE(cache.kept_bytes() <= kept + block.capacity);
    }
  }
  CHECK(reused > 2'000);
  const Bytes all = cache.kept_bytes();
  CHECK(cache.trim(0) == all);
  CHECK(cache.kept_bytes() == 0);
  for (const Taken& block : taken) BlockCache::unmap(block.base, block.capacity);
}

TEST_CASE("a large block serves smaller ones, and they serve it again once joined") {
  BlockCache cache;
  const Bytes large = BlockCache::capacity_for(32 * kMiB);
  auto* base = static_cast<char*>(BlockCache::map(large));
  cache.put(base, large, 64 * kMiB);
  void* small[4];
  for (void*& part : small) part = cache.take(8 * kMiB);
  CHECK(cache.kept_bytes() == 0);
  CHECK(cache.take(8 * kMiB) == nullptr);
  for (const int i : {2, 0, 3, 1}) cache.put(small[i], 8 * kMiB, 64 * kMiB);
  CHECK(cache.take(large) == base);
  cache.put(base, large, 64 * kMiB);
  CHECK(cache.trim(20 * kMiB) == 12 * kMiB);  // the oldest is cut, not given up
  CHECK(cache.take(20 * kMiB) == base);
  BlockCache::unmap(base, 20 * kMiB);
}

TEST_CASE("eight threads never hold one block twice") {
  BlockCache cache;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2'000; ++i) {
        const Bytes capacity = BlockCache::capacity_for((64 + 64 * (i % 3)) << 10);
        void* base = cache.take(capacity);
        if (base == nullptr) base = BlockCache::map(capacity);
        auto* word = static_cast<volatile int*>(base);
        *word = t;
        std::this_thread::yield();
        if (*word != t) ++wrong;
        cache.put(base, capacity, 4 * kMiB);
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
