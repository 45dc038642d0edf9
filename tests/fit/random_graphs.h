#pragma once
// Random training programs, kept as data, that a budget must not change.
//
//   GraphProgram program = random_program(seed);       // runs plain without an error
//   GraphFault fault = find_fault(program, {1, 0.5}, statistics);
//   if (fault) std::cout << shrink(program, fault).to_text();
//
// A program works on numbered registers, each a tensor. Slots are registers that exist before the
// first step: leaves (trained by an in-place update), buffers, and inputs (anew in each step). An
// instruction reads registers, may write to them in place, and leaves its results in others. One
// whose operand is undefined (let go, or its own instruction was taken out) is passed over, so any
// subset of a program's instructions is a program. Plain and budgeted runs execute the very same
// list.
//
// What instructions do is a table in random_graphs.cpp: arithmetic, views, writes in place (plain,
// without grad, through .data() and detach()), random ops, several results, out= variants, custom
// functions, checkpointed regions, double backward, and backward itself, at any place and more than
// once. Sizes are 1 KiB to 256 KiB: a run takes milliseconds.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lowtide/budget.h"

namespace lowtide {

struct GraphOp;  // a row of the table

struct GraphSlot {
  enum class Kind : std::uint8_t { kLeaf, kBuffer, kInput };
  int result = 0;
  Kind kind = Kind::kLeaf;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes;
};

struct GraphInstruction {
  // How the instruction runs. kData and kDetach: the write goes to operand 0's .data() or detach().
  enum class Mode : std::uint8_t { kPlain, kNoGrad, kData, kDetach };
  const GraphOp* op = nullptr;
  Mode mode = Mode::kPlain;
  std::vector<int> operands;
  std::vector<std::int64_t> numbers;
  std::vector<int> results;
};

struct GraphProgram {
  std::uint64_t seed = 0;
  int steps = 3;
  int update_every = 1;         // steps between updates: gradients accumulate meanwhile
  bool zero_in_place = false;   // gradients are zeroed, not let go
  bool keep_registers = false;  // registers stay until the next step writes them
  std::vector<GraphSlot> slots;
  std::vector<GraphInstruction> instructions;

  // One line a slot or instruction; parse() reads it again.
  std::string to_text() const;
  static GraphProgram parse(std::string_view text);
};

// Deterministic. Operations that plain PyTorch rejects are left out.
GraphProgram random_program(std::uint64_t seed);

struct GraphStatistics {
  std::uint64_t programs = 0;
  std::uint64_t instructions = 0;
  std::uint64_t writes = 0;
  std::uint64_t backwards = 0;
  std::uint64_t finished = 0;  // budgeted runs
  std::uint64_t refused = 0;   // LT0301 or LT0303
  std::uint64_t refused_at_one = 0;
  std::uint64_t drops = 0;
  std::uint64_t recomputed_ops = 0;
  std::uint64_t spilled_tensors = 0;
  std::uint64_t packed_tensors = 0;
  std::uint64_t finite_losses = 0;
  std::uint64_t losses = 0;
};

struct GraphFault {
  enum class Kind : std::uint8_t {
    kNone,
    kPlainFails,    // no valid program
    kPlainDiffers,  // from itself: nothing can be said
    kDiffers,       // another loss, gradient, leaf, buffer, register or generator state
    kOverLimit,     // more bytes than the limit were live
    kRefusedAtOne,  // the plain run's own peak was not enough
    kThrew,         // something else than a refusal
    kDiffersAfter,  // plain, after a refused run
  };
  Kind kind = Kind::kNone;
  double fraction = 0;
  std::string text;
  explicit operator bool() const { return kind != Kind::kNone; }
};

// Runs the program plain, then under budgets of live + f * (plain peak - live) bytes for each f,
// and says what went wrong first; a refusal at f = 1 only when nothing worse did.
GraphFault find_fault(const GraphProgram& program, const std::vector<double>& fractions,
                      GraphStatistics& statistics, const BudgetOptions& options = {});

// The smallest program found that has a fault of the same kind.
GraphProgram shrink(const GraphProgram& program, const GraphFault& fault,
                    const BudgetOptions& options = {});

}  // namespace lowtide
