#include "lowtide/memory_meter.h"

#include <ATen/core/Tensor.h>

#include "src/hook/device_memory.h"
#include "src/hook/tensor_block.h"

namespace lowtide {

KindScope::KindScope(MemoryKind kind) noexcept : outer_(hook::exchange_current_kind(kind)) {}

KindScope::~KindScope() { hook::exchange_current_kind(outer_); }

Bytes retag(const at::Tensor& tensor, MemoryKind kind) {
  hook::MemoryBlock* block = hook::block_of(tensor);
  if (block == nullptr) {
    return 0;
  }
  hook::cpu_memory().ledger().retag(block->size_bytes, block->kind, kind);
  return block->size_bytes;
}

MemoryMeter::MemoryMeter() : watch_(std::make_unique<hook::PeakWatch>()) {
  hook::cpu_memory().require_active();
  hook::cpu_memory().ledger().begin_watch(*watch_);
}

MemoryMeter::~MemoryMeter() { hook::cpu_memory().ledger().end_watch(*watch_); }

Bytes MemoryMeter::live_bytes() const noexcept { return hook::cpu_memory().ledger().live(); }

Bytes MemoryMeter::peak_bytes() const noexcept {
  return hook::cpu_memory().ledger().at_peak(*watch_).total();
}

MemoryByKind MemoryMeter::by_kind() const noexcept {
  return hook::cpu_memory().ledger().live_by_kind();
}

MemoryByKind MemoryMeter::peak_by_kind() const noexcept {
  return hook::cpu_memory().ledger().at_peak(*watch_);
}

void MemoryMeter::reset_peak() noexcept { hook::cpu_memory().ledger().restart_watch(*watch_); }

}  // namespace lowtide
