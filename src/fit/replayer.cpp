#include "src/fit/replayer.h"

#include <c10/util/Exception.h>

#include <unordered_map>
#include <utility>

#include "src/base/assert.h"
#include "src/base/text.h"
#include "src/fit/own_time.h"
#include "src/hook/host.h"
#include "src/hook/host_errors.h"
#include "src/hook/op_observer.h"

namespace lowtide {
namespace {

thread_local bool t_trying = false;

// Plans that other threads, or a source that is gone, may spoil before a bring-back is given up.
constexpr int kMostRounds = 64;

[[noreturn]] void stop_for_lost_source(const hook::Operator& op, Bytes bytes) {
  throw DivergenceError(
      "LT0304", concat("a tensor that was dropped cannot be brought back: an input of ", op.name,
                       " (", format_bytes(bytes),
                       ") was resized or given other memory since. Keep tensors that backward "
                       "needs as they are, or train without a budget"));
}

[[noreturn]] void stop_for_gone_source() {
  throw DivergenceError(
      "LT0304",
      "a tensor that was dropped cannot be brought back: something that it was made from is "
      "gone. Keep tensors that backward needs as they are, or train without a budget");
}

}  // namespace

bool Replayer::is_trying() noexcept { return t_trying; }

// One plan, carried out as far as it goes.
class Replayer::Round {
 public:
  Round(Replayer& owner, const StorageTable::Records& targets, Hold strength)
      : owner_(owner), table_(owner.table_), targets_(targets), strength_(strength) {}

  ~Round() {
    StorageTable::Trash trash;
    const StorageTable::Lock lock = table_.lock();
    for (const Kept& kept : kept_) {
      if (!kept.done) let_go(kept);
    }
    for (auto& [id, rebuilt] : rebuilt_) trash.storages.push_back(std::move(rebuilt.storage));
  }

  // False: an input went meanwhile.
  bool run() {
    plan();
    for (const auto& target : copied_targets_) read_back(target);
    for (Step& step : steps_) {
      if (!run_step(step)) return false;
    }
    return true;
  }

 private:
  // What an op of the plan makes and a later one reads, where no record holds it.
  struct Rebuilt {
    c10::Storage storage;
    std::uint32_t version = 0;
    std::uint32_t last_version = 0;  // that the plan makes
    std::uint32_t uses = 0;          // still to come
    bool aside = false;
  };
  struct Step {
    OpId id;
    std::shared_ptr<const OpCapture> capture;
    std::vector<bool> is_rebuilt;       // by input
    std::size_t first_kept, last_kept;  // of kept_, let go after the step
  };
  // A hold in the graph. Ids are given out again; the record says whether this one still stands.
  struct Kept {
    std::shared_ptr<StorageRecord> record;
    StorageId id;
    Hold strength;
    bool done = false;
  };

  void keep(const std::shared_ptr<StorageRecord>& record, Hold strength) {
    table_.graph().hold(record->id, strength);
    kept_.push_back({record, record->id, strength});
  }
  void let_go(const Kept& kept) {
    if (kept.record->id == kept.id) table_.graph().unhold(kept.id, kept.strength);
  }

