#pragma once
// What one or more steps asked of the allocator: every block made and freed, in order.
//
// A tape says what ops did and folds what happens inside one into a number; this says nothing of
// ops but their names, and folds nothing, so that steps of two batch sizes can be compared
// allocation by allocation (src/plan/peak_fit.h). Made by AllocationRecorder (src/observe), or by
// hand in tests.

#include <cstdint>
#include <string>
#include <vector>

#include "lowtide/bytes.h"
#include "src/tape/tape.h"

namespace lowtide {

enum class StepPhase : std::uint8_t { kForward, kBackward, kOptimizer };
inline constexpr std::size_t kStepPhases = 3;

struct AllocationLog {
  struct Block {
    Bytes bytes = 0;
    std::uint32_t op = 0;         // into names: the leaf op that made it; names[0], "", for none
    std::uint32_t op_number = 0;  // counts leaf ops: blocks of one op have one number
    std::uint32_t module = 0;     // into names: "encoder.layers.0.linear1", or ""
    StepPhase phase = StepPhase::kForward;
    StorageKind kind = StorageKind::kProgram;
    bool was_there = false;  // before the log began: it has no event of its making
  };
  // A block is made, or freed: `block` is its place in blocks.
  struct Event {
    std::uint32_t block = 0;
    bool is_made = true;
  };

  std::vector<std::string> names{""};
  std::vector<Block> blocks;
  std::vector<Event> events;
  std::vector<std::size_t> step_ends;  // step s has the events [step_ends[s - 1], step_ends[s])
  Bytes start_bytes = 0;               // live at the start, also of blocks that are not listed
  std::uint64_t batch_size = 0;
};

}  // namespace lowtide
