#pragma once
// The seam between what Lowtide does with tensor memory and the device that the memory is on.
//
//   DeviceMemory& memory = cpu_memory();
//   memory.require_active();
//   if (MemoryBlock* block = memory.find_block(storage.data_ptr())) {
//     block->record = &my_record;  // told when the block is freed
//   }
//
// All that the layers above know of a device goes through here: counts (ledger), from a storage to
// its block in O(1), and a say in each allocation that would cross a limit (AllocationGate). The
// CPU is the first implementation (counting_allocator.cpp). A device whose blocks cannot carry a
// header in front keeps MemoryBlocks in a table of its own.

#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>

#include "lowtide/bytes.h"
#include "lowtide/export.h"
#include "lowtide/memory_meter.h"
#include "src/hook/memory_ledger.h"

namespace lowtide::hook {

struct MemoryBlock;

// Something that belongs to a block and must hear of its end: the budget's storage record.
class BlockRecord {
 public:
  virtual ~BlockRecord() = default;

  // The block's last owner let go; its bytes are still there during the call and gone afterwards.
  // Runs in a deleter, on whatever thread dropped the last reference, with none of Lowtide's locks
  // held. Must not free the block, nor open a way to reach it.
  virtual void block_freed(MemoryBlock& block) noexcept = 0;
};

// One allocation. Owned by the device's memory; valid while the storage's data pointer is.
struct MemoryBlock {
  // Owned by whoever set it, null at first. Readers and writers synchronise among themselves.
  BlockRecord* record;
  Bytes size_bytes;   // as asked for
  MemoryKind kind;    // changed by MemoryLedger::retag() only
  std::uint64_t tag;  // the listener's; 0 at first
  // The watcher's; 0 at first.
  std::uint64_t watch_tag;
  std::uint64_t watch_used;
};

// Hears of every block from the moment it is set. Called on the thread that allocates or frees,
// with none of Lowtide's locks held. Must not allocate or free tensor memory.
class BlockListener {
 public:
  virtual ~BlockListener() = default;

  virtual void block_made(MemoryBlock& block) noexcept = 0;
  // Its bytes are gone after the call.
  virtual void block_gone(MemoryBlock& block) noexcept = 0;
};

// What an allocation that does not fit asks of the gate.
struct RoomRequest {
  enum class Reason : std::uint8_t {
    kLimit,   // live + reserved + request is over the limit
    kSystem,  // within the limit, but the system has no memory
  };
  Reason reason;
  Bytes request_bytes;
  Bytes limit_bytes;
  MemoryKind kind;
};

// Decides about allocations that do not fit. In force from MemoryLedger::exchange_gate() on.
class AllocationGate {
 public:
  virtual ~AllocationGate() = default;

  // Called on the allocating thread with none of Lowtide's locks held, possibly on several threads
  // at once and possibly inside a kernel. Frees something and returns true: the allocator then
  // looks again, and asks again if that was not enough. Returns false when nothing can be freed:
  // the allocation fails with AllocationError. Or throws the error that the program shall see,
  // which should derive from c10::OutOfMemoryError. Allocations made inside are gated too.
  virtual bool make_room(const RoomRequest& request) = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual c10::DeviceType device_type() const noexcept = 0;

  // True while libtorch's allocations on this device come here.
  virtual bool is_active() const noexcept = 0;
  // Throws TorchError (LT0602) naming what libtorch uses instead.
  virtual void require_active() const = 0;

  virtual MemoryLedger& ledger() noexcept = 0;

  // Free blocks that are kept for reuse go back to the system as far as the limit asks for it.
  virtual void trim_to_limit() noexcept = 0;

  // Keeps the first `bytes` of the storage's block, which nobody else may use meanwhile, and gives
  // the others back at once. They may move. False: the memory is not from here, or the system has
  // none to move them to; all is as it was.
  virtual bool shrink(c10::StorageImpl& storage, Bytes bytes) noexcept = 0;

  // One at a time; null takes it away. It must live for ever: a call may be under way.
  virtual void set_block_listener(BlockListener* listener) noexcept = 0;
  // A second one, for who watches beside a budget.
  virtual void set_block_watcher(BlockListener* watcher) noexcept = 0;

  // The block behind a storage's data pointer, in O(1), or null when the memory is not from here.
  virtual MemoryBlock* find_block(const c10::DataPtr& data) const noexcept = 0;
};

// Lives for ever; may be used from the start of the process to its very end.
LOWTIDE_API DeviceMemory& cpu_memory() noexcept;

// The tag of this thread (KindScope). Returns the one before.
LOWTIDE_API MemoryKind exchange_current_kind(MemoryKind kind) noexcept;

}  // namespace lowtide::hook
