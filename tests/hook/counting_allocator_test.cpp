#include "src/hook/counting_allocator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Flags.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lowtide/memory_meter.h"
#include "src/hook/device_memory.h"
#include "src/hook/fork_safe_lock.h"
#include "tests/hook/child_process.h"

C10_DECLARE_bool(caffe2_cpu_allocator_do_zero_fill);
C10_DECLARE_bool(caffe2_cpu_allocator_do_junk_fill);

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer's malloc stops the process at a huge request unless told to fail as malloc does.
extern "C" LOWTIDE_API const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
#endif

using namespace lowtide;  // the tests of one part
using namespace lowtide::hook;
using lowtide::testing::in_child_process;
using lowtide::testing::kChildSignalled;

namespace {

MemoryLedger& ledger() { return cpu_memory().ledger(); }

MemoryBlock* block_of(const at::Tensor& tensor) {
  return cpu_memory().find_block(tensor.storage().data_ptr());
}

// Puts a gate in force while it lives.
class GateScope {
 public:
  GateScope(AllocationGate& gate, Bytes limit) { ledger().exchange_gate(&gate, limit); }
  ~GateScope() { ledger().exchange_gate(nullptr, 0); }
};

class FunctionGate final : public AllocationGate {
 public:
  explicit FunctionGate(std::function<bool(const RoomRequest&)> make_room)
      : make_room_(std::move(make_room)) {}
  bool make_room(const RoomRequest& request) override { return make_room_(request); }

 private:
  std::function<bool(const RoomRequest&)> make_room_;
};

}  // namespace

TEST_CASE("libtorch's CPU allocations come from the allocator that liblowtide registered") {
  CHECK(c10::GetCPUAllocator() == &counting_allocator());
  CHECK(current_registration().is_ours);
  CHECK(cpu_memory().is_active());
  CHECK(cpu_memory().device_type() == c10::DeviceType::CPU);
}

TEST_CASE("a block is found from its storage and knows the bytes that were asked for") {
  const at::Tensor tensor = at::empty({3, 7});
  MemoryBlock* block = block_of(tensor);
  REQUIRE(block != nullptr);
  CHECK(block->size_bytes == 84);
  CHECK(block->kind == MemoryKind::kProgram);
  CHECK(block->record == nullptr);
  CHECK(block_of(tensor.view({21}).slice(0, 5)) == block);
}

TEST_CASE("memory of other origin has no block") {
  float values[16] = {};
  CHECK(block_of(at::from_blob(values, {16})) == nullptr);
  CHECK(cpu_memory().find_block(c10::GetDefaultCPUAllocator()->allocate(100)) == nullptr);
  CHECK(cpu_memory().find_block(c10::DataPtr()) == nullptr);
}

TEST_CASE("data of every size start on a 64-byte boundary and can be written to the last byte") {
  for (std::size_t size = 1; size <= std::size_t{8} << 20; size = size * 3 / 2 + 1) {
    CAPTURE(size);
    const c10::DataPtr data = counting_allocator().allocate(size);
    CHECK(reinterpret_cast<std::uintptr_t>(data.get()) % 64 == 0);
    std::memset(data.get(), 0x5a, size);
    const MemoryBlock* block = cpu_memory().find_block(data);
    REQUIRE(block != nullptr);
    CHECK(block->size_bytes == size);
  }
}

TEST_CASE("a block of zero bytes is a null pointer that counts nothing and can be freed") {
  const Bytes start = ledger().live();
  {
    const c10::DataPtr data = counting_allocator().allocate(0);
    CHECK(data.get() == nullptr);
    CHECK(data.get_context() == nullptr);
    const bool same_deleter = data.get_deleter() == counting_allocator().raw_deleter();
    CHECK(same_deleter);
    CHECK(cpu_memory().find_block(data) == nullptr);
    CHECK(at::empty({0, 5}).numel() == 0);
    CHECK(ledger().live() == start);
  }
  CHECK(counting_allocator().raw_allocate(0) == nullptr);
  counting_allocator().raw_deallocate(nullptr);
  CHECK(ledger().live() == start);
}

