#pragma once
// Large blocks of host memory, kept for reuse when they are freed.
//
//   if (BlockCache::is_large(bytes)) {
//     const Bytes capacity = BlockCache::capacity_for(bytes);
//     void* base = cache.take(capacity);                // from what is kept, or null
//     if (base == nullptr) {
//       cache.trim(bytes_that_may_stay);                // the oldest go back to the system
//       base = BlockCache::map(capacity);
//     }
//     ...
//     cache.put(base, capacity, bytes_that_may_stay);
//   }
//
// Why: the C library gives a freed large block back to the system at once, so libtorch takes a page
// fault for every 4 KiB of every large tensor of every step; or it keeps them for ever, and
// resident memory has nothing to do with the tensors that live. Blocks that are mapped on their own
// and kept here are warm when the next step asks for the same sizes, and go when they are in the
// way: the caller says how many bytes may stay.
//
// How. Sizes are rounded up to a 128th of their power of two (a page at least), and training asks
// for the same sizes again: a list for each size answers most requests. From 1 MiB on, a request
// that finds none takes the end of a larger block, the best fit; and when there is none either,
// neighbours are joined and it looks again. A mapping may be cut and joined at any page, so what is
// left over is a block like others.
//
// Cost: a lock of some 10 ns; free blocks are chained through their own first bytes. Joining sorts
// all that is kept, some 20 us for a few hundred, beside milliseconds of page faults.
// Thread-safe. Tested by tests/hook/block_cache_test.cpp.

#include <array>
#include <cstddef>
#include <cstdint>

#include "lowtide/bytes.h"
#include "lowtide/export.h"
#include "src/hook/fork_safe_lock.h"

namespace lowtide::hook {

class LOWTIDE_API BlockCache {
 public:
  static constexpr Bytes kSmallest = Bytes{64} << 10;

  constexpr BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  static bool is_large(Bytes bytes) noexcept { return bytes >= kSmallest; }
  // At least `bytes`; what map(), take() and put() want.
  static Bytes capacity_for(Bytes bytes) noexcept;

  // Memory from the system, on a page's boundary; null when there is none.
  static void* map(Bytes capacity) noexcept;
  static void unmap(void* base, Bytes capacity) noexcept;

  void* take(Bytes capacity) noexcept;
  // Keeps the block. The oldest go until at most `may_stay` bytes are kept.
  void put(void* base, Bytes capacity, Bytes may_stay) noexcept;
  // Gives back until at most `may_stay` bytes are kept; returns the bytes given back.
  Bytes trim(Bytes may_stay) noexcept;

  Bytes kept_bytes() const noexcept;

  void before_fork() noexcept { lock_.before_fork(); }
  void after_fork() noexcept { lock_.after_fork(); }

 private:
  // In the first bytes of a kept block. `newer` and `older` chain all of them, `next` and
  // `previous` those of one list.
  struct Kept {
    Kept *newer, *older;
    Kept *next, *previous;
    Bytes capacity;
  };
  static constexpr int kStepBits = 7;  // lists for each power of two, as bits
  static constexpr int kLists = 48 << kStepBits;

  // All blocks of a list have at least the capacity of its number, and less than the next one's.
  static int list_of(Bytes capacity) noexcept;
  void enlist(Kept* kept) noexcept;
  void delist(Kept* kept) noexcept;
  void unlink(Kept* kept) noexcept;
  void* take_part(Bytes capacity) noexcept;
  bool join_neighbours() noexcept;
  Kept* take_oldest(Bytes may_stay) noexcept;
  static Bytes give_back(Kept* chain) noexcept;

  mutable ForkSafeLock lock_;  // guards all that follows
  std::array<Kept*, kLists> lists_{};
  std::array<std::uint64_t, kLists / 64> filled_{};  // a bit for each list
  Kept* newest_ = nullptr;
  Kept* oldest_ = nullptr;
  Bytes kept_bytes_ = 0;
  std::size_t count_ = 0;
  bool may_join_ = false;  // something was put since the last time
};

}  // namespace lowtide::hook
