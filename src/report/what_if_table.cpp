#include "src/report/what_if_table.h"

#include <optional>
#include <string>

#include "src/allocator/trace_replay.h"

namespace lowtide {
namespace {

// Events from which a replay takes so long that twenty for each row are too many.
constexpr std::uint32_t kLongTrace = 1'500'000;

}  // namespace

Json what_if_table(const Snapshot& snapshot, std::int64_t device, std::int64_t peak_event) {
  const DeviceReplay replay(snapshot, device);
  const RecordedReplay recorded = replay.as_recorded();
  const DeviceTrace* trace = snapshot.trace_of(device);
  Json table = Json::object();
  table["allocations"] = recorded.allocations;
  table["addresses_matched"] = recorded.addresses_matched;
  table["layout_identical"] = recorded.layout_identical;
  table["unsupported"] = Json::array();
  for (const std::string& problem : replay.problems()) table["unsupported"].push_back(problem);
  table["rows"] = Json::array();
  if (trace == nullptr) {
    table["unsupported"].push_back("no trace was recorded");
    return table;
  }
  const bool is_long = trace->count > kLongTrace;
  const auto add = [&](const std::string& change, Bytes peak, std::optional<Bytes> smallest) {
    Json row = Json::object();
    row["change"] = change;
    row["peak_reserved"] = peak;
    row["smallest_capacity"] = smallest ? Json(*smallest) : Json();
    table["rows"].push_back(std::move(row));
  };
  add("as recorded",
      replay.problems().empty() ? recorded.peak_reserved : replay.what_if({}).peak_reserved,
      replay.smallest_capacity(replay.settings()));
  for (const char* setting : {"expandable_segments:True", "max_split_size_mb:128",
                              "roundup_power2_divisions:4", "large_segment_size_mb:40"}) {
    AllocatorSettings settings = replay.settings();
    apply_setting(settings, setting);
    if (settings == replay.settings()) continue;
    std::optional<Bytes> smallest;
    if (!is_long) smallest = replay.smallest_capacity(settings);
    add(setting, replay.what_if({.settings = settings}).peak_reserved, smallest);
  }
  if (peak_event >= 0) {
    const auto before = static_cast<std::uint32_t>(peak_event);
    add("empty_cache just before the peak",
        replay.what_if({.empty_cache_before = before}).peak_reserved, std::nullopt);
  }
  const WhatIfResult warmed = replay.what_if({.from_empty = true, .largest_first = true});
  add("the peak's sizes requested first", warmed.peak_reserved, std::nullopt);
  return table;
}

}  // namespace lowtide
