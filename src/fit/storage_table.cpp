#include "src/fit/storage_table.h"

#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/fit/stash.h"
#include "src/plan/online_policy.h"

namespace lowtide {
namespace {

// Fewer records are not worth a collection.
constexpr std::size_t kSmallestCollection = 4096;

const std::shared_ptr<StorageRecord> kNoRecord;

const c10::DataPtr& data_ptr(c10::StorageImpl& storage) {
  return storage._mutable_data_ptr_no_checks();
}

c10::weak_intrusive_ptr<c10::StorageImpl> weak(c10::StorageImpl* impl) {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
}

}  // namespace

void StorageRecord::block_freed(hook::MemoryBlock&) noexcept { table.block_freed(*this); }

bool StorageRecord::is_as_recorded(Bytes bytes) const {
  const c10::Storage now = held ? held : c10::Storage(storage.lock());
  return now && data_ptr(*now.unsafeGetStorageImpl()).get() == data && now.nbytes() == bytes;
}

bool StorageRecord::has_memory(Bytes bytes) const {
  const c10::Storage now = held ? held : c10::Storage(storage.lock());
  return now && data_ptr(*now.unsafeGetStorageImpl()).get() != nullptr && now.nbytes() == bytes;
}

StorageTable::StorageTable()
    : graph_(std::make_unique<RecipeGraph>(std::make_unique<OnlinePolicy>())) {}

const std::shared_ptr<StorageRecord>& StorageTable::record(StorageId id) const {
  return id.index() < records_.size() ? records_[id.index()] : kNoRecord;
}

const std::shared_ptr<StorageRecord>& StorageTable::record(const RecordName& name) const {
  const std::shared_ptr<StorageRecord>& found = record(name.id);
  return found != nullptr && found->serial == name.serial ? found : kNoRecord;
}

std::shared_ptr<StorageRecord> StorageTable::find(const c10::Storage& storage) const {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (hook::MemoryBlock* block = hook::cpu_memory().find_block(data_ptr(*impl))) {
    if (block->record == nullptr) return nullptr;
    return record(static_cast<StorageRecord*>(block->record)->id);
  }
  const auto found = foreign_.find(impl);
  if (found == foreign_.end()) return nullptr;
  // Another storage may have come to lie at the address of one that is gone.
  const auto& candidate = record(found->second);
  return candidate != nullptr && !candidate->storage.expired() ? candidate : nullptr;
}

std::shared_ptr<StorageRecord> StorageTable::find_or_make(const c10::Storage& storage) {
  if (auto found = find(storage)) return found;
  auto made = std::make_shared<StorageRecord>(*this);
  made->id = graph_->add_storage(storage.nbytes());
  made->serial = ++last_serial_;
  if (records_.size() <= made->id.index()) records_.resize(made->id.index() + 1);
  records_[made->id.index()] = made;
  attach(made, storage);
  if (made->block == nullptr) foreign_[storage.unsafeGetStorageImpl()] = made->id;
  return made;
}

void StorageTable::attach(const std::shared_ptr<StorageRecord>& record,
                          const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  record->storage = weak(impl);
  record->data = data_ptr(*impl).get();
  record->block = hook::cpu_memory().find_block(data_ptr(*impl));
  if (record->block != nullptr) record->block->record = record.get();
}

void StorageTable::put_back(const std::shared_ptr<StorageRecord>& record,
                            const c10::Storage& storage) {
  record->held = storage;
  attach(record, storage);
  LOWTIDE_ASSERT(record->block != nullptr);
  hook::cpu_memory().ledger().retag(record->block->size_bytes, record->block->kind,
                                    MemoryKind::kSaved);
  graph_->brought_back(record->id);
}

bool StorageTable::any_comes_and_goes(const std::vector<c10::Storage>& storages) const {
  if (!some_come_and_go_.load(std::memory_order_relaxed)) return false;
  const Lock guard = lock();
  return std::any_of(storages.begin(), storages.end(), [&](const c10::Storage& storage) {
    const auto found = coming_and_going_.find(storage.unsafeGetStorageImpl());
    return found != coming_and_going_.end() && !found->second.expired();
  });
}

void StorageTable::add_saved(StorageRecord& record) {
  if (record.saved++ == 0) ++saved_count_;
  record.saved_at = ++last_saved_at_;
  graph_->set_droppable(record.id, true);
}

bool StorageTable::remove_saved(StorageRecord& record) {
  if (--record.saved > 0) return false;
  if (record.id.valid()) {
    --saved_count_;
    graph_->set_droppable(record.id, false);
  }
  return true;
}

// ---- recipes ----

std::uint32_t StorageTable::depth_after(const OpCapture& capture) const {
  std::uint32_t depth = 0;
  for (const CapturedInput& input : capture.inputs) {
    const auto& read = record(input.storage);
    if (read != nullptr && graph_->has_recipe(read->id)) depth = std::max(depth, read->depth);
  }
  return depth + 1;
}

bool StorageTable::add_op(std::shared_ptr<OpCapture> capture, std::uint64_t cost_ns,
                          const std::vector<c10::Storage>& input_storages, std::uint64_t clock_ns) {
  const std::uint32_t depth = depth_after(*capture);
  if (depth > kLongestChain) return false;
  std::vector<StorageId> reads;
  std::vector<StorageId> writes;
  reads.reserve(capture->inputs.size());
  writes.reserve(capture->outputs.size());
  for (const CapturedInput& input : capture->inputs) reads.push_back(input.storage.id);
  for (const CapturedOutput& output : capture->outputs) writes.push_back(output.storage.id);
  const OpId op = graph_->add_op(cost_ns, reads, writes, clock_ns);
  if (!op.valid()) return false;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    StorageRecord& read = *record(reads[i]);
    if (!graph_->has_recipe(reads[i]) && !read.held) read.held = input_storages[i];
  }
  for (const StorageId id : writes) {
    StorageRecord& written = *record(id);
    written.depth = std::max(written.depth, depth);
    if (written.made_by[0] == '\0') written.made_by = capture->op.name.c_str();
    if (written.saved > 0) graph_->set_droppable(id, true);
  }
  if (captures_.size() <= op.index()) captures_.resize(op.index() + 1);
  captures_[op.index()] = std::move(capture);
  return true;
}

