// Tested by tests/tape/tape_test.cpp.

#include "src/tape/tape.h"

#include <algorithm>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr Bytes kMostBytes = Bytes{1} << 63;

class Checker {
 public:
  explicit Checker(const Tape& tape)
      : tape_(tape), state_(tape.storages.size()), saved_(tape.saved.size()) {}

  std::optional<TapeProblem> run() {
    check_tables();
    for (at_ = 0; at_ < tape_.events.size() && problem_.empty(); ++at_) check(tape_.events[at_]);
    if (problem_.empty()) return std::nullopt;
    return TapeProblem{in_tables_ ? tape_.events.size() : at_ - 1, problem_};
  }

 private:
  struct StorageState {
    bool made = false;
    bool freed = false;
    std::uint32_t holds = 0;
    std::uint32_t packs = 0;
  };
  enum class SavedState : std::uint8_t { kNotYet, kPacked, kForgotten };

  template <typename... Parts>
  void fail(const Parts&... parts) {
    if (problem_.empty()) problem_ = concat(parts...);
  }

  void check_tables() {
    in_tables_ = true;
    Bytes total = 0;
    for (const TapeStorage& storage : tape_.storages) {
      if (storage.bytes >= kMostBytes || total + storage.bytes >= kMostBytes) {
        fail("the storages' bytes add up to more than 2^63");
        return;
      }
      total += storage.bytes;
      if (storage.kind > StorageKind::kWorkspace) fail("a storage has no known kind");
    }
    std::uint64_t time = 0;
    for (std::size_t i = 0; i < tape_.ops.size(); ++i) {
      const TapeOp& op = tape_.ops[i];
      if (op.name >= tape_.names.size() || tape_.names[op.name].empty())
        fail("op ", i, " has no name");
      for (const std::uint32_t name : {op.module, op.source}) {
        if (name != TapeOp::kNoName && (name >= tape_.names.size() || tape_.names[name].empty())) {
          fail("op ", i, " has a module or source that is no name");
        }
      }
      if (op.first_read > tape_.read_ids.size() ||
          op.read_count > tape_.read_ids.size() - op.first_read ||
          op.first_write > tape_.write_ids.size() ||
          op.write_count > tape_.write_ids.size() - op.first_write) {
        fail("op ", i, " names inputs or outputs outside of the tables");
      }
      if (op.cost_ns >= kMostBytes || time + op.cost_ns >= kMostBytes) {
        fail("the ops' times add up to more than 2^63 ns");
        return;
      }
      time += op.cost_ns;
      if (op.working_bytes >= kMostBytes || total + op.working_bytes >= kMostBytes) {
        fail("op ", i, " works on more than 2^63 bytes");
      }
      if (op.flags > 7) fail("op ", i, " has unknown flags");
    }
    for (std::size_t i = 0; i < tape_.saved.size(); ++i) {
      if (tape_.saved[i].storage.index() >= tape_.storages.size()) {
        fail("saved tensor ", i, " is of no storage");
      }
    }
    if (problem_.empty()) in_tables_ = false;
  }

  void check(const TapeEvent& event) {
    switch (event.kind) {
      case TapeEvent::Kind::kMake:
        if (known(event.index)) make(event.index);
        return;
      case TapeEvent::Kind::kRun:
        run_op(event.index);
        return;
      case TapeEvent::Kind::kFree:
        if (!there(event.index, "is freed")) return;
        if (state_[event.index].packs > 0) {
          fail("storage ", event.index, " is freed while it is saved");
        }
        if (state_[event.index].holds > 0) {
          fail("storage ", event.index, " is freed while the program holds it");
        }
        state_[event.index].freed = true;
        return;
      case TapeEvent::Kind::kPack: {
        if (event.index >= saved_.size()) {
          fail("there is no saved tensor ", event.index);
          return;
        }
        if (saved_[event.index] != SavedState::kNotYet) {
          fail("saved tensor ", event.index, " is packed twice");
        }
        saved_[event.index] = SavedState::kPacked;
        const std::uint32_t storage = tape_.saved[event.index].storage.index();
        if (there(storage, "is packed")) ++state_[storage].packs;
        return;
      }
      case TapeEvent::Kind::kUnpack:
        packed(event.index, "unpacked");
        return;
      case TapeEvent::Kind::kForget:
        if (!packed(event.index, "forgotten")) return;
        saved_[event.index] = SavedState::kForgotten;
        --state_[tape_.saved[event.index].storage.index()].packs;
        return;
      case TapeEvent::Kind::kHold:
        if (there(event.index, "is held")) ++state_[event.index].holds;
        return;
      case TapeEvent::Kind::kUnhold:
        if (!there(event.index, "is let go")) return;
        if (state_[event.index].holds == 0) {
          fail("storage ", event.index, " is let go but was not held");
          return;
        }
        --state_[event.index].holds;
        return;
      case TapeEvent::Kind::kMark:
        if (event.index > static_cast<std::uint32_t>(StepMark::kEnd)) {
          fail("there is no step mark ", event.index);
        }
        return;
    }
    fail("there is no event kind ", static_cast<int>(event.kind));
  }

  void run_op(std::uint32_t index) {
    // Ops are numbered in the order of running, so that an id is a place in it.
    if (index != next_op_) {
      fail("op ", index, " runs where op ", next_op_, " should");
      return;
    }
    if (index >= tape_.ops.size()) {
      fail("there is no op ", index);
      return;
    }
    ++next_op_;
    for (const StorageId id : tape_.reads(OpId{index})) {
      if (id.index() < state_.size() && state_[id.index()].made && !state_[id.index()].freed)
        continue;
      there(id.index(),
            concat("is read by op ", index, " (", tape_.names[tape_.ops[index].name], ")"));
    }
    for (const StorageId id : tape_.writes(OpId{index})) {
      if (!known(id.index())) return;
      if (!state_[id.index()].made) {
        make(id.index());
      } else {
        there(id.index(), "is written");
      }
    }
  }

