#include "lowtide/linear_cross_entropy.h"

#include <optional>
#include <string>

#include "python/bindings/bindings.h"

namespace lowtide::python {
namespace {

at::Tensor run(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
               const std::optional<at::Tensor>& bias,
               const std::optional<at::Tensor>& class_weights, std::int64_t ignore_index,
               double label_smoothing, double z_loss, const std::string& reduction,
               Bytes chunk_bytes, std::int64_t vocabulary_chunk, bool gradients_in_forward) {
  LinearCrossEntropyOptions options;
  if (bias) options.bias = *bias;
  if (class_weights) options.class_weights = *class_weights;
  options.ignore_index = ignore_index;
  options.label_smoothing = label_smoothing;
  options.z_loss = z_loss;
  options.reduction = reduction == "none"   ? Reduction::kNone
                      : reduction == "mean" ? Reduction::kMean
                                            : Reduction::kSum;
  options.chunk_bytes = chunk_bytes;
  options.vocabulary_chunk = vocabulary_chunk;
  options.gradients_in_forward = gradients_in_forward;
  const py::gil_scoped_release no_gil;
  return linear_cross_entropy(hidden, weight, target, options);
}

}  // namespace

void bind_linear_cross_entropy(py::module_& module) {
  module.def("linear_cross_entropy", &run, py::arg("hidden"), py::arg("weight"), py::arg("target"),
             py::arg("bias"), py::arg("class_weights"), py::arg("ignore_index"),
             py::arg("label_smoothing"), py::arg("z_loss"), py::arg("reduction"),
             py::arg("chunk_bytes"), py::arg("vocabulary_chunk"), py::arg("gradients_in_forward"));
}

}  // namespace lowtide::python
