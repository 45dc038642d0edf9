// A block for each group of `live`, or for each storage of the tape when that tells the whole step;
// one segment holds them side by side. Addresses mean nothing on the CPU and are made up: what is
// live at the end stands at the segment's begin, in order, and what is gone lies above it.
//
// Tested by tests/report/refusal_record_test.cpp.

#include "src/report/refusal_record.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string_view>
#include <utility>

#include "src/base/text.h"
#include "src/evidence/snapshot_analysis.h"

namespace lowtide {
namespace {

constexpr std::uint64_t kBase = 0x10000000;

BlockKind block_kind(StorageKind kind) {
  switch (kind) {
    case StorageKind::kParameter:
      return BlockKind::kParameters;
    case StorageKind::kGradient:
      return BlockKind::kGradients;
    case StorageKind::kOptimizerState:
      return BlockKind::kOptimizerState;
    case StorageKind::kSaved:
      return BlockKind::kActivations;
    case StorageKind::kWorkspace:
      return BlockKind::kWorkspace;
    case StorageKind::kProgram:
    case StorageKind::kInput:
      break;
  }
  return BlockKind::kUnattributed;
}

// Stacks: the op, "held by the program" where it is, and outermost the kind.
class Stacks {
 public:
  explicit Stacks(Snapshot& snapshot) : snapshot_(snapshot) {
    snapshot_.texts.intern("");
    file_ = snapshot_.texts.intern(kLowtideFile);
  }

  StackId of(std::string_view op, std::optional<BlockKind> kind, bool program_held = false,
             std::string_view line = {}) {
    std::vector<std::string> names{op.empty() ? "[before the budget]" : std::string(op)};
    if (program_held) names.emplace_back("held by the program");
    if (kind) names.emplace_back(kind_name(*kind));
    names.emplace_back(line);
    const auto [found, is_new] =
        ids_.try_emplace(names, static_cast<StackId>(snapshot_.stack_count()));
    if (!is_new) return found->second;
    names.pop_back();
    for (const std::string& name : names) {
      const bool is_op = &name == &names.front();
      snapshot_.stack_frames.push_back(is_op && !line.empty() ? frame_at(name, line) : frame(name));
    }
    snapshot_.stack_ends.push_back(snapshot_.stack_frames.size());
    return found->second;
  }

 private:
  std::uint32_t frame(const std::string& name) {
    const auto [found, is_new] =
        frames_.try_emplace(name, static_cast<std::uint32_t>(snapshot_.frames.size()));
    if (is_new) snapshot_.frames.push_back({snapshot_.texts.intern(name), file_, 0});
    return found->second;
  }

  // "train.py:12": the op's frame has the program's place.
  std::uint32_t frame_at(const std::string& op, std::string_view place) {
    const std::size_t colon = place.rfind(':');
    std::int64_t line = 0;
    if (colon != std::string_view::npos) {
      std::from_chars(place.data() + colon + 1, place.data() + place.size(), line);
    }
    snapshot_.frames.push_back(
        {snapshot_.texts.intern(op), snapshot_.texts.intern(place.substr(0, colon)), line});
    return static_cast<std::uint32_t>(snapshot_.frames.size() - 1);
  }

