#pragma once
// The time that the budget itself takes on a thread, in the middle of an op: making room, planning.
// It is no part of what the op costs to run again.
//
//   const OwnTime own;             // until the end of the scope; one within another counts once
//   OwnTime::spent_ns();           // on this thread, so far

#include <chrono>
#include <cstdint>

namespace lowtide {

class OwnTime {
 public:
  OwnTime() noexcept {
    if (t_depth++ == 0) t_begin_ns = now_ns();
  }
  ~OwnTime() {
    if (--t_depth == 0) t_spent_ns += now_ns() - t_begin_ns;
  }
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;

  static std::uint64_t spent_ns() noexcept { return t_spent_ns; }

 private:
  static std::uint64_t now_ns() noexcept {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  static inline thread_local int t_depth = 0;
  static inline thread_local std::uint64_t t_begin_ns = 0;
  static inline thread_local std::uint64_t t_spent_ns = 0;
};

}  // namespace lowtide
