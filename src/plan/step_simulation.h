#pragma once
// A step on paper, as the runtime would carry it out under a plan: what it takes, to the byte.
//
//   SimulatedStep step = simulate_step(tape, plan, budget_bytes);
//   step.peak_bytes;   // what the counting allocator will have counted
//
// It is driven by the tape's events as the runtime is by the real ones, and uses the same follower,
// policy, graph and bring-back; what it adds is the arithmetic of blocks. Unlike simulate()
// (simulator.h) it keeps to what the runtime can do: only saved tensors are dropped, what is
// released is gone at once, and what is made again only for others is gone when these are made.

#include <cstdint>

#include "lowtide/bytes.h"
#include "src/plan/plan.h"
#include "src/tape/tape.h"

namespace lowtide {

struct SimulatedStep {
  bool done = false;  // false: refused
  Bytes peak_bytes = 0;
  std::uint64_t plain_ns = 0;
  std::uint64_t total_ns = 0;
  std::uint64_t drops = 0;
  std::uint64_t replays = 0;
  std::uint64_t choices_beyond_plan = 0;
};

// `plan` is for trace_of(tape). Without one nothing is dropped, whatever the budget.
SimulatedStep simulate_step(const Tape& tape, const Plan& plan, Bytes budget_bytes);

}  // namespace lowtide