TEST_CASE("raw_allocate and raw_deallocate count like any other block") {
  const Bytes start = ledger().live();
  void* data = counting_allocator().raw_allocate(1000);
  REQUIRE(data != nullptr);
  CHECK(ledger().live() == start + 1000);
  counting_allocator().raw_deallocate(data);
  CHECK(ledger().live() == start);
}

TEST_CASE("raw_deallocate takes a block from before the registration and leaves the counts alone") {
  const Bytes start = ledger().live();
  for (const std::size_t size : {1UL, 64UL, 4096UL, 1UL << 20, 64UL << 20}) {
    void* stock = c10::GetDefaultCPUAllocator()->raw_allocate(size);
    counting_allocator().raw_deallocate(stock);
  }
  CHECK(ledger().live() == start);
}

TEST_CASE("clone copies the bytes into a block of its own") {
  const Bytes start = ledger().live();
  const c10::DataPtr source = counting_allocator().allocate(100);
  std::memset(source.get(), 7, 100);
  const c10::DataPtr copy = counting_allocator().clone(source.get(), 100);
  CHECK(copy.get() != source.get());
  CHECK(std::memcmp(copy.get(), source.get(), 100) == 0);
  CHECK(ledger().live() == start + 200);
}

TEST_CASE("libtorch's fill flags still work, and leave the header whole") {
  FLAGS_caffe2_cpu_allocator_do_junk_fill = true;
  const at::Tensor junk = at::empty({1000});
  FLAGS_caffe2_cpu_allocator_do_junk_fill = false;
  CHECK(std::isnan(junk.data_ptr<float>()[1]));
  CHECK(block_of(junk)->size_bytes == 4000);
  FLAGS_caffe2_cpu_allocator_do_zero_fill = true;
  const at::Tensor zeros = at::empty({1000});
  FLAGS_caffe2_cpu_allocator_do_zero_fill = false;
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(zeros.data_ptr<float>()[i] == 0.0F);
  }
}

TEST_CASE("an allocation that the system refuses throws libtorch's class with the numbers") {
  const at::Tensor held = at::ones({250});
  MemoryMeter meter;
  const MemoryByKind before = ledger().live_by_kind();
  bool caught = false;
  try {
    at::empty({std::int64_t{1} << 46});
  } catch (const c10::OutOfMemoryError& error) {
    caught = true;
    const std::string text = error.what_without_backtrace();
    CAPTURE(text);
    CHECK(text.find("DefaultCPUAllocator: can't allocate memory: you tried to allocate "
                    "281474976710656 bytes") != std::string::npos);
    CHECK(text.find("Error code 12 (Cannot allocate memory)") != std::string::npos);
    CHECK(text.find("[LT0601]") != std::string::npos);
    const auto* info = dynamic_cast<const ErrorInfo*>(&error);
    REQUIRE(info != nullptr);
    CHECK(info->id() == "LT0601");
    CHECK(std::get<std::int64_t>(info->details().at("request_bytes")) == std::int64_t{1} << 48);
    CHECK(std::get<std::int64_t>(info->details().at("live_bytes")) ==
          static_cast<std::int64_t>(before.total()));
  }
  CHECK(caught);
  CHECK(ledger().live_by_kind() == before);
  CHECK(meter.peak_bytes() == before.total());  // the failed request is in no peak
  CHECK(held.data_ptr<float>()[249] == 1.0F);
  CHECK(at::ones({10}).data_ptr<float>()[9] == 1.0F);
}

TEST_CASE("sizes that no address space holds are refused, not wrapped around") {
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  for (const std::size_t size :
       {kMax, kMax - 63, kMax - 64, kMax / 2, kMax / 2 - 63, kMax / 2 - 64, kMax / 2 - 65}) {
    CAPTURE(size);
    CHECK_THROWS_WITH_AS(counting_allocator().allocate(size),
                         doctest::Contains("can't allocate memory"), AllocationError);
  }
}

TEST_CASE("a block's record hears of its end once, with the bytes still there") {
  struct Record final : BlockRecord {
    void block_freed(MemoryBlock& block) noexcept override {
      ++calls;
      size_bytes = block.size_bytes;
      live_bytes = ledger().live();
    }
    int calls = 0;
    Bytes size_bytes = 0;
    Bytes live_bytes = 0;
  } record;
  at::Tensor tensor = at::empty({100});
  const at::Tensor view = tensor.view({10, 10});
  block_of(tensor)->record = &record;
  const Bytes live = ledger().live();
  tensor.reset();
  CHECK(record.calls == 0);
  const_cast<at::Tensor&>(view).reset();
  CHECK(record.calls == 1);
  CHECK(record.size_bytes == 400);
  CHECK(record.live_bytes == live);
}

