#pragma once
// Where the operator logs of DTR's evaluation are: the environment variable LOWTIDE_DTR_LOGS.

#include <cstdlib>
#include <string>

namespace lowtide::testing {

// Empty when it is not set.
inline std::string dtr_log_folder() {
  const char* folder = std::getenv("LOWTIDE_DTR_LOGS");
  return folder == nullptr ? "" : folder;
}

}  // namespace lowtide::testing
