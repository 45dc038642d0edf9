#include "src/stash/spill_queue.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lowtide/error.h"
#include "tests/hook/child_process.h"
#include "tests/stash/made_bytes.h"
#include "tests/train/temporary_folder.h"

namespace lowtide {
namespace {

using testing::Buffer;
using testing::random_bytes;

// What a disk does to threads other than its maker's: they stay in it until told to go on.
class Gate {
 public:
  void close() { is_open_ = false; }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  // Returns when a thread stands at the closed gate.
  void wait_for_someone() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_someone_there_; });
  }
  void pass(const std::string& what) {
    std::unique_lock lock(mutex_);
    passed.push_back(what);
    if (std::this_thread::get_id() == maker_) return;
    is_someone_there_ = !is_open_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    is_someone_there_ = false;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocks_interrupts = sigismember(&mask, SIGINT) == 1;
  }

  std::vector<std::string> passed;  // in this order
  bool blocks_interrupts = false;

 private:
  std::thread::id maker_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  bool is_someone_there_ = false;
};

class GatedDisk : public SpillDisk {
 public:
  explicit GatedDisk(Gate& gate) : gate_(gate) {}
  ssize_t write(int file, const void* from, std::size_t bytes, off_t offset) override {
    gate_.pass("write " + std::to_string(bytes));
    if (bytes == kFailing) {
      errno = EIO;
      return -1;
    }
    return SpillDisk::write(file, from, bytes, offset);
  }
  ssize_t read(int file, void* to, std::size_t bytes, off_t offset) override {
    gate_.pass("read " + std::to_string(bytes));
    return SpillDisk::read(file, to, bytes, offset);
  }

  static constexpr std::size_t kFailing = 666;

 private:
  Gate& gate_;
};