TEST_CASE("freeing a block twice stops the process with a message") {
  const int code = in_child_process([] {
    void* data = counting_allocator().raw_allocate(1000);
    counting_allocator().raw_deallocate(data);
    counting_allocator().raw_deallocate(data);
    return 0;
  });
  CHECK(code == kChildSignalled + SIGABRT);
}

// The gate ---------------------------------------------------------------------------------------

TEST_CASE("a gate is not asked while allocations fit, to the last byte") {
  FunctionGate gate([](const RoomRequest&) -> bool { throw std::logic_error("asked"); });
  const GateScope scope(gate, ledger().live() + 4000);
  const at::Tensor fits = at::empty({1000});
  CHECK(ledger().live() == ledger().limit());
  CHECK_THROWS_AS(at::empty({1}), std::logic_error);
}

TEST_CASE("a gate that makes room lets the allocation through under the limit") {
  std::vector<at::Tensor> droppable = {at::empty({1000}), at::empty({1000}), at::empty({1000})};
  MemoryMeter meter;
  const Bytes limit = ledger().live();
  std::vector<RoomRequest> requests;
  FunctionGate gate([&](const RoomRequest& request) {
    requests.push_back(request);
    droppable.pop_back();
    return true;
  });
  const GateScope scope(gate, limit);
  const KindScope kind(MemoryKind::kSaved);
  const at::Tensor large = at::empty({1500});
  REQUIRE(requests.size() == 2);
  CHECK(requests[0].reason == RoomRequest::Reason::kLimit);
  CHECK(requests[0].request_bytes == 6000);
  CHECK(requests[0].limit_bytes == limit);
  CHECK(requests[0].kind == MemoryKind::kSaved);
  CHECK(droppable.size() == 1);
  CHECK(ledger().live() == limit - 2000);
  CHECK(meter.peak_bytes() == limit);
}

TEST_CASE("a gate that refuses leaves everything usable, and more room makes the same call pass") {
  const at::Tensor held = at::ones({10});
  const MemoryByKind before = ledger().live_by_kind();
  const Bytes limit = before.total() + 100;
  FunctionGate gate([](const RoomRequest&) { return false; });
  const GateScope scope(gate, limit);
  CHECK_THROWS_WITH_AS(at::empty({1000}), doctest::Contains("nothing more can be freed"),
                       c10::OutOfMemoryError);
  CHECK_THROWS_AS(counting_allocator().allocate(std::numeric_limits<std::size_t>::max() / 2 - 100),
                  c10::OutOfMemoryError);
  CHECK(ledger().live_by_kind() == before);
  ledger().exchange_gate(&gate, before.total() + 4000);
  CHECK(at::empty({1000}).numel() == 1000);
}

TEST_CASE("a gate may throw the error that the program sees") {
  struct Refusal : c10::OutOfMemoryError {
    Refusal() : c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "floor is 7") {}
  };
  FunctionGate gate([](const RoomRequest&) -> bool { throw Refusal(); });
  const Bytes start = ledger().live();
  const GateScope scope(gate, start);
  CHECK_THROWS_AS(at::empty({1}), Refusal);
  CHECK(ledger().live() == start);
}

TEST_CASE("a gate is asked when the system has no memory, and its bytes are reserved meanwhile") {
  int asked = 0;
  FunctionGate gate([&](const RoomRequest& request) {
    CHECK(request.reason == RoomRequest::Reason::kSystem);
    return ++asked < 3;
  });
  const Bytes start = ledger().live();
  {
    const GateScope scope(gate, MemoryLedger::kNoLimit);
    CHECK_THROWS_AS(at::empty({std::int64_t{1} << 46}), AllocationError);
    CHECK(asked == 3);
    CHECK(ledger().live() == start);
    // The reservation was given back: everything up to the limit can be reserved again.
    bool reserved = false;
    AllocationGate* held = nullptr;
    REQUIRE(ledger().reserve(MemoryLedger::kNoLimit - start, reserved, held));
    CHECK(reserved);
    ledger().cancel(MemoryLedger::kNoLimit - start);
  }
}

