#pragma once
// The CUDA caching allocator, as far as reports ask it. Two files of this name's kind exist:
// cuda_memory.cpp where libtorch has CUDA (LOWTIDE_CUDA), no_cuda_memory.cpp elsewhere.
//
// Checked to compile with torch 2.13.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "lowtide/bytes.h"

namespace lowtide::hook {

bool has_cuda_memory() noexcept;

// A snapshot of all devices, as libtorch's C++ side pickles it (protocol 2), with the history that
// was recorded. "" without CUDA, and while no device has been used.
std::string cuda_memory_snapshot();

// Throws TorchError (LT0603) without CUDA.
void record_cuda_history(std::size_t max_entries);

// A request that CUDA's allocator could not serve, as it tells its observers.
struct CudaFailure {
  std::int64_t device = 0;
  Bytes request_bytes = 0;  // as asked of the driver
  Bytes device_total = 0;
  Bytes device_free = 0;
  Bytes allocated = 0;  // by PyTorch
  Bytes reserved = 0;   // likewise
};

// Calls `observer` for each failure from now on, on the thread that asked, before the error is
// thrown and with none of the allocator's locks held. libtorch keeps observers for ever: call this
// once. It must not throw, nor allocate on the device. Nothing without CUDA.
void watch_cuda_failures(std::function<void(const CudaFailure&)> observer);

}  // namespace lowtide::hook
