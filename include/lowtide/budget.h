#pragma once
// Keeps a training step inside a number of bytes.
//
//   using namespace lowtide::literals;
//   lowtide::MemoryBudget budget(6_GiB);
//   for (auto& batch : loader) {
//     optimizer.zero_grad();
//     loss_of(model, batch).backward();
//     optimizer.step();
//   }
//   std::cout << budget.report().to_text();
//
// While a budget lives, the live bytes of CPU tensors never exceed its limit, not for a moment: an
// allocation that would cross it first makes room, by dropping tensors that autograd saved and that
// can be computed again when backward asks for them, or whose bytes can be put elsewhere (packed in
// memory, or in a file), or is refused with BudgetError. The limit
// bounds MemoryMeter::live_bytes(): all tensors of the process, also those from before the budget,
// by the bytes that were asked for.
//
// Results are those of the plain run, bit for bit: a dropped tensor comes back by running again the
// very ops that made it, on the same inputs, with the same generator states and settings; a
// checksum taken when it was dropped is compared when it is back. What cannot be run again safely
// is kept, or put elsewhere as it is.
//
// What is never dropped: anything that the program can still reach, parameters, tensors below
// 1 KiB, and, unless it is spilled, what has no known origin (data from files, results of other
// libraries' ops).
//
// Steps. A step ends where a new graph begins to grow after a backward, or where mark_step() says
// so. The first steps teach the budget the smallest limit that would carry such a step; a limit
// that is known to be too small is refused before anything is dropped for it.
//
// Budgets may be nested: the lowest limit is in force. What to drop is chosen online in the first
// step, and planned from the second on (docs/plan.md).
//
// Threads: a budget holds for the whole process. Create and destroy it while no op runs elsewhere.
// fork: the child goes on without a budget; what was dropped before the fork comes back there too.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lowtide/bytes.h"
#include "lowtide/error.h"
#include "lowtide/export.h"
#include "lowtide/memory_meter.h"

namespace lowtide {

// How much a budget allows: bytes, or a share of what the step asks for.
//
// A share f stands for static + f * (peak - static) bytes: peak is what a plain step takes, static
// what is still there when its backward has ended (parameters, gradients, optimizer state, inputs).
// Both are measured in the first two steps, which run without a limit.
class LOWTIDE_API BudgetLimit {
 public:
  BudgetLimit(Bytes bytes) : bytes_(bytes) {}  // NOLINT: a number of bytes is a limit

  // Throws UsageError (LT0305) unless 0 < share <= 1.
  static BudgetLimit share(double share);
  // No limit at all: nothing is dropped. For recording.
  static BudgetLimit none();
  // "6GiB", "1.5 GB", "6442450944", "50%". Throws UsageError (LT0305, or LT0101 as parse_bytes()).
  static BudgetLimit parse(std::string_view text);

  bool is_share() const noexcept { return share_ > 0; }
  double share() const noexcept { return share_; }  // 0 for a number of bytes
  Bytes bytes() const noexcept { return bytes_; }   // 0 for a share

 private:
  Bytes bytes_ = 0;
  double share_ = 0;
};

// An allocation that the budget refused. Derives from the class that libtorch throws when memory is
// out, so code that catches that keeps working. All tensors are as they were before the op.
// details(): request_bytes, limit_bytes, live_bytes, live_<kind>_bytes, op, and
// smallest_budget_bytes: the smallest limit known to carry this step. When no whole step has been
// seen yet, smallest_budget_is_bound is 1: the step needs at least that many.
class LOWTIDE_API BudgetError : public c10::OutOfMemoryError, public ErrorInfo {
 public:
  BudgetError(const std::string& id, const std::string& message, ErrorDetails details);
  ~BudgetError() override;
};

// Tensors that the program itself holds, by the op that made them and, in a Python process and from
// 1 MiB on, the line of the program that called it.
struct LOWTIDE_API ProgramHold {
  std::string op;    // "aten::mm"
  std::string line;  // "train.py:12"; "" when not known
  Bytes bytes = 0;
  std::uint64_t tensors = 0;
};

// What a budget did; valid during the budget and after it.
struct LOWTIDE_API BudgetReport {
  Bytes limit_bytes = 0;  // in force; 0 while a share is still being measured
  double share = 0;       // 0 when the limit was given in bytes
  Bytes peak_bytes = 0;   // counted, over the budget's life
  // Of the process's resident memory (VmHWM, or what was seen where steps ended), over what it was
  // when the budget began; and what of it are neither tensors nor blocks kept for the next ones:
  // kernels' scratch (oneDNN), the C library, Python.
  Bytes resident_growth_bytes = 0;
  Bytes outside_bytes = 0;
  std::uint64_t steps = 0;             // ended steps
  std::vector<std::uint64_t> step_ns;  // their times; of the last 4096
  std::uint64_t drops = 0;             // tensors dropped
  Bytes dropped_bytes = 0;
  std::uint64_t recomputed_ops = 0;  // ops run again
  std::uint64_t recompute_ns = 0;    // the time that took
  std::uint64_t refusals = 0;
  std::uint64_t planned_steps = 0;    // whole steps whose drops a plan chose
  std::uint64_t plan_departures = 0;  // steps that went otherwise than the one they were planned by
  std::uint64_t plans = 0;            // made
  std::uint64_t planning_ns = 0;      // the processor time of that
  // For the largest step so far, 0 before the first has ended: the smallest limit known to carry
  // it, and a bound below which no limit can.
  Bytes smallest_budget_bytes = 0;
  Bytes budget_lower_bound_bytes = 0;
  std::uint64_t spilled_tensors = 0;  // written to the spill file
  Bytes spilled_bytes = 0;
  std::uint64_t spill_wait_ns = 0;         // the program waited for the file, either way
  std::uint64_t packed_tensors = 0;        // packed in memory
  Bytes packed_bytes = 0;                  // before
  Bytes packed_into_bytes = 0;             // and after
  std::uint64_t pack_ns = 0;               // packing and unpacking
  Bytes program_bytes = 0;                 // what the program itself holds now, of what an op made
  std::vector<ProgramHold> program_holds;  // the same by op and line, largest first; at most 16

