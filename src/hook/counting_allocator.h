#pragma once
// Lowtide's CPU allocator, registered with libtorch when liblowtide is loaded.
//
// What the rest of Lowtide needs of it goes through device_memory.h. This header adds the error
// that a failed allocation throws, and registration, for the start-up check and the tests.

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "lowtide/bytes.h"
#include "lowtide/error.h"
#include "lowtide/export.h"

namespace lowtide::hook {

// Only a higher or equal priority replaces an allocator that is registered. Plain registrations
// have 0; this leaves room above for a program that means it.
inline constexpr std::uint8_t kAllocatorPriority = 100;

// The bytes in front of each block. The data after it stay on the 64-byte alignment that libtorch's
// own allocator gives and vector kernels count on.
inline constexpr std::size_t kBlockHeaderBytes = 64;

// The memory asked for cannot be had. Code that catches libtorch's class keeps working, and its
// message contains the words of libtorch's own allocator. Afterwards all tensors and counts are as
// they were before the call.
class LOWTIDE_API AllocationError : public c10::OutOfMemoryError, public ErrorInfo {
 public:
  // `message` without the id, which is appended.
  AllocationError(const std::string& message, ErrorDetails details);
  ~AllocationError() override;
};

// Who serves libtorch's CPU allocations.
struct Registration {
  bool is_ours;
  std::string other;  // class and file of the allocator in our place; empty when is_ours
};

// Registers the allocator unless another tool's is in place, and says what came of it. Called once
// at load; calling it again is harmless. Not thread-safe, as c10::SetAllocator is not.
LOWTIDE_API Registration register_counting_allocator();

// Says who serves now, without changing it.
LOWTIDE_API Registration current_registration();

// The allocator itself, whether registered or not. Lives for ever.
LOWTIDE_API c10::Allocator& counting_allocator() noexcept;

// Whether freed large blocks are kept for reuse; on from the load on, except where libtorch was
// told to fill, align or place blocks in its own way, and in sanitizer builds. Off gives all of
// them back. Returns what it was.
LOWTIDE_API bool set_block_reuse(bool on) noexcept;
// Bytes of free blocks that are kept.
LOWTIDE_API Bytes reusable_bytes() noexcept;

}  // namespace lowtide::hook
