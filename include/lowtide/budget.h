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
// can be computed again when backward asks for them, or is refused with BudgetError. The limit
// bounds MemoryMeter::live_bytes(): all tensors of the process, also those from before the budget,
// by the bytes that were asked for.
//
// Results are those of the plain run, bit for bit: a dropped tensor comes back by running again the
// very ops that made it, on the same inputs, with the same generator states and settings; a
// checksum taken when it was dropped is compared when it is back. What cannot be run again safely
// is kept.
//
// What is never dropped: anything that the program can still reach, parameters, what has no known
// origin (data from files, results of other libraries' ops), tensors below 1 KiB.
//
// Not yet: a limit as a fraction, nested budgets, the smallest limit that would do, spilling, and a
// plan made from the first step. The choice of what to drop is made online. docs/design/budget.md.
//
// Threads: a budget holds for the whole process. Create and destroy it while no op runs elsewhere.

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "lowtide/bytes.h"
#include "lowtide/error.h"
#include "lowtide/export.h"
#include "lowtide/memory_meter.h"

namespace lowtide {

// An allocation that the budget refused. Derives from the class that libtorch throws when memory is
// out, so code that catches that keeps working. All tensors are as they were before the op.
// details(): request_bytes, limit_bytes, live_bytes, live_<kind>_bytes.
class LOWTIDE_API BudgetError : public c10::OutOfMemoryError, public ErrorInfo {
 public:
  BudgetError(const std::string& id, const std::string& message, ErrorDetails details);
  ~BudgetError() override;
};

// What a budget did; valid during the budget and after it.
struct LOWTIDE_API BudgetReport {
  Bytes limit_bytes = 0;
  Bytes peak_bytes = 0;     // counted, over the budget's life
  std::uint64_t steps = 0;  // ended steps
  std::uint64_t drops = 0;  // tensors dropped
  Bytes dropped_bytes = 0;
  std::uint64_t recomputed_ops = 0;  // ops run again
  std::uint64_t recompute_ns = 0;    // the time that took
  std::uint64_t refusals = 0;
  Bytes smallest_budget_bytes = 0;  // for the largest step so far; 0 before the first has ended

  std::string to_text() const;
  std::string to_json() const;
};

struct BudgetOptions {
  // Compare each recomputed tensor with the checksum taken when it was dropped. Costs one pass over
  // its bytes each way. Off: writes that nobody announces (through numpy or raw pointers) go
  // unseen.
  bool check_replays = true;
};

class LOWTIDE_API MemoryBudget {
 public:
  // Throws UsageError (LT0302) when another budget is in force, TorchError (LT0602) when another
  // tool's allocator is in place.
  explicit MemoryBudget(Bytes limit, const BudgetOptions& options = {});
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  BudgetReport report() const;
};

}  // namespace lowtide