void StorageTable::list_recipe(StorageId id, std::vector<OpId>& ops,
                               std::vector<StorageId>& reads) const {
  ops.clear();
  reads.clear();
  graph_->for_recipe(id, [&](OpId op, std::uint32_t) {
    ops.push_back(op);
    graph_->for_reads(op, [&](RecipeGraph::Read read) {
      if (read.storage.valid() && read.storage != id) reads.push_back(read.storage);
    });
    return true;
  });
}

void StorageTable::discard_unused(const std::vector<OpId>& ops, Trash& trash) {
  for (const OpId op : ops) {
    if (!graph_->exists(op) && captures_[op.index()] != nullptr) {
      trash.captures.push_back(std::move(captures_[op.index()]));
      captures_[op.index()] = nullptr;
    }
  }
}

void StorageTable::lose_contents(StorageRecord& record, Trash& trash) {
  if (record.factory != nullptr) trash.captures.push_back(std::move(record.factory));
  record.factory = nullptr;
  record.depth = 0;
  if (!graph_->has_recipe(record.id)) return;
  std::vector<OpId> ops;
  std::vector<StorageId> reads;
  list_recipe(record.id, ops, reads);
  graph_->strip_recipe(record.id);
  discard_unused(ops, trash);
  for (const StorageId read : reads) {
    if (const auto other = this->record(read)) forget_if_unneeded(*other, trash);
  }
  if (graph_->is_read(record.id) && graph_->is_there(record.id) && !record.held) {
    record.held = c10::Storage(record.storage.lock());
  }
}

StorageTable::Records StorageTable::dependents(const StorageRecord& record) const {
  Records found;
  if (!graph_->is_read(record.id)) return found;
  for (const StorageId id : graph_->dependents(record.id)) found.push_back(this->record(id));
  return found;
}

// ---- forgetting ----

void StorageTable::forget_if_unneeded(StorageRecord& record, Trash& trash) {
  if (record.saved > 0) return;
  const bool is_read = graph_->is_read(record.id);
  const bool is_source = !graph_->has_recipe(record.id);
  if (record.held && !(is_read && is_source)) {
    trash.storages.push_back(std::move(record.held));
    record.held = c10::Storage();
  }
  // What is made from it can be made from its recipe, too.
  if (record.copy != nullptr && !(is_read && is_source)) {
    if (graph_->is_copied(record.id) && is_read) graph_->copy_gone(record.id);
    trash.copies.push_back(std::move(record.copy));
    record.copy = nullptr;
  }
  if (is_read) return;
  // While the program holds the bytes the record stays, for what it may yet be used for.
  if (record.block == nullptr) forget(record.id, trash);
}

void StorageTable::forget(StorageId first, Trash& trash) {
  std::vector<StorageId> pending{first};
  std::vector<OpId> ops;
  std::vector<StorageId> reads;
  while (!pending.empty()) {
    const StorageId id = pending.back();
    pending.pop_back();
    auto record = this->record(id);
    if (record == nullptr) continue;
    list_recipe(id, ops, reads);
    if (record->block != nullptr) {
      record->block->record = nullptr;
    } else if (const auto entry = foreign_.find(record->storage._unsafe_get_target());
               entry != foreign_.end() && entry->second == id) {
      foreign_.erase(entry);
    }
    if (record->held) trash.storages.push_back(std::move(record->held));
    if (record->copy != nullptr) trash.copies.push_back(std::move(record->copy));
    record->copy = nullptr;
    graph_->forgotten(id);
    records_[id.index()] = nullptr;
    record->id = StorageId();
    trash.records.push_back(std::move(record));
    discard_unused(ops, trash);
    for (const StorageId read : reads) {
      const auto& other = this->record(read);
      if (other == nullptr || other->saved > 0 || graph_->is_read(read)) continue;
      if (other->held) {
        trash.storages.push_back(std::move(other->held));
        other->held = c10::Storage();
      }
      if (other->block == nullptr) pending.push_back(read);
    }
  }
}

