#include "lowtide/checkpoint.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lowtide/error.h"
#include "python/bindings/bindings.h"

namespace lowtide::python {
namespace {

// A Python function of a list of tensors, and that list.
class PythonRegion final : public detail::RegionBody {
 public:
  PythonRegion(py::function function, std::vector<at::Tensor> inputs)
      : function_(std::move(function)), inputs_(std::move(inputs)) {}

  // Graphs die on any thread, and after the interpreter.
  ~PythonRegion() override {
    if (Py_IsInitialized() == 0) {
      function_.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    function_ = py::function();
  }

  void collect_inputs(std::vector<at::Tensor*>& places) override {
    for (at::Tensor& input : inputs_) places.push_back(&input);
  }

  bool is_hosts() const override { return true; }

  void run_again() override {
    const py::gil_scoped_acquire gil;
    try {
      function_(inputs_);
    } catch (py::error_already_set& error) {
      rethrow_replay_done(error);
      error.restore();
      throw_set_python_error();
    }
  }

 private:
  py::function function_;
  std::vector<at::Tensor> inputs_;
};

Offload offload_of(const std::string& name) {
  if (name == "none") return Offload::kNone;
  if (name == "host") return Offload::kHost;
  if (name == "disk") return Offload::kDisk;
  throw UsageError("LT0209",
                   "checkpoint: offload must be None, \"host\" or \"disk\", not \"" + name + "\"");
}

py::object run_region(const py::function& function, const std::vector<at::Tensor>& inputs,
                      bool early_stop, const std::string& offload,
                      const std::string& offload_directory) {
  if (!detail::FirstRun::needed()) return function(inputs);
  CheckpointOptions options;
  options.early_stop = early_stop;
  options.offload = offload_of(offload);
  options.offload_directory = offload_directory;
  detail::FirstRun run(std::make_shared<PythonRegion>(function, inputs), options);
  py::object result = function(inputs);
  run.finish();
  return result;
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  module.def("run_region", &run_region, py::arg("function"), py::arg("inputs"),
             py::arg("early_stop"), py::arg("offload"), py::arg("offload_directory"));
}

}  // namespace lowtide::python
