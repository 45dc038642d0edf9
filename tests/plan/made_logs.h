#pragma once
// Traces written as operator logs, so that the reader has logs to read that we may keep.

#include <string>

#include "src/plan/trace.h"

namespace lowtide::testing {

// For traces without writes in place, holds and needs.
std::string to_dtr_log(const Trace& trace);

}  // namespace lowtide::testing
