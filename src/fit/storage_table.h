#pragma once
// What the budget's runtime knows of storages, and of the ops that made them.
//
//   StorageTable table;
//   StorageTable::Trash trash;
//   const StorageTable::Lock lock = table.lock();
//   auto record = table.find_or_make(tensor.storage());
//   table.graph().is_there(record->id);
//
// Note [What keeps bytes alive]
// A record stands for one storage. The runtime holds the storage (`held`) when a saved tensor needs
// it, or when it is a source (no recipe) that some recipe reads. A record may be dropped only when
// a saved tensor needs it, its recipe is complete, and nobody else holds the storage. So whatever
// the program, a module or a running kernel can still reach is never taken away.
//
// Note [Exchanged data]
// `h.data = other` (set_data) gives a tensor another storage, and backward must see that, as it
// does when autograd keeps the tensor itself. So a saved input is kept as the tensor that it is
// until its bytes are to be dropped, and they are dropped only when nobody else holds that tensor:
// from then on nobody can exchange its data.
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
// Note [Storages that come and go]
// Fully sharded parameters are freed after each layer (resize_(0)) and gathered again where they
// are needed. What reads a storage that was once freed that way gets no recipe; what had one by
// then loses it. What was dropped already comes back if the storage has memory again and the
// checksum says that the result is the same.
//
// Note [Copies]
// A dropped storage whose bytes are kept elsewhere (stash.h) needs no recipe: it comes back by
// being read, and counts as having its contents. A copy may outlast that, for the next drop.
//
// Locks: all calls but lock() and any_comes_and_goes() need the lock. No tensor or storage is freed
// while it is held (a tensor with a Python wrapper takes the GIL when it goes): they are moved to a
// Trash that is declared before the lock.

#include <c10/core/Storage.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/forkable_mutex.h"
#include "src/fit/op_capture.h"
#include "src/fit/tensor_geometry.h"
#include "src/hook/device_memory.h"
#include "src/hook/saved_tensor_hooks.h"
#include "src/plan/recipe_graph.h"

namespace lowtide {

class StorageTable;

// Smaller storages never get a recipe: the bookkeeping would cost more than the bytes.
inline constexpr Bytes kSmallestRecipe = 1024;
// A storage with more in-place writes than this is a source: bringing it back runs them all.
inline constexpr std::uint32_t kMostWrites = 64;
// What would take a longer chain of ops to bring back is a source: it bounds the time of one
// bring-back, and the memory of loops that never write to their sources.
inline constexpr std::uint32_t kLongestChain = 1024;

// A saved tensor that was an input of the op that saved it; see Note [Exchanged data]. One that was
// let go of and brought back may be kept again (Note [Which tensor it is]).
struct KeptVariable {
  at::Tensor variable;      // not defined: let go
  TensorGeometry geometry;  // when it was saved
  hook::GraphPlace place;   // the same
  // Which tensor it was; never dereferenced.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> identity{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};

  // Whether the same tensor was saved twice.
  bool is_same_tensor(const KeptVariable& other) const {
    const c10::TensorImpl* mine = identity._unsafe_get_target();
    return mine != nullptr && mine != c10::UndefinedTensorImpl::singleton() &&
           mine == other.identity._unsafe_get_target() && place == other.place;
  }

  // Whether it has got other data since: another storage, or another part or order of the same.
  bool is_exchanged(const c10::Storage& storage) const {
    return !variable.has_storage() || !variable.storage().is_alias_of(storage) ||
           TensorGeometry::of(variable) != geometry;
  }
};

// What is known of one storage.
class StashedBytes;

struct StorageRecord final : hook::BlockRecord {
  explicit StorageRecord(StorageTable& owner) : table(owner) {}
  void block_freed(hook::MemoryBlock& block) noexcept override;

  StorageTable& table;
  StorageId id;  // not valid: forgotten
  std::uint64_t serial = 0;
  // Null: dropped, freed by the program, or not from our allocator.
  hook::MemoryBlock* block = nullptr;
  const void* data = nullptr;  // where the bytes were when last seen
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  c10::Storage held;                     // see Note [What keeps bytes alive]
  std::uint32_t saved = 0;               // saved tensors that lie over it
  std::uint32_t depth = 0;               // longest chain of ops in its making
  std::uint64_t checksum = 0;            // of the bytes, when they were dropped
  std::shared_ptr<StashedBytes> copy;    // its bytes elsewhere; may stay when it is there again
  std::uint64_t saved_at = 0;            // place in the order of saving, of the last saved tensor
  std::uint8_t element_bytes = 1;        // of its saved tensors
  std::uint64_t tape_tag = 0;            // the dropped block's, for the tape recorder
  const char* made_by = "";              // the op that made it, "" when not seen
  const char* made_at = "";              // the program's line, "" when not known
  std::vector<KeptVariable*> variables;  // of its saved tensors, while they are defined
  std::uint32_t borrowed = 0;            // by who is about to take a reference to a variable
  std::vector<at::Tensor> returned;      // variables that were let go of meanwhile
  std::shared_ptr<OpCapture> factory;    // made by empty() and not written yet
  std::shared_ptr<const std::string> lost;  // why it cannot be had any more

  // Whether the storage still is what was recorded; resize_() and set_() are no ops that are seen.
  bool is_as_recorded(Bytes bytes) const;
  // Or has other memory of that size now, which may hold the same: who uses it must compare.
  bool has_memory(Bytes bytes) const;

  RecordName name() const { return {id, serial}; }

