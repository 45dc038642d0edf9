#pragma once
// The runtime behind MemoryBudget. One a process; its parts:
//
//   ops          --OpRecorder-->       recipes in the StorageTable
//   saved tensor --pack-->             record held by the runtime        (SavedTensorHold)
//   allocation   --make_room--> Room   records dropped, or BudgetError   (AllocationGate)
//                               Stash  or their bytes put elsewhere
//                        StaticMemory    then parameters, gradients, state
//   backward     --unpack-->           Replayer: ops run again
//   steps        --StepWatch-->        TapeRecorder: a tape; from it the smallest budget, and
//                                      StepPlans: what the following steps drop
//   all of it    --BudgetJournal-->    reports, events, log
//
// Locks, in the order in which they may be taken: the replayer's, the table's (which guards the
// steps and sessions too), the journal's and the tape recorder's.

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/budget.h"
#include "lowtide/memory_meter.h"
#include "src/base/resident_memory.h"
#include "src/fit/budget_journal.h"
#include "src/fit/op_recorder.h"
#include "src/fit/replayer.h"
#include "src/fit/room.h"
#include "src/fit/stash.h"
#include "src/fit/static_memory.h"
#include "src/fit/step_plans.h"
#include "src/fit/step_watch.h"
#include "src/fit/storage_table.h"
#include "src/hook/saved_tensor_hooks.h"
#include "src/observe/tape_recorder.h"
#include "src/report/refusal_record.h"

namespace lowtide {

// One MemoryBudget that lives.
class BudgetSession {
 public:
  BudgetSession(const BudgetLimit& limit, const BudgetOptions& options);

  const BudgetOptions options;
  const double share;
  Bytes limit;  // MemoryLedger::kNoLimit while a share is still being measured

 private:
  friend class BudgetRuntime;
  void look_at_resident_memory();
  MemoryMeter meter_;       // over the session's life
  MemoryMeter step_meter_;  // over a step
  BudgetJournal::Counts before_;
  StashCounts stash_before_;
  ResidentMemory resident_before_;
  Bytes counted_before_ = 0;  // with what is kept for reuse
  Bytes resident_peak_ = 0;   // as far as it was seen
  Bytes counted_peak_ = 0;
  Bytes outside_bytes_ = 0;
  std::uint64_t first_step_ = 0;
  std::vector<std::uint64_t> step_ns_;
  std::list<BudgetJournal::Key> listeners_;
  std::unique_ptr<ChromeTrace> trace_;
  std::optional<Tape> tape_;           // with options.tape_path
  std::shared_ptr<SpillStore> store_;  // with options.spill_directory
};

class BudgetRuntime final : public hook::AllocationGate, public hook::SavedTensorProvider {
 public:
  // Lives for ever, because graphs may outlive the last budget.
  static BudgetRuntime& instance();

  std::shared_ptr<BudgetSession> begin(const BudgetLimit& limit, const BudgetOptions& options);
  // The report as it stands at the end. With the last session all that is dropped comes back, and
  // everything is forgotten.
  BudgetReport end(const std::shared_ptr<BudgetSession>& session);
  BudgetReport report(const BudgetSession& session) const;
  void mark_step();
  // Throws UsageError (LT0316) when no budget of the process spills.
  void attach(const std::vector<at::Tensor>& tensors);
  // hook::AllocationGate
  bool make_room(const hook::RoomRequest& request) override;
  // hook::SavedTensorProvider
  std::unique_ptr<hook::SavedTensorHooks> make_hooks() override;

  // For SavedTensorHold.
  struct Packed {
    std::shared_ptr<StorageRecord> record;  // null: the tensor must be kept whole
    std::uint64_t tape_tag = 0;
    std::uint64_t plan_tag = 0;
  };
  // `kept` is the caller's, and stays where it is until release().
  Packed pack(const at::Tensor& tensor, KeptVariable& kept);
  // Null, and `exchanged` set, when the saved tensor was given other data since.
  c10::Storage unpack(const Packed& packed, const KeptVariable& kept, at::Tensor& exchanged);
  // The saved tensor itself (Note [Which tensor it is]), if some saved tensor keeps it.
  at::Tensor variable_of(const Packed& packed, const KeptVariable& kept);
  // `made` is the saved tensor from now on, unless another thread was first. Returns which it is.
  at::Tensor adopt(const Packed& packed, KeptVariable& kept, const at::Tensor& made);
  void release(Packed packed, KeptVariable& kept) noexcept;
  // A parameter was saved: kept whole.
  void saved_whole(const at::Tensor& tensor);

 private:
  BudgetRuntime();

  void before_fork();
  void after_fork(bool in_child);
  void on_op(bool in_backward);
  void before_saving(Bytes bytes);
  void end_step();
  void begin_tape();
  std::uint64_t drops_so_far() const;
  void finish_tape();
  void poll_program_holds();
  void enforce_limit();
  void forget_all();
  static void write_tape_of(const BudgetSession& session);
  void throw_if_different();
  [[noreturn]] void refuse(const hook::RoomRequest& request, bool is_early);
  RefusalRecord refusal_record(const hook::RoomRequest& request, const MemoryByKind& live) const;
  std::vector<ProgramHold> program_holds(Bytes& total) const;

  StorageTable table_;
  BudgetJournal journal_;
  TapeRecorder recorder_;
  Stash stash_;
  StaticMemory static_;
  Room room_;
  Replayer replayer_;
  OpRecorder op_recorder_;
  StepWatch steps_;  // guarded by the table's lock, as all below
  StepPlans plans_;
  std::list<std::shared_ptr<BudgetSession>> sessions_;
  std::uint64_t drops_before_step_ = 0;
  struct Freeing;
  std::atomic<int> threads_freeing_{0};
  int ops_since_saving_ = 0;
  bool saved_in_backward_ = false;  // by a backward that is differentiated itself
  std::size_t next_watched_ = 0;
  std::vector<std::weak_ptr<StorageRecord>> watched_;  // saved, and held by the program too
};

}  // namespace lowtide
