#include "src/hook/away_memory.h"

#include <atomic>

namespace lowtide::hook {
namespace {

std::atomic<AwayMemory*> g_memory{nullptr};

}  // namespace

AwayMemory::~AwayMemory() = default;

void set_away_memory(AwayMemory* memory) noexcept { g_memory = memory; }

bool bring_in(const c10::Storage& storage) {
  AwayMemory* const memory = g_memory.load(std::memory_order_acquire);
  return memory != nullptr && memory->bring_in(storage);
}

}  // namespace lowtide::hook
