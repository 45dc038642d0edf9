#pragma once
// Large blocks of host memory, kept for reuse when they are freed.
//
//   if (BlockCache::is_large(bytes)) {
//     const Bytes capacity = BlockCache::capacity_for(bytes);
//     Bytes touched = 0;
//     void* base = cache.take(capacity, touched);       // the newest one of that capacity, or null
//     if (base == nullptr) {
//       cache.trim(bytes_that_may_stay);                // the oldest go back to the system
//       base = BlockCache::map(capacity);
//     }
//     ...
//     cache.put(base, capacity, touched_bytes, bytes_that_may_stay);
//   }
//
// Why: the C library gives a freed large block back to the system at once, so libtorch takes a page
// fault for every 4 KiB of every large tensor of every step; or it keeps them for ever, and
// resident memory has nothing to do with the tensors that live. Blocks that are mapped on their own
// and kept here are warm when the next step asks for the same sizes, and go when they are in the
// way: the caller says how many bytes may stay.
//
// A block serves requests of its own capacity only: sizes are rounded up to a 32nd of their power
// of two (a page at least), and training asks for the same sizes again. The bytes of the rounding
// are not touched, so they are not resident.
//
// Cost: a lock of some 10 ns; free blocks are chained through their own first bytes.
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

  // `touched` is what put() was told; left alone when there is no block.
  void* take(Bytes capacity, Bytes& touched) noexcept;
  // Keeps the block if `touched` is at most `may_stay`. The oldest go, until all that is kept is.
  void put(void* base, Bytes capacity, Bytes touched, Bytes may_stay) noexcept;
  // Gives back until at most `may_stay` bytes are kept; returns the touched bytes given back.
  Bytes trim(Bytes may_stay) noexcept;

  Bytes kept_bytes() const noexcept;

  void before_fork() noexcept { lock_.before_fork(); }
  void after_fork() noexcept { lock_.after_fork(); }

 private:
  // In the first bytes of a kept block. `newer` and `older` chain all of them, `next` and
  // `previous` those of one capacity.
  struct Kept {
    Kept *newer, *older;
    Kept *next, *previous;
    Bytes capacity, touched;
  };
  static constexpr int kSteps = 32;  // capacities for each power of two
  static constexpr int kClasses = 48 * kSteps;

  static int class_of(Bytes capacity) noexcept;
  void unlink(Kept* kept) noexcept;
  Kept* take_oldest(Bytes may_stay) noexcept;
  static Bytes give_back(Kept* chain) noexcept;

  mutable ForkSafeLock lock_;  // guards all that follows
  std::array<Kept*, kClasses> newest_of_{};
  Kept* newest_ = nullptr;
  Kept* oldest_ = nullptr;
  Bytes kept_bytes_ = 0;
};

}  // namespace lowtide::hook
