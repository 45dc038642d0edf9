#pragma once
// The runtime behind MemoryBudget: knows how every tensor was made, drops what can be made again,
// and makes it again when it is asked for.
//
//   ops          --before/after-->   recipes in a RecipeGraph        (OpListener)
//   saved tensor --pack-->           record held by the runtime      (SavedTensorHold)
//   allocation   --make_room-->      records dropped                 (AllocationGate)
//   backward     --unpack-->         bring_back: ops run again
//
// Note [What keeps bytes alive]
// A record stands for one storage. The runtime holds the storage (`held`) when a saved tensor needs
// it, or when it is a source (no recipe) that some recipe reads. A record may be dropped only when
// a saved tensor needs it, its recipe is complete, and nobody else holds the storage. So whatever
// the program, a module or a running kernel can still reach is never taken away.
//
// Note [Versions]
// A storage's version is the number of writes seen. A recipe is the op that made the storage and
// the in-place writes since; an op remembers the version that it read. A saved tensor has no
// version: autograd keeps the storage, so backward sees its latest contents (or raises, by the
// version counter, as plain autograd does).
//
// Note [Sources]
// What has no recipe cannot be made again. When it is about to be written, everything dropped that
// was made from it is brought back first, and all recipes that read it are given up.
//
// Locks: `mutex_` guards the graph and the records. No tensor or storage is freed while it is held
// (a tensor with a Python wrapper takes the GIL when it goes): they are moved to a Trash that is
// declared before the lock. `replay_mutex_` lets one thread bring back at a time; it is taken
// first.

#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lowtide/budget.h"
#include "src/fit/op_capture.h"
#include "src/hook/device_memory.h"
#include "src/hook/op_observer.h"
#include "src/hook/saved_tensor_hooks.h"
#include "src/plan/bring_back.h"
#include "src/plan/recipe_graph.h"

namespace lowtide {

class BudgetRuntime;

// What the runtime knows of one storage.
struct StorageRecord final : hook::BlockRecord {
  void block_freed(hook::MemoryBlock& block) noexcept override;

  StorageId id;
  hook::MemoryBlock* block =
      nullptr;                 // null: dropped, freed by the program, or not from our allocator
  const void* data = nullptr;  // where the bytes were when last seen
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  c10::Storage held;                        // see Note [What keeps bytes alive]
  std::uint32_t saved = 0;                  // saved tensors that lie over it
  std::uint64_t checksum = 0;               // of the bytes, when they were dropped
  std::shared_ptr<OpCapture> factory;       // made by empty() and not written yet
  std::shared_ptr<const std::string> lost;  // why it cannot be had any more
};

class BudgetRuntime final : public hook::AllocationGate,
                            public hook::OpListener,
                            public hook::SavedTensorProvider {
 public:
  // One a process; lives for ever, because graphs may outlive the last budget.
  static BudgetRuntime& instance();

  void activate(Bytes limit, const BudgetOptions& options);
  // Brings back what is dropped, then forgets all.
  void deactivate();
  BudgetReport report() const;

  // hook::AllocationGate
  bool make_room(const hook::RoomRequest& request) override;
  // hook::OpListener
  std::unique_ptr<hook::OpTicket> before(const hook::Operator& op,
                                         c10::ArrayRef<c10::IValue> inputs) noexcept override;
  void after(hook::OpTicket& ticket, c10::ArrayRef<c10::IValue> outputs) noexcept override;
  // hook::SavedTensorProvider
  std::unique_ptr<hook::SavedTensorHooks> make_hooks() override;

  // For SavedTensorHold. pack() returns null when the tensor must be kept whole.
  std::shared_ptr<StorageRecord> pack(const at::Tensor& tensor);
  c10::Storage unpack(const std::shared_ptr<StorageRecord>& record);
  void release(std::shared_ptr<StorageRecord> record) noexcept;

  void block_freed(StorageRecord& record) noexcept;

 private:
  friend struct StorageRecord;
  struct Ticket;
  // Freed when it goes out of scope, after the lock that is declared behind it.
  struct Trash {
    std::vector<c10::Storage> storages;
    std::vector<std::shared_ptr<const OpCapture>> captures;
    std::vector<std::shared_ptr<StorageRecord>> records;
  };
  using Lock = std::unique_lock<std::recursive_mutex>;

  BudgetRuntime();

  std::shared_ptr<StorageRecord> find_record(const c10::Storage& storage);
  std::shared_ptr<StorageRecord> find_or_make_record(const c10::Storage& storage);
  std::shared_ptr<StorageRecord> record_of(StorageId id) const;
  void prepare_write(const std::shared_ptr<StorageRecord>& record);
  void lose_contents(StorageRecord& record, Trash& trash);
  void add_op(std::shared_ptr<OpCapture> capture, std::uint64_t cost_ns,
              const std::vector<c10::Storage>& input_storages);
  void hold_source(StorageRecord& record, const c10::Storage& storage);
  void forget(StorageId first, Trash& trash);
  void forget_if_unneeded(StorageRecord& record, Trash& trash);
  bool drop(StorageRecord& record, Trash& trash);
  // Returns the targets' storages, so that the caller can keep them from being dropped again.
  std::vector<c10::Storage> bring_back(const std::vector<std::shared_ptr<StorageRecord>>& targets);
  [[noreturn]] void refuse(const hook::RoomRequest& request);

  mutable std::recursive_mutex mutex_;
  std::recursive_mutex replay_mutex_;
  std::unique_ptr<RecipeGraph> graph_;                      // guarded by mutex_, as all below
  std::vector<std::shared_ptr<StorageRecord>> records_;     // by StorageId
  std::vector<std::shared_ptr<const OpCapture>> captures_;  // by OpId
  std::unordered_map<const c10::StorageImpl*, StorageId> foreign_;  // not from our allocator
  BringBackPlanner planner_;
  BudgetOptions options_;
  BudgetReport report_;
  std::unique_ptr<MemoryMeter> meter_;
  bool active_ = false;
};

}  // namespace lowtide
