#include "src/fit/budget_runtime.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include "src/base/text.h"
#include "src/fit/memory_report.h"
#include "src/fit/own_time.h"
#include "src/fit/saved_tensor_hold.h"
#include "src/hook/counting_allocator.h"
#include "src/hook/tensor_block.h"
#include "src/plan/plan_file.h"
#include "src/plan/simulator.h"
#include "src/plan/trace.h"
#include "src/tape/tape_bytes.h"

namespace lowtide {
namespace {

constexpr std::size_t kMostStepTimes = 4096;
constexpr std::size_t kMostProgramHolds = 16;
constexpr std::size_t kWatchedAtATime = 64;
constexpr int kMostOpsWithoutSaving = 16'384;
// A floor that takes more replays on paper than this is not worth its time.
constexpr std::uint64_t kMostFloorReplays = 10'000'000;
constexpr Bytes kNoLimit = hook::MemoryLedger::kNoLimit;

hook::MemoryLedger& ledger() { return hook::cpu_memory().ledger(); }

// Whether somebody else than the runtime holds the record's storage. Saved views keep their base.
bool is_held_by_program(const StorageRecord& record) {
  if (!record.held) return record.block != nullptr;
  std::size_t ours = 1;
  std::vector<std::pair<const at::Tensor*, std::size_t>> bases;  // and how many of ours keep each
  const bool is_ours =
      record.for_each_variable([&](const at::Tensor& variable, std::size_t copies) {
        if (hook::holder_count(variable) > copies) return false;
        ++ours;
        const at::Tensor& base = hook::base_of(variable);
        if (base.is_same(variable)) return true;
        const auto same = std::find_if(bases.begin(), bases.end(), [&](const auto& other) {
          return other.first->is_same(base);
        });
        if (same != bases.end()) {
          ++same->second;
        } else {
          bases.emplace_back(&base, 1);
        }
        return true;
      });
  if (!is_ours) return true;
  for (const auto& [base, views] : bases) ours += hook::holder_count(*base) == views ? 1 : 0;
  return record.held.use_count() > ours;
}

void retag(hook::MemoryBlock& block, MemoryKind from, MemoryKind to) {
  if (block.kind == from) ledger().retag(block.size_bytes, block.kind, to);
}

}  // namespace

BudgetSession::BudgetSession(const BudgetLimit& given, const BudgetOptions& chosen)
    : options(chosen), share(given.share()), limit(given.is_share() ? kNoLimit : given.bytes()) {}

void BudgetSession::look_at_resident_memory() {
  const Bytes resident = resident_memory().now;
  const Bytes counted = ledger().live() + hook::reusable_bytes();
  resident_peak_ = std::max(resident_peak_, resident);
  counted_peak_ = std::max(counted_peak_, counted);
  const Bytes grown = resident - std::min(resident, resident_before_.now);
  const Bytes accounted = counted - std::min(counted, counted_before_);
  outside_bytes_ = std::max(outside_bytes_, grown - std::min(grown, accounted));
}

BudgetRuntime& BudgetRuntime::instance() {
  static auto& runtime = *new BudgetRuntime;
  return runtime;
}

BudgetRuntime::BudgetRuntime()
    : stash_(table_),
      static_(table_, stash_, recorder_),
      room_(table_, stash_, journal_, recorder_),
      replayer_(table_, room_, stash_, static_, journal_, recorder_),
      op_recorder_(table_, replayer_, static_, recorder_) {
  op_recorder_.set_phase_listener([this](bool in_backward) { on_op(in_backward); });
  // The child finds everything whole. Its gate is gone (memory_ledger.cpp): it has no limit.
  pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork(false); },
                 [] { instance().after_fork(true); });
}

void BudgetRuntime::before_fork() {
  replayer_.mutex().before_fork();
  static_.mutex().before_fork();
  table_.mutex().before_fork();
  stash_.before_fork();
  journal_.mutex().before_fork();
  recorder_.mutex().before_fork();
}

void BudgetRuntime::after_fork(bool in_child) {
  recorder_.mutex().after_fork(in_child);
  journal_.mutex().after_fork(in_child);
  stash_.after_fork(in_child);
  table_.mutex().after_fork(in_child);
  static_.mutex().after_fork(in_child);
  replayer_.mutex().after_fork(in_child);
}

// ---- sessions ----

