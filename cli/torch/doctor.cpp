// The part of `lowtide doctor` that looks at libtorch itself.

#include <torch/version.h>

#include <vector>

#include "cli/health.h"
#include "lowtide/export.h"

extern "C" LOWTIDE_API void lowtide_examine_torch(std::vector<lowtide::HealthCheck>& checks) {
  using lowtide::Health;
  checks.push_back({"libtorch", Health::kGood, TORCH_VERSION, ""});
}
