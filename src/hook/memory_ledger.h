#pragma once
// The counts behind MemoryMeter: live bytes by kind, peaks, and the limit that a budget sets.
//
// Invariants, true whenever the lock is free:
//   live == sum of live_by_kind == bytes of all counted blocks;
//   for each watch: peak == at_peak.total() >= every value of live since the watch began;
//   live + pending <= limit, once it held when the limit was set.
//
// Knows nothing of torch, blocks or devices. One ledger per device.

#include <atomic>
#include <cstdint>
#include <limits>

#include "lowtide/bytes.h"
#include "lowtide/export.h"
#include "lowtide/memory_meter.h"
#include "src/hook/fork_safe_lock.h"

namespace lowtide::hook {

class AllocationGate;

// One meter's peak. Part of a list while registered; read and written under the ledger's lock.
struct PeakWatch {
  Bytes peak = 0;
  MemoryByKind at_peak;
  PeakWatch* previous = nullptr;
  PeakWatch* next = nullptr;
};

class LOWTIDE_API MemoryLedger {
 public:
  static constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

  constexpr MemoryLedger() = default;
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  // A block was handed out, given back, or is now for something else. Never throw, never allocate.
  void add(Bytes bytes, MemoryKind kind) noexcept;
  void subtract(Bytes bytes, MemoryKind kind) noexcept;
  // `kind` is the block's field; it is read and written under the lock.
  void retag(Bytes bytes, MemoryKind& kind, MemoryKind to) noexcept;

  MemoryByKind live_by_kind() const noexcept;
  Bytes live() const noexcept;

  // What free blocks may take without the process growing beyond what it needed lately (the last
  // 32,768 to 65,536 blocks), nor beyond the limit: 0 at a peak.
  Bytes room_for_reuse() const noexcept;

  // Peaks. A watch begins and restarts at what is live now.
  void begin_watch(PeakWatch& watch) noexcept;
  void end_watch(PeakWatch& watch) noexcept;
  void restart_watch(PeakWatch& watch) noexcept;
  MemoryByKind at_peak(const PeakWatch& watch) const noexcept;

  // The limit. With a gate in place an allocation is three calls: reserve, then commit or cancel.
  // Reserved bytes count against the limit but are not live, so a failed allocation leaves no trace
  // in the peaks.
  bool is_gated() const noexcept { return gated_.load(std::memory_order_acquire); }
  // Returns true when `bytes` were reserved, or when no gate is in place any more (then
  // `reserved` is false). Otherwise false, and `gate` is held for the caller, who must
  // release_gate() after use.
  bool reserve(Bytes bytes, bool& reserved, AllocationGate*& gate) noexcept;
  // Holds the gate without reserving; null when there is none.
  AllocationGate* acquire_gate() noexcept;
  void release_gate() noexcept;
  void commit(Bytes bytes, MemoryKind kind) noexcept;
  void cancel(Bytes bytes) noexcept;
  Bytes limit() const noexcept;

  // Puts `gate` in force with `limit`, in place of any other; returns that other. Null takes the
  // gate away. Returns after the last call into the old gate has ended, so do not call it from
  // inside a gate, except to give the same gate another limit, which does not wait.
  AllocationGate* exchange_gate(AllocationGate* gate, Bytes limit) noexcept;

  // Around fork(); see counting_allocator.cpp.
  void before_fork() noexcept { lock_.before_fork(); }
  void after_fork_in_parent() noexcept { lock_.after_fork(); }
  void after_fork_in_child() noexcept;

 private:
  void grow(Bytes bytes, MemoryKind kind) noexcept;
  void raise_peaks() noexcept;
  void find_lowest_peak() noexcept;

  mutable ForkSafeLock lock_;  // guards all that follows
  MemoryByKind live_by_kind_{};
  Bytes live_ = 0;
  Bytes pending_ = 0;
  Bytes limit_ = kNoLimit;
  Bytes lowest_peak_ = kNoLimit;  // of all watches: below it no peak can be new
  Bytes recent_peak_ = 0;         // of this window of blocks, and of the one before
  Bytes earlier_peak_ = 0;
  std::uint32_t blocks_in_window_ = 0;
  PeakWatch* watches_ = nullptr;
  AllocationGate* gate_ = nullptr;
  std::uint32_t gate_users_ = 0;
  std::atomic<bool> gated_{false};  // gate_ != nullptr, readable without the lock
};

}  // namespace lowtide::hook
