#include <cstddef>
#include <cstdint>
#include <span>

#include "lowtide/error.h"
#include "src/allocator/trace_replay.h"
#include "src/evidence/snapshot_analysis.h"
#include "src/evidence/snapshot_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lowtide;
  try {
    ByteSource source("fuzz", std::as_bytes(std::span(data, size)));
    const Snapshot snapshot = read_snapshot(source);
    analyse(snapshot);
    for (const std::int64_t device : snapshot.devices()) {
      const DeviceReplay replay(snapshot, device);
      replay.as_recorded();
      replay.what_if({.capacity = 4_GiB, .largest_first = true});
    }
  } catch (const FormatError&) {
    // Refused, with a reason.
  }
  return 0;
}
