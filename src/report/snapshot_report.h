#pragma once
// An analysis of a snapshot, a comparison of two, and replays, as JSON and as text for people.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/allocator/trace_replay.h"
#include "src/base/json.h"
#include "src/evidence/snapshot_analysis.h"

namespace lowtide {

Json snapshot_json(const Snapshot& snapshot, const SnapshotAnalysis& analysis);
std::string snapshot_text(const Snapshot& snapshot, const SnapshotAnalysis& analysis);

// The same lines at two peaks; all devices of a file together.
Json difference_json(const SnapshotAnalysis& before, const SnapshotAnalysis& after);
std::string difference_text(const SnapshotAnalysis& before, const SnapshotAnalysis& after);

// [{`name`, "bytes", "allocations"}] and [{"kind", "bytes", "allocations"}].
Json lines_json(const std::vector<LineTotal>& lines, const char* name);
Json kinds_json(const std::array<KindTotal, kBlockKinds>& kinds);

struct ReplayRequest {
  std::optional<Bytes> capacity;
  std::vector<std::string> settings;  // key:value each
  bool smallest_capacity = false;
  std::optional<std::uint32_t> empty_cache_before;
  bool largest_first = false;

  bool changes_anything() const {
    return capacity || !settings.empty() || empty_cache_before || largest_first;
  }
};

struct ReplayOfDevice {
  std::int64_t device = 0;
  RecordedReplay recorded;
  std::optional<WhatIfResult> changed;  // when the request changes anything
  std::optional<Bytes> smallest_capacity;
  std::vector<std::string> unsupported;
};

// Throws UsageError (LT0720) for a setting that torch would refuse.
std::vector<ReplayOfDevice> replay_snapshot(const Snapshot& snapshot, const ReplayRequest& request);

Json replay_json(const Snapshot& snapshot, const std::vector<ReplayOfDevice>& replays);
std::string replay_text(const Snapshot& snapshot, const ReplayRequest& request,
                        const std::vector<ReplayOfDevice>& replays);

}  // namespace lowtide
