// What Lowtide asks of its host, answered by Python.

#include "src/hook/host.h"
#include "src/hook/counting_allocator.h"

#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <map>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"
#include "src/hook/saved_tensor_hooks.h"

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

// Of another class than torch.Tensor, or with attributes.
bool is_special(void* wrapper) noexcept {
  if (Py_IsInitialized() == 0) return false;
  const py::gil_scoped_acquire gil;
  auto* const object = static_cast<PyObject*>(wrapper);
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != THPVariableClass) return true;
  PyObject** const attributes = _PyObject_GetDictPtr(object);
  return attributes != nullptr && *attributes != nullptr && PyDict_Size(*attributes) > 0;
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

// ctx.saved_tensors as it is without hooks (Note [Which tensor it is]): the tensors themselves, and
// the same ones each time. `plain` reads it as torch does.
py::object saved_tensors(const py::object& ctx, const py::function& plain) {
  const auto& function = *reinterpret_cast<const THPFunction*>(ctx.ptr());
  if (function.saved_for_forward != nullptr) return plain(ctx);
  std::vector<at::Tensor> originals;
  bool any = false;
  for (const auto& saved : function.saved_variables) {
    hook::IdentityHooks* const hooks = hook::hooks_of(saved);
    originals.push_back(hooks == nullptr ? at::Tensor() : hooks->original());
    any = any || hooks != nullptr;
  }
  if (!any) return plain(ctx);
  py::object unpacked;
  {
    const hook::OriginalsAsked asked;
    unpacked = plain(ctx);
  }
  if (!py::isinstance<py::tuple>(unpacked) || py::len(unpacked) != originals.size()) {
    return unpacked;
  }
  py::tuple tensors(originals.size());
  for (std::size_t i = 0; i < originals.size(); ++i) {
    const py::object item = unpacked[py::int_(i)];
    if (originals[i].defined()) {
      tensors[i] = py::cast(originals[i]);
      continue;
    }
    tensors[i] = item;
    // What was made anew is the saved tensor from now on, but for the function's own results.
    if (i >= function.saved_variables.size() || !THPVariable_Check(item.ptr())) continue;
    hook::IdentityHooks* const hooks = hook::hooks_of(function.saved_variables[i]);
    if (hooks == nullptr) continue;
    const at::Tensor& tensor = THPVariable_Unpack(item.ptr());
    if (tensor.grad_fn() != function.cdata) hooks->adopt(tensor);
  }
  return tensors;
}

}  // namespace

void bind_host(py::module_& module) {
  module.def("set_block_reuse", &hook::set_block_reuse, py::arg("on"));  // for benches

  module.def("saved_tensors", &saved_tensors, py::arg("ctx"), py::arg("plain"));

  hook::Host host;
  host.program_line = &program_line;
  host.wrapper_count = &wrapper_count;
  host.is_special = &is_special;
  host.saves_now = &saves_now;
  host.unlock = &unlock;
  host.lock_again = &lock_again;
  hook::set_host(host);
}

}  // namespace lowtide::python
