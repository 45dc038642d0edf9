// Python files are known by their ending, and by the names that notebooks give to cells. C++ frames
// come from an unwinder: the file is a bare name or "??", so that the function's namespace must say
// whose it is.
//
// Tested by tests/evidence/frame_origin_test.cpp.

#include "src/evidence/frame_origin.h"

#include <algorithm>
#include <array>
#include <string>

namespace lowtide {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool names_torch(std::string_view path) {
  return contains(path, "/torch/") || contains(path, "/torchgen/") ||
         contains(path, "/functorch/") || contains(path, "/triton/");
}

// /usr/lib/python3.11/threading.py; C:/Python311/Lib/threading.py
bool is_python_itself(std::string_view path) {
  const std::size_t at = path.find("/python3.");
  if (at != std::string_view::npos && contains(path.substr(0, at), "lib")) return true;
  return contains(path, "/Lib/") && contains(path, "Python3");
}

// Where user code does not live. "(anonymous" and templates ("void at::..") come with a prefix.
bool is_known_native(std::string_view function) {
  constexpr std::array<std::string_view, 14> kNamespaces{
      "at::",   "c10::",  "torch::", "std::",    "pybind11::", "caffe2::", "__gnu_cxx::",
      "cuda::", "cublas", "cudnn",   "thrust::", "cub::",      "ncclComm", "c10d::"};
  for (const std::string_view name : kNamespaces) {
    if (function.starts_with(name)) return true;
    const std::size_t at = function.find(name);
    // After a return type, not inside of arguments.
    if (at != std::string_view::npos && at > 0 && function[at - 1] == ' ' &&
        !contains(function.substr(0, at), "(")) {
      return true;
    }
  }
  constexpr std::array<std::string_view, 10> kNames{
      "_Py", "Py", "_start", "__libc", "start_thread", "clone", "THP", "??", "_dl_", "__clone"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](std::string_view name) { return function.starts_with(name); });
}

bool is_native_source(std::string_view path) {
  constexpr std::array<std::string_view, 8> kEndings{".cpp", ".cc",  ".cxx", ".cu",
                                                     ".cuh", ".hpp", ".h",   ".C"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

}  // namespace

bool is_python_file(std::string_view file) {
  return file.ends_with(".py") || file.ends_with(".ipynb") || file.starts_with("<ipython-input") ||
         file.starts_with("<stdin>");
}

FrameOrigin frame_origin(std::string_view file, std::string_view function) {
  std::string path(file);
  std::replace(path.begin(), path.end(), '\\', '/');
  if (file == kLowtideFile) return FrameOrigin::kNativeUser;
  if (is_python_file(file)) {
    if (contains(path, "torchinductor_")) return FrameOrigin::kCompiled;
    const bool installed = contains(path, "/site-packages/") || contains(path, "/dist-packages/");
    if (names_torch(path) &&
        (installed || contains(path, "/torch/nn/") || contains(path, "/torch/optim/") ||
         contains(path, "/torch/autograd/") || contains(path, "/torch/_"))) {
      return FrameOrigin::kTorch;
    }
    return installed || is_python_itself(path) ? FrameOrigin::kLibrary : FrameOrigin::kUser;
  }
  // torch's own sources have bare names here; a user's C++ has debug information with a path, or at
  // least a function of no known namespace in a source file.
  if (function.empty() || !is_native_source(path) || is_known_native(function)) {
    return FrameOrigin::kNative;
  }
  const bool is_system = path.starts_with("/usr/") || path.starts_with("./") ||
                         contains(path, "/Python/") || contains(path, "/Modules/") ||
                         contains(path, "/pytorch/") || contains(path, "/sysdeps/");
  const bool has_folder = contains(path, "/");
  return has_folder && !is_system ? FrameOrigin::kNativeUser : FrameOrigin::kNative;
}

}  // namespace lowtide
