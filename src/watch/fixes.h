#pragma once
// What is said of a finding: the chain that keeps it, whether it is an alarm, and what to write
// instead.

#include "lowtide/watch.h"
#include "src/hook/host.h"

namespace lowtide {

std::string carried_chain(const WatchFinding& finding);
std::string carried_fix(const WatchFinding& finding, bool is_scalar);
// Where no holder was found.
std::string unheld_chain(const WatchFinding& finding);
std::string kept_chain(const WatchFinding& finding, const hook::TensorHolder& holder);
std::string kept_fix(const WatchFinding& finding, const hook::TensorHolder& holder, bool is_scalar);
// Chain, fix and whether it is an alarm, of tensors without a graph.
void judge_tensors(WatchFinding& finding, const hook::TensorHolder& holder, bool in_backward);
void judge_held(WatchFinding& finding, bool in_backward);

}  // namespace lowtide
