#pragma once
// One "out of memory" message of PyTorch, a library under it, the kernel or a job system, as a
// record.
//
// The forms differ between versions and so do their terms: "cached" was the unused part (1.0-1.3),
// "reserved in total" includes what is allocated (1.4-2.0), "reserved but unallocated" does not
// (2.1 and later). A record has one field for each meaning, not for each word.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/bytes.h"

namespace lowtide {

// A size as a message prints it. The true size lies within half_step of `bytes`: "17.37 GiB" stands
// for anything between 17.365 and 17.375 GiB.
struct PrintedBytes {
  Bytes bytes = 0;
  Bytes half_step = 0;

  bool contains(Bytes exact) const {
    return exact >= (bytes > half_step ? bytes - half_step : 0) &&
           (bytes + half_step < bytes || exact <= bytes + half_step);
  }
  friend bool operator==(const PrintedBytes&, const PrintedBytes&) = default;
};

enum class MessageFamily {
  kThcCheck,         // "THCudaCheck FAIL file=... error=2 : out of memory" (0.3)
  kRuntimeErrorTwo,  // "cuda runtime error (2) : out of memory at ..." (to 0.4)
  kCudaErrorBare,    // "CUDA error: out of memory" (0.4.1 to 1.0, and raw runtime failures since)
  kCached,           // "...; F free; C cached)" (1.0 to 1.3)
  kReservedTotal,    // "...; R reserved in total by PyTorch)" (1.4 to 2.0)
  kUnallocated,      // "... R is reserved by PyTorch but unallocated" (2.1 and later)
  kShortened,        // "CUDA out of memory." with the rest missing
  kOverOneExabyte,   // "Tried to allocate more than 1EB memory": a damaged size
  kMallocAsync,      // "Allocation on device d would exceed allowed memory"
  kMps,              // "MPS backend out of memory (MPS allocated: ..."
  kCpuAllocator,     // "DefaultCPUAllocator: ...", Torch7 and mobile forms
  kArrayTooLarge,    // numpy's "Unable to allocate X for an array", MemoryError, std::bad_alloc
  kSizeOverflow,     // "Storage size calculation overflowed": a wrong shape
  kCublas,           // CUBLAS_STATUS_ALLOC_FAILED, CUBLAS_STATUS_NOT_INITIALIZED
  kCudnn,            // CUDNN_STATUS_..., "unable to find an engine"
  kNccl,             // "NCCL WARN Cuda failure 'out of memory'", "Failed to CUDA calloc"
  kDriver,           // "CUDA driver error: out of memory"
  kKernelResources,  // "out of resource: shared memory", "too many resources requested": of a
                     // kernel
  kDataLoader,       // a worker killed, gone, or out of shared memory
  kSharedMemory,     // /dev/shm full, told by others than the DataLoader
  kKernelOomKill,    // the kernel's "Out of memory: Killed process"
  kJobMemoryLimit,   // Slurm, LSF, Kubernetes, Ray
  kKilled,           // signal 9 or exit code 137 and nobody says why
  kNotMemory,        // speaks of memory or allocation and means something else
  kBudget,           // Lowtide's own refusal: "budget: cannot allocate ... [LT0301]"
  kSnapshotFailure,  // no text: a request that a snapshot's trace records as failed
};

// The name used in JSON, "reserved_total".
const char* family_name(MessageFamily family);

// The advice at the end of a message, which tells versions apart.
enum class MessageAdvice { kNone, kMaxSplitSize, kExpandableSegments, kExpandableAllocConf };

struct ProcessUse {
  std::uint64_t pid = 0;
  PrintedBytes bytes;
  friend bool operator==(const ProcessUse&, const ProcessUse&) = default;
};

struct MemoryMessage {
  MessageFamily family = MessageFamily::kShortened;
  std::string backend;  // "CUDA", "HIP", "XPU", "MPS", "CPU", "NPU"; empty where none is named
  std::optional<std::uint64_t> device;

  std::optional<PrintedBytes> requested;  // of the driver, rounded up to its segment sizes
  std::optional<PrintedBytes> capacity;
  std::optional<PrintedBytes> free;
  std::optional<PrintedBytes> allowed;  // the cap of set_per_process_memory_fraction, or MPS's
  std::optional<PrintedBytes> allocated;
  std::optional<PrintedBytes> reserved_total;        // includes `allocated`
  std::optional<PrintedBytes> reserved_unallocated;  // does not
  std::optional<PrintedBytes> private_pools;         // free blocks of private pools; in `allocated`
  std::optional<PrintedBytes> this_process;          // with what is outside PyTorch
  std::optional<PrintedBytes> other_allocations;     // MPS
  std::vector<ProcessUse> processes;

  MessageAdvice advice = MessageAdvice::kNone;

  // Host messages: who was killed and how large it was, and the code or signal that was seen.
  std::string detail;  // status, signal, pool, task or tool: what the family needs in a word
  std::optional<std::uint64_t> pid;
  std::optional<Bytes> anon_rss;
  std::optional<Bytes> shmem_rss;
  std::optional<std::int64_t> exit_code;

  // A budget's refusal: the smallest limit that would have carried the step, or a bound below it.
  std::optional<Bytes> smallest_budget;
  bool smallest_budget_is_bound = false;

  friend bool operator==(const MemoryMessage&, const MemoryMessage&) = default;
};

// What the message says is reserved and not allocated, in whichever way it says it.
std::optional<PrintedBytes> unused_reserved(const MemoryMessage& message);

// What is on the device and neither free nor PyTorch's own in this process: other processes, CUDA
// contexts, libraries. Nothing when a number is missing; 0 where rounding would make it negative.
std::optional<Bytes> outside_pytorch(const MemoryMessage& message);

}  // namespace lowtide
