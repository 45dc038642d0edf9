#include <cstddef>
#include <cstdint>
#include <span>

#include "lowtide/error.h"
#include "src/allocator/trace_replay.h"
#include "src/diagnose/diagnosis.h"
#include "src/diagnose/snapshot_facts.h"
#include "src/evidence/snapshot_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lowtide;
  try {
    ByteSource source("fuzz", std::as_bytes(std::span(data, size)));
    const Snapshot snapshot = read_snapshot(source);
    const std::vector<SnapshotFacts> facts{facts_of(snapshot, {}, false)};
    if (diagnose({}, facts, {}).findings.empty()) __builtin_trap();
    for (const std::int64_t device : snapshot.devices()) {
      DeviceReplay(snapshot, device).what_if({.capacity = 4_GiB, .largest_first = true});
    }
  } catch (const FormatError&) {
    // Refused, with a reason.
  }
  return 0;
}