TEST_CASE("live bytes never cross the limit while eight threads allocate against it") {
  MemoryMeter meter;
  const Bytes start = ledger().live();
  const Bytes limit = start + 100'000;
  std::mutex pool_mutex;
  std::vector<c10::DataPtr> pool;
  FunctionGate gate([&](const RoomRequest&) {
    c10::DataPtr victim;
    const std::scoped_lock lock(pool_mutex);
    if (!pool.empty()) {
      victim = std::move(pool.back());
      pool.pop_back();
    }
    return true;  // others may free as well
  });
  {
    const GateScope scope(gate, limit);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 2000; ++i) {
          c10::DataPtr data = counting_allocator().allocate(1 + (i * 37 + t * 101) % 9000);
          const std::scoped_lock lock(pool_mutex);
          pool.push_back(std::move(data));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  CHECK(meter.peak_bytes() <= limit);
  CHECK(meter.peak_bytes() > limit - 9000);  // and the limit was used
  pool.clear();
  CHECK(ledger().live() == start);
}

TEST_CASE("taking a gate away waits until no thread is inside it") {
  std::latch inside(1);
  std::atomic<bool> may_leave{false};
  std::atomic<bool> left{false};
  FunctionGate gate([&](const RoomRequest&) {
    inside.count_down();
    while (!may_leave) {
      std::this_thread::yield();
    }
    left = true;
    return false;
  });
  ledger().exchange_gate(&gate, ledger().live());
  std::thread allocating([] { CHECK_THROWS_AS(at::empty({1}), AllocationError); });
  inside.wait();
  std::thread releasing([&] { may_leave = true; });
  ledger().exchange_gate(nullptr, 0);
  CHECK(left);
  releasing.join();
  allocating.join();
  CHECK(at::empty({1}).numel() == 1);
}

// fork -------------------------------------------------------------------------------------------

TEST_CASE("a forked child allocates, and its counts go on from the fork") {
  const at::Tensor held = at::empty({1000});
  MemoryMeter meter;
  const Bytes start = ledger().live();
  const int code = in_child_process([&] {
    if (ledger().live() != start) {
      return 1;
    }
    const at::Tensor tensor = at::ones({500});
    if (meter.live_bytes() != start + 2000 || meter.peak_bytes() != start + 2000) {
      return 2;
    }
    const_cast<at::Tensor&>(held).reset();
    return ledger().live() == start - 2000 ? 0 : 3;
  });
  CHECK(code == 0);
  CHECK(ledger().live() == start);
}

TEST_CASE("the gate is off in a forked child") {
  int asked = 0;
  FunctionGate gate([&](const RoomRequest&) {
    ++asked;
    return false;
  });
  const GateScope scope(gate, ledger().live());
  const int code = in_child_process([&] {
    if (at::ones({500}).numel() != 500 || ledger().limit() != MemoryLedger::kNoLimit) {
      return 1;
    }
    try {
      at::empty({std::int64_t{1} << 46});
      return 2;
    } catch (const AllocationError&) {
      return asked == 0 ? 0 : 3;
    }
  });
  CHECK(code == 0);
  CHECK_THROWS_AS(at::empty({1}), AllocationError);  // and still on in the parent
}

TEST_CASE("forks while other threads allocate give children that work with whole counts") {
  MemoryMeter meter;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        const c10::DataPtr data = counting_allocator().allocate(256);
      }
    });
  }
  int failures = 0;
  for (int i = 0; i < 40; ++i) {
    failures += in_child_process([&] {
                  const Bytes start = ledger().live();
                  const at::Tensor tensor = at::ones({100});
                  const MemoryByKind kinds = ledger().live_by_kind();
                  return kinds.total() == start + 400 && meter.peak_bytes() >= start + 400 ? 0 : 1;
                }) == 0
                    ? 0
                    : 1;
  }
  stop = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(failures == 0);
}

