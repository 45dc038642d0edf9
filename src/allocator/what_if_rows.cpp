#include "src/allocator/what_if_rows.h"

namespace lowtide {
namespace {

// Events from which a replay takes so long that twenty for each row are too many.
constexpr std::uint32_t kLongTrace = 1'500'000;

}  // namespace

WhatIfQuestions usual_questions(const DeviceAnalysis& analysis) {
  WhatIfQuestions questions;
  if (!analysis.out_of_memory.empty()) {
    const OutOfMemoryEvent& failure = analysis.out_of_memory.back();
    questions.empty_cache_before = failure.event;
    questions.capacity = failure.available();
  } else if (analysis.peak.event >= 0) {
    questions.empty_cache_before = static_cast<std::uint32_t>(analysis.peak.event);
  }
  if (questions.empty_cache_before) {
    for (const std::uint32_t step : analysis.growth.steps) {
      if (step < *questions.empty_cache_before) questions.step_begin = step;
    }
  }
  return questions;
}

std::vector<WhatIfRow> what_if_rows(const DeviceReplay& replay, const WhatIfQuestions& questions) {
  std::vector<WhatIfRow> rows;
  if (!replay.has_trace()) return rows;
  const auto add = [&](std::string name, const WhatIf& change) -> WhatIfRow& {
    WhatIfRow& row = rows.emplace_back();
    row.change = std::move(name);
    row.peak_reserved = replay.what_if(change).peak_reserved;
    if (questions.capacity) {
      WhatIf limited = change;
      limited.capacity = *questions.capacity;
      row.completes = replay.what_if(limited).completes;
    }
    return row;
  };
  WhatIfRow& recorded = add("as recorded", {});
  if (replay.problems().empty()) recorded.peak_reserved = replay.as_recorded().peak_reserved;
  if (questions.smallest_capacities) {
    recorded.smallest_capacity = replay.smallest_capacity(replay.settings());
  }
  for (const char* setting : {"expandable_segments:True", "max_split_size_mb:128",
                              "roundup_power2_divisions:4", "large_segment_size_mb:40"}) {
    AllocatorSettings settings = replay.settings();
    apply_setting(settings, setting);
    if (settings == replay.settings()) continue;
    WhatIfRow& row = add(setting, {.settings = settings});
    row.is_setting = true;
    if (questions.smallest_capacities && replay.event_count() <= kLongTrace) {
      row.smallest_capacity = replay.smallest_capacity(settings);
    }
  }
  if (questions.empty_cache_before) {
    add(questions.capacity ? "empty_cache just before the failure"
                           : "empty_cache just before the peak",
        {.empty_cache_before = questions.empty_cache_before});
  }
  if (questions.step_begin) {
    add("empty_cache as the step begins", {.empty_cache_before = questions.step_begin});
  }
  add("the peak's sizes requested first", {.from_empty = true, .largest_first = true});
  return rows;
}

}  // namespace lowtide
