#include "src/plan/trace.h"

#include <algorithm>

#include "src/base/assert.h"
#include "src/base/byte_codec.h"
#include "src/tape/tape.h"

namespace lowtide {

StorageId Trace::add_source(Bytes bytes) {
  const StorageId id{static_cast<std::uint32_t>(storages.size())};
  storages.push_back({bytes, StorageId{}, true});
  add(TraceEvent::Kind::kSource, id);
  return id;
}

StorageId Trace::add_storage(Bytes bytes, StorageId base) {
  const StorageId id{static_cast<std::uint32_t>(storages.size())};
  LOWTIDE_ASSERT(!base.valid() || bytes == 0);
  storages.push_back({bytes, base, false});
  return id;
}

OpId Trace::run(std::uint64_t cost_ns, std::span<const StorageId> reads,
                std::span<const StorageId> writes, Bytes working_bytes) {
  const OpId op{static_cast<std::uint32_t>(ops.size())};
  ops.push_back(
      {cost_ns, working_bytes, {reads.begin(), reads.end()}, {writes.begin(), writes.end()}});
  events.push_back({TraceEvent::Kind::kRun, op.index()});
  return op;
}

StorageId Trace::root(StorageId id) const {
  while (storages[id.index()].base.valid()) id = storages[id.index()].base;
  return id;
}

std::uint64_t fingerprint(const Trace& trace) {
  Fingerprint sum;
  const auto add_all = [&](const std::vector<StorageId>& ids) {
    sum.add(ids.size());
    for (const StorageId id : ids) sum.add(id.index());
  };
  sum.add(trace.storages.size());
  for (const TraceStorage& storage : trace.storages) {
    sum.add(storage.bytes);
    sum.add(storage.base.index());
    sum.add(storage.source ? 1 : 0);
  }
  sum.add(trace.ops.size());
  for (const TraceOp& op : trace.ops) {
    sum.add(op.cost_ns);
    sum.add(op.working_bytes);
    add_all(op.reads);
    add_all(op.writes);
  }
  for (const TraceEvent& event : trace.events) {
    sum.add(static_cast<std::uint64_t>(event.kind));
    sum.add(event.index);
  }
  return sum.value();
}

std::uint64_t plain_ns(const Trace& trace) {
  std::uint64_t total = 0;
  for (const TraceOp& op : trace.ops) total += op.cost_ns;
  return total;
}

Bytes natural_peak(const Trace& trace) {
  Bytes live = 0;
  Bytes peak = 0;
  std::vector<char> there(trace.storages.size(), 0);
  std::vector<std::uint32_t> refs(trace.storages.size(), 0);  // of a root: itself and its views
  const auto add = [&](StorageId id) {
    if (there[id.index()]) return;
    there[id.index()] = 1;
    ++refs[trace.root(id).index()];
    live += trace.storages[id.index()].bytes;
  };
  for (const TraceEvent& event : trace.events) {
    const StorageId id{event.index};
    switch (event.kind) {
      case TraceEvent::Kind::kSource:
        add(id);
        break;
      case TraceEvent::Kind::kRun: {
        const TraceOp& op = trace.ops[event.index];
        for (const StorageId written : op.writes) add(written);
        peak = std::max(peak, live + op.working_bytes);
        break;
      }
      case TraceEvent::Kind::kRelease:
      case TraceEvent::Kind::kFree:
        if (!there[id.index()]) break;
        there[id.index()] = 0;
        if (--refs[trace.root(id).index()] == 0) {
          live -= trace.storages[trace.root(id).index()].bytes;
        }
        break;
      case TraceEvent::Kind::kNeed:
      case TraceEvent::Kind::kHold:
      case TraceEvent::Kind::kUnhold:
      case TraceEvent::Kind::kPin:
        break;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

Floor lowest_budget(const Trace& trace) {
  Floor floor;
  Bytes fixed = 0;  // what must be there now: sources, pinned
  std::vector<char> is_fixed(trace.storages.size(), 0);
  std::vector<std::uint32_t> counted(trace.storages.size(), 0);
  std::uint32_t round = 0;
  for (const TraceEvent& event : trace.events) {
    Bytes needed = fixed;
    OpId limiting;
    const auto fix = [&](StorageId id) {
      id = trace.root(id);
      if (!is_fixed[id.index()]) fixed += trace.storages[id.index()].bytes;
      is_fixed[id.index()] = 1;
      needed = fixed;
    };
    const auto unfix = [&](StorageId id) {
      if (is_fixed[id.index()]) fixed -= trace.storages[id.index()].bytes;
      is_fixed[id.index()] = 0;
    };
    const StorageId subject{event.index};
    switch (event.kind) {
      case TraceEvent::Kind::kSource:
      case TraceEvent::Kind::kPin:
        fix(subject);
        break;
      case TraceEvent::Kind::kHold:
        if (trace.root(subject) == subject) fix(subject);
        break;
      case TraceEvent::Kind::kFree:
        unfix(subject);
        break;
      case TraceEvent::Kind::kUnhold:
      case TraceEvent::Kind::kRelease:
        if (!trace.storages[subject.index()].source) unfix(subject);
        break;
      case TraceEvent::Kind::kRun: {
        const TraceOp& op = trace.ops[event.index];
        ++round;
        const auto count = [&](StorageId id) {
          id = trace.root(id);
          if (is_fixed[id.index()] || counted[id.index()] == round) return;
          counted[id.index()] = round;
          needed += trace.storages[id.index()].bytes;
        };
        for (const StorageId id : op.reads) count(id);
        for (const StorageId id : op.writes) count(id);
        needed += op.working_bytes;
        limiting = OpId{event.index};
        break;
      }
      case TraceEvent::Kind::kNeed:
        break;
    }
    if (needed > floor.bytes) floor = {needed, limiting};
  }
  return floor;
}

namespace {

// Note [What cannot run again]
// What an op that cannot run again makes is there from its run to its end, like a source; so it
// becomes one, which appears right after the op. Its bytes count as working bytes of the op, whose
// peak stays what it is. What such an op writes in place must not be dropped any more.
struct Fixed {
  std::vector<bool> made;     // by an op that cannot run again
  std::vector<bool> read;     // by an op that can
  std::vector<bool> written;  // by an op that cannot, after one that can had made it
};

Fixed find_fixed(const Tape& tape) {
  const std::size_t count = tape.storages.size();
  Fixed fixed{std::vector<bool>(count), std::vector<bool>(count), std::vector<bool>(count)};
  std::vector<bool> known(count);
  for (const TapeEvent& event : tape.events) {
    if (event.kind == TapeEvent::Kind::kMake) known[event.index] = fixed.made[event.index] = true;
    if (event.kind != TapeEvent::Kind::kRun) continue;
    const OpId op{event.index};
    const bool repeats = !tape.ops[event.index].has(OpFlag::kNotRepeatable);
    for (const StorageId id : tape.reads(op)) {
      if (repeats) fixed.read[id.index()] = true;
    }
    for (const StorageId id : tape.writes(op)) {
      const bool is_new = !known[id.index()];
      known[id.index()] = true;
      if (!repeats && is_new) fixed.made[id.index()] = true;
      if (!repeats && !is_new && !fixed.made[id.index()]) fixed.written[id.index()] = true;
    }
  }
  return fixed;
}

}  // namespace

Trace trace_of(const Tape& tape) {
  std::vector<std::uint32_t> places;
  return trace_of(tape, places);
}

Trace trace_of(const Tape& tape, std::vector<std::uint32_t>& places) {
  Trace trace;
  const Fixed fixed = find_fixed(tape);
  std::vector<std::uint32_t> holds(tape.storages.size(), 0);
  std::vector<bool> there(tape.storages.size());
  for (std::size_t i = 0; i < tape.storages.size(); ++i) {
    trace.storages.push_back({tape.storages[i].bytes, StorageId{}, fixed.made[i]});
  }
  const auto run = [&](OpId op) {
    const TapeOp& taped = tape.ops[op.index()];
    std::vector<StorageId> writes;
    std::vector<StorageId> sources;
    Bytes working_bytes = taped.working_bytes;
    for (const StorageId id : tape.writes(op)) {
      const bool is_new = !there[id.index()];
      there[id.index()] = true;
      if (is_new && fixed.made[id.index()]) {
        sources.push_back(id);
        working_bytes += tape.storages[id.index()].bytes;
      } else if (!fixed.made[id.index()] || fixed.read[id.index()]) {
        writes.push_back(id);
      }
    }
    trace.run(taped.cost_ns, tape.reads(op), writes, working_bytes);
    for (const StorageId id : sources) trace.add(TraceEvent::Kind::kSource, id);
    if (!taped.has(OpFlag::kNotRepeatable)) return;
    for (const StorageId id : writes) {
      if (fixed.written[id.index()] && holds[id.index()]++ == 0) trace.hold(id);
    }
  };
  places.clear();
  for (const TapeEvent& event : tape.events) {
    places.push_back(static_cast<std::uint32_t>(trace.events.size()));
    const StorageId id{event.index};
    switch (event.kind) {
      case TapeEvent::Kind::kMake:
        there[event.index] = true;
        trace.add(TraceEvent::Kind::kSource, id);
        break;
      case TapeEvent::Kind::kRun:
        run(OpId{event.index});
        break;
      case TapeEvent::Kind::kFree:
        if (fixed.made[event.index]) {
          trace.add(TraceEvent::Kind::kFree, id);
        } else {
          trace.release(id);
        }
        break;
      case TapeEvent::Kind::kUnpack:
        trace.need(tape.saved[event.index].storage);
        break;
      case TapeEvent::Kind::kHold:
        if (!fixed.made[event.index] && holds[event.index]++ == 0) trace.hold(id);
        break;
      case TapeEvent::Kind::kUnhold:
        if (!fixed.made[event.index] && --holds[event.index] == 0) trace.unhold(id);
        break;
      case TapeEvent::Kind::kPack:
      case TapeEvent::Kind::kForget:
      case TapeEvent::Kind::kMark:
        break;
    }
  }
  return trace;
}

}  // namespace lowtide
