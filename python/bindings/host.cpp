// What Lowtide asks of its host, answered by Python.

#include "src/hook/host.h"
#include "src/hook/counting_allocator.h"

#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <c10/util/flat_hash_map.h>

#include <map>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"
#include "python/bindings/frames.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide::python {
namespace {

// Texts and verdicts by code object, which is held for ever: a program has few. Under the GIL.
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

Lines& lines() {
  static auto& lines = *new Lines;
  return lines;
}

bool is_known_users(PyCodeObject* code) {
  auto known = lines().is_users.find(code);
  if (known == lines().is_users.end()) {
    Py_INCREF(code);
    known = lines().is_users.emplace(code, is_users(code)).first;
  }
  return known->second;
}

const char* text_of(PyCodeObject* code, int number) {
  std::string& text = lines().texts[{code, number}];
  if (text.empty()) {
    text = std::string(py::str(py::handle(code->co_filename))) + ":" + std::to_string(number);
  }
  return text.c_str();
}

#ifdef LOWTIDE_READS_FRAMES

// The innermost line of Python that runs on this thread and is neither torch's nor Lowtide's own.
//
// Without the GIL: a thread's frames change by what that thread itself does, and it is here. What
// was seen before (a code object, which is held for ever, and the place in it) is looked up; the
// GIL is taken for what is new.
const char* program_line() noexcept {
  if (Py_IsInitialized() == 0) return "";
  using Place = std::pair<const void*, const void*>;
  struct Hash {
    std::size_t operator()(const Place& place) const {
      return (reinterpret_cast<std::uintptr_t>(place.first) >> 4) * 0x9e37'79b9'7f4a'7c15 ^
             reinterpret_cast<std::uintptr_t>(place.second);
    }
  };
  // Null: nobody's line, the caller's counts.
  thread_local ska::flat_hash_map<Place, const char*, Hash> known;
  for (OwnFrame frame = OwnFrame::innermost(); frame; frame = frame.outer()) {
    const Place place(frame.code(), frame.instruction());
    const auto found = known.find(place);
    if (found != known.end()) {
      if (found->second == nullptr) continue;
      return found->second;
    }
    const py::gil_scoped_acquire gil;
    const char* text = is_known_users(frame.code()) ? text_of(frame.code(), frame.line()) : nullptr;
    known[place] = text;
    if (text != nullptr) return text;
  }
  return "";
}

#else

const char* program_line() noexcept {
  if (Py_IsInitialized() == 0) return "";
  const py::gil_scoped_acquire gil;
  const char* found = "";
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool known = is_known_users(code);
    if (known) found = text_of(code, PyFrame_GetLineNumber(frame));
    Py_DECREF(code);
    PyFrameObject* outer = known ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  return found;
}

#endif

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

// See python/lowtide/_holders.py, which does the search.
std::vector<hook::TensorHolder> find_holders(const hook::TensorSorter& sorter) {
  std::vector<hook::TensorHolder> holders;
  if (Py_IsInitialized() == 0) return holders;
  const py::gil_scoped_acquire gil;
  try {
    py::dict groups;
    {
      const py::list objects = py::module_::import("gc").attr("get_objects")();
      for (const py::handle object : objects) {
        // By type: isinstance() asks the object, which may be a proxy that does something then.
        if (!PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(THPVariableClass))) {
          continue;
        }
        const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
        // This list refers to it; and so does the tensor, when something in C++ holds that.
        if (Py_REFCNT(object.ptr()) <= (tensor.use_count() > 1 ? 2 : 1)) continue;
        const int group = sorter.group_of(tensor);
        if (group < 0) continue;
        const py::int_ key(group);
        if (!groups.contains(key)) groups[key] = py::list();
        groups[key].cast<py::list>().append(object);
      }
    }
    if (groups.empty()) return holders;
    const py::object describe = py::module_::import("lowtide._holders").attr("describe");
    for (const auto& [key, tensors] : groups) {
      for (const py::handle entry : describe(tensors)) {
        const auto given = entry.cast<py::dict>();
        hook::TensorHolder holder;
        holder.group = key.cast<int>();
        holder.tensors = given["tensors"].cast<std::uint64_t>();
        holder.path = given["path"].cast<std::string>();
        holder.stored_at = given["stored_at"].cast<std::string>();
        holder.place = static_cast<hook::TensorHolder::Place>(given["place"].cast<std::uint8_t>());
        std::map<const void*, std::uint64_t> storages;
        for (const py::handle one : given["members"]) {
          const at::Tensor& tensor = THPVariable_Unpack(one.ptr());
          if (!tensor.has_storage()) continue;
          holder.shown_bytes += static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
          storages[tensor.storage().unsafeGetStorageImpl()] = tensor.storage().nbytes();
        }
        for (const auto& [storage, bytes] : storages) holder.whole_bytes += bytes;
        holders.push_back(std::move(holder));
      }
    }
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("lowtide.watch: the search for what holds a tensor");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lowtide: watch: the search for what holds a tensor failed: %s\n",
                 error.what());
  }
  return holders;
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
  module.def("frame_locals", &frame_locals, py::arg("frame"));

  module.def("saved_tensors", &saved_tensors, py::arg("ctx"), py::arg("plain"));

  hook::Host host;
  host.program_line = &program_line;
  host.find_holders = &find_holders;
  host.wrapper_count = &wrapper_count;
  host.is_special = &is_special;
  host.saves_now = &saves_now;
  host.unlock = &unlock;
  host.lock_again = &lock_again;
  hook::set_host(host);
}

}  // namespace lowtide::python