std::shared_ptr<BudgetSession> BudgetRuntime::begin(const BudgetLimit& limit,
                                                    const BudgetOptions& options) {
  hook::cpu_memory().require_active();
  journal_.read_log_level();
  auto session = std::make_shared<BudgetSession>(limit, options);
  if (!options.spill_directory.empty()) {
    session->store_ = std::make_shared<SpillStore>(SpillOptions{
        options.spill_directory, options.spill_limit == 0 ? kNoLimit : options.spill_limit});
  }
  if (!options.trace_path.empty()) {
    session->trace_ = std::make_unique<ChromeTrace>(options.trace_path);
    session->listeners_.push_back(journal_.listen(
        [trace = session->trace_.get()](const BudgetEvent& event) { trace->add(event); }));
  }
  if (!options.tape_path.empty() && !std::ofstream(options.tape_path)) {
    throw UsageError("LT0307", concat("cannot write the tape ", options.tape_path,
                                      ": its folder is missing or not writable"));
  }
  std::optional<StepPlan> given;
  if (!options.plan_path.empty()) given = read_step_plan(options.plan_path);
  if (options.on_event) session->listeners_.push_back(journal_.listen(options.on_event));
  bool is_first = false;
  {
    const StorageTable::Lock lock = table_.lock();
    is_first = sessions_.empty();
    if (is_first) {
      steps_.begin(ledger().live(), true, now_ns());
      drops_before_step_ = drops_so_far();
      begin_tape();
    }
    session->before_ = journal_.counts();
    session->resident_before_ = resident_memory();
    session->counted_before_ = ledger().live() + hook::reusable_bytes();
    session->stash_before_ = stash_.counts();
    session->first_step_ = steps_.index();
    sessions_.push_back(session);
    if (given.has_value()) plans_.add(given->tape, given->plan);
  }
  if (is_first) {
    hook::cpu_memory().set_block_listener(&recorder_);
    hook::set_process_provider(this);
    hook::listen_to_ops(&op_recorder_);
  }
  enforce_limit();
  if (is_first) {
    const StorageTable::Lock lock = table_.lock();
    plans_.begin(ledger().live(), ledger().limit());
  }
  return session;
}

BudgetReport BudgetRuntime::end(const std::shared_ptr<BudgetSession>& session) {
  BudgetReport last;
  bool is_last = false;
  {
    const StorageTable::Lock lock = table_.lock();
    if (!session->options.tape_path.empty() && steps_.saw_backward()) finish_tape();
    last = report(*session);
    sessions_.remove(session);
    is_last = sessions_.empty();
  }
  if (is_last) {
    forget_all();
  } else {
    enforce_limit();
  }
  for (const BudgetJournal::Key key : session->listeners_) journal_.remove(key);
  if (session->trace_ != nullptr) session->trace_->write();
  if (!session->options.tape_path.empty()) write_tape_of(*session);
  return last;
}

// The lowest limit of all sessions is in force; so are the strictest checks.
void BudgetRuntime::enforce_limit() {
  Bytes limit = kNoLimit;
  bool check = false;
  bool verify = false;
  double plan_seconds = 0;
  StashOptions stash;
  {
    const StorageTable::Lock lock = table_.lock();
    for (const auto& session : sessions_) {
      const Bytes reserve = session->options.reserve_bytes;
      limit = std::min(limit, session->limit == kNoLimit
                                  ? kNoLimit
                                  : session->limit - std::min(session->limit, reserve));
      check |= session->options.check_replays;
      verify |= session->options.verify_replay;
      // Of several, the budget within says where to.
      if (session->store_ != nullptr) stash.store = session->store_;
      stash.pack |= session->options.pack;
      stash.always |= session->options.always_put_away;
      plan_seconds = session->options.plan_seconds;
    }
    // Plans know nothing of copies.
    plans_.configure(stash.pack || stash.store != nullptr || stash.always ? 0 : plan_seconds);
    stash_.configure(stash);
    room_.set_check(check);
    replayer_.set_check(check);
    op_recorder_.set_check(check);
    op_recorder_.set_verify(verify);
  }
  ledger().exchange_gate(this, limit);
  hook::cpu_memory().trim_to_limit();
}

void BudgetRuntime::write_tape_of(const BudgetSession& session) {
  if (!session.tape_.has_value()) {
    throw UsageError("LT0309", concat("no tape was written to ", session.options.tape_path,
                                      ": no whole step, forward and backward, was seen"));
  }
  write_tape(session.options.tape_path, *session.tape_);
}