  void plan() {
    const StorageTable::Lock lock = table_.lock();
    const RecipeGraph& graph = table_.graph();
    std::vector<StorageId> missing;
    for (const auto& target : targets_) {
      if (!target->id.valid()) continue;
      keep(target, Hold::kHard);
      if (graph.is_copied(target->id)) {
        copied_targets_.push_back(target);
      } else if (!graph.is_there(target->id)) {
        missing.push_back(target->id);
      }
    }
    if (missing.empty()) return;
    const BringBackPlan& plan = owner_.planner_.plan(graph, missing);
    for (const Rebuild& rebuild : plan.rebuilds) {
      Rebuilt& entry = rebuilt_[table_.record(rebuild.storage)->serial];
      entry.last_version = rebuild.version;
      entry.aside = rebuild.aside;
    }
    for (const OpId op : plan.ops) {
      Step step{op, table_.capture(op), {}, kept_.size(), 0};
      LOWTIDE_ASSERT(step.capture != nullptr);
      for (const CapturedInput& input : step.capture->inputs) {
        const auto& record = table_.record(input.storage);
        const auto entry = rebuilt_.find(input.storage.serial);
        const bool is_rebuilt =
            entry != rebuilt_.end() && input.version <= entry->second.last_version &&
            (entry->second.aside || record == nullptr || !graph.is_there(record->id));
        if (is_rebuilt) ++entry->second.uses;
        step.is_rebuilt.push_back(is_rebuilt);
        if (record != nullptr && !(is_rebuilt && entry->second.aside)) keep(record, strength_);
      }
      step.last_kept = kept_.size();
      steps_.push_back(std::move(step));
    }
  }

  // The inputs' storages; false when one is gone.
  bool gather(const Step& step, std::vector<c10::Storage>& storages) {
    for (std::size_t i = 0; i < step.capture->inputs.size(); ++i) {
      const CapturedInput& input = step.capture->inputs[i];
      if (step.is_rebuilt[i]) {
        const Rebuilt& entry = rebuilt_.at(input.storage.serial);
        if (entry.storage) {
          LOWTIDE_ASSERT(entry.version == input.version);
          storages.push_back(entry.storage);
          continue;
        }
      }
      const auto& record = table_.record(input.storage);
      if (record == nullptr || !table_.graph().is_there(record->id)) return false;
      // Written since the plan was made.
      if (table_.graph().version(record->id) != input.version) return false;
      const Bytes bytes = table_.graph().bytes(record->id);
      if (!record->is_as_recorded(bytes)) {
        if (!owner_.check_ || !record->has_memory(bytes)) {
          stop_for_lost_source(step.capture->op, bytes);
        }
        must_compare_ = true;
      }
      storages.push_back(record->held ? record->held : c10::Storage(record->storage.lock()));
    }
    return true;
  }

  // What the op reads of what records hold or the program does.
  std::vector<c10::Storage> sources_of(const Step& step) {
    std::vector<c10::Storage> sources;
    const StorageTable::Lock lock = table_.lock();
    for (const CapturedInput& input : step.capture->inputs) {
      const auto& record = table_.record(input.storage);
      if (record == nullptr) continue;
      c10::Storage storage = record->held ? record->held : c10::Storage(record->storage.lock());
      if (storage) sources.push_back(std::move(storage));
    }
    return sources;
  }

