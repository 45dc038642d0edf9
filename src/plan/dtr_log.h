#pragma once
// The operator logs of DTR's evaluation (JSON lines) as traces: docs/formats/dtr_log.md.
//
//   DtrLog log = read_dtr_log("resnet32-56.log");
//   Bytes budget = log.peak_bytes / 2;
//
// Their cost model: a constant can never go; an in-place op makes a new storage; a view is a tensor
// of its own, goes with its storage and costs its op's time again; what is still referenced at the
// end must be there at the end. The program's holds do not count: everything else may be dropped.
//
// Trusts nothing.

#include <string>
#include <string_view>

#include "lowtide/bytes.h"
#include "src/plan/trace.h"

namespace lowtide {

struct DtrLog {
  Trace trace;
  // Of the step without a budget; released constants, which stay in the trace, do not count.
  Bytes peak_bytes = 0;
};

// Throws FormatError (LT0150) with the line and what is wrong in it. Linear in the text.
DtrLog parse_dtr_log(std::string_view text);

// Throws IoError (LT0102) when the file cannot be read, and as above.
DtrLog read_dtr_log(const std::string& path);

}  // namespace lowtide
