#include "src/stash/spill_queue.h"

#include <pthread.h>

#include <csignal>
#include <utility>

#include "src/base/assert.h"

// A job is in one of three lists by its state, waiting (reads or writes) or running, and in none
// afterwards. Its node is made with it and only moves, so that nothing that must not fail
// allocates.
//
// Tested by spill_queue_test.cpp.

namespace lowtide {
namespace {

// A thread inherits its maker's mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

SpillQueue::SpillQueue(SpillFile& file) : file_(file) {}

SpillQueue::~SpillQueue() {
  {
    Lock lock(mutex_);
    is_ending_ = true;
    has_work_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  // There was no thread: a forked child.
  Lock lock(mutex_);
  while (!reads_.empty()) carry_out(reads_.front(), lock);
  while (!writes_.empty()) carry_out(writes_.front(), lock);
}

SpillQueue::Job SpillQueue::write(const void* data, Bytes bytes) {
  auto job = std::make_shared<SpillJob>();
  job->from_ = data;
  job->extent_.bytes = bytes;
  return add(std::move(job));
}

SpillQueue::Job SpillQueue::read(const SpillFile::Extent& extent, void* to) {
  auto job = std::make_shared<SpillJob>();
  job->is_read_ = true;
  job->to_ = to;
  job->extent_ = extent;
  return add(std::move(job));
}

SpillQueue::Job SpillQueue::add(Job job) {
  std::list<Job> node{job};
  job->place_ = node.begin();
  const Lock lock(mutex_);
  if (!thread_.joinable()) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { work(); });
  }
  std::list<Job>& list = list_of(*job);
  list.splice(list.end(), node);
  has_work_.notify_one();
  return job;
}

void SpillQueue::work() {
  pthread_setname_np(pthread_self(), "lowtide-spill");
  Lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return is_ending_ || !reads_.empty() || !writes_.empty(); });
    if (!reads_.empty()) {
      carry_out(reads_.front(), lock);
    } else if (!writes_.empty()) {
      carry_out(writes_.front(), lock);
    } else {
      return;  // ending
    }
  }
}

void SpillQueue::carry_out(const Job& given, Lock& lock) noexcept {
  const Job job = given;  // may be the list's own
  running_.splice(running_.end(), list_of(*job), job->place_);
  job->state_.store(SpillJob::State::kRunning, std::memory_order_release);
  lock.unlock();
  SpillFile::Extent extent = job->extent_;
  std::exception_ptr error;
  try {
    if (job->is_read_) {
      file_.read(extent, job->to_);
    } else {
      extent = file_.write(job->from_, extent.bytes);
    }
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  running_.erase(job->place_);
  if (job->is_cancelled()) {
    if (!job->is_read_ && error == nullptr) file_.release(extent);
    job->state_.store(SpillJob::State::kDropped, std::memory_order_release);
  } else {
    job->extent_ = extent;
    job->error_ = std::move(error);
    job->state_.store(SpillJob::State::kDone, std::memory_order_release);
  }
  is_carried_out_.notify_all();
}

void SpillQueue::wait(const Job& job) {
  {
    Lock lock(mutex_);
    if (job->state_.load(std::memory_order_relaxed) == SpillJob::State::kWaiting) {
      carry_out(job, lock);
    }
    LOWTIDE_ASSERT(!job->is_cancelled());
    is_carried_out_.wait(lock, [&job] { return job->is_done() || job->is_cancelled(); });
    LOWTIDE_ASSERT(!job->is_cancelled());
  }
  if (job->error_ != nullptr) std::rethrow_exception(job->error_);
}

bool SpillQueue::cancel(const Job& job) noexcept {
  Lock lock(mutex_);
  const auto state = job->state_.load(std::memory_order_relaxed);
  if (state == SpillJob::State::kDone) return false;
  job->is_cancelled_.store(true, std::memory_order_release);
  if (state == SpillJob::State::kWaiting) {
    job->state_.store(SpillJob::State::kDropped, std::memory_order_release);
    list_of(*job).erase(job->place_);
  }
  is_carried_out_.wait(lock, [&job] {
    return job->state_.load(std::memory_order_relaxed) == SpillJob::State::kDropped;
  });
  return true;
}

void SpillQueue::before_fork() {
  mutex_.before_fork();
  file_.before_fork();
}

void SpillQueue::after_fork(bool in_child) {
  file_.after_fork(in_child);
  if (in_child) {
    // The parent's threads are not here: neither the one of this queue nor who waited or carried
    // out. What they left is not taken apart but made anew.
    std::construct_at(&thread_);
    std::construct_at(&has_work_);
    std::construct_at(&is_carried_out_);
    while (!running_.empty()) {
      SpillJob& job = *running_.front();
      if (job.is_cancelled()) {
        job.state_.store(SpillJob::State::kDropped, std::memory_order_release);
        running_.pop_front();
      } else {
        job.state_.store(SpillJob::State::kWaiting, std::memory_order_release);
        std::list<Job>& list = list_of(job);
        list.splice(list.begin(), running_, running_.begin());
      }
    }
  }
  mutex_.after_fork(in_child);
}

}  // namespace lowtide
