#include "src/fit/static_memory.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "src/base/text.h"
#include "src/fit/op_capture.h"
#include "src/hook/host.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide {
namespace {

// Smaller storages stay: they are not worth a block of the file.
constexpr Bytes kSmallestStatic = Bytes{64} << 10;
// Of one step that are remembered; loops without steps have no end.
constexpr std::size_t kMostUses = 4096;
constexpr const char* kIsAway =
    "this tensor's memory is in the spill file: it was attached to a lowtide budget, and is "
    "brought back by the next op that reads it. What reads it without an op (data_ptr, numpy, "
    "pickle) must wait for the end of the budget";
// Later than any use that is known.
constexpr std::uint64_t kUnknownUse = std::uint64_t{1} << 40;

c10::DataPtr& data_ptr(c10::StorageImpl& storage) { return storage._mutable_data_ptr_no_checks(); }

c10::weak_intrusive_ptr<c10::StorageImpl> weak(const c10::Storage& storage) {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl());
}

}  // namespace

struct StaticMemory::Attached {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  Bytes bytes = 0;
  std::vector<WeakTensor> tensors;  // that were over it when they joined
  std::thread::id user;             // last thread whose ops read or wrote it
  bool is_away = false;
  MemoryKind kind = MemoryKind::kProgram;
  std::uint64_t tape_tag = 0;
  std::shared_ptr<StashedBytes> copy;
  std::weak_ptr<StorageRecord> record;
  std::vector<std::uint64_t> uses;  // in this step
  std::vector<std::uint64_t> uses_of_last_step;
};

// ---- who takes part ----

StaticMemory::Entry StaticMemory::find(const c10::StorageImpl* storage) const {
  const auto found = entries_.find(storage);
  // Another storage may have come to lie at the address of one that is gone.
  return found == entries_.end() || found->second->storage.expired() ? nullptr : found->second;
}

StaticMemory::Entry StaticMemory::add(const at::Tensor& tensor) {
  if (!is_plain(tensor)) return nullptr;
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  Entry entry = find(impl);
  if (entry == nullptr) {
    if (impl->nbytes() < kSmallestStatic) return nullptr;
    if (hook::cpu_memory().find_block(data_ptr(*impl)) == nullptr) return nullptr;
    entry = std::make_shared<Attached>();
    entry->storage = weak(tensor.storage());
    entry->bytes = impl->nbytes();
    entries_[impl] = entry;
  }
  const bool is_known =
      std::any_of(entry->tensors.begin(), entry->tensors.end(), [&](const WeakTensor& known) {
        return known._unsafe_get_target() == tensor.unsafeGetTensorImpl();
      });
  if (!is_known) entry->tensors.emplace_back(tensor.getIntrusivePtr());
  return entry;
}

void StaticMemory::attach(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (add(tensor) == nullptr) continue;
    const bool is_known =
        std::any_of(tensors_.begin(), tensors_.end(), [&](const WeakTensor& known) {
          return known._unsafe_get_target() == tensor.unsafeGetTensorImpl();
        });
    if (!is_known) tensors_.emplace_back(tensor.getIntrusivePtr());
  }
  is_on_ = may_leave_ = true;
  hook::set_away_memory(this);
}

void StaticMemory::add_state(const at::Tensor& tensor) {
  const StorageTable::Lock lock = table_.lock();
  if (const Entry entry = add(tensor)) entry->user = std::this_thread::get_id();
}

// Of the parameters that this thread uses: another may be changing theirs.
void StaticMemory::add_gradients() {
  for (const WeakTensor& attached : tensors_) {
    if (attached.use_count() == 0) continue;
    const c10::TensorImpl& tensor = *attached._unsafe_get_target();
    const Entry entry = find(tensor.unsafe_storage().unsafeGetStorageImpl());
    if (entry == nullptr || entry->user != std::this_thread::get_id()) continue;
    const at::Tensor& gradient = tensor.grad();
    if (!gradient.defined()) continue;
    if (const Entry added = add(gradient)) added->user = std::this_thread::get_id();
  }
}

// ---- in use ----

// Pins the storage; what is away of it joins `away`.
void StaticMemory::use(const c10::Storage& storage, const at::Tensor* tensor, Pins& pins,
                       std::vector<Entry>& away) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (impl->nbytes() < kSmallestStatic) return;
  ++in_use_[impl];
  pins.storages_.push_back(impl);
  Entry entry = find(impl);
  if (entry == nullptr && tensor != nullptr) {
    const hook::MemoryBlock* block = hook::cpu_memory().find_block(data_ptr(*impl));
    if (block == nullptr || block->kind != MemoryKind::kOptimizerState) return;
    entry = add(*tensor);
  }
  if (entry == nullptr) return;
  entry->user = std::this_thread::get_id();
  ++uses_;
  if (entry->uses.size() < kMostUses) entry->uses.push_back(uses_);
  if (entry->is_away) away.push_back(std::move(entry));
}

