#pragma once
// What a snapshot has to say about a failure: what was live, what lay free and where, and which
// change would have made it fit.
//
//   SnapshotFacts facts = facts_of(read_snapshot("snapshot.pickle"), logs);
//   facts.devices[0].failure->live.lines[0];     // the line that held most
//   facts.devices[0].rows;                       // replays with other settings
//
// Everything here is copied out of the snapshot, which may go.

#include <optional>
#include <string>
#include <vector>

#include "src/allocator/what_if_rows.h"
#include "src/evidence/log_evidence.h"
#include "src/evidence/snapshot_analysis.h"

namespace lowtide {

// A request that failed, and the allocator's state just before it.
struct FailureFacts {
  OutOfMemoryEvent event;
  Bytes asked_of_driver = 0;            // the request as a message prints it
  std::optional<RecordedMoment> state;  // when the replay is exact up to there
};

struct DeviceFacts {
  DeviceAnalysis analysis;
  std::string where;       // "device 1", "the CPU"
  bool is_budget = false;  // of a budget's refusal: nothing to replay
  bool has_trace = false;
  RecordedReplay recorded;
  std::vector<std::string> problems;  // why the replay is not exact
  bool is_exact() const {
    return has_trace && problems.empty() && recorded.layout_identical &&
           recorded.addresses_matched == recorded.allocations;
  }
  // The last one, or the one that a log's message is about.
  std::optional<FailureFacts> failure;
  Moment moment;  // at the failure, or else at the peak
  // What the device had for this process, or the process was allowed: from the failure, or else
  // from a log's message about this device.
  std::optional<Bytes> available;
  Bytes free_in_private_pools = 0;
  std::vector<WhatIfRow> rows;  // with `available` as the capacity, if it is known
  // The logs' message about the same failure; null when there is none.
  const Sighting* message = nullptr;
  std::string message_source;
  // The failure as a log would tell it, with the stack as its traceback; a budget's refusal in its
  // own words. No sighting without a failure.
  LogEvidence as_log;
};

struct SnapshotFacts {
  std::string name;
  Bytes reserved = 0;
  std::uint64_t events = 0;
  std::vector<DeviceFacts> devices;
};

// `logs` must outlive the result. A few replays for each device; about twenty more for each setting
// with `smallest_capacities`.
SnapshotFacts facts_of(const Snapshot& snapshot, const std::vector<LogEvidence>& logs,
                       bool smallest_capacities = true);

}  // namespace lowtide
