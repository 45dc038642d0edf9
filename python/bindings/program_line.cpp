// The innermost line of Python that runs on this thread and is neither torch's nor Lowtide's own.

#include "src/hook/program_line.h"

#include <map>
#include <string>
#include <string_view>
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

const char* current_line() noexcept {
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

}  // namespace

void bind_program_line() { hook::set_program_line_source(&current_line); }

}  // namespace lowtide::python