  bool run_step(Step& step) {
    const OpCapture& capture = *step.capture;
    std::vector<c10::Storage> storages;
    std::vector<Kept> inputs;
    StaticMemory::Pins pins(owner_.static_);
    for (std::size_t i = 0; i < capture.inputs.size(); ++i) {
      if (step.is_rebuilt[i]) continue;
      std::shared_ptr<StorageRecord> record;
      {
        const StorageTable::Lock lock = table_.lock();
        record = table_.record(capture.inputs[i].storage);
        if (record == nullptr || !table_.graph().is_copied(record->id)) continue;
      }
      read_back(record);
    }
    if (owner_.static_.is_on()) owner_.static_.pin(sources_of(step), pins);
    {
      const StorageTable::Lock lock = table_.lock();
      if (!gather(step, storages)) return false;
      for (const CapturedInput& input : capture.inputs) {
        const auto& record = table_.record(input.storage);
        if (record == nullptr) continue;
        table_.graph().hold(record->id, Hold::kHard);
        inputs.push_back({record, record->id, Hold::kHard});
      }
    }
    struct InputsHeld {
      Round& round;
      std::vector<Kept>& inputs;
      ~InputsHeld() {
        const StorageTable::Lock lock = round.table_.lock();
        for (const Kept& kept : inputs) round.let_go(kept);
      }
    } const held{*this, inputs};

    const std::uint64_t begin_ns = now_ns();
    std::vector<c10::IValue> results = capture.run(storages);
    const std::uint64_t duration_ns = now_ns() - begin_ns;

    StorageTable::Trash trash;
    const StorageTable::Lock lock = table_.lock();
    Bytes made = 0;
    for (const CapturedOutput& output : capture.outputs) {
      c10::Storage storage;
      if (output.written_input >= 0) {
        storage = storages[static_cast<std::size_t>(output.written_input)];
      } else {
        const at::Tensor tensor = tensor_at(results, output.result);
        if (!tensor.defined()) continue;
        storage = tensor.storage();
      }
      made += storage.nbytes();
      const bool arrives = arrive(capture, output, storage, trash);
      const auto entry = rebuilt_.find(output.storage.serial);
      if (entry == rebuilt_.end()) continue;
      // Once the record holds it, it may be dropped like any other.
      trash.storages.push_back(std::move(entry->second.storage));
      entry->second.storage = arrives ? c10::Storage() : storage;
      entry->second.version = output.version;
    }
    owner_.journal_.add({.kind = BudgetEvent::Kind::kRecompute,
                         .step = owner_.step_,
                         .op = capture.op.name.c_str(),
                         .bytes = made,
                         .live_bytes = hook::cpu_memory().ledger().live(),
                         .begin_ns = begin_ns,
                         .duration_ns = duration_ns});
    for (std::size_t i = 0; i < capture.inputs.size(); ++i) {
      if (!step.is_rebuilt[i]) continue;
      --rebuilt_.at(capture.inputs[i].storage.serial).uses;
    }
    // Let go of what no later step reads.
    for (const CapturedInput& input : capture.inputs) release_if_done(input.storage, trash);
    for (const CapturedOutput& output : capture.outputs) release_if_done(output.storage, trash);
    for (std::size_t i = step.first_kept; i < step.last_kept; ++i) {
      let_go(kept_[i]);
      kept_[i].done = true;
    }
    for (auto& storage : storages) trash.storages.push_back(std::move(storage));
    return true;
  }

  // A storage whose bytes were put elsewhere is there again.
  void read_back(const std::shared_ptr<StorageRecord>& record) {
    std::shared_ptr<StashedBytes> copy;
    Bytes bytes = 0;
    {
      const StorageTable::Lock lock = table_.lock();
      if (!record->id.valid() || !table_.graph().is_copied(record->id)) return;
      copy = record->copy;
      bytes = table_.graph().bytes(record->id);
    }
    const std::uint64_t begin_ns = now_ns();
    c10::Storage storage = owner_.stash_.fetch(*copy, bytes, MemoryKind::kSaved);
    const std::uint64_t duration_ns = now_ns() - begin_ns;
    StorageTable::Trash trash;
    const StorageTable::Lock lock = table_.lock();
    // Another thread may have forgotten it meanwhile.
    if (!record->id.valid() || !table_.graph().is_copied(record->id)) {
      trash.storages.push_back(std::move(storage));
      return;
    }
    table_.put_back(record, storage);
    owner_.recorder_.resume(*record->block, record->tape_tag);
    if (!record->copy->stays()) {
      trash.copies.push_back(std::move(record->copy));
      record->copy = nullptr;
    }
    table_.graph().set_copy_cost(record->id, owner_.stash_.cost(*record));
    owner_.journal_.add({.kind = BudgetEvent::Kind::kReadBack,
                         .step = owner_.step_,
                         .op = record->made_by,
                         .bytes = bytes,
                         .live_bytes = hook::cpu_memory().ledger().live(),
                         .begin_ns = begin_ns,
                         .duration_ns = duration_ns});
  }

