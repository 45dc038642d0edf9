#pragma once
// What a snapshot says about memory: the peak and what lived at it, what grows from step to step,
// and what lies free and why.
//
//   SnapshotAnalysis analysis = analyse(snapshot);
//   analysis.devices[0].peak.bytes;           // requested bytes
//   analysis.devices[0].peak_lines[0];        // the line that holds most of them
//
// "Live" is what programs asked for and have not freed; `allocated` and `reserved` count blocks and
// segments. Lines always add up: what no line can be given for has an entry of its own.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/evidence/snapshot.h"

namespace lowtide {

constexpr std::uint32_t kNoEvent = 0xffffffffu;

// One block's life in the trace of a device. Events count from the trace's first.
struct Allocation {
  std::uint64_t address = 0;
  Bytes size = 0;                  // requested
  std::uint32_t made = kNoEvent;   // kNoEvent: before the trace
  std::uint32_t freed = kNoEvent;  // kNoEvent: not in the trace
  StackId stack = 0;               // where it was made
  StackId freed_stack = 0;         // where it was freed
  std::uint32_t lane = 0;

  bool lives_at(std::int64_t event) const {
    return (made == kNoEvent || std::int64_t{made} <= event) &&
           (freed == kNoEvent || std::int64_t{freed} > event);
  }
};

// What memory is for.
enum class BlockKind : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,
  kWorkspace,
  kUnattributed,
};
constexpr std::size_t kBlockKinds = 6;
const char* kind_name(BlockKind kind);

struct LineTotal {
  // "model.py:41:forward"; "freed at .." when only the end of its life is known; "<no user frame>"
  std::string line;
  Bytes bytes = 0;
  std::uint64_t allocations = 0;
};

struct KindTotal {
  Bytes bytes = 0;
  std::uint64_t allocations = 0;
};

struct Fragmentation {
  Bytes free_in_whole_segments = 0;  // in segments that are all free
  Bytes free_in_partly_used = 0;     // in segments that something pins
  Bytes slack = 0;                   // in live blocks, beyond what was requested
  Bytes largest_free = 0;
  Bytes empty_cache_gives = 0;       // what torch.cuda.empty_cache() would give back
  std::vector<LineTotal> pinned_by;  // free_in_partly_used, by the lines beside the holes
};

struct Growth {
  std::string steps_from;  // "annotations" or "optimizer frames"; empty: no steps were found
  std::vector<std::uint32_t> steps;  // the event each step begins with
  std::vector<Bytes> live;           // at each
  // What lives more at the last step than at the first, and rose on the way; most first.
  std::vector<LineTotal> lines;
};

struct OutOfMemoryEvent {
  std::uint32_t event = 0;
  Bytes requested = 0;  // rounded up to 512
  Bytes device_free = 0;
  std::string line;
  StackId stack = 0;
  Bytes live = 0;
  Bytes reserved = 0;  // as far as the trace has the segments' events

  // What the device had for this process: what it held, and what was free.
  Bytes available() const {
    Bytes sum = 0;
    return __builtin_add_overflow(reserved, device_free, &sum) ? ~Bytes{0} : sum;
  }
};

struct TimePoint {
  std::uint32_t event = 0;
  std::int64_t time_us = 0;
  Bytes live = 0;
};

struct DeviceAnalysis {
  std::int64_t device = 0;
  Bytes reserved = 0;
  Bytes allocated = 0;     // blocks in use
  Bytes pending_free = 0;  // blocks that wait for another stream
  Bytes requested = 0;
  std::uint64_t segments = 0;
  std::uint64_t blocks = 0;
  std::uint64_t streams = 0;
  std::uint64_t expandable_segments = 0;

  std::array<std::uint64_t, kEventActions> events{};
  std::uint32_t event_count = 0;
  std::int64_t time_span_us = 0;
  Bytes live_at_start = 0;
  Bytes live_at_end = 0;
  struct {
    std::int64_t event = -1;  // -1: nothing in the trace is above the start
    Bytes bytes = 0;
    std::uint64_t allocations = 0;
  } peak;
  std::vector<LineTotal> sites;       // at the peak, by the innermost Python line outside /torch/
  std::vector<LineTotal> user_lines;  // by the innermost line of the user's own
  std::vector<LineTotal> library_lines;  // by the innermost Python line, or C++ function
  std::array<KindTotal, kBlockKinds> kinds{};
  std::vector<LineTotal> end_lines;  // at the end, by the user's lines
  Fragmentation fragmentation;
  Growth growth;
  std::vector<OutOfMemoryEvent> out_of_memory;
  std::vector<TimePoint> timeline;  // at most kTimelinePoints, the highest of each stretch
  std::vector<std::string> notes;   // what does not fit together
};
constexpr std::size_t kTimelinePoints = 200;

struct SnapshotAnalysis {
  Bytes reserved = 0;
  Bytes allocated = 0;
  Bytes requested = 0;
  std::vector<DeviceAnalysis> devices;
};

// Linear in events and frames. Throws FormatError (LT0715) when sizes add up past 2^63.
SnapshotAnalysis analyse(const Snapshot& snapshot);

// What is live after an event of a device's trace; -1: when the trace begins.
struct Moment {
  Bytes live = 0;
  std::uint64_t allocations = 0;
  std::vector<LineTotal> lines;  // by the user's lines
  std::array<KindTotal, kBlockKinds> kinds{};
};
Moment moment_after(const Snapshot& snapshot, std::int64_t device, std::int64_t event);

// Lives of all blocks of a device: those that were there before the trace first.
std::vector<Allocation> allocations_of(const Snapshot& snapshot, std::int64_t device);

// For each stack, the frame that names its line; kNoFrame when it has none.
constexpr std::uint32_t kNoFrame = 0xffffffffu;
struct StackLines {
  std::vector<std::uint32_t> site;
  std::vector<std::uint32_t> user;
  std::vector<std::uint32_t> library;
};
StackLines lines_of_stacks(const Snapshot& snapshot);

// The kind of each allocation.
std::vector<BlockKind> kinds_of(const Snapshot& snapshot, std::int64_t device,
                                const std::vector<Allocation>& allocations);

// "model.py:41:forward"; the function's name for C++ without a line. What kNoFrame is called
// differs:
// "<no user frame>", and "<no frames>" for library lines.
std::string line_name(const Snapshot& snapshot, std::uint32_t frame);
std::string library_line_name(const Snapshot& snapshot, std::uint32_t frame);
// As line_name, but a Windows path is kept whole: what `sites` have always been called.
std::string site_name(const Snapshot& snapshot, std::uint32_t frame);

}  // namespace lowtide
