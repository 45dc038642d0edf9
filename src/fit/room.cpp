#include "src/fit/room.h"

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
  // One whose data was exchanged stays what it is.
  for (const KeptVariable* kept : record.variables) {
    if (kept->is_exchanged(record.held)) return false;
  }
  const bool can_go = record.for_each_variable([](const at::Tensor& variable, std::size_t copies) {
    return copies == hook::holder_count(variable);
  });
  if (!can_go) return false;
  for (KeptVariable* kept : record.variables) trash.variables.push_back(std::move(kept->variable));
  record.variables.clear();
  return true;
}

bool Room::drop(StorageRecord& record, StorageTable::Trash& trash) {
  RecipeGraph& graph = table_.graph();
  if (!record.variables.empty()) {
    if (record.held && let_go_of_variables(record, trash)) {
      has_more_ = true;
      let_go_.push_back({record.id, 0});
    }
    return false;
  }
  if (!record.held || record.saved == 0 || record.held.use_count() != 1) return false;
  const Bytes bytes = graph.bytes(record.id);
  if (!record.is_as_recorded(bytes)) return false;
  if (check_) record.checksum = checksum_of(*record.held.unsafeGetStorageImpl());
  if (recorder_.is_on()) recorder_.set_aside(*record.block);
  record.tape_tag = record.block->tag;
  // The block is freed later, without the lock, when the record may be gone.
  record.block->record = nullptr;
  record.block = nullptr;
  graph.dropped(record.id);
  trash.storages.push_back(std::move(record.held));
  record.held = c10::Storage();
  journal_.add({.kind = BudgetEvent::Kind::kDrop,
                .step = step_,
                .op = record.made_by,
                .bytes = bytes,
                .live_bytes = hook::cpu_memory().ledger().live(),
                .begin_ns = now_ns()});
  return true;
}

Bytes Room::make(Bytes needed, StorageTable::Trash& trash) {
  RecipeGraph& graph = table_.graph();
  Bytes freed = 0;
  has_more_ = false;
  // They were denied when their tensors were let go of, by this thread or another; those are gone
  // by now, or will be in a moment.
  std::erase_if(let_go_, [&](LetGo& entry) {
    const auto& record = table_.record(entry.id);
    if (record == nullptr || record->saved == 0 || !graph.is_there(entry.id)) return true;
    graph.set_droppable(entry.id, true);
    return ++entry.calls >= kCallsAfterLettingGo;
  });
  while (freed < needed) {
    const std::uint64_t now = now_ns();
    const auto victim = graph.next_victim(needed - freed, now);
    if (!victim.has_value()) break;
    if (drop(*table_.record(*victim), trash)) {
      freed += graph.bytes(*victim);
    } else {
      graph.deny(*victim, now);
    }
  }
  return freed > 0 || has_more_ ? freed : release_sources(needed, trash);
}

void Room::drop_all(StorageTable::Trash& trash) {
  RecipeGraph& graph = table_.graph();
  has_more_ = false;
  for (const auto& record : table_.records()) {
    if (record == nullptr || !graph.is_there(record->id) || !graph.has_recipe(record->id)) continue;
    if (graph.is_held(record->id, Hold::kHard) || graph.is_held(record->id, Hold::kSoft)) continue;
    drop(*record, trash);
  }
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
