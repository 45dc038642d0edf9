#include "lowtide/budget.h"

#include <memory>
#include <string>
#include <utility>

#include "python/bindings/bindings.h"

namespace lowtide::python {
namespace {

double seconds(std::uint64_t ns) { return static_cast<double>(ns) * 1e-9; }

py::dict to_dict(const BudgetReport& report) {
  py::dict dict;
  dict["limit_bytes"] = report.limit_bytes;
  dict["share"] = report.share;
  dict["peak_bytes"] = report.peak_bytes;
  dict["resident_growth_bytes"] = report.resident_growth_bytes;
  dict["outside_bytes"] = report.outside_bytes;
  dict["steps"] = report.steps;
  py::list step_s;
  for (const std::uint64_t ns : report.step_ns) step_s.append(seconds(ns));
  dict["step_s"] = step_s;
  dict["drops"] = report.drops;
  dict["dropped_bytes"] = report.dropped_bytes;
  dict["recomputed_ops"] = report.recomputed_ops;
  dict["recompute_s"] = seconds(report.recompute_ns);
  dict["spilled_tensors"] = report.spilled_tensors;
  dict["spilled_bytes"] = report.spilled_bytes;
  dict["spill_wait_s"] = seconds(report.spill_wait_ns);
  dict["packed_tensors"] = report.packed_tensors;
  dict["packed_bytes"] = report.packed_bytes;
  dict["packed_into_bytes"] = report.packed_into_bytes;
  dict["pack_s"] = seconds(report.pack_ns);
  dict["refusals"] = report.refusals;
  dict["planned_steps"] = report.planned_steps;
  dict["plan_departures"] = report.plan_departures;
  dict["plans"] = report.plans;
  dict["planning_s"] = seconds(report.planning_ns);
  dict["smallest_budget_bytes"] = report.smallest_budget_bytes;
  dict["budget_lower_bound_bytes"] = report.budget_lower_bound_bytes;
  dict["program_bytes"] = report.program_bytes;
  py::list holds;
  for (const ProgramHold& hold : report.program_holds) {
    py::dict entry;
    entry["op"] = hold.op;
    entry["line"] = hold.line;
    entry["bytes"] = hold.bytes;
    entry["tensors"] = hold.tensors;
    holds.append(entry);
  }
  dict["program_holds"] = holds;
  return dict;
}

py::dict to_dict(const BudgetEvent& event) {
  py::dict dict;
  dict["kind"] = to_string(event.kind);
  dict["step"] = event.step;
  dict["op"] = event.op;
  dict["bytes"] = event.bytes;
  dict["live_bytes"] = event.live_bytes;
  dict["begin_s"] = seconds(event.begin_ns);
  dict["duration_s"] = seconds(event.duration_ns);
  return dict;
}

// Keeps a Python function where it may be copied and freed without the GIL.
std::function<void(const BudgetEvent&)> event_listener(const py::object& function) {
  if (function.is_none()) return nullptr;
  const std::shared_ptr<py::object> held(new py::object(function), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [held](const BudgetEvent& event) {
    const py::gil_scoped_acquire gil;
    try {
      (*held)(to_dict(event));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("lowtide.budget(on_event=...)");
    }
  };
}

BudgetLimit limit_of(const py::object& limit) {
  if (limit.is_none()) return BudgetLimit::none();
  if (py::isinstance<py::str>(limit)) return BudgetLimit::parse(limit.cast<std::string>());
  return BudgetLimit(limit.cast<Bytes>());
}

// Ending a budget may run ops, and waits for other threads' allocations.
struct EndWithoutGil {
  void operator()(MemoryBudget* budget) const {
    const py::gil_scoped_release no_gil;
    delete budget;
  }
};
using Holder = std::unique_ptr<MemoryBudget, EndWithoutGil>;

}  // namespace

void bind_budget(py::module_& module) {
  py::class_<MemoryBudget, Holder>(module, "MemoryBudget")
      .def(py::init([](const py::object& limit, bool check_replays, bool verify_replay,
                       const py::object& on_event, std::string trace_path, std::string tape_path,
                       std::string spill_directory, Bytes spill_limit, Bytes reserve, bool pack,
                       bool always_put_away, double plan_seconds, std::string plan_path) {
             BudgetOptions options;
             options.check_replays = check_replays;
             options.verify_replay = verify_replay;
             options.on_event = event_listener(on_event);
             options.trace_path = std::move(trace_path);
             options.tape_path = std::move(tape_path);
             options.spill_directory = std::move(spill_directory);
             options.spill_limit = spill_limit;
             options.reserve_bytes = reserve;
             options.pack = pack;
             options.always_put_away = always_put_away;
             options.plan_seconds = plan_seconds;
             options.plan_path = std::move(plan_path);
             const BudgetLimit bytes = limit_of(limit);
             const py::gil_scoped_release no_gil;
             return Holder(new MemoryBudget(bytes, options));
           }),
           py::arg("limit"), py::arg("check_replays"), py::arg("verify_replay"),
           py::arg("on_event"), py::arg("trace_path"), py::arg("tape_path"),
           py::arg("spill_directory"), py::arg("spill_limit"), py::arg("reserve"), py::arg("pack"),
           py::arg("always_put_away"), py::arg("plan_seconds"), py::arg("plan_path"))
      .def("attach", &MemoryBudget::attach, py::arg("tensors"),
           py::call_guard<py::gil_scoped_release>())
      .def("mark_step", &MemoryBudget::mark_step, py::call_guard<py::gil_scoped_release>())
      .def("report", [](const MemoryBudget& budget) {
        BudgetReport report;
        {
          const py::gil_scoped_release no_gil;
          report = budget.report();
        }
        return to_dict(report);
      });
}

}  // namespace lowtide::python
