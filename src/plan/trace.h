#pragma once
// What the simulator runs: the ops of a step in order, what they read and write, and when the
// program lets go.
//
//   Trace trace;
//   StorageId w = trace.add_source(4096);
//   StorageId h = trace.add_storage(1 << 20);
//   trace.run(12'000, {{w}}, {{h}});
//   trace.release(h);
//
// Leaner than a Tape (no names, no kinds) and a little more general: a storage may live in another
// (`base`), and then goes with it, as the views of DTR's operator logs do. trace_of(tape) makes one
// from a tape.

#include <cstdint>
#include <span>
#include <vector>

#include "lowtide/bytes.h"
#include "src/tape/ids.h"

namespace lowtide {

struct Tape;

struct TraceOp {
  std::uint64_t cost_ns = 0;
  Bytes working_bytes = 0;  // needed beside inputs and outputs while it runs
  std::vector<StorageId> reads;
  std::vector<StorageId> writes;
};

struct TraceStorage {
  Bytes bytes = 0;  // 0 where there is a base
  StorageId base;   // valid: dropped with its base; rebuilt by its own op, at no bytes
  bool source = false;
};

struct TraceEvent {
  enum class Kind : std::uint8_t {
    kSource,   // a storage that no op wrote appears
    kRun,      // op `index` runs; its writes appear, or change in place if they are there
    kNeed,     // storage `index` must be there, as an unpack asks
    kHold,     // the program holds storage `index`: not droppable
    kUnhold,   // the runtime alone holds it: droppable
    kRelease,  // no one will ask for storage `index` again
    kPin,      // storage `index` must be there from now to the end
    kFree,     // source `index` is gone
  };
  Kind kind;
  std::uint32_t index;
};

struct Trace {
  std::vector<TraceStorage> storages;
  std::vector<TraceOp> ops;
  std::vector<TraceEvent> events;

  StorageId add_source(Bytes bytes);
  // A storage that an op will make; no event of its own.
  StorageId add_storage(Bytes bytes, StorageId base = StorageId{});
  OpId run(std::uint64_t cost_ns, std::span<const StorageId> reads,
           std::span<const StorageId> writes, Bytes working_bytes = 0);
  void add(TraceEvent::Kind kind, StorageId id) { events.push_back({kind, id.index()}); }
  void need(StorageId id) { add(TraceEvent::Kind::kNeed, id); }
  void hold(StorageId id) { add(TraceEvent::Kind::kHold, id); }
  void unhold(StorageId id) { add(TraceEvent::Kind::kUnhold, id); }
  void release(StorageId id) { add(TraceEvent::Kind::kRelease, id); }
  void pin(StorageId id) { add(TraceEvent::Kind::kPin, id); }
  // The storage whose bytes `id` lives in.
  StorageId root(StorageId id) const;
};

// Of all that a plan depends on: storages, ops with their times, events. Two traces with different
// ones differ.
std::uint64_t fingerprint(const Trace& trace);

// Time of the step when nothing is dropped.
std::uint64_t plain_ns(const Trace& trace);

// Peak of the step when nothing is dropped and released storages go at once.
Bytes natural_peak(const Trace& trace);

struct Floor {
  Bytes bytes = 0;
  OpId limiting_op;  // not valid when what must be there at the end sets it
};

// No smaller budget can carry the step: sources, pinned storages and those that the program holds,
// and the inputs, outputs and working bytes of the op that needs most. A lower bound: a policy may
// need more.
Floor lowest_budget(const Trace& trace);

// A tape as a trace: packed and program-held storages are held and let go as on the tape; each
// unpack is a need.
Trace trace_of(const Tape& tape);
// The same; `places[i]` is the number of the trace's events that stand before event i of the tape.
Trace trace_of(const Tape& tape, std::vector<std::uint32_t>& places);

}  // namespace lowtide
