#pragma once
// The operator logs of DTR's evaluation (JSON lines) as traces.
//
// Their cost model: a constant can never go; an in-place op makes a new storage; a view is a tensor
// of its own, goes with its storage and costs its op's time again; what is still referenced at the
// end must be there at the end.

#include <string>
#include <vector>

#include "src/plan/trace.h"

namespace lowtide::testing {

// Throws FormatError (LT0130, LT0131) or std::out_of_range on what is not such a log.
Trace read_dtr_log(const std::string& path);
Trace trace_of_dtr_log(const std::string& text);

// Folder with the logs, from the environment variable LOWTIDE_DTR_LOGS; empty when it is not set.
std::string dtr_log_folder();

}  // namespace lowtide::testing
