#pragma once
// A mutex that a child process finds free after fork(), whoever held it.
//
//   pthread_atfork: before_fork() in the parent, after_fork(in_child) in both.
//
// The child's is made anew: the C library knows an owner by its thread's id, and the child's thread
// has another, so that it could not give back what it holds.

#include <memory>
#include <mutex>

namespace lowtide {

template <typename Mutex>
class ForkableMutex {
 public:
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  bool try_lock() { return mutex_.try_lock(); }

  void before_fork() { mutex_.lock(); }
  void after_fork(bool in_child) {
    if (in_child) {
      std::construct_at(&mutex_);
    } else {
      mutex_.unlock();
    }
  }

 private:
  Mutex mutex_;
};

}  // namespace lowtide
