#pragma once
// What a tape and a plan for it say to people: what fills the peak, what is kept, what runs again.

#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/plan.h"
#include "src/tape/tape.h"

namespace lowtide {

struct BytesOf {
  std::string name;
  Bytes bytes = 0;
};

// The fullest instant of the step as it ran.
struct PeakSummary {
  Bytes bytes = 0;
  std::size_t event = 0;
  OpId op;  // that ran; not valid when the peak is between ops
  // Largest first; each adds up to `bytes`. A storage belongs to the module of the op that made it,
  // and to the op's name where no module is known.
  std::vector<BytesOf> by_kind;
  std::vector<BytesOf> by_module;
};
PeakSummary summarize_peak(const Tape& tape);

// Ops of one place in the program.
struct PlaceSummary {
  std::string name;  // of the op, when neither module nor source is known
  std::string module;
  std::string source;
  Bytes kept_bytes = 0;        // of saved storages that are never dropped while they are saved
  Bytes recomputed_bytes = 0;  // of storages that are dropped and made again
  std::uint64_t replays = 0;
  std::uint64_t extra_ns = 0;
};
// Places with anything to say, most extra time first, then most bytes kept. The plan is for
// trace_of(tape).
std::vector<PlaceSummary> summarize_plan(const Tape& tape, const Plan& plan);

}  // namespace lowtide
