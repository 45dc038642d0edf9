// What Lowtide asks of its host, answered by Python.

#include "src/hook/host.h"
#include "src/hook/counting_allocator.h"

#include <torch/csrc/autograd/python_function.h>

#include <map>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "python/bindings/bindings.h"

namespace lowtide::python {
namespace {

// Texts and verdicts by code object, which is held for ever: a program has few.
struct Lines {
  std::map<PyCodeObject*, bool> is_users;
  std::map<std::pair<PyCodeObject*, int>, std::string> texts;
};

bool is_users(PyCodeObject* code) {
  const std::string file = py::str(py::handle(code->co_filename));
  for (const std::string_view inner : {"/torch/", "/lowtide/", "<frozen "}) {
    if (file.find(inner) != std::string::npos) return false;
  }
  return true;
}

// The innermost line of Python that runs on this thread and is neither torch's nor Lowtide's own.
const char* program_line() noexcept {
  if (Py_IsInitialized() == 0) return "";
  const py::gil_scoped_acquire gil;
  static auto& lines = *new Lines;
  const char* found = "";
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    auto known = lines.is_users.find(code);
    if (known == lines.is_users.end()) {
      Py_INCREF(code);
      known = lines.is_users.emplace(code, is_users(code)).first;
    }
    if (known->second) {
      const int number = PyFrame_GetLineNumber(frame);
      std::string& text = lines.texts[{code, number}];
      if (text.empty()) {
        text = std::string(py::str(py::handle(code->co_filename))) + ":" + std::to_string(number);
      }
      found = text.c_str();
    }
    Py_DECREF(code);
    PyFrameObject* outer = known->second ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  return found;
}

// Read without the GIL; who gets a new reference meanwhile (through a weak one) has the tensor, and
// its storage is counted apart.
long wrapper_count(void* wrapper) noexcept {
  return static_cast<long>(Py_REFCNT(static_cast<PyObject*>(wrapper)));
}

// A Python function keeps what it is to save until all of it is saved. PyNode's type is hidden, so
// it is known by its name.
hook::Host::Saves saves_now(const void* raw) noexcept {
  using Saves = hook::Host::Saves;
  const auto* node = static_cast<const torch::autograd::Node*>(raw);
  if (std::string_view(typeid(*node).name()) != "N5torch8autograd6PyNodeE") return Saves::kUnknown;
  const auto* function = reinterpret_cast<const THPFunction*>(node->pyobj_slot()->load_pyobj());
  if (function == nullptr) return Saves::kUnknown;
  return function->saved_variables.size() < function->saved_variables.capacity() ? Saves::kYes
                                                                                 : Saves::kNo;
}

void* unlock() noexcept {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return nullptr;
  return PyEval_SaveThread();
}

void lock_again(void* state) noexcept { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }

}  // namespace

void bind_host(py::module_& module) {
  module.def("set_block_reuse", &hook::set_block_reuse, py::arg("on"));  // for benches

  hook::Host host;
  host.program_line = &program_line;
  host.wrapper_count = &wrapper_count;
  host.saves_now = &saves_now;
  host.unlock = &unlock;
  host.lock_again = &lock_again;
  hook::set_host(host);
}

}  // namespace lowtide::python
