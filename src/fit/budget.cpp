#include "lowtide/budget.h"

#include <charconv>

#include "src/base/json.h"
#include "src/base/text.h"
#include "src/fit/budget_runtime.h"

namespace lowtide {

BudgetLimit BudgetLimit::share(double share) {
  if (!(share > 0 && share <= 1)) {
    throw UsageError("LT0305",
                     concat("budget: a share must be over 0 and at most 1 (100%), not ", share));
  }
  BudgetLimit limit(0);
  limit.share_ = share;
  return limit;
}

BudgetLimit BudgetLimit::none() { return {hook::MemoryLedger::kNoLimit}; }

BudgetLimit BudgetLimit::parse(std::string_view text) {
  if (!text.ends_with('%')) return parse_bytes(text);
  const std::string_view number = text.substr(0, text.size() - 1);
  double percent = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), percent);
  if (error != std::errc() || end != number.data() + number.size()) {
    throw UsageError("LT0305", concat("budget: cannot read \"", text,
                                      "\" as a share: write a number and %, such as 50%"));
  }
  return share(percent / 100);
}

BudgetError::BudgetError(const std::string& id, const std::string& message, ErrorDetails details)
    : c10::OutOfMemoryError(message + " [" + id + "]", nullptr),  // null: no backtrace in what()
      ErrorInfo(id, std::move(details)) {}

BudgetError::~BudgetError() = default;

struct MemoryBudget::Impl {
  std::shared_ptr<BudgetSession> session;
};

MemoryBudget::MemoryBudget(const BudgetLimit& limit, const BudgetOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->session = BudgetRuntime::instance().begin(limit, options);
}

MemoryBudget::~MemoryBudget() {
  try {
    BudgetRuntime::instance().end(impl_->session);
  } catch (const std::exception& error) {
    // Only the files of trace and tape can fail.
    std::fprintf(stderr, "lowtide: %s\n", error.what());
  }
}

void MemoryBudget::mark_step() { BudgetRuntime::instance().mark_step(); }

void MemoryBudget::attach(const std::vector<at::Tensor>& tensors) {
  BudgetRuntime::instance().attach(tensors);
}

BudgetReport MemoryBudget::report() const {
  return BudgetRuntime::instance().report(*impl_->session);
}

std::string BudgetReport::to_text() const {
  const std::string limit =
      limit_bytes > 0 ? format_bytes(limit_bytes) : std::string("not yet set");
  std::string text =
      concat("budget ", limit, ", peak ", format_bytes(peak_bytes), ", ", steps, " steps, ", drops,
             " tensors dropped (", format_bytes(dropped_bytes), "), ", recomputed_ops,
             " ops run again in ", recompute_ns / 1'000'000, " ms, ", refusals, " refusals");
  if (spilled_tensors > 0) {
    text +=
        concat("\nspilled to the file: ", spilled_tensors, " tensors (",
               format_bytes(spilled_bytes), "), waited for it ", spill_wait_ns / 1'000'000, " ms");
  }
  if (packed_tensors > 0) {
    text += concat("\npacked in memory: ", packed_tensors, " tensors (", format_bytes(packed_bytes),
                   " to ", format_bytes(packed_into_bytes), "), in ", pack_ns / 1'000'000, " ms");
  }
  if (smallest_budget_bytes > 0) {
    text += concat("\nthe smallest budget for the largest step so far: ",
                   format_bytes(smallest_budget_bytes), " (", smallest_budget_bytes, " bytes)");
  }
  if (outside_bytes > 0) {
    text += concat("\nbeside tensors: ", format_bytes(outside_bytes),
                   " of resident memory (kernels' scratch, the C library)");
  }
  if (program_bytes > 0) {
    text += concat("\nheld by the program itself: ", format_bytes(program_bytes));
    for (const ProgramHold& hold : program_holds) {
      text += concat("\n  ", format_bytes(hold.bytes), " in ", hold.tensors, " made by ", hold.op,
                     hold.line.empty() ? "" : " at ", hold.line);
    }
  }
  return text + "\n";
}

std::string BudgetReport::to_json() const {
  Json report = Json::object();
  report["limit_bytes"] = limit_bytes;
  report["share"] = share;
  report["peak_bytes"] = peak_bytes;
  report["resident_growth_bytes"] = resident_growth_bytes;
  report["outside_bytes"] = outside_bytes;
  report["steps"] = steps;
  report["step_ns"] = Json::array();
  for (const std::uint64_t ns : step_ns) report["step_ns"].push_back(ns);
  report["drops"] = drops;
  report["dropped_bytes"] = dropped_bytes;
  report["recomputed_ops"] = recomputed_ops;
  report["recompute_ns"] = recompute_ns;
  report["spilled_tensors"] = spilled_tensors;
  report["spilled_bytes"] = spilled_bytes;
  report["spill_wait_ns"] = spill_wait_ns;
  report["packed_tensors"] = packed_tensors;
  report["packed_bytes"] = packed_bytes;
  report["packed_into_bytes"] = packed_into_bytes;
  report["pack_ns"] = pack_ns;
  report["refusals"] = refusals;
  report["planned_steps"] = planned_steps;
  report["plan_departures"] = plan_departures;
  report["plans"] = plans;
  report["planning_ns"] = planning_ns;
  report["smallest_budget_bytes"] = smallest_budget_bytes;
  report["budget_lower_bound_bytes"] = budget_lower_bound_bytes;
  report["program_bytes"] = program_bytes;
  report["program_holds"] = Json::array();
  for (const ProgramHold& hold : program_holds) {
    Json entry = Json::object();
    entry["op"] = hold.op;
    entry["line"] = hold.line;
    entry["bytes"] = hold.bytes;
    entry["tensors"] = hold.tensors;
    report["program_holds"].push_back(std::move(entry));
  }
  return lowtide::to_text(report, 2);
}

}  // namespace lowtide
