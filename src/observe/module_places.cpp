// Tested by tests/observe/allocation_recorder_test.cpp and tests/python/record_test.py.

#include "src/observe/module_places.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "src/hook/backward_node.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide {
namespace {

struct Change {
  std::uint64_t first_node;
  const char* module;
};

struct Places {
  std::mutex mutex;  // guards all that follows
  std::unordered_set<std::string> names;
  std::vector<Change> changes;  // first_node ascends
};

Places& places() {
  static auto* const one = new Places;
  return *one;
}

thread_local std::vector<const char*> t_modules;  // entered and not left
std::atomic<bool> g_any{false};                   // has been entered since the start
std::atomic<std::uint64_t> g_batch_size{0};

void note_change() {
  const std::uint64_t node = at::sequence_number::peek();
  const char* module = t_modules.empty() ? "" : t_modules.back();
  std::vector<Change>& changes = places().changes;
  while (!changes.empty() && changes.back().first_node >= node) changes.pop_back();
  changes.push_back({node, module});
}

}  // namespace

void ModulePlaces::enter(const std::string& name) {
  const std::lock_guard lock(places().mutex);
  t_modules.push_back(places().names.insert(name).first->c_str());
  g_any.store(true, std::memory_order_relaxed);
  note_change();
}

void ModulePlaces::leave() {
  const std::lock_guard lock(places().mutex);
  if (!t_modules.empty()) t_modules.pop_back();
  note_change();
}

const char* ModulePlaces::current() noexcept {
  if (!g_any.load(std::memory_order_relaxed)) return "";
  if (hook::current_backward_id() == -1) return t_modules.empty() ? "" : t_modules.back();
  const std::int64_t node = hook::current_node_number();
  if (node < 0) return "";
  const std::lock_guard lock(places().mutex);
  const std::vector<Change>& changes = places().changes;
  const auto after = std::upper_bound(
      changes.begin(), changes.end(), static_cast<std::uint64_t>(node),
      [](std::uint64_t number, const Change& change) { return number < change.first_node; });
  return after == changes.begin() ? "" : std::prev(after)->module;
}

void ModulePlaces::begin_step() {
  if (!g_any.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(places().mutex);
  places().changes.clear();
  note_change();
}

void ModulePlaces::set_batch_size(std::uint64_t batch_size) noexcept {
  g_batch_size.store(batch_size, std::memory_order_relaxed);
}

std::uint64_t ModulePlaces::batch_size() noexcept {
  return g_batch_size.load(std::memory_order_relaxed);
}

}  // namespace lowtide