  Snapshot& snapshot_;
  std::uint32_t file_ = 0;
  std::map<std::string, std::uint32_t> frames_;
  std::map<std::vector<std::string>, StackId> ids_;
};

void add_event(Snapshot& snapshot, EventAction action, std::uint64_t address, Bytes size,
               StackId stack) {
  snapshot.events.action.push_back(action);
  snapshot.events.address.push_back(address);
  snapshot.events.size.push_back(size);
  snapshot.events.time_us.push_back(0);
  snapshot.events.stack.push_back(stack);
  snapshot.events.lane.push_back(0);
}

void add_block(Snapshot& snapshot, std::uint64_t& next, Bytes size, StackId stack) {
  if (size == 0) return;
  snapshot.blocks.push_back({next, size, size, stack, BlockState::kAllocated});
  next += size;
}

// Bytes that are there after the last event.
Bytes live_at_end(const Tape& tape) {
  Bytes live = 0;
  const std::vector<Lifetime> lives = lifetimes(tape);
  for (std::size_t i = 0; i < lives.size(); ++i) {
    const bool ever = lives[i].made < tape.events.size();
    if (ever && lives[i].freed == tape.events.size()) live += tape.storages[i].bytes;
  }
  return live;
}

void add_tape(Snapshot& snapshot, const Tape& tape, Stacks& stacks, std::uint64_t& next) {
  const std::vector<Lifetime> lives = lifetimes(tape);
  const auto end = static_cast<std::uint32_t>(tape.events.size());
  std::vector<StackId> made_at(tape.storages.size());
  std::vector<std::uint64_t> address(tape.storages.size());
  std::vector<bool> there(tape.storages.size());
  // Which op made each.
  for (const TapeEvent& event : tape.events) {
    if (event.kind == TapeEvent::Kind::kMake) {
      made_at[event.index] = stacks.of("", block_kind(tape.storages[event.index].kind));
    }
    if (event.kind != TapeEvent::Kind::kRun) continue;
    const std::string& name = tape.names[tape.ops[event.index].name];
    for (const StorageId id : tape.writes(OpId{event.index})) {
      if (there[id.index()]) continue;
      there[id.index()] = true;
      if (made_at[id.index()] == 0) {
        made_at[id.index()] = stacks.of(name, block_kind(tape.storages[id.index()].kind));
      }
    }
  }
  for (std::size_t i = 0; i < lives.size(); ++i) {
    if (lives[i].made >= end || lives[i].freed != end) continue;
    address[i] = next;
    add_block(snapshot, next, tape.storages[i].bytes, made_at[i]);
  }
  std::uint64_t gone = next;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    if (lives[i].made >= end || lives[i].freed == end) continue;
    address[i] = gone;
    gone += std::max<Bytes>(tape.storages[i].bytes, 1);
  }
  std::fill(there.begin(), there.end(), false);
  const auto make = [&](std::uint32_t id) {
    if (there[id] || tape.storages[id].bytes == 0) return;
    there[id] = true;
    add_event(snapshot, EventAction::kAlloc, address[id], tape.storages[id].bytes, made_at[id]);
  };
  for (const TapeEvent& event : tape.events) {
    if (event.kind == TapeEvent::Kind::kMake) make(event.index);
    if (event.kind == TapeEvent::Kind::kRun) {
      for (const StorageId id : tape.writes(OpId{event.index})) make(id.index());
    }
    if (event.kind == TapeEvent::Kind::kFree && there[event.index]) {
      for (const EventAction action : {EventAction::kFreeRequested, EventAction::kFreeCompleted}) {
        add_event(snapshot, action, address[event.index], tape.storages[event.index].bytes, 0);
      }
    }
  }
}

Bytes detail_bytes(const ErrorDetails& details, const std::string& key) {
  const auto found = details.find(key);
  if (found == details.end()) return 0;
  const auto* value = std::get_if<std::int64_t>(&found->second);
  return value != nullptr && *value > 0 ? static_cast<Bytes>(*value) : 0;
}

}  // namespace

RefusalRecord refusal_of(const std::string& message, const ErrorDetails& details) {
  RefusalRecord record;
  record.message = message;
  record.request_bytes = detail_bytes(details, "request_bytes");
  record.limit_bytes = detail_bytes(details, "limit_bytes");
  record.live_bytes = detail_bytes(details, "live_bytes");
  if (const auto op = details.find("op"); op != details.end()) {
    if (const auto* name = std::get_if<std::string>(&op->second)) record.op = *name;
  }
  if (record.op == "the program") record.op.clear();
  // The names of MemoryMeter's kinds.
  constexpr std::array<std::pair<const char*, StorageKind>, 6> kKinds{
      {{"live_parameters_bytes", StorageKind::kParameter},
       {"live_gradients_bytes", StorageKind::kGradient},
       {"live_optimizer_state_bytes", StorageKind::kOptimizerState},
       {"live_saved_bytes", StorageKind::kSaved},
       {"live_program_bytes", StorageKind::kProgram},
       {"live_workspace_bytes", StorageKind::kWorkspace}}};
  for (const auto& [key, kind] : kKinds) {
    const Bytes bytes = detail_bytes(details, key);
    if (bytes > 0)
      record.live.push_back({.op = "[ops not recorded]", .kind = kind, .bytes = bytes});
  }
  return record;
}

Snapshot snapshot_of(const RefusalRecord& record) {
  Snapshot snapshot;
  snapshot.name = "refusal";
  snapshot.is_budget = true;
  snapshot.refusal = record.message;
  snapshot.lanes.push_back({});
  Stacks stacks(snapshot);
  std::uint64_t next = kBase;
  if (record.tape && live_at_end(*record.tape) == record.live_bytes) {
    add_tape(snapshot, *record.tape, stacks, next);
  } else {
    Bytes left = record.live_bytes;
    for (const RefusalRecord::Live& live : record.live) {
      const Bytes bytes = std::min(live.bytes, left);
      left -= bytes;
      // A block a tensor, as nearly as their sum tells.
      const std::uint64_t tensors = std::clamp<std::uint64_t>(live.tensors, 1, 4096);
      const StackId stack = stacks.of(live.op, block_kind(live.kind), live.program_held, live.line);
      for (std::uint64_t i = 0; i < tensors; ++i) {
        const Bytes size = bytes / tensors + (i < bytes % tensors ? 1 : 0);
        add_block(snapshot, next, size, stack);
      }
    }
    add_block(snapshot, next, left, stacks.of("[not named]", BlockKind::kUnattributed));
  }
  const Bytes free = record.limit_bytes - std::min(record.limit_bytes, record.live_bytes);
  add_event(snapshot, EventAction::kOom, free, record.request_bytes,
            stacks.of(record.op.empty() ? "the program" : record.op, std::nullopt));
  snapshot.traces.push_back({0, 0, static_cast<std::uint32_t>(snapshot.events.count())});
  SnapshotSegment& segment = snapshot.segments.emplace_back();
  segment.address = kBase;
  segment.size = next - kBase;
  segment.block_count = static_cast<std::uint32_t>(snapshot.blocks.size());
  return snapshot;
}

}  // namespace lowtide
