#pragma once
// The memory block that a tensor lies in.
//
//   if (hook::MemoryBlock* block = hook::block_of(tensor)) ... block->kind ...

#include <ATen/core/Tensor.h>

#include "src/hook/device_memory.h"

namespace lowtide::hook {

// Null for undefined tensors, those without storage, and memory that is not our allocator's. Does
// not ask for data_ptr(), which would copy a lazily cloned storage or refuse a guarded one.
inline MemoryBlock* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return cpu_memory().find_block(
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
}

}  // namespace lowtide::hook
