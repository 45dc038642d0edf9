#include "src/hook/program_place.h"

#include <c10/util/flat_hash_map.h>
#include <dlfcn.h>
#include <link.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/text.h"
#include "src/hook/host.h"

namespace lowtide::hook {

struct ProgramPlace {
  std::string text;
  std::vector<void*> frames;  // innermost first; empty: `text` is final
};

namespace {

// Frames of the user's code that are kept: headers of libtorch are inlined into it, and are
// skipped when the place is put into words.
constexpr std::size_t kMostFrames = 8;

std::mutex g_mutex;  // guards what follows
std::unordered_map<const char*, const ProgramPlace*>& places_of_host() {
  static auto& map = *new std::unordered_map<const char*, const ProgramPlace*>;
  return map;
}
std::unordered_map<std::uint64_t, ProgramPlace*>& places_of_stacks() {
  static auto& map = *new std::unordered_map<std::uint64_t, ProgramPlace*>;
  return map;
}

const ProgramPlace* place_of_host(const char* line) {
  thread_local ska::flat_hash_map<const char*, const ProgramPlace*> cache;
  const auto cached = cache.find(line);
  if (cached != cache.end()) return cached->second;
  const std::lock_guard lock(g_mutex);
  const ProgramPlace*& place = places_of_host()[line];
  if (place == nullptr) place = new ProgramPlace{line, {}};
  return cache[line] = place;
}

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
};

// The code of the libraries whose frames are nobody's program.
std::vector<Range> inner_ranges() {
  std::vector<Range> ranges;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        const std::string_view name = path.substr(path.rfind('/') + 1);
        bool is_inner = path.starts_with("linux-vdso");
        for (const std::string_view inner :
             {"libtorch", "libc10", "liblowtide", "libstdc++", "libc.so", "libgcc_s", "libgomp",
              "libomp", "libpthread", "libm.so", "ld-linux", "libpython"}) {
          is_inner |= name.starts_with(inner);
        }
        if (!is_inner) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
          const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
          static_cast<std::vector<Range>*>(out)->push_back({begin, begin + part.p_memsz});
        }
        return 0;
      },
      &ranges);
  return ranges;
}

bool is_inner(void* address) {
  static const auto& ranges = *new std::vector<Range>(inner_ranges());
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& range) { return value >= range.begin && value < range.end; });
}

std::atomic<bool> g_can_unwind{true};

const ProgramPlace* place_of_stack() {
  std::vector<void*> stack;
  try {
    stack = torch::unwind::unwind();
  } catch (...) {
    g_can_unwind.store(false, std::memory_order_relaxed);  // not on this kind of machine
    return nullptr;
  }
  std::size_t begin = 0;
  while (begin < stack.size() && is_inner(stack[begin])) ++begin;
  const std::size_t end = std::min(stack.size(), begin + kMostFrames);
  if (begin == end) return nullptr;
  std::uint64_t hash = 0x9e37'79b9'7f4a'7c15;
  for (std::size_t i = begin; i < end; ++i) {
    hash = (hash ^ reinterpret_cast<std::uintptr_t>(stack[i])) * 0xff51'afd7'ed55'8ccd;
    hash ^= hash >> 32;
  }
  thread_local ska::flat_hash_map<std::uint64_t, const ProgramPlace*> cache;
  const auto cached = cache.find(hash);
  if (cached != cache.end()) return cached->second;
  const std::lock_guard lock(g_mutex);
  ProgramPlace*& place = places_of_stacks()[hash];
  if (place == nullptr) {
    place = new ProgramPlace;
    place->frames.assign(stack.begin() + static_cast<std::ptrdiff_t>(begin),
                         stack.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return cache[hash] = place;
}

bool is_of_headers(const std::string& file) {
  for (const std::string_view inner :
       {"/torch/include/", "/include/c++/", "/torch/csrc/", "/ATen/", "/c10/"}) {
    if (file.find(inner) != std::string::npos) return true;
  }
  return false;
}

std::string address_text(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string_view path = info.dli_fname;
  char offset[32];
  std::snprintf(
      offset, sizeof offset, "+0x%zx",
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  return concat(path.substr(path.rfind('/') + 1), offset);
}

std::string words_of(const std::vector<void*>& frames) {
  std::vector<torch::unwind::Frame> found;
  try {
    // The reader looks up what is before a return address by itself.
    found = torch::unwind::symbolize(frames, torch::unwind::Mode::fast);
  } catch (...) {
    return address_text(frames.front());
  }
  std::string fallback;
  for (const auto& frame : found) {
    const bool has_line = frame.lineno > 0 && frame.filename.find(".so") == std::string::npos &&
                          frame.filename.find('.') != std::string::npos;
    if (!has_line || is_of_headers(frame.filename)) continue;
    return concat(frame.filename, ":", frame.lineno);
  }
  return address_text(frames.front());
}

}  // namespace

const ProgramPlace* current_place() noexcept {
  try {
    if (has_program_lines()) {
      const char* line = program_line();
      return *line == '\0' ? nullptr : place_of_host(line);
    }
    return g_can_unwind.load(std::memory_order_relaxed) ? place_of_stack() : nullptr;
  } catch (...) {
    return nullptr;
  }
}

std::string text_of(const ProgramPlace* place) {
  if (place == nullptr) return "";
  if (place->frames.empty()) return place->text;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (place->text.empty()) const_cast<ProgramPlace*>(place)->text = words_of(place->frames);
  return place->text;
}

}  // namespace lowtide::hook
