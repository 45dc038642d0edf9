#include "lowtide/watch.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "python/bindings/bindings.h"

namespace lowtide::python {
namespace {

py::dict to_dict(const WatchFinding& finding) {
  py::dict dict;
  dict["kind"] = to_string(finding.kind);
  dict["alarm"] = finding.is_alarm;
  dict["step"] = finding.step;
  dict["op"] = finding.op;
  dict["line"] = finding.line;
  dict["stored_at"] = finding.stored_at;
  dict["held_by"] = finding.held_by;
  dict["chain"] = finding.chain;
  dict["bytes_per_step"] = finding.bytes_per_step;
  dict["nodes_per_step"] = finding.nodes_per_step;
  dict["graph_nodes"] = finding.graph_nodes;
  dict["peak_bytes"] = finding.peak_bytes;
  dict["fall_bytes"] = finding.fall_bytes;
  dict["fix"] = finding.fix;
  return dict;
}

std::function<void(const WatchFinding&)> finding_listener(const py::object& function) {
  if (function.is_none()) return nullptr;
  const std::shared_ptr<py::object> held(new py::object(function), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [held](const WatchFinding& finding) {
    const py::gil_scoped_acquire gil;
    try {
      (*held)(to_dict(finding), finding.to_text());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("lowtide.watch(on_finding=...)");
    }
  };
}

struct EndWithoutGil {
  void operator()(Watch* watch) const {
    const py::gil_scoped_release no_gil;
    delete watch;
  }
};
using Holder = std::unique_ptr<Watch, EndWithoutGil>;

WatchReport report_of(const Watch& watch) {
  const py::gil_scoped_release no_gil;
  return watch.report();
}

}  // namespace

void bind_watch(py::module_& module) {
  py::class_<Watch, Holder>(module, "StepWatch")
      .def(py::init([](const py::object& on_finding) {
             WatchOptions options;
             options.on_finding = finding_listener(on_finding);
             const py::gil_scoped_release no_gil;
             return Holder(new Watch(options));
           }),
           py::arg("on_finding"))
      .def("step", &Watch::step, py::call_guard<py::gil_scoped_release>())
      .def("optimizer_stepped", &Watch::optimizer_stepped)
      .def(
          "look",
          [](Watch& watch, const std::string& how) {
            for (const auto& [name, look] : {std::pair("as needed", Watch::Look::kAsNeeded),
                                             std::pair("not", Watch::Look::kNot),
                                             std::pair("counting", Watch::Look::kCounting),
                                             std::pair("closely", Watch::Look::kClosely)}) {
              if (how == name) return watch.look(look);
            }
            throw py::value_error("how: as needed, not, counting or closely");
          },
          py::arg("how"))  // for benches
      .def("report",
           [](const Watch& watch) {
             const WatchReport report = report_of(watch);
             py::dict dict;
             dict["steps"] = report.steps;
             dict["ops"] = report.ops;
             py::list findings;
             for (const WatchFinding& finding : report.findings) findings.append(to_dict(finding));
             dict["findings"] = findings;
             return dict;
           })
      .def("text", [](const Watch& watch) { return report_of(watch).to_text(); })
      .def("json", [](const Watch& watch) { return report_of(watch).to_json(); });
}

}  // namespace lowtide::python
