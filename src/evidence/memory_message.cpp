#include "src/evidence/memory_message.h"

namespace lowtide {

const char* family_name(MessageFamily family) {
  switch (family) {
    case MessageFamily::kThcCheck:
      return "thc_check";
    case MessageFamily::kRuntimeErrorTwo:
      return "cuda_runtime_error_2";
    case MessageFamily::kCudaErrorBare:
      return "cuda_error";
    case MessageFamily::kCached:
      return "cached";
    case MessageFamily::kReservedTotal:
      return "reserved_total";
    case MessageFamily::kUnallocated:
      return "reserved_unallocated";
    case MessageFamily::kShortened:
      return "shortened";
    case MessageFamily::kOverOneExabyte:
      return "over_one_exabyte";
    case MessageFamily::kMallocAsync:
      return "malloc_async";
    case MessageFamily::kMps:
      return "mps";
    case MessageFamily::kCpuAllocator:
      return "cpu_allocator";
    case MessageFamily::kArrayTooLarge:
      return "array_too_large";
    case MessageFamily::kSizeOverflow:
      return "size_overflow";
    case MessageFamily::kCublas:
      return "cublas";
    case MessageFamily::kCudnn:
      return "cudnn";
    case MessageFamily::kNccl:
      return "nccl";
    case MessageFamily::kDriver:
      return "driver";
    case MessageFamily::kKernelResources:
      return "kernel_resources";
    case MessageFamily::kDataLoader:
      return "data_loader";
    case MessageFamily::kSharedMemory:
      return "shared_memory";
    case MessageFamily::kKernelOomKill:
      return "kernel_oom_kill";
    case MessageFamily::kJobMemoryLimit:
      return "job_memory_limit";
    case MessageFamily::kKilled:
      return "killed";
    case MessageFamily::kNotMemory:
      return "not_memory";
    case MessageFamily::kBudget:
      return "lowtide_budget";
    case MessageFamily::kSnapshotFailure:
      return "snapshot_failure";
  }
  return "";
}

std::optional<PrintedBytes> unused_reserved(const MemoryMessage& message) {
  if (message.reserved_unallocated) return message.reserved_unallocated;
  if (message.reserved_total && message.allocated) {
    const PrintedBytes& total = *message.reserved_total;
    const PrintedBytes& used = *message.allocated;
    return PrintedBytes{total.bytes > used.bytes ? total.bytes - used.bytes : 0,
                        total.half_step + used.half_step};
  }
  return std::nullopt;
}

std::optional<Bytes> outside_pytorch(const MemoryMessage& message) {
  const std::optional<PrintedBytes> unused = unused_reserved(message);
  if (!message.capacity || !message.free || !message.allocated || !unused) return std::nullopt;
  const Bytes capacity = message.capacity->bytes;
  Bytes known = 0;
  for (const Bytes part : {message.free->bytes, message.allocated->bytes, unused->bytes}) {
    if (part >= capacity - known) return 0;
    known += part;
  }
  return capacity - known;
}

}  // namespace lowtide