  std::string to_text() const;
  std::string to_json() const;
};

// Something that a budget did, for logs and pictures.
struct LOWTIDE_API BudgetEvent {
  enum class Kind : std::uint8_t {
    kDrop,       // a saved tensor's bytes were given back, to be computed again
    kRecompute,  // an op ran again
    kRefusal,    // an allocation was refused
    kStep,       // a step ended
    kPutAway,    // a saved tensor's bytes were packed, or are on their way to the spill file
    kReadBack,   // they are there again
  };
  Kind kind = Kind::kDrop;
  std::uint64_t step = 0;      // the running step, from 0
  const char* op = "";         // made the dropped tensor, ran again, or was refused
  Bytes bytes = 0;             // dropped, written again, asked for, or the step's peak
  Bytes live_bytes = 0;        // afterwards
  std::uint64_t begin_ns = 0;  // steady clock
  std::uint64_t duration_ns = 0;
};

// "drop", "recompute", "refusal", "step", "put_away" or "read_back".
LOWTIDE_API const char* to_string(BudgetEvent::Kind kind) noexcept;

struct BudgetOptions {
  // Compare each recomputed tensor with the checksum taken when it was dropped. Costs one pass over
  // its bytes each way. Off: writes that nobody announces (through numpy or raw pointers) go
  // unseen.
  bool check_replays = true;

  // When not empty: a directory. Saved tensors that cannot be computed again, or that it takes
  // longer to compute than to write and read, go to one file there, which has no name and is gone
  // with the process. UsageError (LT0311) when no file can be made there. A full disk is no error
  // until nothing else can make room.
  std::string spill_directory;
  // The file never grows beyond this; 0: the disk is the limit.
  Bytes spill_limit = 0;

  // So much of the limit is left for memory that is not counted: see BudgetReport::outside_bytes.
  Bytes reserve_bytes = 0;

  // Saved tensors with at most two values (masks), or of many zeros (the results of relu and
  // dropout), are packed in memory where that costs less than computing them again.
  bool pack = false;

  // From the second step on, what to drop is planned for the whole step (docs/design/plan.md). A
  // plan takes at most so many seconds of processor time, and never more than a plain step's own;
  // one is made for each kind of step, and again when the limit or what lives beneath the step
  // changes. 0: none is made; what to drop is chosen online, as in the first step. Steps that spill
  // or pack are not planned.
  double plan_seconds = 1.0;
  // When not empty: a plan that `lowtide plan TAPE --budget B --plan FILE` wrote. Steps that go
  // like the one on its tape follow it from the first on, when it fits; else that tape is planned
  // for. IoError (LT0102) or FormatError (LT0152 to LT0154) when the file cannot be used. A plan
  // for another step does no harm: see BudgetReport::plan_departures.
  std::string plan_path;

  // For tests: whatever can be put elsewhere is, rather than computed again.
  bool always_put_away = false;

  // For debugging: run every recorded op a second time at once and compare, bit for bit. An op that
  // gives other results is DivergenceError (LT0306), naming it, at the next saved tensor. At least
  // doubles the time.
  bool verify_replay = false;

  // Called for each event, on the thread on which it happened, with none of Lowtide's locks held.
  // Must not throw, nor make or free tensors.
  std::function<void(const BudgetEvent&)> on_event;

  // When not empty: a file of events in Chrome's trace format, for chrome://tracing or Perfetto.
  // Written when the budget ends. UsageError (LT0307) when it cannot be created.
  std::string trace_path;

  // When not empty: the tape of the last step that was recorded (the second one, which has the
  // optimizer's state, or a later one of another kind), for `lowtide plan` and `lowtide explain`.
  // Written when the budget ends; without a whole step, UsageError (LT0309) then, on stderr.
  // UsageError (LT0307) when the file cannot be created.
  std::string tape_path;
};

class LOWTIDE_API MemoryBudget {
 public:
  // Throws TorchError (LT0602) when another tool's allocator is in place. What is live already may
  // be more than the limit: then every allocation is refused until enough has been freed.
  explicit MemoryBudget(const BudgetLimit& limit, const BudgetOptions& options = {});
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // A step ends here. From the first call on, only these calls end steps.
  void mark_step();

  // For a budget below what parameters, gradients and optimizer state take: from now on they may be
  // in the spill file while no op uses them. `tensors`: parameters, whose gradients take part too,
  // and the optimizer's state that is there already; what it makes later is seen. What is changed
  // is written again; what that costs is not measured yet. Until the budget ends, memory that is
  // away can be read by ops only: data_ptr(), and torch::save() of a parameter, raise an error
  // then. Storages that the program holds otherwise (detached views, numpy arrays) never leave.
  //   budget.attach(optimizer.parameters());
  // Throws UsageError (LT0316) when the budget has no spill_directory.
  void attach(const std::vector<at::Tensor>& tensors);

  BudgetReport report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
