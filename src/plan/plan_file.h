#pragma once
// A plan as a file: docs/formats/plan.md. Two to six bytes a step.
//
//   write_plan("step.plan", plan, trace);
//   Plan plan = read_plan("step.plan", trace);
//
// A plan is for one trace, which the file names by its fingerprint; with its tape in the file too
// it can be carried out without another. The reader trusts nothing: what it returns has been
// followed through the trace (find_problem).

#include <string>
#include <string_view>

#include "src/plan/plan.h"
#include "src/plan/trace.h"
#include "src/tape/tape.h"

namespace lowtide {

std::string to_plan_bytes(const Plan& plan, const Trace& trace);
// With the tape, of which the trace is.
std::string to_plan_bytes(const Plan& plan, const Tape& tape);

// Throws FormatError: LT0152 when the bytes do not read, LT0153 when the plan is for another trace
// or cannot be followed through this one.
Plan parse_plan_bytes(std::string_view bytes, const Trace& trace);

// A plan and the step that it is for.
struct StepPlan {
  Tape tape;
  Plan plan;
};

// The same for a plan with its tape. FormatError LT0154 when the file has none, and as for a tape
// (LT0141, LT0142).
StepPlan parse_step_plan_bytes(std::string_view bytes);

// Throws IoError (LT0103).
void write_plan(const std::string& path, const Plan& plan, const Trace& trace);
void write_plan(const std::string& path, const Plan& plan, const Tape& tape);

// Throws IoError (LT0102), and as above.
Plan read_plan(const std::string& path, const Trace& trace);
StepPlan read_step_plan(const std::string& path);

}  // namespace lowtide
