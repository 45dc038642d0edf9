#include "src/hook/cuda_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <utility>

namespace lowtide::hook {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

bool is_in_use() { return allocator::get() != nullptr && allocator::get()->initialized(); }

}  // namespace

bool has_cuda_memory() noexcept { return true; }

std::string cuda_memory_snapshot() {
  return is_in_use() ? torch::cuda::_memory_snapshot_pickled() : std::string();
}

void record_cuda_history(std::size_t max_entries) {
  torch::cuda::_record_memory_history("all", "all", "all", max_entries);
}

void watch_cuda_failures(std::function<void(const CudaFailure&)> observer) {
  allocator::attachOutOfMemoryObserver(
      [observer = std::move(observer)](std::int64_t device, std::size_t request, std::size_t total,
                                       std::size_t free) {
        constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
        CudaFailure failure;
        failure.device = device;
        failure.request_bytes = request;
        failure.device_total = total;
        failure.device_free = free;
        const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
        failure.allocated = static_cast<Bytes>(stats.allocated_bytes[kAll].current);
        failure.reserved = static_cast<Bytes>(stats.reserved_bytes[kAll].current);
        observer(failure);
      });
}

}  // namespace lowtide::hook
