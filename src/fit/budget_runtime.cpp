#include "src/fit/budget_runtime.h"

#include <c10/core/GradMode.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "src/base/assert.h"
#include "src/base/text.h"
#include "src/fit/saved_tensor_hold.h"
#include "src/plan/online_policy.h"

namespace lowtide {
namespace {

// Smaller storages never get a recipe: the bookkeeping would cost more than the bytes.
constexpr Bytes kSmallestRecipe = 1024;
// A storage with more in-place writes than this is a source: bringing it back runs them all.
constexpr std::uint32_t kMostWrites = 64;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

std::uint64_t checksum(const c10::StorageImpl& storage) {
  return XXH3_64bits(storage.data(), storage.nbytes());
}

bool recording() { return c10::GradMode::is_enabled() || hook::current_backward_id() == -1; }

const c10::DataPtr& data_ptr(c10::StorageImpl& storage) {
  return storage._mutable_data_ptr_no_checks();
}

}  // namespace

void StorageRecord::block_freed(hook::MemoryBlock&) noexcept {
  BudgetRuntime::instance().block_freed(*this);
}

struct BudgetRuntime::Ticket final : hook::OpTicket {
  std::shared_ptr<OpCapture> capture;                              // null: the op is not repeatable
  std::vector<c10::Storage> input_storages;                        // of capture->inputs
  std::vector<std::pair<c10::StorageImpl*, const void*>> written;  // and where their bytes were
  bool in_place_ok = false;  // the one write can be appended to its recipe
  std::uint64_t start_ns = 0;
};

BudgetRuntime& BudgetRuntime::instance() {
  static auto& runtime = *new BudgetRuntime;
  return runtime;
}

BudgetRuntime::BudgetRuntime()
    : graph_(std::make_unique<RecipeGraph>(std::make_unique<OnlinePolicy>())) {}

// ---- records ----

std::shared_ptr<StorageRecord> BudgetRuntime::record_of(StorageId id) const {
  return id.index() < records_.size() ? records_[id.index()] : nullptr;
}

std::shared_ptr<StorageRecord> BudgetRuntime::find_record(const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (hook::MemoryBlock* block = hook::cpu_memory().find_block(data_ptr(*impl))) {
    if (block->record == nullptr) return nullptr;
    return record_of(static_cast<StorageRecord*>(block->record)->id);
  }
  const auto found = foreign_.find(impl);
  return found == foreign_.end() ? nullptr : record_of(found->second);
}

std::shared_ptr<StorageRecord> BudgetRuntime::find_or_make_record(const c10::Storage& storage) {
  if (auto record = find_record(storage)) return record;
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  auto record = std::make_shared<StorageRecord>();
  record->id = graph_->add_storage(impl->nbytes());
  record->storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
  record->data = impl->data();
  record->block = hook::cpu_memory().find_block(data_ptr(*impl));
  if (record->block != nullptr) {
    record->block->record = record.get();
  } else {
    foreign_[impl] = record->id;
  }
  if (records_.size() <= record->id.index()) records_.resize(record->id.index() + 1);
  return records_[record->id.index()] = record;
}

void BudgetRuntime::hold_source(StorageRecord& record, const c10::Storage& storage) {
  if (!record.held) record.held = storage;
}

// The record's last need may have gone: let go of its bytes, or of the record itself.
void BudgetRuntime::forget_if_unneeded(StorageRecord& record, Trash& trash) {
  if (record.saved > 0) return;
  const bool is_read = graph_->is_read(record.id);
  const bool is_source = !graph_->has_recipe(record.id);
  if (record.held && !(is_read && is_source)) {
    trash.storages.push_back(std::move(record.held));
    record.held = c10::Storage();
  }
  if (is_read) return;
  // While the program holds the bytes the record stays, for what it may yet be used for.
  if (record.block == nullptr) forget(record.id, trash);
}

void BudgetRuntime::forget(StorageId first, Trash& trash) {
  std::vector<StorageId> pending{first};
  std::vector<OpId> ops;
  std::vector<StorageId> reads;
  while (!pending.empty()) {
    const StorageId id = pending.back();
    pending.pop_back();
    auto record = record_of(id);
    if (record == nullptr) continue;
    ops.clear();
    reads.clear();
    graph_->for_recipe(id, [&](OpId op, std::uint32_t) {
      ops.push_back(op);
      graph_->for_reads(op, [&](RecipeGraph::Read read) {
        if (read.storage.valid() && read.storage != id) reads.push_back(read.storage);
      });
      return true;
    });
    if (record->block != nullptr) record->block->record = nullptr;
    if (record->block == nullptr) {
      std::erase_if(foreign_, [&](const auto& entry) { return entry.second == id; });
    }
    if (record->held) trash.storages.push_back(std::move(record->held));
    graph_->forgotten(id);
    records_[id.index()] = nullptr;
    record->id = StorageId();
    trash.records.push_back(std::move(record));
    for (const OpId op : ops) {
      if (graph_->exists(op)) continue;
      trash.captures.push_back(std::move(captures_[op.index()]));
    }
    for (const StorageId read : reads) {
      const auto other = record_of(read);
      if (other == nullptr || other->saved > 0 || graph_->is_read(read)) continue;
      if (other->held) {
        trash.storages.push_back(std::move(other->held));
        other->held = c10::Storage();
      }
      if (other->block == nullptr) pending.push_back(read);
    }
  }
}

void BudgetRuntime::block_freed(StorageRecord& freed) noexcept {
  Trash trash;
  const Lock lock(mutex_);
  freed.block = nullptr;
  const auto record = record_of(freed.id);
  if (record.get() != &freed) return;
  if (!graph_->is_there(freed.id)) return;  // dropped by us
  if (graph_->has_recipe(freed.id)) {
    graph_->released(freed.id);
    graph_->dropped(freed.id);
  }
  forget_if_unneeded(freed, trash);
}

// ---- ops ----

std::unique_ptr<hook::OpTicket> BudgetRuntime::before(const hook::Operator& op,
                                                      c10::ArrayRef<c10::IValue> inputs) noexcept {
  try {
    // Who is written? Batch norm's statistics are written though its schema does not say so.
    std::vector<at::Tensor> written;
    OpCapture::for_each_tensor(inputs, [&](TensorPlace place, const at::Tensor& tensor) {
      const bool marked = (op.written_arguments >> place.position & 1) != 0;
      const bool statistics =
          op.is_batch_norm && inputs[5].toBool() && (place.position == 3 || place.position == 4);
      if ((marked || statistics) && tensor.has_storage()) written.push_back(tensor);
    });
    const bool records = recording();
    if (!records && written.empty()) return nullptr;

    auto ticket = std::make_unique<Ticket>();
    bool all_plain = true;
    std::vector<at::Tensor> tensors;
    std::vector<TensorPlace> places;
    if (records) {
      const bool found_all =
          OpCapture::for_each_tensor(inputs, [&](TensorPlace place, const at::Tensor& tensor) {
            all_plain = all_plain && is_plain(tensor);
            tensors.push_back(tensor);
            places.push_back(place);
          });
      if (found_all && all_plain && is_repeatable(op, inputs)) {
        ticket->capture = std::make_shared<OpCapture>(op, inputs);
      }
    }

    std::vector<std::shared_ptr<StorageRecord>> losing;
    {
      const Lock lock(mutex_);
      const std::size_t marked_writes = op.is_batch_norm ? 0 : written.size();
      for (const at::Tensor& tensor : written) {
        const auto record = find_record(tensor.storage());
        c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
        ticket->written.emplace_back(impl, impl->data());
        const bool has_base = record != nullptr && (graph_->has_recipe(record->id) ||
                                                    (record->factory != nullptr && op.fills_whole));
        ticket->in_place_ok = ticket->capture != nullptr && marked_writes == 1 && has_base &&
                              graph_->version(record->id) < kMostWrites;
        if (record != nullptr && !ticket->in_place_ok) losing.push_back(record);
      }
    }
    for (const auto& record : losing) prepare_write(record);
    if (!records) return nullptr;

    if (ticket->capture != nullptr) {
      const Lock lock(mutex_);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto record = find_or_make_record(tensors[i].storage());
        ticket->capture->inputs.push_back({places[i], record->id, graph_->version(record->id),
                                           TensorGeometry::of(tensors[i]), at::Tensor()});
        ticket->input_storages.push_back(tensors[i].storage());
      }
    }
    ticket->start_ns = now_ns();
    return ticket;
  } catch (...) {
    return nullptr;  // not recorded: what the op makes is kept
  }
}

