#pragma once
// The what-ifs that are asked of every trace: other settings, an emptied cache, a warm-up.
//
//   for (const WhatIfRow& row : what_if_rows(DeviceReplay(snapshot, 0), {.capacity = 24_GiB}))
//     row.change, row.completes;

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/allocator/trace_replay.h"
#include "src/evidence/snapshot_analysis.h"

namespace lowtide {

struct WhatIfQuestions {
  std::optional<std::uint32_t> empty_cache_before = {};  // an event; the peak, or a failure
  std::optional<std::uint32_t> step_begin = {};          // an event; of the step that it is in
  std::optional<Bytes> capacity = {};                    // what the device had for this process
  // Searches the least capacity for each setting too: about twenty replays a row. Traces of more
  // than 1.5 million events get it for the recorded settings only.
  bool smallest_capacities = true;
};

// About the last request that failed, or the peak when none did.
WhatIfQuestions usual_questions(const DeviceAnalysis& analysis);

struct WhatIfRow {
  std::string change;       // "as recorded", "expandable_segments:True"
  bool is_setting = false;  // `change` is a setting as PYTORCH_CUDA_ALLOC_CONF has it
  Bytes peak_reserved = 0;  // on a device without limit
  std::optional<Bytes> smallest_capacity;
  std::optional<bool> completes;  // with the capacity, if one was given
};

// The first row is the trace as recorded. Settings that are in force already have none. The last
// one requests the peak's sizes first. Empty without a trace.
std::vector<WhatIfRow> what_if_rows(const DeviceReplay& replay, const WhatIfQuestions& questions);

}  // namespace lowtide