void BudgetRuntime::forget_all() {
  ledger().exchange_gate(nullptr, kNoLimit);
  StorageTable::Records dropped;
  {
    const StorageTable::Lock lock = table_.lock();
    for (const auto& record : table_.records()) {
      if (record != nullptr && record->saved > 0 && !table_.graph().is_there(record->id)) {
        dropped.push_back(record);
      }
    }
  }
  try {
    replayer_.bring_back(dropped);
  } catch (const std::exception& error) {
    for (const auto& record : dropped) {
      if (!record->held) record->lost = std::make_shared<std::string>(error.what());
    }
  }
  try {
    static_.detach();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lowtide: memory that a budget had spilled cannot be had: %s\n",
                 error.what());
  }
  hook::listen_to_ops(nullptr);
  hook::set_process_provider(nullptr);
  hook::cpu_memory().set_block_listener(nullptr);
  StorageTable::Trash trash;
  const StorageTable::Lock lock = table_.lock();
  recorder_.end();
  plans_.clear();
  op_recorder_.forget_missed_write();
  watched_.clear();
  table_.clear(trash);
}

// ---- steps ----

void BudgetRuntime::on_op(bool in_backward) {
  journal_.deliver();
  if (recorder_.is_off() && !plans_.follows() && !steps_.is_change(in_backward)) return;
  const StorageTable::Lock lock = table_.lock();
  plans_.op_begins();
  if (steps_.is_change(in_backward)) steps_.op_runs(in_backward, ledger().live());
  if (recorder_.is_on()) {
    poll_program_holds();
    // Loops that save nothing are no steps, and their tapes would have no end.
    if (!in_backward && ++ops_since_saving_ > kMostOpsWithoutSaving) recorder_.end();
  } else if (!in_backward && steps_.saw_backward()) {
    recorder_.arm();  // the next step may be recorded
  }
}

void BudgetRuntime::before_saving(Bytes bytes) {
  if (steps_.is_abandoned()) {
    steps_.restart(ledger().live(), table_.saved_count() == 0, now_ns());
    drops_before_step_ = drops_so_far();
    plans_.end(table_.graph());
    plans_.begin(ledger().live(), ledger().limit());
    begin_tape();
  } else if (steps_.ends_before_saving()) {
    end_step();
  }
  steps_.saved(bytes);
  ops_since_saving_ = 0;
}

void BudgetRuntime::mark_step() {
  const StorageTable::Lock lock = table_.lock();
  steps_.mark();
  end_step();
}

void BudgetRuntime::attach(const std::vector<at::Tensor>& tensors) {
  const StorageTable::Lock lock = table_.lock();
  if (!stash_.is_spilling()) {
    throw UsageError(
        "LT0316",
        "budget: attach() needs a spill directory: parameters, gradients and optimizer "
        "state leave memory only for a file. Give one with BudgetOptions::"
        "spill_directory, or budget(..., spill=DIR) in Python");
  }
  static_.attach(tensors);
}

void BudgetRuntime::end_step() {
  const OwnTime own;
  static_.next_step();
  const bool departed = plans_.end(table_.graph());
  finish_tape();
  // Without a drop the step's peak was enough; with drops the limit was.
  const std::uint64_t drops = drops_so_far();
  if (!sessions_.empty()) {
    steps_.was_carried(drops == drops_before_step_ ? sessions_.front()->step_meter_.peak_bytes()
                                                   : ledger().limit());
  }
  drops_before_step_ = drops;
  const StepWatch::Ended ended = steps_.next(ledger().live(), table_.saved_count() == 0, now_ns());
  if (ended.is_to_be_recorded || departed) {
    begin_tape();
  } else {
    recorder_.end();
  }
  Bytes step_peak = 0;
  for (const auto& session : sessions_) {
    const Bytes peak = session->step_meter_.peak_bytes();
    session->step_meter_.reset_peak();
    session->look_at_resident_memory();
    step_peak = std::max(step_peak, peak);
    session->step_ns_.push_back(ended.duration_ns);
    if (session->step_ns_.size() > kMostStepTimes) {
      session->step_ns_.erase(session->step_ns_.begin());
    }
    // Two whole steps have run without this limit: the second has the optimizer's state too.
    if (session->share > 0 && session->limit == kNoLimit && session->step_ns_.size() >= 2 &&
        ended.static_bytes > 0) {
      const auto above = static_cast<double>(peak - std::min(peak, ended.static_bytes));
      session->limit = ended.static_bytes + static_cast<Bytes>(session->share * above);
      enforce_limit();
    }
  }
  if (table_.saved_count() == 0) plans_.begin(ledger().live(), ledger().limit());
  room_.set_step(steps_.index());
  replayer_.set_step(steps_.index());
  journal_.add({.kind = BudgetEvent::Kind::kStep,
                .step = ended.index,
                .bytes = step_peak,
                .live_bytes = ledger().live(),
                .begin_ns = ended.begin_ns,
                .duration_ns = ended.duration_ns});
}

