#include "src/fit/room.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>

#include "src/base/checksum.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide {
namespace {

// A storage whose tensors were let go of is tried again in so many calls.
constexpr int kCallsAfterLettingGo = 8;

}  // namespace

std::uint64_t checksum_of(const c10::StorageImpl& storage) {
  return checksum(storage.data(), storage.nbytes());
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// False: somebody else holds one of them.
bool Room::let_go_of_variables(StorageRecord& record, StorageTable::Trash& trash) {
  // One whose data was exchanged, or that left its graph, stays what it is.
  if (record.borrowed > 0) return false;
  for (const KeptVariable* kept : record.variables) {
    if (kept->is_exchanged(record.held) || kept->place != hook::GraphPlace::of(kept->variable)) {
      return false;
    }
  }
  const bool can_go = record.for_each_variable([](const at::Tensor& variable, std::size_t copies) {
    return copies == hook::holder_count(variable);
  });
  if (!can_go) return false;
  for (KeptVariable* kept : record.variables) trash.variables.push_back(std::move(kept->variable));
  record.variables.clear();
  return true;
}

// Whether only the runtime holds the record's bytes.
bool Room::may_drop(StorageRecord& record, StorageTable::Trash& trash) {
  if (!record.variables.empty()) {
    if (record.held && let_go_of_variables(record, trash)) {
      has_more_ = true;
      let_go_.push_back({record.id, 0});
    }
    return false;
  }
  if (!record.held || record.saved == 0 || record.held.use_count() != 1) return false;
  return record.is_as_recorded(table_.graph().bytes(record.id));
}

std::optional<Bytes> Room::drop(const std::shared_ptr<StorageRecord>& record, Way way,
                                StorageTable::Trash& trash) {
  if (!may_drop(*record, trash)) return std::nullopt;
  RecipeGraph& graph = table_.graph();
  const Bytes bytes = graph.bytes(record->id);
  hook::MemoryBlock* block = record->block;
  const std::uint64_t tape_tag = block->tag;
  const std::uint64_t begin_ns = now_ns();
  // What happens to the block from here on is no event of the step, nor the record's: it is freed
  // later, without the lock, when the record may be gone.
  if (recorder_.is_on()) recorder_.set_aside(*block);
  block->record = nullptr;
  Bytes freed = bytes;
  if (way == Way::kCopy) {
    auto stays = c10::make_scope_exit([&] {
      block->record = record.get();
      if (recorder_.is_on()) recorder_.resume(*block, tape_tag);
      graph.set_copy_cost(record->id, std::nullopt);
    });
    const auto put_away = stash_.put_away(record, trash);
    if (!put_away.has_value()) return std::nullopt;
    stays.release();
    freed = *put_away;
  } else {
    if (check_) record->checksum = checksum_of(*record->held.unsafeGetStorageImpl());
    trash.storages.push_back(std::move(record->held));
    record->held = c10::Storage();
  }
  record->tape_tag = tape_tag;
  record->block = nullptr;
  graph.dropped(record->id, way);
  journal_.add({.kind = way == Way::kCopy ? BudgetEvent::Kind::kPutAway : BudgetEvent::Kind::kDrop,
                .step = step_,
                .op = record->made_by,
                .bytes = bytes,
                .live_bytes = hook::cpu_memory().ledger().live(),
                .begin_ns = begin_ns,
                .duration_ns = way == Way::kCopy ? now_ns() - begin_ns : 0});
  return freed;
}

Bytes Room::make(Bytes needed, StorageTable::Trash& trash) {
  RecipeGraph& graph = table_.graph();
  has_more_ = false;
  Bytes freed = stash_.reap(trash);
  if (freed < needed) freed += stash_.give_up_reads(trash);
  // They were denied when their tensors were let go of, by this thread or another; those are gone
  // by now, or will be in a moment.
  std::erase_if(let_go_, [&](LetGo& entry) {
    const auto& record = table_.record(entry.id);
    if (record == nullptr || record->saved == 0 || !graph.is_there(entry.id)) return true;
    graph.set_droppable(entry.id, true);
    return ++entry.calls >= kCallsAfterLettingGo;
  });
  bool writes = false;
  Bytes coming = 0;  // of those whose tensors were let go of: free to be dropped in the next call
  while (freed + coming + stash_.bytes_being_written() < needed) {
    const std::uint64_t now = now_ns();
    const auto victim = graph.next_victim(needed - freed, now);
    if (!victim.has_value()) break;
    const std::size_t let_go = let_go_.size();
    const auto dropped = drop(table_.record(*victim), graph.way(*victim), trash);
    if (dropped.has_value()) {
      freed += *dropped;
      writes |= *dropped == 0;
    } else {
      graph.deny(*victim, now);
      // Better this one in a moment than a worse one now.
      if (let_go_.size() > let_go) coming += graph.bytes(*victim);
    }
  }
  if (writes) write_ahead(trash);
  if (freed > 0 || has_more_ || stash_.bytes_being_written() > 0) return freed;
  freed = discard_packed(needed, trash);
  return freed > 0 ? freed : release_sources(needed, trash);
}

// Packed forms of what can be computed again.
Bytes Room::discard_packed(Bytes needed, StorageTable::Trash& trash) {
  RecipeGraph& graph = table_.graph();
  Bytes freed = 0;
  for (const auto& record : table_.records()) {
    if (freed >= needed) break;
    if (record == nullptr || !graph.is_copied(record->id) || !graph.has_recipe(record->id) ||
        graph.is_held(record->id, Hold::kHard)) {
      continue;
    }
    const Bytes packed = Stash::packed_bytes(*record);
    if (packed == 0) continue;
    freed += packed;
    graph.copy_gone(record->id);
    trash.copies.push_back(std::move(record->copy));
    record->copy = nullptr;
  }
  return freed;
}

// Some more of what would go to the spill file next.
void Room::write_ahead(StorageTable::Trash& trash) {
  RecipeGraph& graph = table_.graph();
  const Bytes ahead = stash_.bytes_to_write_ahead();
  while (stash_.bytes_being_written() < ahead) {
    const std::uint64_t now = now_ns();
    const auto victim = graph.next_victim(ahead, now);
    if (!victim.has_value() || graph.way(*victim) != Way::kCopy) return;
    if (!drop(table_.record(*victim), Way::kCopy, trash).has_value()) graph.deny(*victim, now);
  }
}

void Room::drop_all(StorageTable::Trash& trash) {
  RecipeGraph& graph = table_.graph();
  has_more_ = false;
  for (const auto& record : table_.records()) {
    if (record == nullptr || !graph.is_there(record->id) || !graph.can_be_dropped(record->id)) {
      continue;
    }
    if (graph.is_held(record->id, Hold::kHard) || graph.is_held(record->id, Hold::kSoft)) continue;
    // What is in a file takes no room, and comes back in the least.
    const auto& copy = graph.copy_cost(record->id);
    const bool copies =
        copy.has_value() && (copy->kept_bytes == 0 || !graph.has_recipe(record->id));
    if (!drop(record, copies ? Way::kCopy : Way::kRecompute, trash).has_value() && copies &&
        graph.has_recipe(record->id)) {
      drop(record, Way::kRecompute, trash);
    }
  }
  discard_packed(hook::MemoryLedger::kNoLimit, trash);
}

Bytes Room::release_sources(Bytes needed, StorageTable::Trash& trash) {
  Bytes freed = 0;
  const StorageTable::Records records = table_.records();  // which changes below
  for (const auto& record : records) {
    if (freed >= needed) break;
    if (record == nullptr || !record->id.valid() || !record->held || record->block == nullptr) {
      continue;
    }
    const Bytes bytes = table_.graph().bytes(record->id);
    if (table_.release_source(*record, trash)) freed += bytes;
  }
  return freed;
}

}  // namespace lowtide
