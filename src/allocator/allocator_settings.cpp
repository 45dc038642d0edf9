#include "src/allocator/allocator_settings.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <string_view>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr Bytes kMinBlock = 512;
constexpr Bytes kSmallRequest = 1_MiB;
constexpr Bytes kSmallSegment = 2_MiB;
constexpr Bytes kMinLargeRequest = 10_MiB;
constexpr Bytes kSegmentStep = 2_MiB;

Bytes up_to_multiple(Bytes bytes, Bytes step) { return (bytes + step - 1) / step * step; }

[[noreturn]] void refuse(const std::string& setting, const std::string& what) {
  throw UsageError("LT0720", concat("cannot use the setting \"", setting, "\": ", what));
}

std::uint64_t whole_number(const std::string& setting, std::string_view text, std::uint64_t low,
                           std::uint64_t high) {
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    refuse(setting, concat("\"", text, "\" is no whole number from ", low, " to ", high));
  }
  return value;
}

std::uint32_t divisions(const std::string& setting, std::string_view text) {
  const std::uint64_t value = whole_number(setting, text, 0, 1u << 20);
  if (value != 0 && !std::has_single_bit(value)) {
    refuse(setting, concat("\"", text, "\" is no power of two"));
  }
  return static_cast<std::uint32_t>(value);
}

// [256:1,512:2,>:4]: for sizes from so many MiB.
void read_division_list(AllocatorSettings& settings, const std::string& setting,
                        std::string_view list) {
  list = list.substr(1, list.size() - 2);
  std::size_t next = 0;
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) refuse(setting, concat("\"", entry, "\" has no colon"));
    const std::string_view key = entry.substr(0, colon);
    const std::uint32_t value = divisions(setting, entry.substr(colon + 1));
    auto& all = settings.roundup_power2_divisions;
    if (key == ">") {
      std::fill(all.begin() + static_cast<std::ptrdiff_t>(next), all.end(), value);
      next = all.size();
      continue;
    }
    const std::uint64_t mebibytes = whole_number(setting, key, 1, 65536);
    if (!std::has_single_bit(mebibytes)) refuse(setting, concat(key, " MiB is no power of two"));
    const auto place = std::min<std::size_t>(static_cast<std::size_t>(std::countr_zero(mebibytes)),
                                             all.size() - 1);
    // As torch: the first entry holds for everything below it too.
    if (next == 0) std::fill(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(place), value);
    all[place] = value;
    next = place + 1;
  }
}

}  // namespace

Bytes AllocatorSettings::rounded(Bytes bytes) const {
  if (bytes < kMinBlock) return kMinBlock;
  const int magnitude = static_cast<int>(std::bit_width(bytes)) - 1 - 20;
  const auto place = static_cast<std::size_t>(
      std::clamp(magnitude, 0, static_cast<int>(roundup_power2_divisions.size()) - 1));
  const Bytes parts = roundup_power2_divisions[place];
  if (parts <= 1 || bytes <= kMinBlock * parts) return up_to_multiple(bytes, kMinBlock);
  if (std::has_single_bit(bytes)) return bytes;
  const Bytes floor = std::bit_floor(bytes);
  const Bytes step = floor >> (std::bit_width(parts) - 1);
  return step == 0 ? floor * 2 : up_to_multiple(bytes, step);
}

Bytes AllocatorSettings::segment_for(Bytes rounded) const {
  if (rounded <= kSmallRequest) return kSmallSegment;
  if (rounded < kMinLargeRequest) return large_segment_size;
  return up_to_multiple(rounded, kSegmentStep);
}

AllocatorSettings settings_of(const Snapshot& snapshot) {
  AllocatorSettings settings;
  const SnapshotSettings& read = snapshot.settings;
  if (read.max_split_size != 0) settings.max_split_size = read.max_split_size;
  if (read.max_non_split_rounding != 0) {
    settings.max_non_split_rounding = read.max_non_split_rounding;
  }
  if (read.large_segment_size != 0) settings.large_segment_size = read.large_segment_size;
  settings.garbage_collection_threshold = read.garbage_collection_threshold;
  settings.expandable_segments = read.expandable_segments;
  settings.roundup_power2_divisions = read.roundup_power2_divisions;
  return settings;
}

void apply_setting(AllocatorSettings& settings, const std::string& setting) {
  const std::size_t colon = setting.find(':');
  if (colon == std::string::npos)
    refuse(setting, "write key:value, as PYTORCH_CUDA_ALLOC_CONF does");
  const std::string key = setting.substr(0, colon);
  const std::string value = setting.substr(colon + 1);
  constexpr std::uint64_t kMaxMebibytes = std::uint64_t{1} << 40;
  if (key == "max_split_size_mb") {
    // torch refuses values that are not above its large segment.
    settings.max_split_size = whole_number(setting, value, 21, kMaxMebibytes) << 20;
  } else if (key == "max_non_split_rounding_mb") {
    settings.max_non_split_rounding = whole_number(setting, value, 20, kMaxMebibytes) << 20;
  } else if (key == "large_segment_size_mb") {
    settings.large_segment_size = whole_number(setting, value, 10, kMaxMebibytes) << 20;
    if (settings.large_segment_size % kSegmentStep != 0) refuse(setting, "it is no even number");
  } else if (key == "expandable_segments") {
    if (value != "True" && value != "False") refuse(setting, "write True or False");
    settings.expandable_segments = value == "True";
  } else if (key == "garbage_collection_threshold") {
    double threshold = 0;
    const auto [end, problem] =
        std::from_chars(value.data(), value.data() + value.size(), threshold);
    if (problem != std::errc() || end != value.data() + value.size() || !(threshold > 0) ||
        !(threshold < 1)) {
      refuse(setting, "it lies between 0 and 1");
    }
    settings.garbage_collection_threshold = threshold;
  } else if (key == "roundup_power2_divisions") {
    if (value.size() >= 2 && value.front() == '[' && value.back() == ']') {
      read_division_list(settings, setting, value);
    } else {
      settings.roundup_power2_divisions.fill(divisions(setting, value));
    }
  } else {
    refuse(setting,
           "known are max_split_size_mb, roundup_power2_divisions, garbage_collection_threshold, "
           "expandable_segments, large_segment_size_mb and max_non_split_rounding_mb");
  }
}

}  // namespace lowtide
