#include "lowtide/memory_meter.h"

#include "python/bindings/bindings.h"

namespace lowtide::python {
namespace {

py::dict to_dict(const MemoryByKind& by_kind) {
  py::dict dict;
  for (const MemoryKind kind : kAllMemoryKinds) dict[to_string(kind)] = by_kind[kind];
  return dict;
}

}  // namespace

void bind_memory_meter(py::module_& module) {
  py::class_<MemoryMeter>(module, "MemoryMeter")
      .def(py::init<>())
      .def_property_readonly("live_bytes", &MemoryMeter::live_bytes)
      .def_property_readonly("peak_bytes", &MemoryMeter::peak_bytes)
      .def("reset_peak", &MemoryMeter::reset_peak)
      .def("by_kind", [](const MemoryMeter& meter) { return to_dict(meter.by_kind()); })
      .def("peak_by_kind", [](const MemoryMeter& meter) { return to_dict(meter.peak_by_kind()); });
}

}  // namespace lowtide::python
