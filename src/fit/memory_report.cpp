#include "src/fit/memory_report.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "lowtide/budget.h"
#include "lowtide/memory_report.h"
#include "src/base/text.h"
#include "src/hook/cuda_memory.h"
#include "src/report/memory_report_files.h"

namespace lowtide {
namespace {

// Guarded by its mutex, which is not held while files are written.
struct State {
  std::mutex mutex;
  std::optional<std::string> path;  // nothing: LOWTIDE_REPORT was not looked at yet
  std::optional<RefusalRecord> last;
  bool watches_cuda = false;
};

State& state() {
  static State* const kept = new State;  // refusals may come while the program ends
  return *kept;
}

std::string report_path() {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  if (!now.path) {
    const char* value = std::getenv("LOWTIDE_REPORT");
    now.path = value == nullptr ? "" : value;
  }
  return *now.path;
}

void write_or_tell(const std::string& path, const MemoryReportEvidence& evidence) noexcept {
  try {
    const MemoryReportPaths paths = write_memory_report(path, evidence);
    std::fprintf(stderr, "lowtide: out of memory; why: %s\n", paths.explanation.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lowtide: the memory report was not written: %s\n", error.what());
  }
}

// As libtorch will say it, from the same numbers.
std::string message_of(const hook::CudaFailure& failure) {
  return concat(
      "CUDA out of memory. Tried to allocate ",
      c10::CachingAllocator::format_size(failure.request_bytes), ". GPU ", failure.device,
      " has a total capacity of ", c10::CachingAllocator::format_size(failure.device_total),
      " of which ", c10::CachingAllocator::format_size(failure.device_free),
      " is free. Of the allocated memory ", c10::CachingAllocator::format_size(failure.allocated),
      " is allocated by PyTorch, and ",
      c10::CachingAllocator::format_size(failure.reserved -
                                         std::min(failure.reserved, failure.allocated)),
      " is reserved by PyTorch but unallocated.");
}

void report_cuda_failure(const hook::CudaFailure& failure) noexcept {
  try {
    const std::string path = report_path();
    if (path.empty()) return;
    write_or_tell(path, {message_of(failure), hook::cuda_memory_snapshot(), std::nullopt});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lowtide: the memory report was not written: %s\n", error.what());
  }
}

}  // namespace

bool reports_cuda_memory() noexcept { return hook::has_cuda_memory(); }

void record_memory_history(std::size_t max_entries) { hook::record_cuda_history(max_entries); }

void report_out_of_memory(std::string path) {
  State& now = state();
  bool begins = false;
  {
    const std::lock_guard lock(now.mutex);
    now.path = std::move(path);
    begins = !now.path->empty() && !std::exchange(now.watches_cuda, true);
  }
  if (begins) hook::watch_cuda_failures(report_cuda_failure);
}

bool writes_refusals() { return !report_path().empty(); }

void report_refusal(RefusalRecord record) noexcept {
  try {
    const std::string path = report_path();
    if (!path.empty()) write_or_tell(path, evidence_of(record));
    State& now = state();
    const std::lock_guard lock(now.mutex);
    now.last = std::move(record);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lowtide: the memory report was not written: %s\n", error.what());
  }
}

MemoryReportPaths write_memory_report(const std::string& path, const c10::OutOfMemoryError& error) {
  const std::string message = error.what_without_backtrace();
  if (const auto* refusal = dynamic_cast<const BudgetError*>(&error)) {
    RefusalRecord record = refusal_of(message, refusal->details());
    State& now = state();
    {
      const std::lock_guard lock(now.mutex);
      // What was known when it was refused is more than what the error carries.
      if (now.last && message.starts_with(now.last->message)) record = *now.last;
    }
    return write_memory_report(path, evidence_of(record));
  }
  return write_memory_report(path, {message, hook::cuda_memory_snapshot(), std::nullopt});
}

}  // namespace lowtide
