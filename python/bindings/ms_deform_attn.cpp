#include "lowtide/ms_deform_attn.h"

#include "python/bindings/bindings.h"

namespace lowtide::python {

void bind_ms_deform_attn(py::module_& module) {
  module.def("ms_deform_attn", &ms_deform_attn, py::arg("value"), py::arg("spatial_shapes"),
             py::arg("level_start_index"), py::arg("sampling_locations"),
             py::arg("attention_weights"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace lowtide::python