void StaticMemory::pin(c10::ArrayRef<c10::IValue> values, Pins& pins) {
  std::vector<Entry> away;
  {
    const StorageTable::Lock lock = table_.lock();
    OpCapture::for_each_tensor(values, [&](TensorPlace, const at::Tensor& tensor) {
      if (tensor.has_storage()) use(tensor.storage(), &tensor, pins, away);
    });
  }
  for (const Entry& entry : away) bring_in(entry);
}

void StaticMemory::pin(const std::vector<c10::Storage>& storages, Pins& pins) {
  std::vector<Entry> away;
  {
    const StorageTable::Lock lock = table_.lock();
    for (const c10::Storage& storage : storages) use(storage, nullptr, pins, away);
  }
  for (const Entry& entry : away) bring_in(entry);
}

bool StaticMemory::bring_in(const c10::Storage& storage) {
  Entry entry;
  {
    const StorageTable::Lock lock = table_.lock();
    entry = find(storage.unsafeGetStorageImpl());
    if (entry == nullptr) return false;
    entry->user = std::this_thread::get_id();
  }
  bring_in(entry);
  return true;
}

void StaticMemory::block(c10::ArrayRef<c10::IValue> values, const std::string& why,
                         Blocked& blocked) {
  OpCapture::for_each_tensor(values, [&](TensorPlace, const at::Tensor& tensor) {
    if (!tensor.has_storage() || tensor.storage().nbytes() == 0) return;
    blocked.storages_.push_back(tensor.storage());
    tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
        why);
  });
}

StaticMemory::Blocked::~Blocked() {
  for (const c10::Storage& storage : storages_) {
    c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
    if (hook::is_away(impl)) {
      impl.release_data_and_set_meta_custom_data_ptr_error_msg_(kIsAway);
    } else {
      impl.clear_data_ptr_access_error_msg_();
    }
  }
}

void StaticMemory::unpin(Pins& pins) noexcept {
  if (pins.storages_.empty()) return;
  const StorageTable::Lock lock = table_.lock();
  for (const c10::StorageImpl* storage : pins.storages_) {
    const auto found = in_use_.find(storage);
    if (--found->second == 0) in_use_.erase(found);
  }
}

void StaticMemory::bring_in(const Entry& entry) {
  const hook::HostUnlocked unlocked;
  const std::lock_guard only_one(bringing_in_);
  std::shared_ptr<StashedBytes> copy;
  {
    const StorageTable::Lock lock = table_.lock();
    if (!entry->is_away) return;
    copy = entry->copy;
  }
  c10::Storage storage;
  try {
    const TapeRecorder::Pause unseen;
    storage = stash_.fetch(*copy, entry->bytes, entry->kind);
  } catch (const std::exception& error) {
    // The op finds the memory away; it shall say why.
    const StorageTable::Lock lock = table_.lock();
    if (const auto impl = entry->storage.lock(); impl != nullptr && entry->is_away) {
      impl->release_data_and_set_meta_custom_data_ptr_error_msg_(error.what());
    }
    throw;
  }
  StorageTable::Trash trash;
  c10::DataPtr mark;
  const StorageTable::Lock lock = table_.lock();
  const auto impl = entry->storage.lock();
  if (impl == nullptr || !entry->is_away) return;
  mark = std::exchange(data_ptr(*impl), std::move(data_ptr(*storage.unsafeGetStorageImpl())));
  impl->clear_data_ptr_access_error_msg_();
  entry->is_away = false;
  hook::MemoryBlock* block = hook::cpu_memory().find_block(data_ptr(*impl));
  recorder_.resume(*block, entry->tape_tag);
  if (!copy->stays()) {
    trash.copies.push_back(std::move(entry->copy));
    entry->copy = nullptr;
  }
  const auto record = entry->record.lock();
  if (record != nullptr && record->id.valid()) table_.moved(record, c10::Storage(impl));
}

// ---- leaving ----

bool StaticMemory::may_leave(const Attached& entry, const c10::Storage& storage) const {
  const bool is_ours = entry.user == std::thread::id() || entry.user == std::this_thread::get_id();
  if (entry.is_away || !is_ours) return false;
  if (storage.nbytes() != entry.bytes || !storage.resizable() ||
      in_use_.contains(storage.unsafeGetStorageImpl())) {
    return false;
  }
  const hook::MemoryBlock* block =
      hook::cpu_memory().find_block(data_ptr(*storage.unsafeGetStorageImpl()));
  if (block == nullptr) return false;
  std::size_t holders = 1;  // who asks
  for (const WeakTensor& tensor : entry.tensors) {
    if (tensor.use_count() == 0) continue;
    const c10::TensorImpl& impl = *tensor._unsafe_get_target();
    if (impl.unsafe_storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) ++holders;
  }
  if (holders == 1) return false;  // somebody else's by now
  if (block->record != nullptr) {
    const auto& record = static_cast<const StorageRecord&>(*block->record);
    if (record.held) ++holders;
    const bool are_ours =
        record.for_each_variable([&](const at::Tensor& variable, std::size_t copies) {
          if (hook::holder_count(variable) > copies) return false;
          ++holders;
          return true;
        });
    if (!are_ours) return false;
  }
  return storage.use_count() <= holders;
}

