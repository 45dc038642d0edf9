#include "python/bindings/frames.h"

#ifdef LOWTIDE_READS_FRAMES
#define Py_BUILD_CORE 1
#include "internal/pycore_frame.h"
#endif

namespace lowtide::python {

#ifdef LOWTIDE_READS_FRAMES

namespace {

const _PyInterpreterFrame* as_frame(const void* frame) {
  return static_cast<const _PyInterpreterFrame*>(frame);
}

}  // namespace

OwnFrame::OwnFrame(const void* frame) noexcept : frame_(frame) {
  // One whose function has not begun yet counts for nothing.
  while (frame_ != nullptr &&
         _PyFrame_IsIncomplete(const_cast<_PyInterpreterFrame*>(as_frame(frame_)))) {
    frame_ = as_frame(frame_)->previous;
  }
}

OwnFrame OwnFrame::innermost() noexcept {
  const PyThreadState* state = PyGILState_GetThisThreadState();
  if (state == nullptr || state->cframe == nullptr) return OwnFrame(nullptr);
  return OwnFrame(state->cframe->current_frame);
}

OwnFrame OwnFrame::outer() const noexcept { return OwnFrame(as_frame(frame_)->previous); }

PyCodeObject* OwnFrame::code() const noexcept { return as_frame(frame_)->f_code; }

const void* OwnFrame::instruction() const noexcept { return as_frame(frame_)->prev_instr; }

int OwnFrame::line() const noexcept {
  return PyCode_Addr2Line(
      code(), _PyInterpreterFrame_LASTI(as_frame(frame_)) * static_cast<int>(sizeof(_Py_CODEUNIT)));
}

py::list frame_locals(const py::object& object) {
  py::list locals;
  if (!PyFrame_Check(object.ptr())) return locals;
  const _PyInterpreterFrame* frame = reinterpret_cast<PyFrameObject*>(object.ptr())->f_frame;
  const PyCodeObject* code = frame->f_code;
  for (int i = 0; i < code->co_nlocalsplus; ++i) {
    PyObject* value = frame->localsplus[i];
    if (value == nullptr) continue;
    locals.append(py::make_tuple(py::handle(PyTuple_GET_ITEM(code->co_localsplusnames, i)),
                                 py::handle(value)));
  }
  return locals;
}

#else

py::list frame_locals(const py::object& object) {
  py::list locals;
  if (!PyFrame_Check(object.ptr())) return locals;
  auto* frame = reinterpret_cast<PyFrameObject*>(object.ptr());
  const py::object code =
      py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  for (const char* names : {"co_varnames", "co_cellvars", "co_freevars"}) {
    for (const py::handle name : code.attr(names)) {
#if PY_VERSION_HEX >= 0x030C0000
      PyObject* value = PyFrame_GetVar(frame, name.ptr());
      if (value == nullptr) {
        PyErr_Clear();
        continue;
      }
      locals.append(py::make_tuple(name, py::reinterpret_steal<py::object>(value)));
#else
      const py::dict all = object.attr("f_locals");
      if (all.contains(name)) locals.append(py::make_tuple(name, all[name]));
#endif
    }
  }
  return locals;
}

#endif

}  // namespace lowtide::python