TEST_CASE("a fork does not fall into the middle of an update") {
  // With this many meters an update is long: a fork in it would leave some with the old peak.
  std::vector<std::unique_ptr<MemoryMeter>> meters(2000);
  for (auto& meter : meters) {
    meter = std::make_unique<MemoryMeter>();
  }
  std::atomic<bool> stop{false};
  std::vector<c10::DataPtr> growing;
  std::thread thread([&] {
    while (!stop) {
      growing.push_back(counting_allocator().allocate(1));  // a new peak each time
    }
  });
  int failures = 0;
  for (int i = 0; i < 20; ++i) {
    failures += in_child_process([&] {
                  for (const auto& meter : meters) {
                    if (meter->peak_bytes() != ledger().live()) {
                      return 1;
                    }
                  }
                  return 0;
                }) == 0
                    ? 0
                    : 1;
  }
  stop = true;
  thread.join();
  CHECK(failures == 0);
}

TEST_CASE("during a fork the forking thread may count, and nobody else") {
  ForkSafeLock lock;
  int entered = 0;
  lock.before_fork();
  {
    const ForkSafeLock::Guard guard(lock);
    ++entered;
  }
  std::atomic<bool> other_entered{false};
  std::latch started(1);
  std::thread other([&] {
    started.count_down();
    const ForkSafeLock::Guard guard(lock);
    other_entered = true;
  });
  started.wait();
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::yield();
  }
  CHECK_FALSE(other_entered);
  CHECK(entered == 1);
  lock.after_fork();
  other.join();
  CHECK(other_entered);
}

// Other tools ------------------------------------------------------------------------------------

namespace {
struct StandInAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t size) override {
    return c10::GetDefaultCPUAllocator()->allocate(size);
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};
}  // namespace

TEST_CASE("another tool's allocator is named, and never replaced") {
  for (const std::uint8_t priority : {kAllocatorPriority, std::uint8_t{255}}) {
    CAPTURE(int{priority});
    const int code = in_child_process([priority] {
      static StandInAllocator other;
      c10::SetAllocator(c10::DeviceType::CPU, &other, priority);
      const Registration registration = register_counting_allocator();
      if (registration.is_ours ||
          registration.other.find("StandInAllocator") == std::string::npos ||
          registration.other.find("lowtide_hook_tests") == std::string::npos) {
        return 1;
      }
      try {
        const MemoryMeter meter;
        return 2;
      } catch (const TorchError& error) {
        if (error.id() != "LT0602" ||
            std::string(error.what()).find("StandInAllocator") == std::string::npos) {
          return 3;
        }
      }
      return c10::GetCPUAllocator() == &other ? 0 : 4;
    });
    CHECK(code == 0);
  }
}

TEST_CASE("a plain registration by another tool does not replace ours") {
  const int code = in_child_process([] {
    static StandInAllocator other;
    c10::SetCPUAllocator(&other);
    return current_registration().is_ours ? 0 : 1;
  });
  CHECK(code == 0);
}

namespace {

// What a profiler is told, as libtorch's own profiler receives it.
struct Recorder final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t total, std::size_t,
                         c10::Device device) override {
    CHECK(device.is_cpu());
    reports.push_back(bytes);
    reports.push_back(static_cast<std::int64_t>(total));
  }
  void reportOutOfMemory(std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    failures.push_back(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::vector<std::int64_t> reports;  // bytes, total, bytes, total ...
  std::vector<std::int64_t> failures;
};

std::shared_ptr<Recorder> profile(c10::Allocator& allocator) {
  auto recorder = std::make_shared<Recorder>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, recorder);
  {
    const c10::DataPtr a = allocator.allocate(100);
    const c10::DataPtr empty = allocator.allocate(0);
    const c10::DataPtr b = allocator.allocate(5000);
    allocator.raw_deallocate(allocator.raw_allocate(64));
    CHECK_THROWS_AS(allocator.allocate(std::size_t{1} << 48), c10::Error);
  }
  return recorder;
}

}  // namespace

TEST_CASE("a profiler is told the same as by libtorch's own allocator") {
  const auto stock = profile(*c10::GetDefaultCPUAllocator());
  const auto ours = profile(counting_allocator());
  CHECK(stock->reports.size() == 2 * 6);
  CHECK(ours->reports == stock->reports);
  CHECK(ours->failures == stock->failures);
  CHECK(ours->failures == std::vector<std::int64_t>{std::int64_t{1} << 48});
}