void StorageTable::block_freed(StorageRecord& freed) noexcept {
  Trash trash;
  const Lock guard = lock();
  freed.block = nullptr;
  if (!freed.id.valid() || record(freed.id).get() != &freed) return;
  if (!graph_->is_there(freed.id)) return;  // dropped by us
  if (graph_->has_recipe(freed.id)) {
    graph_->released(freed.id);
    graph_->dropped(freed.id);
  } else if (!freed.storage.expired()) {
    if (coming_and_going_.size() >= 2 * kept_coming_and_going_ + 64) {
      std::erase_if(coming_and_going_, [](const auto& entry) { return entry.second.expired(); });
      kept_coming_and_going_ = coming_and_going_.size();
    }
    coming_and_going_.insert_or_assign(freed.storage._unsafe_get_target(), freed.storage);
    some_come_and_go_ = true;
    for (const auto& reader : dependents(freed)) {
      if (reader->id.valid() && has_contents(reader->id)) lose_contents(*reader, trash);
    }
    if (!freed.id.valid()) return;
  }
  forget_if_unneeded(freed, trash);
  while (const auto useless = graph_->next_useless()) {
    const auto& other = record(*useless);
    if (other != nullptr && other->saved == 0 && other->block == nullptr) forget(*useless, trash);
  }
}

bool StorageTable::release_source(StorageRecord& source, Trash& trash) {
  if (!source.held || source.saved > 0 || graph_->has_recipe(source.id)) return false;
  if (source.block == nullptr || source.held.use_count() != 1) return false;
  if (graph_->is_held(source.id, Hold::kHard) || graph_->is_held(source.id, Hold::kSoft)) {
    return false;  // a bring-back under way reads it
  }
  // What is made from it and there becomes a source in its place. What is made from those further
  // on can still be, unless it read an earlier version of them.
  Records readers;
  Bytes stuck = 0;
  for (const StorageId id : graph_->direct_dependents(source.id)) {
    const auto& reader = record(id);
    if (!has_contents(id) || !graph_->stale_readers(id).empty()) return false;
    if (reader->saved > 0) stuck += graph_->bytes(id);
    readers.push_back(reader);
  }
  if (stuck > graph_->bytes(source.id)) return false;
  for (const auto& reader : readers) {
    if (reader->id.valid() && has_contents(reader->id)) lose_contents(*reader, trash);
  }
  // What was made from it and is gone already is of no use to anyone now.
  collect(trash);
  return source.id.valid() ? !source.held : true;
}

bool StorageTable::is_collection_due() const {
  return graph_->storage_count() > std::max(kSmallestCollection, 2 * kept_by_collection_);
}

void StorageTable::collect(Trash& trash) {
  std::vector<bool> reached(records_.size(), false);
  std::vector<StorageId> pending;
  for (const auto& record : records_) {
    if (record == nullptr || (record->saved == 0 && record->block == nullptr)) continue;
    // A source that only recipes hold is not wanted for itself.
    if (record->saved == 0 && record->held && record->held.use_count() == 1) continue;
    reached[record->id.index()] = true;
    pending.push_back(record->id);
  }
  std::vector<OpId> ops;
  std::vector<StorageId> reads;
  while (!pending.empty()) {
    const StorageId id = pending.back();
    pending.pop_back();
    list_recipe(id, ops, reads);
    // An op makes all of its outputs; the others' records must stay with it.
    for (const StorageId read : reads) {
      if (reached[read.index()]) continue;
      reached[read.index()] = true;
      pending.push_back(read);
    }
  }
  std::vector<StorageId> unreached;
  for (const auto& record : records_) {
    if (record != nullptr && !reached[record->id.index()]) unreached.push_back(record->id);
  }
  for (const StorageId id : unreached) {
    if (record(id) != nullptr) forget(id, trash);
  }
  kept_by_collection_ = graph_->storage_count();
}

void StorageTable::clear(Trash& trash) {
  for (auto& record : records_) {
    if (record == nullptr) continue;
    if (record->block != nullptr) record->block->record = nullptr;
    record->block = nullptr;
    record->id = StorageId();
    if (record->saved == 0 && record->held) trash.storages.push_back(std::move(record->held));
    if (record->copy != nullptr && (record->saved == 0 || record->held)) {
      trash.copies.push_back(std::move(record->copy));
    }
    trash.records.push_back(std::move(record));
  }
  for (auto& capture : captures_) trash.captures.push_back(std::move(capture));
  records_.clear();
  captures_.clear();
  foreign_.clear();
  coming_and_going_.clear();
  kept_coming_and_going_ = 0;
  some_come_and_go_ = false;
  kept_by_collection_ = 0;
  saved_count_ = 0;
  graph_ = std::make_unique<RecipeGraph>(std::make_unique<OnlinePolicy>());
}

Bytes StorageTable::memory_bytes() const {
  return graph_->memory_bytes() + graph_->storage_count() * sizeof(StorageRecord) +
         graph_->op_count() * sizeof(OpCapture);
}

}  // namespace lowtide