  bool known(std::uint32_t storage) {
    if (storage < state_.size()) return true;
    fail("there is no storage ", storage);
    return false;
  }
  void make(std::uint32_t storage) {
    if (state_[storage].made) fail("storage ", storage, " is made twice");
    state_[storage].made = true;
  }
  bool there(std::uint32_t storage, std::string_view what) {
    if (!known(storage)) return false;
    if (!state_[storage].made) {
      fail("storage ", storage, " ", what, " before it is made");
      return false;
    }
    if (state_[storage].freed) {
      fail("storage ", storage, " ", what, " after it was freed");
      return false;
    }
    return true;
  }
  bool packed(std::uint32_t saved, std::string_view what) {
    if (saved >= saved_.size()) {
      fail("there is no saved tensor ", saved);
      return false;
    }
    if (saved_[saved] == SavedState::kPacked) return true;
    fail("saved tensor ", saved, " is ", what, " when it is not packed");
    return false;
  }

  const Tape& tape_;
  std::vector<StorageState> state_;
  std::vector<SavedState> saved_;
  std::size_t at_ = 0;
  std::uint32_t next_op_ = 0;
  bool in_tables_ = false;
  std::string problem_;
};

}  // namespace

StorageId Tape::add_storage(Bytes bytes, StorageKind kind) {
  storages.push_back({bytes, kind});
  return StorageId{static_cast<std::uint32_t>(storages.size() - 1)};
}

StorageId Tape::make(Bytes bytes, StorageKind kind) {
  const StorageId id = add_storage(bytes, kind);
  add(TapeEvent::Kind::kMake, id.index());
  return id;
}

std::uint32_t Tape::name_index(std::string_view name) {
  std::size_t known = names.size();
  while (known > 0 && names[known - 1] != name) --known;
  if (known == 0) {
    names.emplace_back(name);
    known = names.size();
  }
  return static_cast<std::uint32_t>(known - 1);
}

OpId Tape::run(std::string_view name, std::uint64_t cost_ns, std::span<const StorageId> reads,
               std::span<const StorageId> writes, Bytes working_bytes, std::uint8_t flags) {
  TapeOp op;
  op.name = name_index(name);
  op.flags = flags;
  op.first_read = static_cast<std::uint32_t>(read_ids.size());
  op.read_count = static_cast<std::uint32_t>(reads.size());
  op.first_write = static_cast<std::uint32_t>(write_ids.size());
  op.write_count = static_cast<std::uint32_t>(writes.size());
  op.cost_ns = cost_ns;
  op.working_bytes = working_bytes;
  read_ids.insert(read_ids.end(), reads.begin(), reads.end());
  write_ids.insert(write_ids.end(), writes.begin(), writes.end());
  ops.push_back(op);
  const OpId id{static_cast<std::uint32_t>(ops.size() - 1)};
  add(TapeEvent::Kind::kRun, id.index());
  return id;
}

SavedId Tape::pack(StorageId storage) {
  saved.push_back({storage});
  const SavedId id{static_cast<std::uint32_t>(saved.size() - 1)};
  add(TapeEvent::Kind::kPack, id.index());
  return id;
}

std::vector<Lifetime> lifetimes(const Tape& tape) {
  const std::uint32_t end = static_cast<std::uint32_t>(tape.events.size());
  std::vector<Lifetime> lives(tape.storages.size(), Lifetime{end, end});
  for (std::uint32_t i = 0; i < end; ++i) {
    const TapeEvent& event = tape.events[i];
    if (event.kind == TapeEvent::Kind::kMake) {
      lives[event.index].made = i;
    } else if (event.kind == TapeEvent::Kind::kFree) {
      lives[event.index].freed = i;
    } else if (event.kind == TapeEvent::Kind::kRun) {
      for (const StorageId id : tape.writes(OpId{event.index})) {
        if (lives[id.index()].made == end) lives[id.index()].made = i;
      }
    }
  }
  return lives;
}

Bytes tape_peak(const Tape& tape) {
  Bytes live = 0;
  Bytes peak = 0;
  std::vector<char> there(tape.storages.size(), 0);
  const auto add = [&](std::uint32_t storage) {
    if (there[storage]) return;
    there[storage] = 1;
    live += tape.storages[storage].bytes;
  };
  for (const TapeEvent& event : tape.events) {
    Bytes working = 0;
    if (event.kind == TapeEvent::Kind::kMake) {
      add(event.index);
    } else if (event.kind == TapeEvent::Kind::kFree) {
      live -= tape.storages[event.index].bytes;
    } else if (event.kind == TapeEvent::Kind::kRun) {
      for (const StorageId id : tape.writes(OpId{event.index})) add(id.index());
      working = tape.ops[event.index].working_bytes;
    }
    peak = std::max(peak, live + working);
  }
  return peak;
}

std::optional<TapeProblem> find_problem(const Tape& tape) { return Checker(tape).run(); }

void check_tape(const Tape& tape) {
  const auto problem = find_problem(tape);
  if (!problem) return;
  throw FormatError("LT0141",
                    concat("this is no tape of a step: ", problem->what, " (event ", problem->event,
                           " of ", tape.events.size(), "). Record the step again"),
                    {{"event", static_cast<std::int64_t>(problem->event)}});
}

}  // namespace lowtide
