#pragma once
// Errors that leave Lowtide through libtorch into a host of another language.
//
// In a Python process what Lowtide throws inside an op, a backward or an allocation passes through
// libtorch's bindings, which know libtorch's own classes and make a plain RuntimeError of any
// other. So where an exception leaves Lowtide for libtorch, it is offered to the host's translator,
// which throws the host's own (torch's `python_error` with an instance of lowtide.BudgetError in
// it).
//
//   return with_host_errors([&] { return unpack(); });
//
// A C++ program has no translator, and nothing is changed.

#include <exception>
#include <utility>

#include "lowtide/export.h"

namespace lowtide::hook {

// Ends a checkpointed region's replay once it has all it needs. Passes through the region's code.
struct LOWTIDE_API ReplayDone final : std::exception {
  explicit ReplayDone(const void* which) : frame(which) {}
  ~ReplayDone() override;
  const char* what() const noexcept override;
  const void* frame;
};

// Throws the host's exception in place of `error`, or returns when it has none.
using ErrorTranslator = void (*)(const std::exception_ptr& error);
LOWTIDE_API void set_error_translator(ErrorTranslator translator) noexcept;

// While it lives this thread's errors stay as they are: thrower and catcher are both Lowtide's.
class LOWTIDE_API HostErrorsPause {
 public:
  HostErrorsPause() noexcept;
  ~HostErrorsPause();
  HostErrorsPause(const HostErrorsPause&) = delete;
  HostErrorsPause& operator=(const HostErrorsPause&) = delete;

 private:
  bool before_;
};

// Offers the exception that is being handled to the translator.
LOWTIDE_API void translate_current_error();

template <class F>
decltype(auto) with_host_errors(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (...) {
    translate_current_error();
    throw;
  }
}

}  // namespace lowtide::hook
