#include "src/hook/host.h"

namespace lowtide::hook {
namespace {

constinit Host g_host;

}  // namespace

void set_host(const Host& host) noexcept { g_host = host; }

const char* program_line() noexcept {
  return g_host.program_line == nullptr ? "" : g_host.program_line();
}

bool has_program_lines() noexcept { return g_host.program_line != nullptr; }

std::vector<TensorHolder> find_holders(const TensorSorter& sorter) {
  if (g_host.find_holders == nullptr) return {};
  return g_host.find_holders(sorter);
}

bool can_find_holders() noexcept { return g_host.find_holders != nullptr; }

bool is_idle_wrapper(void* wrapper) noexcept {
  return wrapper != nullptr && g_host.wrapper_count != nullptr &&
         g_host.wrapper_count(wrapper) == 1;
}

bool is_special_wrapper(void* wrapper) noexcept {
  return wrapper != nullptr && g_host.is_special != nullptr && g_host.is_special(wrapper);
}

Host::Saves saves_now(const void* node) noexcept {
  return g_host.saves_now == nullptr ? Host::Saves::kUnknown : g_host.saves_now(node);
}

HostUnlocked::HostUnlocked() noexcept
    : state_(g_host.unlock == nullptr ? nullptr : g_host.unlock()) {}

HostUnlocked::~HostUnlocked() {
  if (state_ != nullptr) g_host.lock_again(state_);
}

}  // namespace lowtide::hook
