#pragma once
// What budgets did: counts for the reports, and events for whoever listens.
//
//   journal.add({.kind = BudgetEvent::Kind::kDrop, .op = "aten::mm", .bytes = n, ...});
//   ...locks given back...
//   journal.deliver();
//
// Listeners run in deliver(), on the calling thread, with no lock held. LOWTIDE_LOG is one of them:
// "info" writes steps and refusals to stderr, "debug" each drop and recomputation too.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "lowtide/budget.h"
#include "src/base/forkable_mutex.h"

namespace lowtide {

class BudgetJournal {
 public:
  using Listener = std::function<void(const BudgetEvent&)>;
  // By kind of event: how many, their bytes and their time.
  struct Counts {
    static constexpr std::size_t kKinds = 6;
    std::array<std::uint64_t, kKinds> events{};
    std::array<Bytes, kKinds> bytes{};
    std::array<std::uint64_t, kKinds> ns{};

    std::uint64_t of(BudgetEvent::Kind kind) const {
      return events[static_cast<std::size_t>(kind)];
    }
  };

  // Reads LOWTIDE_LOG. Throws UsageError (LT0308) when it is none of off, info and debug.
  void read_log_level();

  // Counts the event, and keeps it for deliver() when somebody listens.
  void add(const BudgetEvent& event) noexcept;
  void deliver() noexcept;
  Counts counts() const;
  ForkableMutex<std::mutex>& mutex() { return mutex_; }

  // The listener hears of events from now on, until remove().
  using Key = std::list<Listener>::iterator;
  Key listen(Listener listener);
  void remove(Key key);

 private:
  enum class LogLevel : std::uint8_t { kOff, kInfo, kDebug };
  void log(const BudgetEvent& event) const;

  mutable ForkableMutex<std::mutex> mutex_;
  Counts counts_;
  std::list<Listener> listeners_;
  std::vector<BudgetEvent> waiting_;
  std::atomic<bool> is_heard_{false};
  LogLevel log_level_ = LogLevel::kOff;
};

// Collects events and writes them in Chrome's trace format:
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
class ChromeTrace {
 public:
  // Creates the file. Throws UsageError (LT0307) when that cannot be done.
  explicit ChromeTrace(std::string path);

  void add(const BudgetEvent& event);
  // Throws IoError (LT0307) when the disk is full.
  void write() const;

 private:
  std::string path_;
  mutable std::mutex mutex_;
  std::vector<BudgetEvent> events_;
};

}  // namespace lowtide
