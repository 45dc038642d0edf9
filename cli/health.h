#pragma once
// One line of `lowtide doctor`.

#include <string>
#include <vector>

namespace lowtide {

enum class Health { kGood, kMissing, kBroken, kNote };

struct HealthCheck {
  std::string name;
  Health health;
  std::string detail;
  std::string remedy;  // the exact command, when something is missing
};

}  // namespace lowtide
