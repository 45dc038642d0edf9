#include "src/hook/program_line.h"

#include <atomic>

namespace lowtide::hook {
namespace {

std::atomic<ProgramLineSource> g_source{nullptr};

}  // namespace

void set_program_line_source(ProgramLineSource source) noexcept {
  g_source.store(source, std::memory_order_release);
}

const char* program_line() noexcept {
  const ProgramLineSource source = g_source.load(std::memory_order_acquire);
  return source == nullptr ? "" : source();
}

}  // namespace lowtide::hook
