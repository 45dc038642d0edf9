#pragma once
// Storages whose bytes may be elsewhere while no op uses them (budget's attach()), for who reads
// bytes without an op.
//
//   const bool may_move = hook::bring_in(storage);   // its bytes are there now
//
// Ops need not ask: what they read is brought in before they run.

#include <c10/core/Storage.h>

namespace lowtide::hook {

class AwayMemory {
 public:
  virtual ~AwayMemory();
  // See bring_in(). Any thread.
  virtual bool bring_in(const c10::Storage& storage) = 0;
};

// Null: all bytes are where they are. It must outlive its use.
void set_away_memory(AwayMemory* memory) noexcept;

// The storage's bytes are there, until this thread allocates. Whether they may leave again, and
// come back at another place. Throws BudgetError when there is no room, IoError when they cannot be
// read.
bool bring_in(const c10::Storage& storage);

// Whether the bytes are elsewhere just now.
inline bool is_away(const c10::StorageImpl& storage) {
  return storage.nbytes() > 0 &&
         const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get() == nullptr;
}

}  // namespace lowtide::hook