struct Fixture {
  TemporaryFolder folder;
  Gate gate;
  SpillFile file{{.directory = folder.path()}, std::make_unique<GatedDisk>(gate)};
  Buffer data = random_bytes(100'000, 1);
  Buffer to = Buffer(100'000);

  SpillFile::Extent written(Bytes bytes) { return file.write(data.data(), bytes); }
  bool came_back(Bytes bytes) const {
    return std::equal(to.begin(), to.begin() + static_cast<long>(bytes), data.begin());
  }
};

TEST_CASE_FIXTURE(Fixture, "what was written in the background is read back in the background") {
  SpillQueue queue(file);
  const SpillQueue::Job write = queue.write(data.data(), data.size());
  queue.wait(write);
  CHECK(write->is_done());
  CHECK(write->error() == nullptr);
  CHECK(write->extent().bytes == data.size());
  const SpillQueue::Job read = queue.read(write->extent(), to.data());
  queue.wait(read);
  queue.wait(read);
  CHECK(to == data);
  const SpillQueue::Job nothing = queue.write(nullptr, 0);
  queue.wait(nothing);
  queue.wait(queue.read(nothing->extent(), nullptr));
}

TEST_CASE_FIXTURE(Fixture, "reads come before writes, each in the order they were asked for") {
  const SpillFile::Extent a = written(10);
  const SpillFile::Extent b = written(20);
  gate.close();
  {
    SpillQueue queue(file);
    queue.write(data.data(), 1);
    gate.wait_for_someone();
    queue.write(data.data(), 2);
    queue.read(b, to.data());
    queue.write(data.data(), 3);
    queue.read(a, to.data());
    gate.open();
  }
  CHECK(gate.passed == std::vector<std::string>{"write 10", "write 20", "write 1", "read 20",
                                                "read 10", "write 2", "write 3"});
  CHECK(gate.blocks_interrupts);
}

TEST_CASE_FIXTURE(Fixture, "what is waited for comes before all, though the disk is slow") {
  const SpillFile::Extent a = written(10);
  const SpillFile::Extent b = written(20);
  gate.close();
  SpillQueue queue(file);
  const SpillQueue::Job slow = queue.write(data.data(), 1);
  gate.wait_for_someone();
  const SpillQueue::Job first = queue.read(a, to.data());
  const SpillQueue::Job wanted = queue.read(b, to.data());
  queue.wait(wanted);  // the thread is still at the gate
  CHECK(came_back(20));
  CHECK(wanted->is_done());
  CHECK_FALSE(first->is_done());
  CHECK_FALSE(slow->is_done());
  gate.open();
}

TEST_CASE_FIXTURE(Fixture, "who waits for a slow disk waits until it is done") {
  const SpillFile::Extent extent = written(5'000);
  gate.close();
  SpillQueue queue(file);
  const SpillQueue::Job read = queue.read(extent, to.data());
  gate.wait_for_someone();
  std::atomic<bool> was_opened{false};
  bool returned_after = false;
  std::thread waiter([&] {
    queue.wait(read);
    returned_after = was_opened && came_back(5'000);
  });
  CHECK_FALSE(read->is_done());
  was_opened = true;
  gate.open();
  waiter.join();
  CHECK(returned_after);
}

TEST_CASE_FIXTURE(Fixture, "a job that has not begun is cancelled without a trace") {
  const SpillFile::Extent extent = written(10);
  gate.close();
  SpillQueue queue(file);
  queue.write(data.data(), 1);
  gate.wait_for_someone();
  const SpillQueue::Job write = queue.write(data.data(), 2);
  const SpillQueue::Job read = queue.read(extent, to.data());
  CHECK(queue.cancel(write));
  CHECK(queue.cancel(read));
  CHECK(queue.cancel(read));
  CHECK(write->is_cancelled());
  CHECK_FALSE(write->is_done());
  CHECK_THROWS_AS(queue.wait(write), InternalError);
  gate.open();
  queue.wait(queue.read(extent, to.data()));
  CHECK(gate.passed == std::vector<std::string>{"write 10", "write 1", "read 10"});
}

TEST_CASE_FIXTURE(Fixture, "a write that is being carried out is cancelled when it has ended") {
  gate.close();
  SpillQueue queue(file);
  for (const Bytes bytes : {Bytes{5'000}, Bytes{GatedDisk::kFailing}}) {
    gate.close();
    const SpillQueue::Job write = queue.write(data.data(), bytes);
    gate.wait_for_someone();
    CHECK(file.used_bytes() > 0);
    std::atomic<bool> was_opened{false};
    bool cancelled_after = false;
    std::thread canceller([&] { cancelled_after = queue.cancel(write) && was_opened; });
    while (!write->is_cancelled()) std::this_thread::yield();
    was_opened = true;
    gate.open();
    canceller.join();
    CHECK(cancelled_after);
    CHECK_FALSE(write->is_done());
    CHECK(file.used_bytes() == 0);
    CHECK_THROWS_AS(queue.wait(write), InternalError);
  }
}

TEST_CASE_FIXTURE(Fixture, "a job that is done stays done") {
  SpillQueue queue(file);
  const SpillQueue::Job write = queue.write(data.data(), 10);
  queue.wait(write);
  CHECK_FALSE(queue.cancel(write));
  CHECK(write->is_done());
  CHECK(file.used_bytes() == 4096);
  queue.wait(queue.read(write->extent(), to.data()));
  CHECK(came_back(10));
}

TEST_CASE_FIXTURE(Fixture,
                  "an error comes out where the job is waited for, and the queue goes on") {
  SpillQueue queue(file);
  const SpillQueue::Job write = queue.write(data.data(), GatedDisk::kFailing);
  CHECK_THROWS_WITH_AS(queue.wait(write), doctest::Contains("LT0312"), IoError);
  CHECK_THROWS_WITH_AS(queue.wait(write), doctest::Contains("LT0312"), IoError);
  CHECK(write->is_done());
  CHECK(write->error() != nullptr);
  CHECK(file.used_bytes() == 0);
  SpillFile::Extent beyond = written(10);
  beyond.checksum ^= 1;
  const SpillQueue::Job read = queue.read(beyond, to.data());
  CHECK_THROWS_WITH_AS(queue.wait(read), doctest::Contains("LT0314"), IoError);
  const SpillQueue::Job good = queue.write(data.data(), 10);
  queue.wait(good);
  CHECK(good->error() == nullptr);
}

TEST_CASE_FIXTURE(Fixture, "the end of the queue carries out what is left") {
  std::vector<SpillQueue::Job> jobs;
  gate.close();
  {
    SpillQueue queue(file);
    for (Bytes bytes = 1; bytes < 50; ++bytes) jobs.push_back(queue.write(data.data(), bytes));
    gate.wait_for_someone();
    gate.open();
  }
  for (const SpillQueue::Job& job : jobs) {
    CHECK(job->is_done());
    file.read(job->extent(), to.data());
    CHECK(came_back(job->extent().bytes));
  }
}

TEST_CASE_FIXTURE(Fixture, "a forked child has all jobs, and needs no thread for them") {
  const SpillFile::Extent extent = written(10);
  gate.close();
  std::optional<SpillQueue> queue(file);
  const SpillQueue::Job running = queue->write(data.data(), 5'000);
  gate.wait_for_someone();
  const SpillQueue::Job write = queue->write(data.data(), 6'000);
  const SpillQueue::Job read = queue->read(extent, to.data());
  const SpillQueue::Job left = queue->write(data.data(), 7'000);
  const SpillQueue::Job unwanted = queue->write(data.data(), 8'000);
  queue->before_fork();
  const int result = testing::in_child_process([&] {
    queue->after_fork(true);
    if (running->is_done()) return 1;
    queue->wait(read);
    if (!came_back(10)) return 2;
    for (const SpillQueue::Job& job : {running, write}) {
      queue->wait(job);
      file.read(job->extent(), to.data());
      if (!came_back(job->extent().bytes)) return 3;
    }
    if (!queue->cancel(unwanted)) return 4;
    queue.reset();  // carries out what is left
    if (!left->is_done() || unwanted->is_done()) return 5;
    return file.used_bytes() == 8192 + 8192 + 8192 ? 0 : 6;
  });
  queue->after_fork(false);
  CHECK(result == 0);
  queue->before_fork();
  const int with_thread = testing::in_child_process([&] {
    queue->after_fork(true);
    gate.open();
    const SpillQueue::Job own = queue->write(data.data(), 9'000);  // starts a thread
    while (!own->is_done()) std::this_thread::yield();
    queue.reset();
    return running->is_done() && left->is_done() && unwanted->is_done() ? 0 : 1;
  });
  queue->after_fork(false);
  CHECK(with_thread == 0);
  gate.open();
  for (const SpillQueue::Job& job : {running, write, left, unwanted}) {
    queue->wait(job);
    file.read(job->extent(), to.data());
    CHECK(came_back(job->extent().bytes));
  }
}

TEST_CASE("several threads write, wait, cancel and read at once") {
  const TemporaryFolder folder;
  SpillFile file({.directory = folder.path()});
  std::atomic<int> wrong{0};
  {
    SpillQueue queue(file);
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (int i = 0; i < 60; ++i) {
          std::vector<Buffer> twins;
          std::vector<SpillQueue::Job> writes;
          for (int k = 0; k < 5; ++k) {
            twins.push_back(random_bytes(1 + random() % 30'000, random()));
            writes.push_back(queue.write(twins.back().data(), twins.back().size()));
          }
          std::vector<Buffer> back(5);
          std::vector<SpillQueue::Job> reads(5);
          for (std::size_t k = 0; k < 5; ++k) {
            if (random() % 3 == 0 && queue.cancel(writes[k])) continue;
            queue.wait(writes[k]);
            back[k].resize(twins[k].size());
            reads[k] = queue.read(writes[k]->extent(), back[k].data());
          }
          for (std::size_t k = 5; k-- > 0;) {
            if (reads[k] == nullptr) continue;
            if (random() % 4 != 0 || !queue.cancel(reads[k])) {
              queue.wait(reads[k]);
              if (back[k] != twins[k]) ++wrong;
            }
            file.release(writes[k]->extent());
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(wrong == 0);
  CHECK(file.used_bytes() == 0);
}

}  // namespace
}  // namespace lowtide