void BudgetRuntime::finish_tape() {
  if (!recorder_.is_on()) return;
  const Tape tape = recorder_.end();
  if (find_problem(tape).has_value()) return;
  for (const auto& session : sessions_) {
    if (!session->options.tape_path.empty()) session->tape_ = tape;
  }
  const Trace trace = trace_of(tape);
  if (!saved_in_backward_) plans_.learn(steps_.kind(), tape, steps_.base());
  // A step under pressure shows what it did there, which is more than it needs.
  if (drops_so_far() != drops_before_step_) return;
  // As it ran plainly is a way, too.
  const Bytes plain = tape_peak(tape);
  const auto eager = saved_in_backward_ ? std::nullopt : smallest_budget(trace, kMostFloorReplays);
  steps_.learn(std::min(eager.value_or(plain), plain), std::min(lowest_budget(trace).bytes, plain));
}

std::uint64_t BudgetRuntime::drops_so_far() const {
  const BudgetJournal::Counts counts = journal_.counts();
  return counts.of(BudgetEvent::Kind::kDrop) + counts.of(BudgetEvent::Kind::kPutAway);
}

// Only a step that begins with nothing saved is told whole by its tape.
void BudgetRuntime::begin_tape() {
  ops_since_saving_ = 0;
  saved_in_backward_ = false;
  if (table_.saved_count() == 0) {
    recorder_.begin(ledger().live());
  } else {
    recorder_.end();
  }
}

// A saved storage that the program holds too cannot be dropped; the tape says until when.
void BudgetRuntime::poll_program_holds() {
  // A few in turn, the newest first: what is let go of is mostly let go of soon.
  for (std::size_t looked_at = 0; looked_at < kWatchedAtATime && !watched_.empty();) {
    if (next_watched_ >= watched_.size()) next_watched_ = watched_.size();
    if (next_watched_ == 0) next_watched_ = watched_.size();
    --next_watched_;
    const auto record = watched_[next_watched_].lock();
    ++looked_at;
    if (record != nullptr && record->held && record->block != nullptr) {
      looked_at += record->variables.size();
      if (is_held_by_program(*record)) continue;
      recorder_.let_go(record->block->tag);
    }
    watched_[next_watched_] = std::move(watched_.back());
    watched_.pop_back();
  }
}

// ---- saved tensors ----

std::unique_ptr<hook::SavedTensorHooks> BudgetRuntime::make_hooks() {
  return std::make_unique<SavedTensorHold>(*this);
}

void BudgetRuntime::saved_whole(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const StorageTable::Lock lock = table_.lock();
  if (hook::current_backward_id() == -1) before_saving(tensor.storage().nbytes());
  hook::MemoryBlock* block = hook::block_of(tensor);
  if (block != nullptr) retag(*block, MemoryKind::kProgram, MemoryKind::kParameters);
}

