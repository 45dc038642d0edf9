#include "lowtide/budget.h"

#include "src/base/json.h"
#include "src/base/text.h"
#include "src/fit/budget_runtime.h"

namespace lowtide {
BudgetError::BudgetError(const std::string& id, const std::string& message, ErrorDetails details)
    : c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, message + " [" + id + "]"),
      ErrorInfo(id, std::move(details)) {}

BudgetError::~BudgetError() = default;

MemoryBudget::MemoryBudget(Bytes limit, const BudgetOptions& options) {
  BudgetRuntime::instance().activate(limit, options);
}

MemoryBudget::~MemoryBudget() { BudgetRuntime::instance().deactivate(); }

BudgetReport MemoryBudget::report() const { return BudgetRuntime::instance().report(); }

std::string BudgetReport::to_text() const {
  return concat("budget ", format_bytes(limit_bytes), ", peak ", format_bytes(peak_bytes), ", ",
                drops, " tensors dropped (", format_bytes(dropped_bytes), "), ", recomputed_ops,
                " ops run again in ", recompute_ns / 1'000'000, " ms, ", refusals, " refusals\n");
}

std::string BudgetReport::to_json() const {
  Json report = Json::object();
  report["limit_bytes"] = limit_bytes;
  report["peak_bytes"] = peak_bytes;
  report["drops"] = drops;
  report["dropped_bytes"] = dropped_bytes;
  report["recomputed_ops"] = recomputed_ops;
  report["recompute_ns"] = recompute_ns;
  report["refusals"] = refusals;
  return lowtide::to_text(report, 2);
}

}  // namespace lowtide