void BudgetRuntime::after(hook::OpTicket& given, c10::ArrayRef<c10::IValue> outputs) noexcept {
  auto& ticket = static_cast<Ticket&>(given);
  const std::uint64_t cost_ns = now_ns() - ticket.start_ns;
  if (ticket.capture == nullptr) return;
  Trash trash;
  const Lock lock(mutex_);
  try {
    OpCapture& capture = *ticket.capture;
    const bool completed = !outputs.empty();
    const auto is_input = [&](const c10::StorageImpl* impl) {
      return std::any_of(ticket.input_storages.begin(), ticket.input_storages.end(),
                         [&](const c10::Storage& s) { return s.unsafeGetStorageImpl() == impl; });
    };
    OpCapture::for_each_tensor(outputs, [&](TensorPlace place, const at::Tensor& tensor) {
      if (!is_plain(tensor)) return;
      const c10::Storage& storage = tensor.storage();
      if (is_input(storage.unsafeGetStorageImpl()) || storage.nbytes() < kSmallestRecipe) return;
      const auto record = find_or_make_record(storage);
      const bool seen = std::any_of(capture.outputs.begin(), capture.outputs.end(),
                                    [&](const auto& o) { return o.storage == record->id; });
      // A block that is not from our allocator, or that has a past, was not made by this op.
      if (seen || record->block == nullptr || graph_->has_recipe(record->id)) return;
      capture.outputs.push_back({record->id, 1, -1, place});
    });
    if (!ticket.written.empty()) {
      const auto [impl, data] = ticket.written.front();
      for (std::size_t i = 0; i < capture.inputs.size(); ++i) {
        if (ticket.input_storages[i].unsafeGetStorageImpl() != impl) continue;
        const bool marked =
            (capture.op.written_arguments >> capture.inputs[i].place.position & 1) != 0;
        if (!marked) continue;
        const auto record = record_of(capture.inputs[i].storage);
        const bool moved = impl->data() != data || record->data != data;
        if (ticket.in_place_ok && completed && !moved) {
          if (record->factory != nullptr) {
            // The empty block and what fills it are its first two writes.
            add_op(std::exchange(record->factory, nullptr), 0, {});
            capture.inputs[i].version = graph_->version(record->id);
          }
          capture.outputs.push_back(
              {record->id, graph_->version(record->id) + 1, static_cast<std::int32_t>(i), {0, -1}});
        } else if (ticket.in_place_ok) {
          lose_contents(*record, trash);
        }
        break;
      }
    }
    if (capture.op.is_factory) {
      if (capture.outputs.size() == 1 && capture.outputs.front().written_input < 0) {
        record_of(capture.outputs.front().storage)->factory = std::move(ticket.capture);
      }
      return;
    }
    if (!capture.outputs.empty()) {
      add_op(std::move(ticket.capture), cost_ns, ticket.input_storages);
    }
  } catch (...) {
    // Out of memory for our own tables: the op stays unrecorded, its results are kept.
  }
}

