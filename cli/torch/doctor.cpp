// The part of `lowtide doctor` that looks at libtorch itself, and at what the main job needs.

#include <filesystem>
#include <vector>

#include "cli/health.h"
#include "lowtide/error.h"
#include "lowtide/export.h"
#include "src/hook/self_test.h"
#include "src/train/dataset.h"

namespace {

using lowtide::Health;
using lowtide::HealthCheck;

void examine_photographs(std::vector<HealthCheck>& checks) {
  try {
    checks.push_back({"photographs", Health::kGood, lowtide::find_default_data().string(), ""});
  } catch (const lowtide::Error& error) {
    // Only `lowtide train` without --data needs them.
    checks.push_back({"photographs", Health::kNote, "not found; lowtide train then needs --data DIR",
                      "pip install --no-deps deepforest==2.1.0"});
  }
}

}  // namespace

extern "C" LOWTIDE_API void lowtide_examine_torch(std::vector<HealthCheck>& checks) {
  for (const lowtide::hook::SelfCheck& check : lowtide::hook::self_test()) {
    checks.push_back(
        {check.name, check.passed ? Health::kGood : Health::kBroken, check.detail, ""});
  }
  examine_photographs(checks);
}
