#include "lowtide/large_linear.h"

#include <optional>
#include <tuple>

#include "python/bindings/bindings.h"

namespace lowtide::python {

void bind_large_linear(py::module_& module) {
  py::class_<LinearCost>(module, "LinearCost")
      .def(py::init<>())
      .def_readonly("parameters", &LinearCost::parameters)
      .def_readonly("weights", &LinearCost::weights)
      .def_readonly("gradients", &LinearCost::gradients)
      .def_readonly("optimizer", &LinearCost::optimizer)
      .def_readonly("multiply_adds", &LinearCost::multiply_adds)
      .def_property_readonly("total", &LinearCost::total);
  py::class_<FactorisedComparison>(module, "FactorisedComparison")
      .def(py::init<>())
      .def_readonly("inputs", &FactorisedComparison::inputs)
      .def_readonly("outputs", &FactorisedComparison::outputs)
      .def_readonly("rank", &FactorisedComparison::rank)
      .def_readonly("full", &FactorisedComparison::full)
      .def_readonly("factorised", &FactorisedComparison::factorised)
      .def_readonly("largest_saving_rank", &FactorisedComparison::largest_saving_rank)
      .def("__str__", &FactorisedComparison::to_text);
  module.def(
      "compare_factorised",
      [](std::int64_t inputs, std::int64_t outputs, std::int64_t rank, bool bias,
         Bytes element_bytes, std::int64_t optimizer_values, Bytes optimizer_element_bytes) {
        return compare_factorised(inputs, outputs, rank,
                                  {bias, element_bytes, optimizer_values, optimizer_element_bytes});
      },
      py::arg("inputs"), py::arg("outputs"), py::arg("rank"), py::arg("bias"),
      py::arg("element_bytes"), py::arg("optimizer_values"), py::arg("optimizer_element_bytes"));
  module.def(
      "factorise",
      [](const at::Tensor& weight, std::int64_t rank) {
        LinearFactors factors = factorise(weight, rank);
        return std::tuple(factors.up, factors.down, factors.relative_error);
      },
      py::arg("weight"), py::arg("rank"));
  module.def(
      "factorised_linear",
      [](const at::Tensor& x, const at::Tensor& up, const at::Tensor& down,
         const std::optional<at::Tensor>& bias) {
        return factorised_linear(x, up, down, bias.value_or(at::Tensor()));
      },
      py::arg("x"), py::arg("up"), py::arg("down"), py::arg("bias"));
}

}  // namespace lowtide::python