std::uint64_t StaticMemory::next_use(const Attached& entry) const {
  const auto& known = entry.uses_of_last_step;
  if (known.empty()) {
    // Nothing is known: the one unused for longest goes first.
    return kUnknownUse - (entry.uses.empty() ? 0 : entry.uses.back());
  }
  const auto next = std::upper_bound(known.begin(), known.end(), uses_);
  return next != known.end() ? *next : uses_of_last_step_ + known.front();
}

// Returns what is free once the trash is.
Bytes StaticMemory::leave(const Entry& entry, c10::StorageImpl& storage,
                          StorageTable::Trash& trash) {
  c10::DataPtr& place = data_ptr(storage);
  hook::MemoryBlock& block = *hook::cpu_memory().find_block(place);
  c10::Storage moved(c10::Storage::use_byte_size_t(), entry->bytes,
                     c10::DataPtr(nullptr, storage.device()), nullptr, /*resizable=*/false);
  // When the storage goes while it is away, its place in the file is free.
  c10::DataPtr mark(
      nullptr, new Entry(entry), [](void* owner) { delete static_cast<Entry*>(owner); },
      storage.device());
  entry->kind = block.kind;
  entry->tape_tag = block.tag;
  if (recorder_.is_on()) recorder_.set_aside(block);
  entry->record.reset();
  if (block.record != nullptr) {
    auto& record = static_cast<StorageRecord&>(*block.record);
    entry->record = table_.record(record.id);
    record.block = nullptr;
    block.record = nullptr;
  }
  data_ptr(*moved.unsafeGetStorageImpl()) = std::exchange(place, std::move(mark));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kIsAway);
  entry->is_away = true;
  // As if it had never left. False: the storage is gone.
  const auto stay = [this, left = std::weak_ptr<Attached>(entry)](const c10::Storage& bytes) {
    const auto kept = left.lock();
    const auto back = kept == nullptr ? nullptr : kept->storage.lock();
    if (back == nullptr) return false;
    const c10::DataPtr unused =
        std::exchange(data_ptr(*back), std::move(data_ptr(*bytes.unsafeGetStorageImpl())));
    back->clear_data_ptr_access_error_msg_();
    kept->is_away = false;
    const auto record = kept->record.lock();
    if (record != nullptr && record->id.valid()) table_.moved(record, c10::Storage(back));
    return true;
  };
  try {
    return stash_.spill(moved, entry->copy, trash, stay);
  } catch (...) {
    stay(moved);
    throw;
  }
}

Bytes StaticMemory::evict(Bytes needed, StorageTable::Trash& trash) {
  if (!may_leave_ || !stash_.can_spill()) return 0;
  add_gradients();
  struct Candidate {
    std::uint64_t next;
    Entry entry;
    c10::Storage storage;
  };
  std::vector<Candidate> candidates;
  for (const auto& [known, entry] : entries_) {
    c10::Storage storage(entry->storage.lock());
    if (!storage) continue;
    if (may_leave(*entry, storage)) {
      candidates.push_back({next_use(*entry), entry, storage});
    }
    trash.storages.push_back(std::move(storage));  // it may be the last holder by now
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.next > b.next; });
  Bytes freed = 0;
  Bytes leaving = 0;
  const Bytes wanted = std::max(needed, Stash::bytes_to_write_ahead());
  for (const Candidate& candidate : candidates) {
    if (freed >= needed || leaving >= wanted) break;
    const Bytes free = leave(candidate.entry, *candidate.storage.unsafeGetStorageImpl(), trash);
    freed += free;
    if (free == 0) leaving += candidate.entry->bytes;
  }
  return freed;
}

void StaticMemory::next_step() {
  if (!is_on_) return;
  std::erase_if(entries_, [](const auto& entry) { return entry.second->storage.expired(); });
  for (const auto& [storage, entry] : entries_) {
    entry->uses_of_last_step = std::exchange(entry->uses, {});
  }
  uses_of_last_step_ = std::exchange(uses_, 0);
}

void StaticMemory::detach() {
  std::vector<Entry> entries;
  {
    const StorageTable::Lock lock = table_.lock();
    may_leave_ = false;  // while ops of other threads still find what is away brought in
    for (const auto& [storage, entry] : entries_) entries.push_back(entry);
  }
  std::exception_ptr first_error;
  for (const Entry& entry : entries) {
    try {
      bring_in(entry);
    } catch (const std::exception&) {
      if (first_error == nullptr) first_error = std::current_exception();
    }
  }
  hook::set_away_memory(nullptr);
  {
    const StorageTable::Lock lock = table_.lock();
    is_on_ = false;
    entries_.clear();
    tensors_.clear();
    uses_ = uses_of_last_step_ = 0;
  }
  entries.clear();
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

}  // namespace lowtide