BudgetRuntime::Packed BudgetRuntime::pack(const at::Tensor& tensor, KeptVariable& kept) {
  throw_if_different();
  if (!is_plain(tensor) || tensor.storage().nbytes() < kSmallestRecipe) return {};
  // Taken before the lock: the second reference to a tensor with a Python wrapper takes the GIL.
  at::Tensor variable = hook::is_output_of_newest_node(tensor) ? at::Tensor() : tensor;
  if (variable.defined() && hook::is_more_than_data(variable)) return {};
  const StorageTable::Lock lock = table_.lock();
  if (hook::current_backward_id() == -1) {
    before_saving(tensor.storage().nbytes());
  } else {
    saved_in_backward_ = true;
  }
  if (hook::is_away(*tensor.storage().unsafeGetStorageImpl())) return {};
  auto record = table_.find_or_make(tensor.storage());
  if (record->block == nullptr) return {};
  if (!record->held) record->held = tensor.storage();
  if (stash_.is_on()) {
    // Elements of 16 bytes (complex numbers) are pairs of 8.
    record->element_bytes =
        static_cast<std::uint8_t>(std::min<std::size_t>(tensor.element_size(), 8));
    table_.graph().set_copy_cost(record->id, stash_.cost(*record));
  }
  table_.add_saved(*record);
  kept.geometry = TensorGeometry::of(tensor);
  if (variable.defined()) {
    kept.identity = variable.getIntrusivePtr();
    kept.variable = std::move(variable);
    record->variables.push_back(&kept);
  }
  retag(*record->block, MemoryKind::kProgram, MemoryKind::kSaved);
  retag(*record->block, MemoryKind::kWorkspace, MemoryKind::kSaved);
  const std::uint64_t tape_tag = recorder_.packed(*record->block);
  if (tape_tag != 0) watched_.push_back(record);
  const OwnTime own;
  const std::uint64_t plan_tag =
      plans_.packed(table_.graph(), record->id, table_.graph().bytes(record->id), record->made_by);
  return {std::move(record), tape_tag, plan_tag};
}

c10::Storage BudgetRuntime::unpack(const Packed& packed, const KeptVariable& kept,
                                   at::Tensor& exchanged) {
  throw_if_different();
  const auto& record = packed.record;
  c10::Storage storage;
  bool is_spilling = false;
  {
    const StorageTable::Lock lock = table_.lock();
    is_spilling = stash_.is_spilling();
    if (kept.variable.defined() && kept.is_exchanged(record->held)) {
      exchanged = kept.variable.tensor_data();
      return storage;
    }
    plans_.unpacked(table_.graph(), packed.plan_tag);
    storage = record->held;
    if (!storage && record->lost != nullptr) {
      throw BudgetError("LT0303",
                        concat("a tensor saved for backward could not be brought back before what "
                               "it was made from was overwritten: ",
                               *record->lost),
                        {});
    }
  }
  if (!storage) storage = replayer_.bring_back({record}).front();
  journal_.deliver();
  if (is_spilling) stash_.read_ahead(*record);
  if (recorder_.is_on() && packed.tape_tag != 0) {
    const StorageTable::Lock lock = table_.lock();
    recorder_.unpacked(packed.tape_tag);
    watched_.push_back(record);
  }
  return storage;
}

at::Tensor BudgetRuntime::variable_of(const Packed& packed, const KeptVariable& kept) {
  const auto& record = packed.record;
  at::Tensor variable;
  c10::TensorImpl* found = nullptr;
  {
    const StorageTable::Lock lock = table_.lock();
    if (kept.variable.defined()) {
      found = kept.variable.unsafeGetTensorImpl();
    } else {
      for (const KeptVariable* other : record->variables) {
        if (!kept.is_same_tensor(*other)) continue;
        found = other->variable.unsafeGetTensorImpl();
        break;
      }
    }
    if (found == nullptr) return variable;
    ++record->borrowed;
  }
  // Not under the lock, see pack().
  variable = at::Tensor(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(found));
  std::vector<at::Tensor> returned;
  const StorageTable::Lock lock = table_.lock();
  if (--record->borrowed == 0) returned.swap(record->returned);
  return variable;
}

at::Tensor BudgetRuntime::adopt(const Packed& packed, KeptVariable& kept, const at::Tensor& made) {
  at::Tensor variable = made;  // before the lock, see pack()
  {
    const auto& record = packed.record;
    const StorageTable::Lock lock = table_.lock();
    const bool is_first =
        !kept.variable.defined() &&
        std::none_of(record->variables.begin(), record->variables.end(),
                     [&](const KeptVariable* other) { return kept.is_same_tensor(*other); });
    if (is_first && record->held && variable.storage().is_alias_of(record->held)) {
      kept.variable = std::move(variable);
      record->variables.push_back(&kept);
      return made;
    }
  }
  at::Tensor other = variable_of(packed, kept);
  return other.defined() ? other : made;
}

