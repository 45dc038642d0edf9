#include "src/fit/static_memory.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "src/base/text.h"
#include "src/fit/op_capture.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide {
namespace {

// Smaller storages stay: they are not worth a block of the file.
constexpr Bytes kSmallestStatic = Bytes{64} << 10;
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
  std::size_t tensors = 0;  // that hold the storage when the program has nothing else over it
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

StaticMemory::Entry StaticMemory::add(const c10::Storage& storage, std::size_t tensors) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (auto known = find(impl)) return known;
  if (impl->nbytes() < kSmallestStatic) return nullptr;
  if (hook::cpu_memory().find_block(data_ptr(*impl)) == nullptr) return nullptr;
  auto entry = std::make_shared<Attached>();
  entry->storage = weak(storage);
  entry->bytes = impl->nbytes();
  entry->tensors = tensors;
  entries_[impl] = entry;
  return entry;
}

void StaticMemory::attach(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!is_plain(tensor)) continue;
    const bool is_known =
        std::any_of(tensors_.begin(), tensors_.end(),
                    [&](const at::Tensor& other) { return other.is_same(tensor); });
    if (is_known) continue;
    tensors_.push_back(tensor);
    // Tensors that are tied over one storage are all there before it is asked for.
    const Entry known = find(tensor.storage().unsafeGetStorageImpl());
    if (known != nullptr) {
      ++known->tensors;
    } else {
      add(tensor.storage(), 1);
    }
  }
  is_on_ = true;
}

void StaticMemory::add_state(const at::Tensor& tensor) {
  const StorageTable::Lock lock = table_.lock();
  if (is_plain(tensor)) add(tensor.storage(), 1);
}

void StaticMemory::add_gradients() {
  for (const at::Tensor& tensor : tensors_) {
    if (!tensor.requires_grad()) continue;
    const at::Tensor& gradient = tensor.grad();
    if (gradient.defined() && is_plain(gradient)) add(gradient.storage(), 1);
  }
}

// ---- in use ----

// Pins the storage; what is away of it joins `away`.
void StaticMemory::use(const c10::Storage& storage, Pins& pins, std::vector<Entry>& away) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (impl->nbytes() < kSmallestStatic) return;
  ++in_use_[impl];
  pins.storages_.push_back(impl);
  Entry entry = find(impl);
  if (entry == nullptr) {
    const hook::MemoryBlock* block = hook::cpu_memory().find_block(data_ptr(*impl));
    if (block == nullptr || block->kind != MemoryKind::kOptimizerState) return;
    entry = add(storage, 1);
  }
  entry->uses.push_back(++uses_);
  if (entry->is_away) away.push_back(std::move(entry));
}

void StaticMemory::pin(c10::ArrayRef<c10::IValue> values, Pins& pins) {
  std::vector<Entry> away;
  {
    const StorageTable::Lock lock = table_.lock();
    OpCapture::for_each_tensor(values, [&](TensorPlace, const at::Tensor& tensor) {
      if (tensor.has_storage()) use(tensor.storage(), pins, away);
    });
  }
  for (const Entry& entry : away) bring_in(entry);
}

void StaticMemory::pin(const std::vector<c10::Storage>& storages, Pins& pins) {
  std::vector<Entry> away;
  {
    const StorageTable::Lock lock = table_.lock();
    for (const c10::Storage& storage : storages) use(storage, pins, away);
  }
  for (const Entry& entry : away) bring_in(entry);
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

bool StaticMemory::may_leave(Attached& entry) const {
  if (entry.is_away) return false;
  const auto impl = entry.storage.lock();
  if (impl == nullptr || impl->nbytes() != entry.bytes) return false;
  if (in_use_.contains(impl.get())) return false;
  const hook::MemoryBlock* block = hook::cpu_memory().find_block(data_ptr(*impl));
  if (block == nullptr) return false;
  std::size_t holders = entry.tensors + 1;  // and `impl`
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
  return impl.use_count() <= holders;
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

void StaticMemory::leave(const Entry& entry, StorageTable::Trash& trash) {
  const auto impl = entry->storage.lock();
  c10::DataPtr& place = data_ptr(*impl);
  hook::MemoryBlock& block = *hook::cpu_memory().find_block(place);
  c10::Storage moved(c10::Storage::use_byte_size_t(), entry->bytes,
                     c10::DataPtr(nullptr, impl->device()), nullptr, /*resizable=*/false);
  // When the storage goes while it is away, its place in the file is free.
  c10::DataPtr mark(
      nullptr, new Entry(entry), [](void* owner) { delete static_cast<Entry*>(owner); },
      impl->device());
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
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "this tensor's memory is in the spill file: it was attached to a lowtide budget, and is "
      "brought back by the next op that reads it. What reads it without an op (data_ptr, numpy, "
      "pickle) must wait for the end of the budget");
  entry->is_away = true;
  // As if it had never left. False: the storage is gone.
  const auto stay = [this, left = std::weak_ptr<Attached>(entry)](const c10::Storage& storage) {
    const auto kept = left.lock();
    const auto back = kept == nullptr ? nullptr : kept->storage.lock();
    if (back == nullptr) return false;
    const c10::DataPtr unused =
        std::exchange(data_ptr(*back), std::move(data_ptr(*storage.unsafeGetStorageImpl())));
    back->clear_data_ptr_access_error_msg_();
    kept->is_away = false;
    const auto record = kept->record.lock();
    if (record != nullptr && record->id.valid()) table_.moved(record, c10::Storage(back));
    return true;
  };
  try {
    stash_.spill(moved, entry->copy, trash, stay);
  } catch (...) {
    stay(moved);
    throw;
  }
}

Bytes StaticMemory::evict(Bytes needed, StorageTable::Trash& trash) {
  if (!is_on_ || !stash_.can_spill()) return 0;
  add_gradients();
  std::vector<std::pair<std::uint64_t, Entry>> candidates;
  for (const auto& [storage, entry] : entries_) {
    if (may_leave(*entry)) candidates.emplace_back(next_use(*entry), entry);
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  Bytes freed = 0;
  Bytes leaving = 0;
  const Bytes wanted = std::max(needed, Stash::bytes_to_write_ahead());
  for (const auto& [next, entry] : candidates) {
    if (freed >= needed || leaving >= wanted) break;
    const std::size_t before = trash.storages.size();
    leave(entry, trash);
    (trash.storages.size() > before ? freed : leaving) += entry->bytes;
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
    is_on_ = false;
    for (const auto& [storage, entry] : entries_) entries.push_back(entry);
  }
  for (const Entry& entry : entries) bring_in(entry);
  std::vector<at::Tensor> tensors;  // freed without the lock
  const StorageTable::Lock lock = table_.lock();
  entries_.clear();
  tensors.swap(tensors_);
  uses_ = uses_of_last_step_ = 0;
}

}  // namespace lowtide
