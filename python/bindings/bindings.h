#pragma once
// One function for each public header of Lowtide: the header's names become Python's. What a class
// or function does is said there, and in python/lowtide/*.py; here nothing is decided.

#include <torch/csrc/utils/pybind.h>

namespace lowtide::python {

namespace py = pybind11;

void bind_error(py::module_& module);                 // include/lowtide/error.h
void bind_bytes(py::module_& module);                 // include/lowtide/bytes.h
void bind_memory_meter(py::module_& module);          // include/lowtide/memory_meter.h
void bind_budget(py::module_& module);                // include/lowtide/budget.h
void bind_checkpoint(py::module_& module);            // include/lowtide/checkpoint.h
void bind_sequence(py::module_& module);              // include/lowtide/sequence.h
void bind_linear_cross_entropy(py::module_& module);  // include/lowtide/linear_cross_entropy.h
void bind_large_linear(py::module_& module);          // include/lowtide/large_linear.h
void bind_ms_deform_attn(py::module_& module);        // include/lowtide/ms_deform_attn.h
void bind_deformable_detr_encoder(
    py::module_& module);                // include/lowtide/deformable_detr_encoder.h
void bind_host(py::module_& module);     // src/hook/host.h
void bind_predict(py::module_& module);  // src/observe/allocation_recorder.h, src/plan/peak_fit.h
void bind_watch(py::module_& module);    // include/lowtide/watch.h

// Throws libtorch's own form of the Python error that is set, which passes through its bindings and
// its backward threads as it is. The GIL must be held.
[[noreturn]] void throw_set_python_error();
// Throws hook::ReplayDone if that is what `error` carries. The GIL must be held.
void rethrow_replay_done(py::error_already_set& error);

}  // namespace lowtide::python
