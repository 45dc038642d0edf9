#pragma once
// A lock for a few dozen instructions that survives fork().
//
// Taking it free is one atomic exchange, giving it back one store. A waiter spins briefly, then
// yields its processor, so a holder that was preempted on a busy machine gets on.
//
// fork(): before_fork() takes the lock, so that the data are whole in the child; after_fork() frees
// it in both. Other libraries' fork handlers run between the two, on the same thread, and may
// allocate tensors: that thread alone may enter while it holds the lock for the fork.

#include <pthread.h>
#include <sched.h>

#include <atomic>

namespace lowtide::hook {

class ForkSafeLock {
 public:
  // Holds the lock while it lives.
  class Guard {
   public:
    explicit Guard(ForkSafeLock& lock) noexcept : lock_(lock), taken_(lock.take()) {}
    ~Guard() {
      if (taken_) {
        lock_.give_back();
      }
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    ForkSafeLock& lock_;
    bool taken_;
  };

  void before_fork() noexcept {
    take();
    forking_thread_ = pthread_self();
    is_forking_.store(true, std::memory_order_relaxed);
  }

  void after_fork() noexcept {
    is_forking_.store(false, std::memory_order_relaxed);
    give_back();
  }

 private:
  // Returns false when this thread holds the lock for a fork already.
  bool take() noexcept {
    // Acquire pairs with the release in give_back().
    if (!held_.exchange(true, std::memory_order_acquire)) [[likely]] {
      return true;
    }
    return wait();
  }

  [[gnu::noinline]] bool wait() noexcept {
    for (int spins = 0;; ++spins) {
      // Only the forking thread can find both true: it wrote them itself. Others read
      // is_forking_ at most early or late, and another's id then.
      if (is_forking_.load(std::memory_order_relaxed) &&
          pthread_equal(forking_thread_, pthread_self()) != 0) {
        return false;
      }
      if (!held_.load(std::memory_order_relaxed) &&
          !held_.exchange(true, std::memory_order_acquire)) {
        return true;
      }
      if (spins < kSpinsBeforeYield) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
  }

  void give_back() noexcept { held_.store(false, std::memory_order_release); }

  static constexpr int kSpinsBeforeYield = 64;

  std::atomic<bool> held_{false};
  std::atomic<bool> is_forking_{false};
  std::atomic<pthread_t> forking_thread_{};
};

}  // namespace lowtide::hook
