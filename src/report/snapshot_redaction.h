#pragma once
// Takes names of people and places out of what is shown.

#include <string>
#include <string_view>

#include "src/evidence/snapshot.h"

namespace lowtide {

// A path without the folders that say whose machine it is: "/home/ann/job/model.py" becomes
// ".../model.py", and what lies in an installed package keeps its place in there
// (".../site-packages/torch/nn/functional.py"). Not a path: unchanged.
std::string redacted_path(std::string_view path);

// Redacts every file of a frame and the snapshot's own name.
void redact(Snapshot& snapshot);

}  // namespace lowtide
