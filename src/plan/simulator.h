#pragma once
// Runs a step on paper inside a budget: what it takes in time and bytes with a given policy.
//
//   SimulationOptions options;
//   options.budget_bytes = natural_peak(trace) / 2;
//   auto result = simulate(trace, options, std::make_unique<OnlinePolicy>());
//   result.overhead();       // 1.07: seven per cent more than plain
//
// It drives the same RecipeGraph, DropPolicy and BringBackPlanner as the runtime does, and keeps to
// the budget at every op. Costs are those of the trace; bookkeeping takes no time.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "lowtide/bytes.h"
#include "src/plan/drop_policy.h"
#include "src/plan/trace.h"

namespace lowtide {

// What a simulation did, in order; for checks and pictures.
struct SimulatedEvent {
  enum class Kind : std::uint8_t { kRun, kReplay, kDrop };
  Kind kind;
  std::uint32_t index;  // OpId of the trace for kRun and kReplay, StorageId for kDrop
  Bytes live_bytes;     // while the op ran; after the drop
  std::uint32_t event;  // of the trace, at or just before which it happened
};

struct SimulationOptions {
  Bytes budget_bytes = 0;
  // Gives up (kThrash) when the time passes this multiple of plain time.
  double time_limit = 10.0;
  // Gives up (kThrash) when one request has been planned anew so often. Each new plan means that
  // what had been brought back was dropped again before it could be used.
  int round_limit = 64;
  // Drops all that can be dropped as soon as it can be, and brings back from what is always there:
  // the way that needs least room, and most time. No budget is kept to; peak_bytes is what counts.
  bool eager = false;
  // Gives up (kThrash) after so many ops run again.
  std::uint64_t replay_limit = std::numeric_limits<std::uint64_t>::max();
  // Called for each event when set.
  std::function<void(const SimulatedEvent&)> on_event;
};

struct SimulationResult {
  enum class Outcome : std::uint8_t { kDone, kNoRoom, kThrash };
  Outcome outcome = Outcome::kDone;
  std::uint32_t stopped_at = 0;  // event of the trace, unless kDone
  std::uint64_t plain_ns = 0;
  std::uint64_t total_ns = 0;
  Bytes peak_bytes = 0;
  std::uint64_t replays = 0;  // ops run again
  std::uint64_t drops = 0;
  std::uint64_t bring_backs = 0;  // requests that found something missing
  int most_rounds = 0;

  bool done() const { return outcome == Outcome::kDone; }
  double overhead() const {
    return plain_ns == 0 ? 1.0 : static_cast<double>(total_ns) / static_cast<double>(plain_ns);
  }
};

SimulationResult simulate(const Trace& trace, const SimulationOptions& options,
                          std::unique_ptr<DropPolicy> policy);

// The smallest budget that can carry the step as the runtime falls back to run it: the peak of the
// eager way. Never below lowest_budget(). nullopt: that took more than `most_replays`.
std::optional<Bytes> smallest_budget(const Trace& trace, std::uint64_t most_replays);

}  // namespace lowtide
