#pragma once
// A tape: what one training step did, as plain data. Recorded by the runtime, read by the planners.
//
//   Tape tape = parse_tape_text(text);            // tape_text.h
//   for (const TapeEvent& event : tape.events) ...
//   tape.reads(OpId{3});                          // the storages that op 3 read
//   check_tape(tape);                             // throws FormatError (LT0141) on nonsense
//
// Four tables (names, ops, storages, saved tensors) say what there is; `events` says in which order
// things happened, and is the only clock: every "when" is a place in it. Times are the ops' own.
//
// A tape holds no contents and no shapes, only bytes. It says nothing of blocks that live inside
// one op; their largest sum is the op's working_bytes.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lowtide/bytes.h"
#include "src/tape/ids.h"

namespace lowtide {

// What a storage is for. Stored on disk: never renumber.
enum class StorageKind : std::uint8_t {
  kProgram = 0,  // what the user made and holds
  kParameter = 1,
  kGradient = 2,
  kOptimizerState = 3,
  kInput = 4,  // the batch
  kSaved = 5,  // kept by autograd for backward
  kWorkspace = 6,
};

// Stored on disk: never renumber.
enum class OpFlag : std::uint8_t {
  kRandom = 1,         // draws from a generator: replay needs its state
  kNotRepeatable = 2,  // never replayed: its outputs are kept
  kView = 4,           // makes no bytes; its output lives in its input
};

constexpr std::uint8_t operator|(OpFlag a, OpFlag b) {
  return static_cast<std::uint8_t>(static_cast<std::uint8_t>(a) | static_cast<std::uint8_t>(b));
}

struct TapeOp {
  static constexpr std::uint32_t kNoName = 0xffffffffu;

  std::uint32_t name = 0;        // index into names
  std::uint8_t flags = 0;        // of OpFlag
  std::uint32_t first_read = 0;  // into read_ids: [first_read, first_read + read_count)
  std::uint32_t read_count = 0;
  std::uint32_t first_write = 0;  // into write_ids
  std::uint32_t write_count = 0;
  std::uint64_t cost_ns = 0;
  Bytes working_bytes = 0;         // peak while it ran, beyond what lived before and its outputs
  std::uint32_t module = kNoName;  // into names: "encoder.layers.0.linear1"
  std::uint32_t source = kNoName;  // into names: "train.py:41"

  bool has(OpFlag flag) const { return (flags & static_cast<std::uint8_t>(flag)) != 0; }
};

struct TapeStorage {
  Bytes bytes = 0;
  StorageKind kind = StorageKind::kProgram;
};

struct TapeSaved {
  StorageId storage;
};

struct TapeEvent {
  // Stored on disk: never renumber.
  enum class Kind : std::uint8_t {
    kMake = 0,  // a storage that no recorded op wrote appears: a parameter, the batch
    kRun = 1,   // an op ran. Storages it wrote that are not there yet appear; the others change in
                // place
    kFree = 2,  // a storage is gone: the program and autograd let go of it
    kPack = 3,  // autograd saves a tensor
    kUnpack = 4,  // and asks for it back; it may ask again
    kForget = 5,  // and lets go of it
    kHold = 6,    // the program holds a storage (another besides the runtime does)
    kUnhold = 7,  // and lets go
    kMark = 8,    // `index` is a StepMark
  };
  Kind kind = Kind::kMake;
  std::uint32_t index = 0;  // a StorageId, OpId, SavedId or StepMark, by kind
};

// Stored on disk: never renumber.
enum class StepMark : std::uint8_t {
  kForward = 0,
  kBackward = 1,
  kOptimizer = 2,
  kEnd = 3,
};

struct Tape {
  std::vector<std::string> names;
  std::vector<TapeOp> ops;
  std::vector<TapeStorage> storages;
  std::vector<TapeSaved> saved;
  std::vector<StorageId> read_ids;
  std::vector<StorageId> write_ids;
  std::vector<TapeEvent> events;
  std::uint64_t batch_size = 0;  // 0: not known

  std::span<const StorageId> reads(OpId op) const {
    const TapeOp& o = ops[op.index()];
    return {read_ids.data() + o.first_read, o.read_count};
  }
  std::span<const StorageId> writes(OpId op) const {
    const TapeOp& o = ops[op.index()];
    return {write_ids.data() + o.first_write, o.write_count};
  }

  // Recording: each appends to the tables and its event. run() finds `name` with name_index(); a
  // recorder with many names interns them itself and uses the tables.
  StorageId make(Bytes bytes, StorageKind kind);
  StorageId add_storage(Bytes bytes, StorageKind kind);  // no event: the op that writes it makes it
  OpId run(std::string_view name, std::uint64_t cost_ns, std::span<const StorageId> reads,
           std::span<const StorageId> writes, Bytes working_bytes = 0, std::uint8_t flags = 0);
  // Of `name` in names, where it is added if it is missing. Searches from the end.
  std::uint32_t name_index(std::string_view name);
  SavedId pack(StorageId storage);
  void unpack(SavedId id) { add(TapeEvent::Kind::kUnpack, id.index()); }
  void forget(SavedId id) { add(TapeEvent::Kind::kForget, id.index()); }
  void hold(StorageId id) { add(TapeEvent::Kind::kHold, id.index()); }
  void unhold(StorageId id) { add(TapeEvent::Kind::kUnhold, id.index()); }
  void free(StorageId id) { add(TapeEvent::Kind::kFree, id.index()); }
  void mark(StepMark mark) { add(TapeEvent::Kind::kMark, static_cast<std::uint32_t>(mark)); }
  void add(TapeEvent::Kind kind, std::uint32_t index) { events.push_back({kind, index}); }
};

// When each storage was there: events [made, freed); freed is events.size() for those that outlive
// the step. made is events.size() for one that never appears.
struct Lifetime {
  std::uint32_t made = 0;
  std::uint32_t freed = 0;
};
std::vector<Lifetime> lifetimes(const Tape& tape);

// Most bytes alive at any moment, working bytes included; what the step took without a budget.
Bytes tape_peak(const Tape& tape);

struct TapeProblem {
  std::size_t event = 0;  // events.size(): in the tables
  std::string what;       // "op 3 (aten::mm) reads storage 7, which is not there yet"
};

// The first thing wrong with the tape: ids out of range, use before creation or after the end, made
// or freed twice, freed while saved, unpacked when not packed, holds that do not match, sums past
// 2^63. nullopt: none. Linear. Everything else here may assume a tape without problems.
std::optional<TapeProblem> find_problem(const Tape& tape);

// Throws FormatError (LT0141) with the first problem.
void check_tape(const Tape& tape);

}  // namespace lowtide
