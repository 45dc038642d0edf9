#pragma once
// Whose code a frame of a stack is.

#include <string_view>

#include "src/evidence/snapshot.h"

namespace lowtide {

enum class FrameOrigin : std::uint8_t {
  kUser,        // Python of the user's own
  kLibrary,     // Python of an installed package, or of Python itself
  kTorch,       // Python of torch
  kCompiled,    // Python that torch.compile wrote
  kNative,      // C++ of torch, the interpreter, the system
  kNativeUser,  // C++ of the user's own
};

// By the file's path and, for C++, the function's name. Windows paths too.
FrameOrigin frame_origin(std::string_view file, std::string_view function);

bool is_python_file(std::string_view file);

}  // namespace lowtide
