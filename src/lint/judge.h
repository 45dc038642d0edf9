#pragma once
// From what the interpreter saw to findings: the rules that follow values.

#include <vector>

#include "src/lint/finding.h"
#include "src/lint/interpreter.h"

namespace lowtide::lint {

// A finding before it has a file: where it is in the tree, and which expression it is about.
struct RawFinding {
  std::string rule;
  NodeId site = 0;
  std::string message;
  Cost cost = Cost::kPeak;
  // What is detached, or run under no_grad, is a tensor for certain, and no gradient is asked of
  // it.
  bool detach_is_safe = false;
  bool note = false;  // said, but no mistake
};

std::vector<RawFinding> judge(Interpreter& interpreter, const SyntaxTree& tree, Names& names,
                              Vocabulary& words);

// The rules that need no values: what stands in the source is enough.
// `has_fairscale`: the environment's requirements name it.
std::vector<RawFinding> judge_source(const SyntaxTree& tree, Names& names, Vocabulary& words,
                                     bool has_fairscale);

}  // namespace lowtide::lint
