#pragma once
// Python's frames, read without making objects of them.
//
// For versions whose layout is known (LOWTIDE_READS_FRAMES): their own internal headers say it, so
// a build for another patch release follows. Others go through Python's public functions.

#include <torch/csrc/utils/pybind.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#define LOWTIDE_READS_FRAMES
#endif

namespace lowtide::python {

namespace py = pybind11;

#ifdef LOWTIDE_READS_FRAMES
// A frame of this thread. Valid until the thread runs Python again; needs no GIL but for line().
class OwnFrame {
 public:
  static OwnFrame innermost() noexcept;
  OwnFrame outer() const noexcept;
  explicit operator bool() const noexcept { return frame_ != nullptr; }

  PyCodeObject* code() const noexcept;
  const void* instruction() const noexcept;  // where it stands in its code
  int line() const noexcept;

 private:
  explicit OwnFrame(const void* frame) noexcept;
  const void* frame_;
};
#endif

// Names and values of a function's local variables, without the dict that f_locals would leave
// behind in the frame, which keeps what it holds.
py::list frame_locals(const py::object& frame);

}  // namespace lowtide::python
