#pragma once
// What a host of another language gives: in a Python process the bindings fill it in, in a C++
// program it stays empty.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lowtide/export.h"

namespace lowtide::hook {

// Tells which tensors a search is for.
class TensorSorter {
 public:
  virtual ~TensorSorter() = default;
  // The number of the group that the tensor belongs to, or -1. Called with the host's lock held.
  virtual int group_of(const at::Tensor& tensor) const = 0;
};

// Who keeps the tensors of a group in the host's program: one place, such as a list.
struct TensorHolder {
  int group = 0;
  std::uint64_t tensors = 0;  // of the group that are kept in this place
  std::string path;           // of the newest: "losses[17]", "model.hidden", "out in train()"
  std::string stored_at;      // the line that puts them there: "train.py:31"; "" when not found
  enum class Place : std::uint8_t {
    kVariable,   // a variable or an attribute, of one tensor
    kContainer,  // an entry of a list, a dict, a set
    kBounded,    // an entry of what drops its oldest by itself (deque with maxlen, lru_cache)
    kHooks,      // a hook that is registered with a module or a tensor
    kKey,        // a key of a dict: tensors are never equal
  };
  Place place = Place::kVariable;
  std::uint64_t shown_bytes = 0;  // elements of the tensors found, in bytes
  std::uint64_t whole_bytes = 0;  // of their storages, each once
};

struct Host {
  // Which line of the user's program runs on this thread: "train.py:12", or "" when not known; the
  // text must live for ever. Called between ops with none of Lowtide's locks held. Costs some 20 ns
  // for a line that was asked for before, up to a microsecond for others.
  const char* (*program_line)() noexcept = nullptr;

  // Finds the tensors of the groups that the host's program holds, and where. Dear: it looks at all
  // objects. Called with none of Lowtide's locks held.
  std::vector<TensorHolder> (*find_holders)(const TensorSorter& sorter) = nullptr;

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
// Whether there is a host that knows lines.
bool has_program_lines() noexcept;

// Empty without a host.
std::vector<TensorHolder> find_holders(const TensorSorter& sorter);
bool can_find_holders() noexcept;

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
