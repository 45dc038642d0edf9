#pragma once
// Checks, in this process, that libtorch behaves as the hooks count on: `lowtide doctor` shows the
// result. Worth running first when something that worked with another libtorch does not.
//
//   for (const hook::SelfCheck& check : hook::self_test()) { ... }

#include <string>
#include <vector>

#include "lowtide/export.h"

namespace lowtide::hook {

struct SelfCheck {
  std::string name;  // lower case, does not change: "torch version", "allocator"
  bool passed;
  std::string detail;  // what was found; for a failed check also what was expected
};

// Runs all checks and returns one entry for each, in a fixed order; never throws. Takes a few
// milliseconds. Some checks count exact bytes: no other thread should allocate tensors meanwhile,
// or they may fail without cause. When libtorch is of another version than built for, the checks
// that would use its internals are not run, and failed.
LOWTIDE_API std::vector<SelfCheck> self_test();

}  // namespace lowtide::hook
