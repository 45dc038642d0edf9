// One lock guards all counts. That makes the peak's kinds add up to the peak, which separate
// atomics cannot give: between two of them another thread may pass. Tested by
// counting_allocator_test.cpp; what the lock costs stands in docs/design/allocator.md.

#include "src/hook/memory_ledger.h"

#include <algorithm>

#include "src/base/text.h"

namespace lowtide {

const char* to_string(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kProgram:
      return "program";
    case MemoryKind::kParameters:
      return "parameters";
    case MemoryKind::kGradients:
      return "gradients";
    case MemoryKind::kOptimizerState:
      return "optimizer_state";
    case MemoryKind::kSaved:
      return "saved";
    case MemoryKind::kWorkspace:
      return "workspace";
  }
  return "unknown";
}

std::string to_string(const MemoryByKind& by_kind) {
  std::string text;
  for (const MemoryKind kind : kAllMemoryKinds) {
    if (by_kind[kind] != 0) {
      text += concat(text.empty() ? "" : ", ", to_string(kind), " ", format_bytes(by_kind[kind]));
    }
  }
  return text.empty() ? "nothing" : text;
}

namespace hook {
namespace {

constexpr std::uint32_t kBlocksInWindow = 32'768;

}  // namespace

void MemoryLedger::grow(Bytes bytes, MemoryKind kind) noexcept {
  live_by_kind_[kind] += bytes;
  live_ += bytes;
  if (live_ > lowest_peak_) {
    raise_peaks();
  }
  if (++blocks_in_window_ >= kBlocksInWindow) {
    earlier_peak_ = recent_peak_;
    recent_peak_ = 0;
    blocks_in_window_ = 0;
  }
  recent_peak_ = std::max(recent_peak_, live_);
}

void MemoryLedger::add(Bytes bytes, MemoryKind kind) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  grow(bytes, kind);
}

void MemoryLedger::subtract(Bytes bytes, MemoryKind kind) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  live_by_kind_[kind] -= bytes;
  live_ -= bytes;
}

void MemoryLedger::retag(Bytes bytes, MemoryKind& kind, MemoryKind to) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  live_by_kind_[kind] -= bytes;
  live_by_kind_[to] += bytes;
  kind = to;
}

MemoryByKind MemoryLedger::live_by_kind() const noexcept {
  const ForkSafeLock::Guard guard(lock_);
  return live_by_kind_;
}

Bytes MemoryLedger::live() const noexcept {
  const ForkSafeLock::Guard guard(lock_);
  return live_;
}

Bytes MemoryLedger::room_for_reuse() const noexcept {
  const ForkSafeLock::Guard guard(lock_);
  const Bytes most = std::min(limit_, std::max(recent_peak_, earlier_peak_));
  const Bytes taken = live_ + pending_;
  return most - std::min(most, taken);
}

void MemoryLedger::raise_peaks() noexcept {
  for (PeakWatch* watch = watches_; watch != nullptr; watch = watch->next) {
    if (live_ > watch->peak) {
      watch->peak = live_;
      watch->at_peak = live_by_kind_;
    }
  }
  find_lowest_peak();
}

void MemoryLedger::find_lowest_peak() noexcept {
  lowest_peak_ = kNoLimit;
  for (const PeakWatch* watch = watches_; watch != nullptr; watch = watch->next) {
    lowest_peak_ = std::min(lowest_peak_, watch->peak);
  }
}

void MemoryLedger::begin_watch(PeakWatch& watch) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  watch.peak = live_;
  watch.at_peak = live_by_kind_;
  watch.previous = nullptr;
  watch.next = watches_;
  if (watches_ != nullptr) {
    watches_->previous = &watch;
  }
  watches_ = &watch;
  find_lowest_peak();
}

void MemoryLedger::end_watch(PeakWatch& watch) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  (watch.previous != nullptr ? watch.previous->next : watches_) = watch.next;
  if (watch.next != nullptr) {
    watch.next->previous = watch.previous;
  }
  find_lowest_peak();
}

void MemoryLedger::restart_watch(PeakWatch& watch) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  watch.peak = live_;
  watch.at_peak = live_by_kind_;
  find_lowest_peak();
}

MemoryByKind MemoryLedger::at_peak(const PeakWatch& watch) const noexcept {
  const ForkSafeLock::Guard guard(lock_);
  return watch.at_peak;
}

bool MemoryLedger::reserve(Bytes bytes, bool& reserved, AllocationGate*& gate) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  reserved = false;
  if (gate_ == nullptr) {
    return true;
  }
  // Subtraction on the right: the sum on the left could overflow for a huge request.
  const Bytes taken = live_ + pending_;
  if (taken <= limit_ && bytes <= limit_ - taken) {
    pending_ += bytes;
    reserved = true;
    return true;
  }
  gate = gate_;
  ++gate_users_;
  return false;
}

AllocationGate* MemoryLedger::acquire_gate() noexcept {
  const ForkSafeLock::Guard guard(lock_);
  if (gate_ != nullptr) {
    ++gate_users_;
  }
  return gate_;
}

void MemoryLedger::release_gate() noexcept {
  const ForkSafeLock::Guard guard(lock_);
  --gate_users_;
}

void MemoryLedger::commit(Bytes bytes, MemoryKind kind) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  pending_ -= bytes;
  grow(bytes, kind);
}

void MemoryLedger::cancel(Bytes bytes) noexcept {
  const ForkSafeLock::Guard guard(lock_);
  pending_ -= bytes;
}

Bytes MemoryLedger::limit() const noexcept {
  const ForkSafeLock::Guard guard(lock_);
  return limit_;
}

AllocationGate* MemoryLedger::exchange_gate(AllocationGate* gate, Bytes limit) noexcept {
  AllocationGate* old = nullptr;
  {
    const ForkSafeLock::Guard guard(lock_);
    old = gate_;
    gate_ = gate;
    limit_ = gate == nullptr ? kNoLimit : limit;
    gated_.store(gate != nullptr, std::memory_order_release);
  }
  for (;;) {
    {
      const ForkSafeLock::Guard guard(lock_);
      if (old == nullptr || old == gate || gate_users_ == 0) {
        return old;
      }
    }
    sched_yield();
  }
}

void MemoryLedger::after_fork_in_child() noexcept {
  // The threads that had reserved bytes, or were inside the gate, do not exist in the child; the
  // objects behind the gate are in whatever state they left them.
  gate_ = nullptr;
  gated_.store(false, std::memory_order_relaxed);
  gate_users_ = 0;
  pending_ = 0;
  limit_ = kNoLimit;
  lock_.after_fork();
}

}  // namespace hook

}  // namespace lowtide
