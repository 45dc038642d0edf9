#pragma once
// Parameters, gradients and optimizer state in the spill file while they are not in use.
//
//   memory.attach(parameters);                      // opt-in: MemoryBudget::attach()
//   StaticMemory::Pins pins(memory);
//   memory.pin(inputs, pins);                       // before an op: they are there until pins end
//   ...
//   memory.evict(needed, trash);                    // when nothing else can make room
//
// Note [Memory that is away]
// The StorageImpl stays where it is, so every tensor over it stays what it is; its bytes go to the
// spill file, its data pointer to null, and any access raises an error that says so, until the next
// op that reads or writes it brings the bytes back. What no op asks for (a pointer from data_ptr(),
// numpy) must not be there while they are away: a storage leaves only when nobody holds it but the
// tensors that were attached and the runtime, when numpy() was never asked of it (torch makes such
// storages not resizable), and when this thread was the last to use it.
//
// Note [Which goes]
// A training step uses its static memory in the same order each time: the one that was used next,
// farthest ahead, in the step before goes first (Belady 1966). What is written over in between is
// written to the file again, what is not is still there.
//
// All calls need the table's lock, but for pin() and Pins.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lowtide/memory_meter.h"
#include "src/base/forkable_mutex.h"
#include "src/fit/stash.h"
#include "src/fit/storage_table.h"
#include "src/hook/away_memory.h"
#include "src/observe/tape_recorder.h"

namespace lowtide {

class StaticMemory final : public hook::AwayMemory {
 public:
  StaticMemory(StorageTable& table, Stash& stash, TapeRecorder& recorder)
      : table_(table), stash_(stash), recorder_(recorder) {}

  // Storages that may not leave meanwhile. Ends without the lock.
  class Pins {
   public:
    explicit Pins(StaticMemory& memory) : memory_(memory) {}
    ~Pins() { memory_.unpin(*this); }
    Pins(const Pins&) = delete;
    Pins& operator=(const Pins&) = delete;

   private:
    friend class StaticMemory;
    StaticMemory& memory_;
    std::vector<c10::StorageImpl*> storages_;
  };

  // Storages that raise an error when they are read or written, as long as this lives.
  class Blocked {
   public:
    Blocked() = default;
    ~Blocked();
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;
    bool any() const { return !storages_.empty(); }

   private:
    friend class StaticMemory;
    std::vector<c10::Storage> storages_;
  };

  // From now on the tensors' storages may leave, their gradients', and what is seen to be optimizer
  // state (MemoryKind::kOptimizerState). Those below 64 KiB never do.
  void attach(const std::vector<at::Tensor>& tensors);
  // Made like an attached parameter, with grad mode off: what an optimizer begins with. Takes the
  // lock.
  void add_state(const at::Tensor& tensor);
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }

  // What an op uses is there, and stays until the pins end. Throws BudgetError when there is no
  // room, IoError when the file cannot be read. Takes the lock.
  void pin(c10::ArrayRef<c10::IValue> values, Pins& pins);
  void pin(const std::vector<c10::Storage>& storages, Pins& pins);

  // So that an op whose memory could not be had does nothing, rather than the half of it.
  static void block(c10::ArrayRef<c10::IValue> values, const std::string& why, Blocked& blocked);

  bool bring_in(const c10::Storage& storage) override;

  // Lets go of at least `needed` bytes, if there are so many. Returns what is free once the trash
  // is, 0 where writes are under way or nothing can leave.
  Bytes evict(Bytes needed, StorageTable::Trash& trash);

  // A step ended.
  void next_step();
  // All comes back, and nothing leaves any more. Takes the lock. Throws as pin(), once all else is
  // back; what could not be had says why to who reads it.
  void detach();

  // Held while bytes come back. Taken before the table's lock.
  ForkableMutex<std::mutex>& mutex() { return bringing_in_; }

 private:
  struct Attached;
  using Entry = std::shared_ptr<Attached>;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  Entry find(const c10::StorageImpl* storage) const;
  Entry add(const at::Tensor& tensor);
  void add_gradients();
  bool may_leave(const Attached& entry, const c10::Storage& storage) const;
  std::uint64_t next_use(const Attached& entry) const;
  Bytes leave(const Entry& entry, c10::StorageImpl& storage, StorageTable::Trash& trash);
  void bring_in(const Entry& entry);
  void use(const c10::Storage& storage, const at::Tensor* tensor, Pins& pins,
           std::vector<Entry>& away);
  void unpin(Pins& pins) noexcept;

  StorageTable& table_;
  Stash& stash_;
  TapeRecorder& recorder_;
  std::atomic<bool> is_on_{false};
  bool may_leave_ = false;
  ForkableMutex<std::mutex> bringing_in_;
  std::vector<WeakTensor> tensors_;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  std::unordered_map<const c10::StorageImpl*, std::uint32_t> in_use_;  // by how many pins
  std::uint64_t uses_ = 0;                                             // in this step
  std::uint64_t uses_of_last_step_ = 0;
};

}  // namespace lowtide
