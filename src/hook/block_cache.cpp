#include "src/hook/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

namespace lowtide::hook {
namespace {

constexpr Bytes kPage = 4096;
constexpr int kStepBits = 5;

}  // namespace

Bytes BlockCache::capacity_for(Bytes bytes) noexcept {
  const int power = std::bit_width(bytes) - 1;
  const Bytes step = std::max(kPage, Bytes{1} << (power - kStepBits));
  return (bytes + step - 1) / step * step;
}

int BlockCache::class_of(Bytes capacity) noexcept {
  const int power = std::bit_width(capacity) - 1;
  const auto step = static_cast<int>((capacity >> (power - kStepBits)) & (kSteps - 1));
  return (power - std::bit_width(kSmallest) + 1) * kSteps + step;
}

void* BlockCache::map(Bytes capacity) noexcept {
  void* base = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

void BlockCache::unmap(void* base, Bytes capacity) noexcept { munmap(base, capacity); }

void BlockCache::unlink(Kept* kept) noexcept {
  (kept->newer != nullptr ? kept->newer->older : newest_) = kept->older;
  (kept->older != nullptr ? kept->older->newer : oldest_) = kept->newer;
  (kept->previous != nullptr ? kept->previous->next : newest_of_[class_of(kept->capacity)]) =
      kept->next;
  if (kept->next != nullptr) kept->next->previous = kept->previous;
  kept_bytes_ -= kept->touched;
}

void* BlockCache::take(Bytes capacity, Bytes& touched) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  Kept* kept = newest_of_[class_of(capacity)];
  if (kept == nullptr) return nullptr;
  unlink(kept);
  touched = kept->touched;
  return kept;
}

// Unlinks the oldest until at most `may_stay` bytes are kept; they come chained by `next`.
BlockCache::Kept* BlockCache::take_oldest(Bytes may_stay) noexcept {
  Kept* chain = nullptr;
  while (kept_bytes_ > may_stay) {
    Kept* kept = oldest_;
    unlink(kept);
    kept->next = chain;
    chain = kept;
  }
  return chain;
}

Bytes BlockCache::give_back(Kept* chain) noexcept {
  Bytes bytes = 0;
  while (chain != nullptr) {
    Kept* kept = chain;
    chain = kept->next;
    bytes += kept->touched;
    unmap(kept, kept->capacity);
  }
  return bytes;
}

void BlockCache::put(void* base, Bytes capacity, Bytes touched, Bytes may_stay) noexcept {
  if (touched > may_stay) {
    unmap(base, capacity);
    return;
  }
  Kept* surplus = nullptr;
  {
    const ForkSafeLock::Guard guard(lock_);
    surplus = take_oldest(may_stay - touched);
    Kept*& head = newest_of_[class_of(capacity)];
    auto* kept = new (base) Kept{nullptr, newest_, head, nullptr, capacity, touched};
    if (head != nullptr) head->previous = kept;
    head = kept;
    (newest_ != nullptr ? newest_->newer : oldest_) = kept;
    newest_ = kept;
    kept_bytes_ += touched;
  }
  give_back(surplus);
}

Bytes BlockCache::trim(Bytes may_stay) noexcept {
  Kept* surplus = nullptr;
  {
    const ForkSafeLock::Guard guard(lock_);
    surplus = take_oldest(may_stay);
  }
  return give_back(surplus);
}

Bytes BlockCache::kept_bytes() const noexcept {
  const ForkSafeLock::Guard guard(lock_);
  return kept_bytes_;
}

}  // namespace lowtide::hook
