#include "src/hook/host_errors.h"

#include <atomic>

namespace lowtide::hook {
namespace {

std::atomic<ErrorTranslator> g_translator{nullptr};
thread_local bool t_paused = false;

}  // namespace

ReplayDone::~ReplayDone() = default;
const char* ReplayDone::what() const noexcept { return "the replay has all it needs"; }

void set_error_translator(ErrorTranslator translator) noexcept {
  g_translator.store(translator, std::memory_order_release);
}

HostErrorsPause::HostErrorsPause() noexcept : before_(std::exchange(t_paused, true)) {}
HostErrorsPause::~HostErrorsPause() { t_paused = before_; }

void translate_current_error() {
  if (t_paused) return;
  if (const ErrorTranslator translator = g_translator.load(std::memory_order_acquire)) {
    translator(std::current_exception());
  }
}

}  // namespace lowtide::hook
