#pragma once
// Sees each leaf op before and after it runs, and keeps the table of recipes true to it.
//
//   before   who is written? What was made from that is brought back first, if need be.
//   after    what it made gets the op as its recipe; an in-place write joins the written one's.
//
// Also told here, because ops are where it shows: what memory is for (MemoryKind), by observation:
//   - what an op allocates and frees is workspace; what it returns is the program's;
//   - what ops inside a backward make, or accumulate into, are gradients;
//   - what is written outside of a backward, with grad mode off, by an op that reads a gradient or
//     what was made from one, is optimizer state; what such ops return is workspace;
//   - leaves that require grad are parameters.
// A KindScope of the program's own goes first.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/fit/static_memory.h"
#include "src/fit/storage_table.h"
#include "src/hook/op_observer.h"
#include "src/observe/tape_recorder.h"

namespace lowtide {

class Replayer;

class OpRecorder final : public hook::OpListener {
 public:
  OpRecorder(StorageTable& table, Replayer& replayer, StaticMemory& static_memory,
             TapeRecorder& recorder)
      : table_(table), replayer_(replayer), static_(static_memory), recorder_(recorder) {}

  std::unique_ptr<hook::OpTicket> before(const hook::Operator& op,
                                         c10::ArrayRef<c10::IValue> inputs) noexcept override;
  void after(hook::OpTicket& ticket, c10::ArrayRef<c10::IValue> outputs) noexcept override;

  // Called before each op: on this thread a backward runs (true), or none does.
  void set_phase_listener(std::function<void(bool in_backward)> listener) {
    phase_listener_ = std::move(listener);
  }

  // BudgetOptions::check_replays.
  void set_check(bool check) { checks_replays_ = check; }
  // BudgetOptions::verify_replay.
  void set_verify(bool verify) { verify_ = verify; }
  // What verifying has found; empty: nothing. Taken once.
  std::string take_difference();
  // A write went unrecorded: what is dropped may come back with older contents.
  bool missed_write() const { return missed_write_; }
  // Nothing is recorded any more.
  void forget_missed_write() { missed_write_ = false; }

 private:
  struct Ticket;
  // An op of the optimizer's: with grad mode off and outside of a backward, it reads gradients,
  // state, or what was made from those. Nothing is recomputed through it, so it gets no recipe,
  // which would hold the gradients; its results stay workspace.
  static bool is_update(c10::ArrayRef<c10::IValue> inputs, bool in_backward);
  static void observe_writes(const hook::Operator& op, c10::ArrayRef<c10::IValue> inputs,
                             bool in_backward);
  static void observe_parameter(const at::Tensor& leaf);
  void capture_inputs(Ticket& ticket, c10::ArrayRef<c10::IValue> inputs);
  void prepare_write(const std::shared_ptr<StorageRecord>& record);
  void lose_written(const StorageRecord& written, const hook::Operator& op,
                    StorageTable::Trash& trash);
  void lose_written(const hook::Operator& op, c10::ArrayRef<c10::IValue> inputs) noexcept;
  void lose_written(const Ticket& ticket);
  static bool is_state(const at::Tensor& tensor);
  static const char* line_of(c10::ArrayRef<c10::IValue> outputs);
  bool add(Ticket& ticket, c10::ArrayRef<c10::IValue> outputs, std::uint64_t cost_ns);
  void verify(const Ticket& ticket, const OpCapture& capture, c10::ArrayRef<c10::IValue> outputs);
  void tell_tape(const Ticket& ticket, c10::ArrayRef<c10::IValue> outputs, std::uint64_t cost_ns,
                 bool is_kept);

  StorageTable& table_;
  Replayer& replayer_;
  StaticMemory& static_;
  TapeRecorder& recorder_;
  std::function<void(bool)> phase_listener_;
  bool verify_ = false;
  std::atomic<bool> checks_replays_{true};
  std::mutex difference_mutex_;
  std::atomic<bool> differs_{false};
  std::atomic<bool> missed_write_{false};
  std::string difference_;
};

}  // namespace lowtide
