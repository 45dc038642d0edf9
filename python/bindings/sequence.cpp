#include "lowtide/sequence.h"

#include <memory>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"

namespace lowtide::python {
namespace {

using Tensors = std::vector<at::Tensor>;

// A Python function of two lists of tensors, state and inputs, that returns two, state and outputs.
class PythonStep final : public detail::ScanBody {
 public:
  explicit PythonStep(py::function function) : function_(std::move(function)) {}

  // Graphs die on any thread, and after the interpreter.
  ~PythonStep() override {
    if (Py_IsInitialized() == 0) {
      function_.release();
      return;
    }
    const py::gil_scoped_acquire gil;
    function_ = py::function();
  }

  void step(const Tensors& state, const Tensors& inputs, Tensors& next_state,
            Tensors& outputs) override {
    const py::gil_scoped_acquire gil;
    try {
      std::tie(next_state, outputs) = function_(state, inputs).cast<std::pair<Tensors, Tensors>>();
    } catch (py::error_already_set& error) {
      rethrow_replay_done(error);
      if (in_call_) throw;
      error.restore();
      throw_set_python_error();
    }
  }

  // Whether the step is called by the call of scan() that is on the stack, not by a backward.
  void set_in_call(bool in_call) noexcept { in_call_ = in_call; }

 private:
  py::function function_;
  bool in_call_ = false;
};

std::pair<Tensors, Tensors> run_scan(const py::function& step, Tensors state, Tensors inputs,
                                     std::int64_t length, Bytes memory,
                                     std::vector<at::Generator> generators,
                                     std::shared_ptr<ScanReport> report) {
  if (!inputs.empty()) length = detail::scan_length(inputs);
  ScanOptions options;
  options.memory = memory;
  options.generators = std::move(generators);
  options.report = std::move(report);
  const auto body = std::make_shared<PythonStep>(step);
  body->set_in_call(true);
  detail::ScanTensors result =
      detail::scan(body, std::move(state), std::move(inputs), length, options);
  body->set_in_call(false);
  return {std::move(result.state), std::move(result.outputs)};
}

}  // namespace

void bind_sequence(py::module_& module) {
  py::class_<ScanReport, std::shared_ptr<ScanReport>>(module, "ScanReport")
      .def(py::init<>())
      .def_readonly("steps", &ScanReport::steps)
      .def_readonly("block_steps", &ScanReport::block_steps)
      .def_readonly("states", &ScanReport::states)
      .def_readonly("state_bytes", &ScanReport::state_bytes)
      .def_readonly("step_bytes", &ScanReport::step_bytes)
      .def_readonly("memory", &ScanReport::memory)
      .def_readonly("planned_runs", &ScanReport::planned_runs)
      .def_readonly("forward_runs", &ScanReport::forward_runs)
      .def_readonly("backward_runs", &ScanReport::backward_runs)
      .def_readonly("graph_runs", &ScanReport::graph_runs)
      .def_readonly("unrolled", &ScanReport::unrolled)
      .def("__str__", &ScanReport::to_text);
  module.def("run_scan", &run_scan, py::arg("step"), py::arg("state"), py::arg("inputs"),
             py::arg("length"), py::arg("memory"), py::arg("generators"), py::arg("report"));
}

}  // namespace lowtide::python
