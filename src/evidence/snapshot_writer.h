#pragma once
// A Snapshot as a pickle, as torch.cuda.memory._dump_snapshot writes one: for Python and torch's
// own tools too.
//
//   write_file("refusal.pickle", snapshot_pickle(snapshot));
//
// Protocol 4. What the reader keeps is what is written; read back, it is the same snapshot.

#include <string>

#include "src/evidence/snapshot.h"

namespace lowtide {

// Linear. Frames and stacks are written once each.
std::string snapshot_pickle(const Snapshot& snapshot);

}  // namespace lowtide