void BudgetRuntime::release(Packed packed, KeptVariable& kept) noexcept {
  const auto& record = packed.record;
  StorageTable::Trash trash;
  const StorageTable::Lock lock = table_.lock();
  if (kept.variable.defined()) {
    std::erase(record->variables, &kept);
    auto& last = record->borrowed > 0 ? record->returned : trash.variables;
    last.push_back(std::move(kept.variable));
  }
  if (packed.tape_tag != 0) recorder_.forgotten(packed.tape_tag);
  if (!table_.remove_saved(*record) || !record->id.valid()) return;
  if (record->block != nullptr) {
    retag(*record->block, MemoryKind::kSaved, MemoryKind::kProgram);
    if (recorder_.is_on() && record->held && record->held.use_count() == 1) {
      recorder_.let_go(record->block->tag);
    }
  } else if (!table_.graph().is_there(record->id)) {
    recorder_.gone(record->tape_tag);
  }
  table_.forget_if_unneeded(*record, trash);
  if (table_.is_collection_due()) table_.collect(trash);
}

void BudgetRuntime::throw_if_different() {
  if (op_recorder_.missed_write()) {
    throw BudgetError("LT0303",
                      "a tensor saved for backward cannot be trusted any more: a write could not "
                      "be recorded, because there was no memory for Lowtide's own tables. Begin "
                      "the step anew, with a lower limit",
                      {});
  }
  const std::string difference = op_recorder_.take_difference();
  if (difference.empty()) return;
  throw DivergenceError("LT0306", concat("verify_replay: ", difference,
                                         ". Please report it; until then train without a budget"));
}

// ---- room ----

// From begin() on, this thread is about to free what it has dropped.
struct BudgetRuntime::Freeing {
  std::atomic<int>& threads;
  mutable bool begun = false;
  void begin() const {
    begun = true;
    ++threads;
  }
  ~Freeing() {
    if (begun) --threads;
  }
};

bool BudgetRuntime::make_room(const hook::RoomRequest& request) {
  const OwnTime own;
  if (Stash::is_reading_ahead()) return false;
  if (request.reason == hook::RoomRequest::Reason::kLimit && !Replayer::is_trying()) {
    const StorageTable::Lock lock = table_.lock();
    // A step that is known not to fit is refused before it is begun to be made to fit.
    const auto needed = steps_.lower_bound();
    if (needed.has_value() && *needed > request.limit_bytes && !steps_.saw_backward() &&
        !stash_.is_spilling()) {
      refuse(request, true);
    }
  }
  Bytes freed = 0;
  for (bool has_more = true, must_wait = false; freed == 0 && has_more;) {
    if (must_wait) stash_.wait_for_write();
    const Freeing freeing{threads_freeing_};  // ends after the trash
    StorageTable::Trash trash;
    const StorageTable::Lock lock = table_.lock();
    const Bytes live = ledger().live();
    Bytes needed = request.request_bytes;
    if (request.reason == hook::RoomRequest::Reason::kLimit && live <= request.limit_bytes) {
      const Bytes left = request.limit_bytes - live;
      needed = request.request_bytes - std::min(request.request_bytes, left);
    }
    freed = room_.make(std::max<Bytes>(needed, 1), trash);
    if (freed == 0 && !room_.has_more() && stash_.bytes_being_written() == 0) {
      freed = static_.evict(std::max<Bytes>(needed, 1), trash);
    }
    // What another thread drops is free in a moment.
    has_more = room_.has_more() || threads_freeing_ > 0 || stash_.bytes_being_written() > 0;
    if (freed > 0 || !trash.variables.empty()) freeing.begin();
    must_wait = freed == 0 && stash_.bytes_being_written() > 0;
  }
  journal_.deliver();
  if (freed > 0) return true;
  // Another thread may have freed something of its own meanwhile.
  if (request.reason == hook::RoomRequest::Reason::kLimit &&
      ledger().live() + request.request_bytes <= request.limit_bytes) {
    return true;
  }
  refuse(request, false);
}

