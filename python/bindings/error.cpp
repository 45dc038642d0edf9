// Lowtide's errors as instances of the classes in python/lowtide/errors.py, whatever they pass
// through on their way: a call of ours (pybind's translator), or libtorch's bindings and engine
// (hook/host_errors.h, as torch's python_error).

#include "lowtide/error.h"

#include <torch/csrc/Exceptions.h>

#include "lowtide/budget.h"
#include "python/bindings/bindings.h"
#include "src/hook/counting_allocator.h"
#include "src/hook/host_errors.h"

namespace lowtide::python {
namespace {

// The classes, by name; leaked, because errors may come while the interpreter ends.
py::dict& error_classes() {
  static auto& classes = *new py::dict;
  return classes;
}

// Carries a replay's end through the region's Python code, past its `except Exception`.
PyObject* g_replay_done = nullptr;

py::object to_python(const ErrorDetail& detail) {
  return std::visit([](const auto& value) -> py::object { return py::cast(value); }, detail);
}

const char* class_name(const std::exception& error) {
  if (dynamic_cast<const BudgetError*>(&error) != nullptr) return "BudgetError";
  if (dynamic_cast<const hook::AllocationError*>(&error) != nullptr) return "AllocationError";
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return "UsageError";
  if (dynamic_cast<const IoError*>(&error) != nullptr) return "IoError";
  if (dynamic_cast<const FormatError*>(&error) != nullptr) return "FormatError";
  if (dynamic_cast<const DivergenceError*>(&error) != nullptr) return "DivergenceError";
  if (dynamic_cast<const TorchError*>(&error) != nullptr) return "TorchError";
  if (dynamic_cast<const InternalError*>(&error) != nullptr) return "InternalError";
  return "Error";
}

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error == nullptr ? error.what() : torch_error->what_without_backtrace();
}

// Sets the Python error for `info`, which is `error` seen from its other base.
void set_error(const std::exception& error, const ErrorInfo& info) {
  py::dict details;
  for (const auto& [name, value] : info.details()) details[py::str(name)] = to_python(value);
  const py::object type = error_classes()[class_name(error)];
  PyErr_SetObject(type.ptr(), type(message_of(error), info.id(), details).ptr());
}

// Sets the Python error for an exception of Lowtide's. False: it is none.
bool set_error(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const hook::ReplayDone& done) {
    PyErr_SetObject(g_replay_done,
                    py::make_tuple(reinterpret_cast<std::uintptr_t>(done.frame)).ptr());
  } catch (const std::exception& error) {
    const auto* info = dynamic_cast<const ErrorInfo*>(&error);
    if (info == nullptr) return false;
    set_error(error, *info);
  } catch (...) {
    return false;
  }
  return true;
}

void translate_for_torch(const std::exception_ptr& exception) {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  if (set_error(exception)) throw_set_python_error();
}

}  // namespace

void throw_set_python_error() {
  python_error error;
  error.persist();
  throw error;
}

// A replay's end that came as a Python error goes on as the C++ one it was.
void rethrow_replay_done(py::error_already_set& error) {
  if (!error.matches(g_replay_done)) return;
  const auto frame = error.value().attr("args")[py::int_(0)].cast<std::uintptr_t>();
  throw hook::ReplayDone(reinterpret_cast<const void*>(frame));
}

void bind_error(py::module_& module) {
  module.def("set_error_classes", [](const py::dict& classes) {
    for (const auto& [name, type] : classes) error_classes()[name] = type;
  });
  g_replay_done = PyErr_NewExceptionWithDoc("lowtide._core.ReplayDone",
                                            "Ends a checkpointed region's replay; not an error.",
                                            PyExc_BaseException, nullptr);
  module.add_object("ReplayDone", g_replay_done);
  py::register_exception_translator([](std::exception_ptr exception) {
    try {
      if (set_error(exception)) return;
      std::rethrow_exception(exception);
    } catch (python_error& error) {
      error.restore();
    }
  });
  hook::set_error_translator(&translate_for_torch);
}

}  // namespace lowtide::python
