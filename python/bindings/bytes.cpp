#include "lowtide/bytes.h"

#include "python/bindings/bindings.h"

namespace lowtide::python {

void bind_bytes(py::module_& module) {
  module.def("parse_bytes", &parse_bytes, py::arg("text"));
  module.def("format_bytes", &format_bytes, py::arg("bytes"));
}

}  // namespace lowtide::python