  void release_if_done(const RecordName& name, StorageTable::Trash& trash) {
    const auto entry = rebuilt_.find(name.serial);
    if (entry == rebuilt_.end() || entry->second.uses > 0) return;
    // An in-place write of a later step takes it over.
    if (entry->second.version < entry->second.last_version) return;
    trash.storages.push_back(std::move(entry->second.storage));
    entry->second.storage = c10::Storage();
  }

  // The storage is a record's latest contents, which a saved tensor waits for: the record has it.
  bool arrive(const OpCapture& capture, const CapturedOutput& output, const c10::Storage& storage,
              StorageTable::Trash& trash) {
    RecipeGraph& graph = table_.graph();
    const auto& record = table_.record(output.storage);
    // One that is held was given other memory by the program (share_memory_()): saved tensors have
    // that, and only what was made from it before needs these bytes.
    if (record == nullptr || record->saved == 0 || record->held || graph.is_there(record->id) ||
        graph.is_copied(record->id) || output.version != graph.version(record->id)) {
      return false;
    }
    if (must_compare_ && is_opaque(capture.op, output)) {
      stop_for_lost_source(capture.op, storage.nbytes());
    }
    if (owner_.check_ && !is_opaque(capture.op, output) &&
        checksum_of(*storage.unsafeGetStorageImpl()) != record->checksum) {
      throw DivergenceError(
          "LT0304", concat("a tensor that was dropped came back with other contents: ",
                           capture.op.name, " (", format_bytes(storage.nbytes()),
                           "). Something it was made from was changed where Lowtide could not see "
                           "it (through numpy, a raw pointer or another library), or the op is not "
                           "repeatable. Clone the tensor before changing it that way"));
    }
    if (record->copy != nullptr) trash.copies.push_back(std::move(record->copy));
    table_.put_back(record, storage);
    owner_.recorder_.resume(*record->block, record->tape_tag);
    return true;
  }

  Replayer& owner_;
  StorageTable& table_;
  const StorageTable::Records& targets_;
  const Hold strength_;
  std::vector<std::shared_ptr<StorageRecord>> copied_targets_;
  bool must_compare_ = false;  // a source has other memory than when it was recorded
  std::vector<Step> steps_;
  std::vector<Kept> kept_;
  std::unordered_map<std::uint64_t, Rebuilt> rebuilt_;  // by StorageRecord::serial
};

std::vector<c10::Storage> Replayer::bring_back(const StorageTable::Records& targets) {
  const OwnTime own_time;
  const hook::HostUnlocked unlocked;
  const std::unique_lock replay_lock(mutex_);
  const TapeRecorder::Pause unseen;
  const hook::HostErrorsPause own;
  const auto all_there = [&](std::vector<c10::Storage>& storages) {
    const StorageTable::Lock lock = table_.lock();
    storages.clear();
    for (const auto& target : targets) {
      if (!target->held) return false;
      storages.push_back(target->held);
    }
    return true;
  };
  std::vector<c10::Storage> storages;
  if (all_there(storages)) return storages;
  {
    const bool outer = std::exchange(t_trying, true);
    Round first(*this, targets, Hold::kSoft);
    bool finished = false;
    try {
      finished = first.run() && all_there(storages);
    } catch (const c10::OutOfMemoryError&) {
      storages.clear();
    } catch (...) {
      t_trying = outer;
      throw;
    }
    t_trying = outer;
    if (finished) return storages;
  }
  // Another thread may free what was counted on, though what it needs is held. That ends: what it
  // freed is gone, and the next plan does without.
  int rounds = 0;
  for (bool finished = false; !finished;) {
    if (++rounds > kMostRounds) stop_for_gone_source();
    for (bool has_more = true; has_more;) {
      StorageTable::Trash trash;
      const StorageTable::Lock lock = table_.lock();
      room_.drop_all(trash);
      has_more = room_.has_more();
    }
    Round last(*this, targets, Hold::kHard);
    finished = last.run() && all_there(storages);
  }
  return storages;
}

}  // namespace lowtide
