#include "src/evidence/snapshot.h"

#include <algorithm>

#include "lowtide/error.h"

namespace lowtide {

const char* action_name(EventAction action) {
  switch (action) {
    case EventAction::kAlloc:
      return "alloc";
    case EventAction::kFreeRequested:
      return "free_requested";
    case EventAction::kFreeCompleted:
      return "free_completed";
    case EventAction::kSegmentAlloc:
      return "segment_alloc";
    case EventAction::kSegmentFree:
      return "segment_free";
    case EventAction::kSegmentMap:
      return "segment_map";
    case EventAction::kSegmentUnmap:
      return "segment_unmap";
    case EventAction::kSnapshot:
      return "snapshot";
    case EventAction::kOom:
      return "oom";
    case EventAction::kOther:
      return "other";
  }
  return "";
}

std::string Snapshot::device_name(std::int64_t device) const {
  return is_budget ? std::string("the CPU") : "device " + std::to_string(device);
}

std::vector<std::int64_t> Snapshot::devices() const {
  std::vector<std::int64_t> all;
  for (const SnapshotSegment& segment : segments) all.push_back(segment.device);
  for (const DeviceTrace& trace : traces) all.push_back(trace.device);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

const DeviceTrace* Snapshot::trace_of(std::int64_t device) const {
  for (const DeviceTrace& trace : traces) {
    if (trace.device == device) return &trace;
  }
  return nullptr;
}

void SizeSum::refuse() {
  throw FormatError("LT0715",
                    "the sizes in the snapshot add up to more than 2^63 bytes. The file is damaged "
                    "or made by hand; write or fetch it again");
}

}  // namespace lowtide