  // Calls f(tensor, n) for each tensor that n of the variables are, until it returns false; whether
  // it never did.
  template <typename F>
  bool for_each_variable(F&& f) const;
};

template <typename F>
bool StorageRecord::for_each_variable(F&& f) const {
  if (variables.size() == 1) return f(variables.front()->variable, std::size_t{1});
  std::vector<const at::Tensor*> sorted;
  sorted.reserve(variables.size());
  for (const KeptVariable* kept : variables) sorted.push_back(&kept->variable);
  std::sort(sorted.begin(), sorted.end(), [](const at::Tensor* a, const at::Tensor* b) {
    return a->unsafeGetTensorImpl() < b->unsafeGetTensorImpl();
  });
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t end = i + 1;
    while (end < sorted.size() && sorted[end]->is_same(*sorted[i])) ++end;
    if (!f(*sorted[i], end - i)) return false;
    i = end;
  }
  return true;
}

class StorageTable {
 public:
  using Mutex = ForkableMutex<std::recursive_mutex>;
  using Lock = std::unique_lock<Mutex>;
  // Freed when it goes out of scope, after the lock that is declared behind it.
  struct Trash {
    std::vector<c10::Storage> storages;
    std::vector<at::Tensor> variables;
    std::vector<std::shared_ptr<const OpCapture>> captures;
    std::vector<std::shared_ptr<StorageRecord>> records;
    std::vector<std::shared_ptr<StashedBytes>> copies;
  };
  using Records = std::vector<std::shared_ptr<StorageRecord>>;

  StorageTable();

  Lock lock() const { return Lock(mutex_); }
  Mutex& mutex() { return mutex_; }

  RecipeGraph& graph() { return *graph_; }
  const RecipeGraph& graph() const { return *graph_; }

  std::shared_ptr<StorageRecord> find(const c10::Storage& storage) const;
  std::shared_ptr<StorageRecord> find_or_make(const c10::Storage& storage);
  // Null when there is none of that id, or of that name.
  const std::shared_ptr<StorageRecord>& record(StorageId id) const;
  const std::shared_ptr<StorageRecord>& record(const RecordName& name) const;
  const std::shared_ptr<const OpCapture>& capture(OpId op) const { return captures_[op.index()]; }
  const Records& records() const { return records_; }  // by id, null where there is none

  // A saved tensor over the record comes; goes (true: it was the last).
  void add_saved(StorageRecord& record);
  bool remove_saved(StorageRecord& record);
  std::size_t saved_count() const { return saved_count_; }  // records with saved tensors

  // See Note [Storages that come and go]. Takes the lock itself.
  bool any_comes_and_goes(const std::vector<c10::Storage>& storages) const;

  // A record that is there has its bytes in another place now.
  void moved(const std::shared_ptr<StorageRecord>& record, const c10::Storage& storage) {
    attach(record, storage);
  }
  // Whether the bytes are to be had without running anything: there, or copied elsewhere.
  bool has_contents(StorageId id) const { return graph_->is_there(id) || graph_->is_copied(id); }
  // The bytes of a record that was dropped are there again.
  void put_back(const std::shared_ptr<StorageRecord>& record, const c10::Storage& storage);

  // The op joins the recipes of what it wrote. False: it wrote over a source, or makes a longer
  // chain than kLongestChain; then it is not kept.
  bool add_op(std::shared_ptr<OpCapture> capture, std::uint64_t cost_ns,
              const std::vector<c10::Storage>& input_storages, std::uint64_t clock_ns);
  // The longest chain that an op with these inputs would end.
  std::uint32_t depth_after(const OpCapture& capture) const;

  // From now on a source: nothing is known of how its contents came to be.
  void lose_contents(StorageRecord& record, Trash& trash);

  // All that is rebuilt from `record`, directly or through others.
  Records dependents(const StorageRecord& record) const;

  // The record's last need may have gone: lets go of its bytes, or of the record itself.
  void forget_if_unneeded(StorageRecord& record, Trash& trash);

  // Lets go of a source that is held for recipes alone, by giving those up. False: something
  // dropped needs it, somebody else holds it too, or more bytes could not be dropped afterwards
  // than it has. O(dependents).
  bool release_source(StorageRecord& record, Trash& trash);

  // Recipes that write to each other's inputs in turn keep each other; what neither the program nor
  // a saved tensor leads to is forgotten. O(records). Worth it when is_collection_due().
  void collect(Trash& trash);
  bool is_collection_due() const;

  // Forgets all. Saved tensors keep their records, and what those hold.
  void clear(Trash& trash);

  // What this table takes, captures' arguments not counted.
  Bytes memory_bytes() const;

 private:
  friend struct StorageRecord;
  void attach(const std::shared_ptr<StorageRecord>& record, const c10::Storage& storage);
  void block_freed(StorageRecord& record) noexcept;
  void forget(StorageId first, Trash& trash);
  void discard_unused(const std::vector<OpId>& ops, Trash& trash);
  // The ops of the recipe, and what they read.
  void list_recipe(StorageId id, std::vector<OpId>& ops, std::vector<StorageId>& reads) const;

  mutable Mutex mutex_;
  std::unique_ptr<RecipeGraph> graph_;
  Records records_;
  std::vector<std::shared_ptr<const OpCapture>> captures_;          // by OpId
  std::unordered_map<const c10::StorageImpl*, StorageId> foreign_;  // not from our allocator
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>>
      coming_and_going_;
  std::size_t kept_coming_and_going_ = 0;  // when those that are gone were last taken out
  std::atomic<bool> some_come_and_go_{false};
  std::size_t kept_by_collection_ = 0;
  std::size_t saved_count_ = 0;
  std::uint64_t last_serial_ = 0;
  std::uint64_t last_saved_at_ = 0;
};

}  // namespace lowtide
