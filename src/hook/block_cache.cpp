#include "src/hook/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>
#include <vector>

namespace lowtide::hook {
namespace {

constexpr Bytes kPage = 4096;
// Smaller requests are not worth a cut.
constexpr Bytes kSmallestPart = Bytes{1} << 20;

}  // namespace

Bytes BlockCache::capacity_for(Bytes bytes) noexcept {
  const int power = std::bit_width(bytes) - 1;
  const Bytes step = std::max(kPage, Bytes{1} << (power - kStepBits));
  return (bytes + step - 1) / step * step;
}

int BlockCache::list_of(Bytes capacity) noexcept {
  const int power = std::bit_width(capacity) - 1;
  const auto step = static_cast<int>((capacity >> (power - kStepBits)) & ((1 << kStepBits) - 1));
  return ((power - std::bit_width(kSmallest) + 1) << kStepBits) + step;
}

void* BlockCache::map(Bytes capacity) noexcept {
  void* base = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

void BlockCache::unmap(void* base, Bytes capacity) noexcept { munmap(base, capacity); }

// ---- lists ----

void BlockCache::enlist(Kept* kept) noexcept {
  const int list = list_of(kept->capacity);
  Kept*& head = lists_[list];
  kept->previous = nullptr;
  kept->next = head;
  if (head != nullptr) head->previous = kept;
  head = kept;
  filled_[list / 64] |= std::uint64_t{1} << (list % 64);
}

void BlockCache::delist(Kept* kept) noexcept {
  if (kept->next != nullptr) kept->next->previous = kept->previous;
  if (kept->previous != nullptr) {
    kept->previous->next = kept->next;
    return;
  }
  const int list = list_of(kept->capacity);
  lists_[list] = kept->next;
  if (kept->next == nullptr) filled_[list / 64] &= ~(std::uint64_t{1} << (list % 64));
}

void BlockCache::unlink(Kept* kept) noexcept {
  delist(kept);
  (kept->newer != nullptr ? kept->newer->older : newest_) = kept->older;
  (kept->older != nullptr ? kept->older->newer : oldest_) = kept->newer;
  kept_bytes_ -= kept->capacity;
  --count_;
}

// ---- taking ----

void* BlockCache::take(Bytes capacity) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  if (Kept* kept = lists_[list_of(capacity)]; kept != nullptr && kept->capacity == capacity) {
    unlink(kept);
    return kept;
  }
  if (capacity < kSmallestPart || kept_bytes_ < capacity) return nullptr;
  if (void* part = take_part(capacity)) return part;
  return join_neighbours() ? take_part(capacity) : nullptr;
}

// The end of the smallest kept block that is large enough.
void* BlockCache::take_part(Bytes capacity) noexcept {
  const int first = list_of(capacity);
  int word = first / 64;
  std::uint64_t bits = filled_[word] & (~std::uint64_t{0} << (first % 64));
  while (bits == 0) {
    if (++word == kLists / 64) return nullptr;
    bits = filled_[word];
  }
  Kept* kept = lists_[word * 64 + std::countr_zero(bits)];
  const Bytes left = kept->capacity - capacity;
  if (left < kSmallest) {
    unlink(kept);
    if (left > 0) unmap(reinterpret_cast<char*>(kept) + capacity, left);
    return kept;
  }
  delist(kept);
  kept->capacity = left;
  kept_bytes_ -= capacity;
  enlist(kept);
  return reinterpret_cast<char*>(kept) + left;
}

// Makes one block of those that lie beside each other; false when there are none.
bool BlockCache::join_neighbours() noexcept {
  if (!may_join_ || count_ < 2) return false;
  may_join_ = false;
  std::vector<Kept*> by_place;
  try {
    by_place.reserve(count_);
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (Kept* kept = newest_; kept != nullptr; kept = kept->older) by_place.push_back(kept);
  std::sort(by_place.begin(), by_place.end(), std::less<>());
  bool any = false;
  Kept* first = by_place.front();
  for (std::size_t i = 1; i < by_place.size(); ++i) {
    Kept* next = by_place[i];
    if (reinterpret_cast<char*>(first) + first->capacity != reinterpret_cast<char*>(next)) {
      first = next;
      continue;
    }
    const Bytes more = next->capacity;
    unlink(next);
    delist(first);
    first->capacity += more;
    kept_bytes_ += more;
    enlist(first);
    any = true;
  }
  return any;
}

// ---- giving back ----

// Cuts from the oldest until at most `may_stay` bytes are kept; the cuts come chained by `next`.
BlockCache::Kept* BlockCache::take_oldest(Bytes may_stay) noexcept {
  Kept* chain = nullptr;
  while (kept_bytes_ > may_stay) {
    Kept* kept = oldest_;
    const Bytes surplus = (kept_bytes_ - may_stay + kPage - 1) / kPage * kPage;
    if (kept->capacity < surplus + kSmallest) {
      unlink(kept);
    } else {
      delist(kept);
      kept->capacity -= surplus;
      kept_bytes_ -= surplus;
      enlist(kept);
      kept = new (reinterpret_cast<char*>(kept) + kept->capacity) Kept{};
      kept->capacity = surplus;
    }
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
    bytes += kept->capacity;
    unmap(kept, kept->capacity);
  }
  return bytes;
}

void BlockCache::put(void* base, Bytes capacity, Bytes may_stay) noexcept {
  Kept* surplus = nullptr;
  {
    const ForkSafeLock::Guard guard(lock_);
    auto* kept = new (base) Kept{nullptr, newest_, nullptr, nullptr, capacity};
    (newest_ != nullptr ? newest_->newer : oldest_) = kept;
    newest_ = kept;
    enlist(kept);
    kept_bytes_ += capacity;
    ++count_;
    may_join_ = true;
    surplus = take_oldest(may_stay);
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