void BudgetRuntime::refuse(const hook::RoomRequest& request, bool is_early) {
  const MemoryByKind live = ledger().live_by_kind();
  const hook::Operator* op = hook::running_op();
  const std::string asker = op == nullptr ? "the program" : op->name;
  // Nothing more can be dropped: what is live is needed, and what is asked for beside it.
  Bytes smallest = live.total() + request.request_bytes;
  bool is_bound = true;
  std::string held;
  {
    const StorageTable::Lock lock = table_.lock();
    if (const auto known = steps_.smallest_budget(); known.has_value() && !stash_.is_spilling()) {
      is_bound = *known < smallest && !is_early;
      smallest = is_early ? *known : std::max(smallest, *known);
    }
    Bytes total = 0;
    std::vector<ProgramHold> holds;
    if (!Replayer::is_trying()) holds = program_holds(total);
    for (std::size_t i = 0; i < std::min<std::size_t>(holds.size(), 3); ++i) {
      held += concat(i == 0 ? " The program itself holds " : ", ", format_bytes(holds[i].bytes),
                     " made by ", holds[i].op, holds[i].line.empty() ? "" : " at ", holds[i].line);
    }
    if (!held.empty()) held += ".";
  }
  ErrorDetails details{{"request_bytes", static_cast<std::int64_t>(request.request_bytes)},
                       {"limit_bytes", static_cast<std::int64_t>(request.limit_bytes)},
                       {"live_bytes", static_cast<std::int64_t>(live.total())},
                       {"op", asker},
                       {"smallest_budget_bytes", static_cast<std::int64_t>(smallest)},
                       {"smallest_budget_is_bound", std::int64_t{is_bound}}};
  for (const MemoryKind kind : kAllMemoryKinds) {
    details[concat("live_", to_string(kind), "_bytes")] = static_cast<std::int64_t>(live[kind]);
  }
  if (!Replayer::is_trying()) {
    const StorageTable::Lock lock = table_.lock();
    steps_.was_refused(smallest);
    steps_.abandon();
    journal_.add({.kind = BudgetEvent::Kind::kRefusal,
                  .step = steps_.index(),
                  .op = op == nullptr ? "" : op->name.c_str(),
                  .bytes = request.request_bytes,
                  .live_bytes = live.total(),
                  .begin_ns = now_ns()});
  }
  std::string full_disk;
  {
    const StorageTable::Lock lock = table_.lock();
    if (!stash_.problem().empty())
      full_disk = concat(" Nothing more could be spilled: ", stash_.problem(), ".");
  }
  const std::string why =
      is_early ? "a step like this one, seen before, cannot be made to fit"
               : "nothing more can be given back: what is live is in use, or cannot be made again";
  const BudgetError error(
      "LT0301",
      concat("budget: cannot allocate ", format_bytes(request.request_bytes), " for ", asker,
             " within the limit of ", format_bytes(request.limit_bytes), ": ",
             format_bytes(live.total()), " are live (", to_string(live), ") and ", why, ".",
             full_disk, held, " The smallest budget for this step is ", is_bound ? "at least " : "",
             format_bytes(smallest), " (", smallest, " bytes)"),
      std::move(details));
  if (!Replayer::is_trying()) {
    RefusalRecord record = refusal_record(request, live);
    record.message = error.what_without_backtrace();
    report_refusal(std::move(record));
  }
  throw error;
}

// What was live by the op and the line that made it; what is not in the table, by its kind alone.
RefusalRecord BudgetRuntime::refusal_record(const hook::RoomRequest& request,
                                            const MemoryByKind& live) const {
  RefusalRecord refusal;
  const hook::Operator* op = hook::running_op();
  if (op != nullptr) refusal.op = op->name;
  refusal.request_bytes = request.request_bytes;
  refusal.limit_bytes = request.limit_bytes;
  refusal.live_bytes = live.total();
  MemoryByKind left = live;
  std::map<std::tuple<std::string, std::string, MemoryKind, bool>, RefusalRecord::Live> groups;
  const StorageTable::Lock lock = table_.lock();
  for (const auto& record : table_.records()) {
    if (record == nullptr || record->block == nullptr) continue;
    const MemoryKind kind = record->block->kind;
    const bool is_held = is_held_by_program(*record);
    const auto [group, is_new] =
        groups.try_emplace({record->made_by, record->made_at, kind, is_held},
                           RefusalRecord::Live{.op = record->made_by,
                                               .line = record->made_at,
                                               .kind = storage_kind_of(kind),
                                               .tensors = 0,
                                               .program_held = is_held});
    group->second.bytes += record->block->size_bytes;
    group->second.tensors += 1;
    left[kind] -= std::min(left[kind], record->block->size_bytes);
  }
  for (auto& [origin, group] : groups) refusal.live.push_back(std::move(group));
  for (const MemoryKind kind : kAllMemoryKinds) {
    if (left[kind] == 0) continue;
    RefusalRecord::Live& rest = refusal.live.emplace_back();
    rest.kind = storage_kind_of(kind);
    rest.bytes = left[kind];
  }
  return refusal;
}

