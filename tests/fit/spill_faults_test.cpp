// What a disk can do to a step that spills. The calls of the system that reach the file are this
// program's own.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "lowtide/budget.h"
#include "lowtide/error.h"
#include "tests/fit/opaque_model.h"
#include "tests/fit/training.h"
#include "tests/train/temporary_folder.h"

using namespace lowtide;  // the tests of one header

namespace {

enum class Fault { kNone, kFlippedBit, kCutShort };

std::atomic<Fault> g_fault{Fault::kNone};
std::atomic<int> g_delay_us{0};
std::atomic<int> g_reads{0};

void be_slow() { std::this_thread::sleep_for(std::chrono::microseconds(g_delay_us)); }

}  // namespace

extern "C" {

__attribute__((visibility("default"))) ssize_t pwrite(int file, const void* from, size_t bytes,
                                                      off_t offset) {
  be_slow();
  return syscall(SYS_pwrite64, file, from, bytes, offset);
}

__attribute__((visibility("default"))) ssize_t pread(int file, void* to, size_t bytes,
                                                     off_t offset) {
  be_slow();
  ++g_reads;
  if (g_fault == Fault::kCutShort) return 0;
  const ssize_t count = syscall(SYS_pread64, file, to, bytes, offset);
  if (g_fault == Fault::kFlippedBit && count > 0) static_cast<char*>(to)[count / 2] ^= 1;
  return count;
}
}

namespace {

constexpr int kDepth = 24;

BudgetOptions spilling_to(const TemporaryFolder& folder) {
  BudgetOptions options;
  options.spill_directory = folder.path();
  return options;
}

// The step stops with the error, and the next one is right.
void check_fault(Fault fault, const char* id) {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  const at::Tensor expected = plain_gradient(kDepth);
  const at::Tensor w = weight();
  const MemoryBudget budget(live() + 6 * kBlock, spilling_to(folder));
  {
    const at::Tensor loss = opaque_loss(w, kDepth);
    g_fault = fault;
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains(id), IoError);
    g_fault = Fault::kNone;
  }
  CHECK(!w.grad().defined());
  clear_stopped_backward();
  opaque_loss(w, kDepth).backward();
  CHECK(same_bits(w.grad(), expected));
  CHECK(budget.report().peak_bytes <= budget.report().limit_bytes);
}

}  // namespace

TEST_CASE("a flipped bit in the spill file is an error, not another gradient") {
  check_fault(Fault::kFlippedBit, "LT0314");
}

TEST_CASE("a spill file that was cut short is an error") {
  check_fault(Fault::kCutShort, "LT0313");
}

TEST_CASE("on a slow disk the step waits and the limit holds") {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  const at::Tensor expected = plain_gradient(kDepth);
  const at::Tensor w = weight();
  const MemoryBudget budget(live() + 6 * kBlock, spilling_to(folder));
  g_delay_us = 5'000;
  opaque_loss(w, kDepth).backward();
  g_delay_us = 0;
  CHECK(same_bits(w.grad(), expected));
  const BudgetReport report = budget.report();
  CHECK(report.peak_bytes <= report.limit_bytes);
  CHECK(report.spilled_tensors >= kDepth / 2);
  CHECK(report.spill_wait_ns >= 5'000'000 * (report.spilled_tensors - 6));
}

TEST_CASE("where there is room, backward's next tensors are read while it computes") {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  const at::Tensor expected = plain_gradient(kDepth);
  const at::Tensor w = weight();
  const MemoryBudget budget(live() + 10 * kBlock, spilling_to(folder));
  at::Tensor y = w * 1;
  for (int i = 0; i < kDepth; ++i) {
    y = Opaque::apply(y);
    y.register_hook([](const at::Tensor&) { be_slow(); });
  }
  const at::Tensor loss = y.sum();
  y = at::Tensor();
  const std::uint64_t waited_before = budget.report().spill_wait_ns;
  g_reads = 0;
  g_delay_us = 10'000;
  loss.backward();
  g_delay_us = 0;
  CHECK(same_bits(w.grad(), expected));
  const auto reads = static_cast<std::uint64_t>(g_reads.load());
  CHECK(reads >= kDepth / 2);
  CHECK(budget.report().spill_wait_ns - waited_before < reads * 10'000'000 / 2);
}

TEST_CASE("a process that is killed while it spills leaves nothing behind") {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const at::Tensor w = weight();
    const MemoryBudget budget(live() + 6 * kBlock, spilling_to(folder));
    while (true) {
      opaque_loss(w, kDepth).backward();
      const char more = budget.report().spilled_tensors > 0 ? 'y' : 'n';
      if (write(ready[1], &more, 1) != 1) _exit(1);
    }
  }
  char spilled = 0;
  REQUIRE(read(ready[0], &spilled, 1) == 1);
  CHECK(spilled == 'y');
  REQUIRE(kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  close(ready[0]);
  close(ready[1]);
  CHECK(std::filesystem::is_empty(folder.path()));
}
