#include "src/diagnose/tape_facts.h"

#include <algorithm>
#include <utility>

#include "src/plan/simulator.h"
#include "src/plan/trace.h"

namespace lowtide {
namespace {

// The moment of tape_peak(): what was there by kind, and the op that ran.
void find_peak(const Tape& tape, TapeFacts& facts) {
  std::array<Bytes, kStorageKinds> now{};
  Bytes live = 0;
  std::vector<bool> there(tape.storages.size());
  const auto add = [&](std::uint32_t id) {
    if (there[id]) return;
    there[id] = true;
    live += tape.storages[id].bytes;
    now[static_cast<std::size_t>(tape.storages[id].kind)] += tape.storages[id].bytes;
  };
  for (const TapeEvent& event : tape.events) {
    const TapeOp* op = nullptr;
    if (event.kind == TapeEvent::Kind::kMake) {
      add(event.index);
    } else if (event.kind == TapeEvent::Kind::kFree) {
      live -= tape.storages[event.index].bytes;
      now[static_cast<std::size_t>(tape.storages[event.index].kind)] -=
          tape.storages[event.index].bytes;
    } else if (event.kind == TapeEvent::Kind::kRun) {
      op = &tape.ops[event.index];
      for (const StorageId id : tape.writes(OpId{event.index})) add(id.index());
    }
    const Bytes working = op != nullptr ? op->working_bytes : 0;
    if (live + working <= facts.peak) continue;
    facts.peak = live + working;
    facts.at_peak = now;
    facts.working_at_peak = working;
    facts.peak_op = op != nullptr ? tape.names[op->name] : std::string();
  }
}

}  // namespace

const char* storage_kind_name(StorageKind kind) {
  switch (kind) {
    case StorageKind::kProgram:
      return "the program's own";
    case StorageKind::kParameter:
      return "parameters";
    case StorageKind::kGradient:
      return "gradients";
    case StorageKind::kOptimizerState:
      return "optimizer state";
    case StorageKind::kInput:
      return "inputs";
    case StorageKind::kSaved:
      return "saved for backward";
    case StorageKind::kWorkspace:
      return "workspace";
  }
  return "";
}

TapeFacts facts_of(const Tape& tape, std::string name, std::uint64_t most_replays) {
  TapeFacts facts;
  facts.name = std::move(name);
  facts.ops = tape.ops.size();
  facts.storages = tape.storages.size();
  find_peak(tape, facts);
  const Trace trace = trace_of(tape);
  const Floor floor = lowest_budget(trace);
  // As it ran is a way, too.
  facts.floor = std::min(floor.bytes, facts.peak);
  if (floor.limiting_op.valid()) {
    facts.floor_op = tape.names[tape.ops[floor.limiting_op.index()].name];
  }
  facts.is_whole = std::any_of(tape.events.begin(), tape.events.end(), [](const TapeEvent& event) {
    return event.kind == TapeEvent::Kind::kMark &&
           event.index == static_cast<std::uint32_t>(StepMark::kEnd);
  });
  if (!facts.is_whole) return facts;
  if (const auto smallest = smallest_budget(trace, most_replays)) {
    facts.smallest = std::min(*smallest, facts.peak);
  }
  return facts;
}

}  // namespace lowtide
