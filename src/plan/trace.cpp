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

Trace trace_of(const Tape& tape) {
  Trace trace;
  std::vector<std::uint32_t> holds(tape.storages.size(), 0);
  for (const TapeStorage& storage : tape.storages) {
    trace.storages.push_back({storage.bytes, StorageId{}, false});
  }
  const auto let_go = [&](StorageId id) {
    if (holds[id.index()] == 0) trace.unhold(id);
  };
  for (const TapeEvent& event : tape.events) {
    const StorageId id{event.index};
    switch (event.kind) {
      case TapeEvent::Kind::kMake:
        trace.storages[event.index].source = true;
        trace.add(TraceEvent::Kind::kSource, id);
        break;
      case TapeEvent::Kind::kRun: {
        const OpId op{event.index};
        trace.run(tape.ops[event.index].cost_ns, tape.reads(op), tape.writes(op),
                  tape.ops[event.index].working_bytes);
        if (!tape.ops[event.index].has(OpFlag::kNotRepeatable)) break;
        // What it wrote can never be made again: held to the end.
        for (const StorageId written : tape.writes(op)) {
          if (!trace.storages[written.index()].source && holds[written.index()]++ == 0) {
            trace.hold(written);
          }
        }
        break;
      }
      case TapeEvent::Kind::kFree:
        if (trace.storages[event.index].source) {
          trace.add(TraceEvent::Kind::kFree, id);
        } else {
          trace.release(id);
        }
        break;
      case TapeEvent::Kind::kUnpack:
        trace.need(tape.saved[event.index].storage);
        break;
      case TapeEvent::Kind::kHold:
        if (holds[event.index]++ == 0 && !trace.storages[event.index].source) trace.hold(id);
        break;
      case TapeEvent::Kind::kUnhold:
        --holds[event.index];
        if (!trace.storages[event.index].source) let_go(id);
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