// ---- reports ----

std::vector<ProgramHold> BudgetRuntime::program_holds(Bytes& total) const {
  std::map<std::pair<std::string, std::string>, ProgramHold> by_origin;
  for (const auto& record : table_.records()) {
    if (record == nullptr || record->block == nullptr || record->made_by[0] == '\0') continue;
    if (!is_held_by_program(*record)) continue;
    ProgramHold& hold = by_origin[{record->made_by, record->made_at}];
    hold.op = record->made_by;
    hold.line = record->made_at;
    hold.bytes += record->block->size_bytes;
    hold.tensors += 1;
    total += record->block->size_bytes;
  }
  std::vector<ProgramHold> holds;
  for (auto& [origin, hold] : by_origin) holds.push_back(std::move(hold));
  std::sort(holds.begin(), holds.end(),
            [](const ProgramHold& a, const ProgramHold& b) { return a.bytes > b.bytes; });
  if (holds.size() > kMostProgramHolds) holds.resize(kMostProgramHolds);
  return holds;
}

BudgetReport BudgetRuntime::report(const BudgetSession& session) const {
  using Kind = BudgetEvent::Kind;
  const StorageTable::Lock lock = table_.lock();
  const BudgetJournal::Counts now = journal_.counts();
  const auto index = [](Kind kind) { return static_cast<std::size_t>(kind); };
  const auto since = [&](Kind kind) { return now.of(kind) - session.before_.of(kind); };
  BudgetReport report;
  report.limit_bytes = session.limit == kNoLimit ? 0 : session.limit;
  report.share = session.share;
  report.peak_bytes = session.meter_.peak_bytes();
  const Bytes resident_peak = resident_memory().peak;
  const Bytes before = session.resident_before_.now;
  // What rose during the budget is its own.
  const bool is_new = resident_peak > session.resident_before_.peak;
  const Bytes highest = is_new ? resident_peak : session.resident_peak_;
  report.resident_growth_bytes = highest - std::min(highest, before);
  report.outside_bytes = session.outside_bytes_;
  if (is_new) {
    const Bytes counted = std::max(report.peak_bytes, session.counted_peak_);
    const Bytes accounted = counted - std::min(counted, session.counted_before_);
    report.outside_bytes =
        std::max(report.outside_bytes,
                 report.resident_growth_bytes - std::min(report.resident_growth_bytes, accounted));
  }
  report.steps = steps_.index() - session.first_step_;
  report.step_ns = session.step_ns_;
  report.drops = since(Kind::kDrop);
  report.dropped_bytes = now.bytes[index(Kind::kDrop)] - session.before_.bytes[index(Kind::kDrop)];
  report.recomputed_ops = since(Kind::kRecompute);
  report.recompute_ns =
      now.ns[index(Kind::kRecompute)] - session.before_.ns[index(Kind::kRecompute)];
  report.refusals = since(Kind::kRefusal);
  const StashCounts stashed = stash_.counts();
  const StashCounts& earlier = session.stash_before_;
  report.spilled_tensors = stashed.spilled_tensors - earlier.spilled_tensors;
  report.spilled_bytes = stashed.spilled_bytes - earlier.spilled_bytes;
  report.spill_wait_ns = stashed.wait_ns - earlier.wait_ns;
  report.packed_tensors = stashed.packed_tensors - earlier.packed_tensors;
  report.packed_bytes = stashed.packed_bytes - earlier.packed_bytes;
  report.packed_into_bytes = stashed.packed_into_bytes - earlier.packed_into_bytes;
  report.pack_ns = stashed.pack_ns - earlier.pack_ns;
  const StepPlans::Counts& planned = plans_.counts();
  report.planned_steps = planned.planned_steps;
  report.plan_departures = planned.departures;
  report.plans = planned.plans;
  report.planning_ns = planned.planning_ns;
  report.smallest_budget_bytes = steps_.largest_smallest_budget();
  report.budget_lower_bound_bytes = steps_.largest_lower_bound();
  report.program_holds = program_holds(report.program_bytes);
  return report;
}

}  // namespace lowtide
