#pragma once
// Writes to and reads from a SpillFile, carried out by one background thread.
//
//   SpillQueue queue(file);
//   SpillQueue::Job job = queue.write(data, bytes);   // returns at once
//   ...
//   queue.wait(job);                                  // throws what writing threw
//   job->extent();                                    // where the bytes are
//
// The thread takes reads before writes, each in the order they were asked for. What somebody waits
// for comes before all: the waiting thread carries it out itself unless it is being carried out. So
// everything also works where there is no thread, as in a forked child.
//
// Safe for threads. The thread starts with the first job and blocks all signals.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "lowtide/bytes.h"
#include "src/base/forkable_mutex.h"
#include "src/stash/spill_file.h"

namespace lowtide {

// One write or read. Made by SpillQueue, which must outlive what is done with it but for these
// functions.
class SpillJob {
 public:
  // Carried out, well or badly: the memory is no longer used. Never true once cancelled.
  bool is_done() const noexcept { return state_.load(std::memory_order_acquire) == State::kDone; }
  // Since cancel() was called; the memory may be in use until that returns.
  bool is_cancelled() const noexcept { return is_cancelled_.load(std::memory_order_acquire); }
  // Once is_done(): what went wrong, or null.
  std::exception_ptr error() const noexcept { return is_done() ? error_ : nullptr; }
  // Of a write that is_done() without error(), of a read always.
  const SpillFile::Extent& extent() const noexcept { return extent_; }

 private:
  friend class SpillQueue;
  enum class State : std::uint8_t { kWaiting, kRunning, kDone, kDropped };

  // A release by the queue's mutex holder; pairs with the loads above, for extent_ and error_.
  std::atomic<State> state_{State::kWaiting};
  std::atomic<bool> is_cancelled_{false};
  bool is_read_ = false;
  const void* from_ = nullptr;  // of a write
  void* to_ = nullptr;          // of a read
  SpillFile::Extent extent_;    // of a write: its size only, until it is done
  std::exception_ptr error_;
  std::list<std::shared_ptr<SpillJob>>::iterator place_;  // while kWaiting
};

class SpillQueue {
 public:
  using Job = std::shared_ptr<SpillJob>;

  // `file` must outlive the queue.
  explicit SpillQueue(SpillFile& file);
  // Carries out what is left.
  ~SpillQueue();
  SpillQueue(const SpillQueue&) = delete;
  SpillQueue& operator=(const SpillQueue&) = delete;

  // The bytes must stay and not change until the job is_done() or cancel() returned.
  // Throws std::system_error when the thread cannot be started; there is no job then.
  Job write(const void* data, Bytes bytes);
  // The memory at `to` and the extent must stay until the same.
  Job read(const SpillFile::Extent& extent, void* to);

  // Returns when the job is done. Throws its error, each time; InternalError for a cancelled one.
  void wait(const Job& job);

  // True: the job is cancelled. It never began, or it was waited for and what it had written is
  // released; what a read left in its memory is not to be used. False: it was done before, and
  // stays so.
  bool cancel(const Job& job) noexcept;

  // For pthread_atfork; with those of the file, which need not be called. What was being carried
  // out by the parent is waiting again in the child.
  void before_fork();
  void after_fork(bool in_child);

 private:
  using Lock = std::unique_lock<ForkableMutex<std::mutex>>;

  Job add(Job job);
  void work();
  // Carries out a waiting job; the lock is given back meanwhile.
  void carry_out(const Job& job, Lock& lock) noexcept;
  std::list<Job>& list_of(const SpillJob& job) { return job.is_read_ ? reads_ : writes_; }

  SpillFile& file_;
  // Guards what follows and the state of all jobs.
  ForkableMutex<std::mutex> mutex_;
  std::condition_variable_any has_work_;
  std::condition_variable_any is_carried_out_;
  std::list<Job> reads_;
  std::list<Job> writes_;
  std::list<Job> running_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace lowtide