void BudgetRuntime::add_op(std::shared_ptr<OpCapture> capture, std::uint64_t cost_ns,
                           const std::vector<c10::Storage>& input_storages) {
  std::vector<StorageId> reads;
  std::vector<StorageId> writes;
  for (const CapturedInput& input : capture->inputs) reads.push_back(input.storage);
  for (const CapturedOutput& output : capture->outputs) writes.push_back(output.storage);
  const OpId op = graph_->add_op(cost_ns, reads, writes, now_ns());
  if (!op.valid()) return;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (!graph_->has_recipe(reads[i])) hold_source(*record_of(reads[i]), input_storages[i]);
  }
  for (const StorageId id : writes) {
    if (record_of(id)->saved > 0) graph_->set_droppable(id, true);
  }
  if (captures_.size() <= op.index()) captures_.resize(op.index() + 1);
  captures_[op.index()] = std::move(capture);
}

// The record is about to be written by something that cannot be appended to its recipe.
void BudgetRuntime::prepare_write(const std::shared_ptr<StorageRecord>& record) {
  std::vector<std::shared_ptr<StorageRecord>> affected;
  std::vector<std::shared_ptr<StorageRecord>> dropped;
  const auto collect = [&] {
    affected.clear();
    dropped.clear();
    std::vector<StorageId> pending{record->id};
    std::vector<bool> seen(graph_->storage_slots(), false);
    seen[record->id.index()] = true;
    while (!pending.empty()) {
      const StorageId id = pending.back();
      pending.pop_back();
      graph_->for_readers(id, [&](OpId op, std::uint32_t) {
        graph_->for_writes(op, [&](StorageId made, std::uint32_t) {
          if (seen[made.index()]) return;
          seen[made.index()] = true;
          pending.push_back(made);
          affected.push_back(record_of(made));
          if (!graph_->is_there(made) && affected.back()->saved > 0) {
            dropped.push_back(affected.back());
          }
        });
      });
    }
  };
  // What was made from the record must stay, or come back and stay, until its recipe is given up.
  std::vector<c10::Storage> pinned;
  std::vector<c10::Storage> arrived;
  {
    const Lock lock(mutex_);
    if (!record->id.valid()) return;
    collect();
    for (const auto& other : affected) {
      if (other->held) pinned.push_back(other->held);
    }
  }
  if (!dropped.empty()) {
    std::string problem;
    try {
      arrived = bring_back(dropped);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const Lock lock(mutex_);
    for (const auto& other : dropped) {
      if (other->id.valid() && !graph_->is_there(other->id) && other->lost == nullptr) {
        other->lost = std::make_shared<std::string>(problem);
      }
    }
  }
  Trash trash;
  const Lock lock(mutex_);
  if (!record->id.valid()) return;
  collect();
  for (const auto& other : affected) {
    if (!other->id.valid()) continue;
    if (graph_->is_there(other->id)) {
      if (graph_->has_recipe(other->id)) lose_contents(*other, trash);
    }
  }
  lose_contents(*record, trash);
}

// From now on a source: nothing is known of how its contents came to be.
void BudgetRuntime::lose_contents(StorageRecord& record, Trash& trash) {
  if (record.factory != nullptr) trash.captures.push_back(std::move(record.factory));
  record.factory = nullptr;
  if (!graph_->has_recipe(record.id)) return;
  std::vector<OpId> ops;
  std::vector<StorageId> reads;
  graph_->for_recipe(record.id, [&](OpId op, std::uint32_t) {
    ops.push_back(op);
    graph_->for_reads(op, [&](RecipeGraph::Read read) {
      if (read.storage.valid() && read.storage != record.id) reads.push_back(read.storage);
    });
    return true;
  });
  graph_->strip_recipe(record.id);
  for (const OpId op : ops) {
    if (!graph_->exists(op)) trash.captures.push_back(std::move(captures_[op.index()]));
  }
  for (const StorageId read : reads) {
    if (const auto other = record_of(read)) forget_if_unneeded(*other, trash);
  }
  if (graph_->is_read(record.id) && !record.held) record.held = c10::Storage(record.storage.lock());
}

// ---- saved tensors ----

std::unique_ptr<hook::SavedTensorHooks> BudgetRuntime::make_hooks() {
  if (!active_) return nullptr;
  return std::make_unique<SavedTensorHold>(*this);
}

std::shared_ptr<StorageRecord> BudgetRuntime::pack(const at::Tensor& tensor) {
  if (!is_plain(tensor) || tensor.storage().nbytes() < kSmallestRecipe) return nullptr;
  const Lock lock(mutex_);
  auto record = find_or_make_record(tensor.storage());
  if (record->block == nullptr) return nullptr;
  ++record->saved;
  if (!record->held) record->held = tensor.storage();
  graph_->set_droppable(record->id, true);
  return record;
}

c10::Storage BudgetRuntime::unpack(const std::shared_ptr<StorageRecord>& record) {
  {
    const Lock lock(mutex_);
    if (record->held) return record->held;
    if (record->lost != nullptr) {
      throw BudgetError("LT0303",
                        concat("a tensor saved for backward could not be brought back before what "
                               "it was made from was overwritten: ",
                               *record->lost),
                        {});
    }
  }
  const std::vector<c10::Storage> arrived = bring_back({record});
  LOWTIDE_ASSERT(arrived.size() == 1);
  return arrived.front();
}

void BudgetRuntime::release(std::shared_ptr<StorageRecord> record) noexcept {
  Trash trash;
  const Lock lock(mutex_);
  if (--record->saved > 0 || !record->id.valid()) return;
  graph_->set_droppable(record->id, false);
  forget_if_unneeded(*record, trash);
}

// ---- room ----

bool BudgetRuntime::drop(StorageRecord& record, Trash& trash) {
  if (!record.held || record.saved == 0 || record.held.use_count() != 1) return false;
  c10::StorageImpl* impl = record.held.unsafeGetStorageImpl();
  if (impl->data() != record.data || impl->nbytes() != graph_->bytes(record.id)) return false;
  if (options_.check_replays) record.checksum = checksum(*impl);
  graph_->dropped(record.id);
  report_.drops += 1;
  report_.dropped_bytes += impl->nbytes();
  trash.storages.push_back(std::move(record.held));
  record.held = c10::Storage();
  return true;
}

bool BudgetRuntime::make_room(const hook::RoomRequest& request) {
  Bytes freed = 0;
  {
    Trash trash;
    const Lock lock(mutex_);
    const Bytes live = hook::cpu_memory().ledger().live();
    Bytes needed = request.request_bytes;
    if (request.reason == hook::RoomRequest::Reason::kLimit &&
        live + request.request_bytes > request.limit_bytes) {
      needed = live + request.request_bytes - request.limit_bytes;
    }
    while (freed < needed) {
      const std::uint64_t now = now_ns();
      const auto victim = graph_->next_victim(needed - freed, now);
      if (!victim.has_value()) break;
      const auto record = record_of(*victim);
      if (drop(*record, trash)) {
        freed += graph_->bytes(*victim);
      } else {
        graph_->deny(*victim, now);
      }
    }
  }
  if (freed > 0) return true;
  refuse(request);
}

void BudgetRuntime::refuse(const hook::RoomRequest& request) {
  const MemoryByKind live = hook::cpu_memory().ledger().live_by_kind();
  ErrorDetails details{{"request_bytes", static_cast<std::int64_t>(request.request_bytes)},
                       {"limit_bytes", static_cast<std::int64_t>(request.limit_bytes)},
                       {"live_bytes", static_cast<std::int64_t>(live.total())}};
  {
    const Lock lock(mutex_);
    ++report_.refusals;
  }
  throw BudgetError("LT0301",
                    concat("budget: cannot allocate ", format_bytes(request.request_bytes),
                           " within the limit of ", format_bytes(request.limit_bytes), ": ",
                           format_bytes(live.total()), " are live (", to_string(live),
                           ") and nothing more can be dropped. Raise the limit"),
                    std::move(details));
}

// ---- bring back ----

std::vector<c10::Storage> BudgetRuntime::bring_back(
    const std::vector<std::shared_ptr<StorageRecord>>& targets) {
  const std::unique_lock replay_lock(replay_mutex_);
  struct Rebuilt {
    c10::Storage storage;
    std::uint32_t version = 0;
    std::uint32_t last_version = 0;
    std::uint32_t uses = 0;
    bool aside = false;
  };
  struct Step {
    OpId id;
    std::shared_ptr<const OpCapture> capture;
    // By input: what is there already, held so that it stays; empty for what the plan rebuilds.
    std::vector<c10::Storage> there;
  };
  std::vector<Step> steps;
  std::unordered_map<std::uint32_t, Rebuilt> rebuilt;
  std::vector<c10::Storage> arrived;
  {
    const Lock lock(mutex_);
    std::vector<StorageId> ids;
    for (const auto& target : targets) {
      if (target->held) {
        arrived.push_back(target->held);
      } else if (target->id.valid() && !graph_->is_there(target->id)) {
        ids.push_back(target->id);
      }
    }
    if (ids.empty()) return arrived;
    const BringBackPlan& plan = planner_.plan(*graph_, ids);
    for (const Rebuild& rebuild : plan.rebuilds) {
      Rebuilt& entry = rebuilt[rebuild.storage.index()];
      entry.last_version = rebuild.version;
      entry.aside = rebuild.aside;
    }
    for (const OpId op : plan.ops) {
      steps.push_back({op, captures_[op.index()], {}});
      LOWTIDE_ASSERT(steps.back().capture != nullptr);
      for (const CapturedInput& input : steps.back().capture->inputs) {
        const auto entry = rebuilt.find(input.storage.index());
        if (entry != rebuilt.end() && input.version <= entry->second.last_version &&
            (entry->second.aside || !graph_->is_there(input.storage))) {
          ++entry->second.uses;
          steps.back().there.emplace_back();
          continue;
        }
        const auto record = record_of(input.storage);
        LOWTIDE_ASSERT(record != nullptr);
        c10::Storage storage = record->held ? record->held : c10::Storage(record->storage.lock());
        LOWTIDE_ASSERT(storage);
        steps.back().there.push_back(std::move(storage));
      }
    }
  }

  const std::uint64_t start_ns = now_ns();
  for (Step& step : steps) {
    std::vector<c10::Storage> storages = std::move(step.there);
    for (std::size_t i = 0; i < storages.size(); ++i) {
      if (storages[i]) continue;
      const CapturedInput& input = step.capture->inputs[i];
      Rebuilt& entry = rebuilt.at(input.storage.index());
      LOWTIDE_ASSERT(entry.storage && entry.version == input.version);
      --entry.uses;
      storages[i] = entry.storage;
    }
    std::vector<c10::IValue> results = step.capture->run(storages);
    Trash trash;
    const Lock lock(mutex_);
    for (const CapturedOutput& output : step.capture->outputs) {
      c10::Storage storage;
      if (output.written_input >= 0) {
        storage = storages[static_cast<std::size_t>(output.written_input)];
      } else {
        const at::Tensor tensor = tensor_at(results, output.result);
        if (!tensor.defined()) continue;
        storage = tensor.storage();
      }
      const auto entry = rebuilt.find(output.storage.index());
      if (entry != rebuilt.end()) {
        entry->second.storage = storage;
        entry->second.version = output.version;
      }
      const auto record = record_of(output.storage);
      if (record == nullptr || record->saved == 0 || graph_->is_there(output.storage) ||
          output.version != graph_->version(output.storage)) {
        continue;
      }
      c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
      if (options_.check_replays && checksum(*impl) != record->checksum) {
        throw DivergenceError(
            "LT0304",
            concat("a tensor that was dropped came back with other contents: ",
                   step.capture->op.name, " (", format_bytes(impl->nbytes()),
                   "). Something it was made from was changed where Lowtide could not see it "
                   "(through numpy, a raw pointer or another library), or the op is not "
                   "repeatable. Clone the tensor before changing it that way"));
      }
      record->held = storage;
      record->storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
          c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
      record->data = impl->data();
      record->block = hook::cpu_memory().find_block(data_ptr(*impl));
      LOWTIDE_ASSERT(record->block != nullptr);
      record->block->record = record.get();
      graph_->brought_back(output.storage);
      if (std::find(targets.begin(), targets.end(), record) != targets.end()) {
        arrived.push_back(storage);
      }
    }
    // Let go of what no later step reads.
    for (const CapturedInput& input : step.capture->inputs) {
      const auto entry = rebuilt.find(input.storage.index());
      if (entry != rebuilt.end() && entry->second.uses == 0) {
        trash.storages.push_back(std::move(entry->second.storage));
        entry->second.storage = c10::Storage();
      }
    }
    for (auto& storage : storages) trash.storages.push_back(std::move(storage));
    report_.recomputed_ops += 1;
  }
  const Lock lock(mutex_);
  report_.recompute_ns += now_ns() - start_ns;
  return arrived;
}

// ---- life ----

void BudgetRuntime::activate(Bytes limit, const BudgetOptions& options) {
  hook::cpu_memory().require_active();
  {
    const Lock lock(mutex_);
    if (active_) {
      throw UsageError("LT0302", concat("budget: a limit of ", format_bytes(report_.limit_bytes),
                                        " is in force already, and there can be one budget at a "
                                        "time. End it before the next begins"));
    }
    options_ = options;
    report_ = BudgetReport{};
    report_.limit_bytes = limit;
    meter_ = std::make_unique<MemoryMeter>();
    active_ = true;
  }
  hook::set_process_provider(this);
  hook::listen_to_ops(this);
  hook::cpu_memory().ledger().exchange_gate(this, limit);
}

void BudgetRuntime::deactivate() {
  hook::cpu_memory().ledger().exchange_gate(nullptr, hook::MemoryLedger::kNoLimit);
  std::vector<std::shared_ptr<StorageRecord>> dropped;
  {
    const Lock lock(mutex_);
    for (const auto& record : records_) {
      if (record != nullptr && record->saved > 0 && !graph_->is_there(record->id)) {
        dropped.push_back(record);
      }
    }
  }
  try {
    bring_back(dropped);
  } catch (const std::exception& error) {
    for (const auto& record : dropped) {
      if (!record->held) record->lost = std::make_shared<std::string>(error.what());
    }
  }
  hook::listen_to_ops(nullptr);
  hook::set_process_provider(nullptr);
  Trash trash;
  const Lock lock(mutex_);
  active_ = false;
  report_.peak_bytes = meter_->peak_bytes();
  for (auto& record : records_) {
    if (record == nullptr) continue;
    if (record->block != nullptr) record->block->record = nullptr;
    record->block = nullptr;
    record->id = StorageId();
    if (record->saved == 0 && record->held) trash.storages.push_back(std::move(record->held));
    trash.records.push_back(std::move(record));
  }
  for (auto& capture : captures_) trash.captures.push_back(std::move(capture));
  records_.clear();
  captures_.clear();
  foreign_.clear();
  graph_ = std::make_unique<RecipeGraph>(std::make_unique<OnlinePolicy>());
}

BudgetReport BudgetRuntime::report() const {
  const Lock lock(mutex_);
  BudgetReport report = report_;
  if (active_) report.peak_bytes = meter_->peak_bytes();
  return report;
}

}  // namespace lowtide
