// Tested by tests/plan/plan_summary_test.cpp.

#include "src/plan/plan_summary.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace lowtide {
namespace {

std::vector<OpId> makers_of(const Tape& tape) {
  std::vector<OpId> makers(tape.storages.size());
  for (std::uint32_t i = 0; i < tape.ops.size(); ++i) {
    for (const StorageId written : tape.writes(OpId{i})) {
      if (!makers[written.index()].valid()) makers[written.index()] = OpId{i};
    }
  }
  for (const TapeEvent& event : tape.events) {
    if (event.kind == TapeEvent::Kind::kMake) makers[event.index] = OpId{};
  }
  return makers;
}

std::string text_of(const Tape& tape, std::uint32_t name) {
  return name == TapeOp::kNoName ? std::string() : tape.names[name];
}

std::vector<BytesOf> sorted(const std::map<std::string, Bytes>& bytes) {
  std::vector<BytesOf> rows;
  for (const auto& [name, count] : bytes) {
    if (count > 0) rows.push_back({name, count});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const BytesOf& a, const BytesOf& b) { return a.bytes > b.bytes; });
  return rows;
}

const char* kind_label(StorageKind kind) {
  constexpr std::array<const char*, 7> kNames = {
      "program", "parameters", "gradients", "optimizer state", "input", "saved", "workspace"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

PeakSummary summarize_peak(const Tape& tape) {
  std::vector<std::uint8_t> there(tape.storages.size(), 0);
  const std::vector<OpId> makers = makers_of(tape);
  Bytes live = 0;
  PeakSummary peak;
  std::vector<std::uint8_t> there_at_peak;
  for (std::size_t i = 0; i < tape.events.size(); ++i) {
    const TapeEvent& event = tape.events[i];
    const auto appear = [&](StorageId id) {
      if (there[id.index()]) return;
      there[id.index()] = 1;
      live += tape.storages[id.index()].bytes;
    };
    Bytes working = 0;
    OpId op;
    if (event.kind == TapeEvent::Kind::kMake) {
      appear(StorageId{event.index});
    } else if (event.kind == TapeEvent::Kind::kRun) {
      op = OpId{event.index};
      working = tape.ops[event.index].working_bytes;
      for (const StorageId written : tape.writes(op)) appear(written);
    } else if (event.kind == TapeEvent::Kind::kFree) {
      there[event.index] = 0;
      live -= tape.storages[event.index].bytes;
      continue;
    } else {
      continue;
    }
    if (live + working <= peak.bytes) continue;
    peak.bytes = live + working;
    peak.event = i;
    peak.op = op;
    there_at_peak = there;
  }
  std::map<std::string, Bytes> kinds;
  std::map<std::string, Bytes> modules;
  for (std::uint32_t s = 0; s < there_at_peak.size(); ++s) {
    if (!there_at_peak[s]) continue;
    const Bytes bytes = tape.storages[s].bytes;
    const char* kind = kind_label(tape.storages[s].kind);
    kinds[kind] += bytes;
    std::string module = std::string("[") + kind + "]";
    if (makers[s].valid()) {
      const TapeOp& op = tape.ops[makers[s].index()];
      module = op.module != TapeOp::kNoName ? tape.names[op.module] : tape.names[op.name];
    }
    modules[module] += bytes;
  }
  if (peak.op.valid()) {
    const Bytes working = tape.ops[peak.op.index()].working_bytes;
    kinds["[inside the op]"] += working;
    modules["[inside the op]"] += working;
  }
  peak.by_kind = sorted(kinds);
  peak.by_module = sorted(modules);
  return peak;
}

std::vector<PlaceSummary> summarize_plan(const Tape& tape, const Plan& plan) {
  const std::vector<OpId> makers = makers_of(tape);
  std::vector<std::uint8_t> saved(tape.storages.size(), 0);
  for (const TapeSaved& tensor : tape.saved) saved[tensor.storage.index()] = 1;
  std::map<std::tuple<std::string, std::string, std::string>, PlaceSummary> places;
  const auto place = [&](OpId id) -> PlaceSummary& {
    const TapeOp& op = tape.ops[id.index()];
    const std::string module = text_of(tape, op.module);
    const std::string source = text_of(tape, op.source);
    const std::string name = module.empty() && source.empty() ? tape.names[op.name] : "";
    PlaceSummary& found = places[{module, source, name}];
    found.name = name;
    found.module = module;
    found.source = source;
    return found;
  };
  std::vector<std::uint8_t> made_again(tape.storages.size(), 0);
  for (const PlanStep& step : plan.steps) {
    if (step.kind != PlanStep::Kind::kReplay) continue;
    PlaceSummary& at = place(OpId{step.index});
    ++at.replays;
    at.extra_ns += tape.ops[step.index].cost_ns;
    for (const StorageId written : tape.writes(OpId{step.index})) made_again[written.index()] = 1;
  }
  for (std::uint32_t s = 0; s < tape.storages.size(); ++s) {
    if (!makers[s].valid() || tape.storages[s].bytes == 0) continue;
    if (made_again[s]) {
      place(makers[s]).recomputed_bytes += tape.storages[s].bytes;
    } else if (saved[s]) {
      place(makers[s]).kept_bytes += tape.storages[s].bytes;
    }
  }
  std::vector<PlaceSummary> rows;
  for (auto& [key, row] : places) rows.push_back(std::move(row));
  std::stable_sort(rows.begin(), rows.end(), [](const PlaceSummary& a, const PlaceSummary& b) {
    return std::tuple(a.extra_ns, a.recomputed_bytes, a.kept_bytes) >
           std::tuple(b.extra_ns, b.recomputed_bytes, b.kept_bytes);
  });
  return rows;
}

}  // namespace lowtide
