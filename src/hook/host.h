#pragma once
// What a host of another language gives: in a Python process the bindings fill it in, in a C++
// program it stays empty.

#include "lowtide/export.h"

namespace lowtide::hook {

struct Host {
  // Which line of the user's program runs on this thread: "train.py:12", or "" when not known; the
  // text must live for ever. Called between ops with none of Lowtide's locks held. Costs up to a
  // microsecond.
  const char* (*program_line)() noexcept = nullptr;

  // How many refer to a tensor's wrapper in the host (a PyObject). Called without the host's lock
  // and under Lowtide's, so it must take none; the answer may be old.
  long (*wrapper_count)(void* wrapper) noexcept = nullptr;

  // Whether a tensor's wrapper is more than a view of the tensor: of a class of its own, or with
  // attributes. Takes the host's lock.
  bool (*is_special)(void* wrapper) noexcept = nullptr;

  // Whether a node of the graph (a torch::autograd::Node) is a function of the host's that is
  // saving its tensors right now; unknown: it is none of the host's. Called by the thread that
  // saves.
  enum class Saves { kUnknown, kNo, kYes };
  Saves (*saves_now)(const void* node) noexcept = nullptr;

  // Gives the host's lock (the GIL) up if this thread has it, and takes it again.
  void* (*unlock)() noexcept = nullptr;
  void (*lock_again)(void* state) noexcept = nullptr;
};

// Once, before the first op that is to be seen.
LOWTIDE_API void set_host(const Host& host) noexcept;

const char* program_line() noexcept;

// True when nothing in the host refers to the wrapper but the tensor itself. False without a host.
bool is_idle_wrapper(void* wrapper) noexcept;

// False without a host, or a wrapper.
bool is_special_wrapper(void* wrapper) noexcept;

Host::Saves saves_now(const void* node) noexcept;

// While it lives this thread does not have the host's lock.
//
// Note [The host's lock]
// Freeing a tensor with a wrapper takes the host's lock, and a thread that has it may ask for one
// of Lowtide's. So nothing takes the host's lock under the runtime's tables' lock; and who waits
// for a lock under which ops run (a replay's, a region's) gives the host's up before.
class HostUnlocked {
 public:
  HostUnlocked() noexcept;
  ~HostUnlocked();
  HostUnlocked(const HostUnlocked&) = delete;
  HostUnlocked& operator=(const HostUnlocked&) = delete;

 private:
  void* state_;
};

}  // namespace lowtide::hook
