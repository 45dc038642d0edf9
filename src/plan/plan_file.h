#pragma once
// A plan as a file: docs/formats/plan.md. Two to six bytes a step.
//
//   write_plan("step.plan", plan, trace);
//   Plan plan = read_plan("step.plan", trace);
//
// A plan is for one trace, which the file names by its fingerprint. The reader trusts nothing: what
// it returns has been followed through the trace (find_problem).

#include <string>
#include <string_view>

#include "src/plan/plan.h"
#include "src/plan/trace.h"

namespace lowtide {

std::string to_plan_bytes(const Plan& plan, const Trace& trace);

// Throws FormatError: LT0152 when the bytes do not read, LT0153 when the plan is for another trace
// or cannot be followed through this one.
Plan parse_plan_bytes(std::string_view bytes, const Trace& trace);

// Throws IoError (LT0103).
void write_plan(const std::string& path, const Plan& plan, const Trace& trace);

// Throws IoError (LT0102), and as above.
Plan read_plan(const std::string& path, const Trace& trace);

}  // namespace lowtide
