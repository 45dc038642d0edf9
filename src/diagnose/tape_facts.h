#pragma once
// What a tape has to say: the peak by kind, and how little the step can run in.
//
//   TapeFacts facts = facts_of(parse_tape(bytes), "step.tape");
//   facts.floor;       // no smaller budget can carry the step
//   facts.smallest;    // the smallest that is known to

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "lowtide/bytes.h"
#include "src/tape/tape.h"

namespace lowtide {

constexpr std::size_t kStorageKinds = 7;
// "optimizer state"
const char* storage_kind_name(StorageKind kind);

struct TapeFacts {
  std::string name;      // of the file
  bool is_whole = true;  // up to the step's end; of a part, only lower bounds are known
  std::uint64_t ops = 0;
  std::uint64_t storages = 0;
  Bytes peak = 0;
  std::array<Bytes, kStorageKinds> at_peak{};  // by kind
  Bytes working_at_peak = 0;                   // inside the op that ran; adds up with the above
  std::string peak_op;                         // that ran at the peak; empty: none
  Bytes floor = 0;                             // a lower bound of the budget
  std::string floor_op;                        // the op that sets it; empty: what stays does
  std::optional<Bytes> smallest;  // known to carry the step; not found for very long ones
};

// The search for the smallest budget gives up after so many ops run again; some seconds.
constexpr std::uint64_t kMostReplays = 10'000'000;

TapeFacts facts_of(const Tape& tape, std::string name, std::uint64_t most_replays = kMostReplays);

}  // namespace lowtide
