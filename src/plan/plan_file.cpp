// Format: docs/formats/plan.md. Tested by tests/plan/plan_test.cpp.

#include "src/plan/plan_file.h"

#include "lowtide/error.h"
#include "src/base/byte_codec.h"
#include "src/base/file.h"
#include "src/base/text.h"
#include "src/tape/tape_bytes.h"

namespace lowtide {
namespace {

constexpr std::string_view kMagic = "lt-plan\n";
constexpr std::uint64_t kVersion = 2;

std::string to_bytes(const Plan& plan, const Trace& trace, std::string_view tape) {
  ByteWriter out;
  out.raw(kMagic);
  out.number(kVersion);
  out.fixed64(fingerprint(trace));
  for (const std::uint64_t number :
       {plan.budget_bytes, plan.peak_bytes, plan.plain_ns, plan.total_ns, plan.bound_ns}) {
    out.number(number);
  }
  out.number(plan.steps.size());
  std::uint32_t event = 0;
  for (const PlanStep& step : plan.steps) {
    out.number(std::uint64_t{step.event - event} << 1 | static_cast<std::uint64_t>(step.kind));
    event = step.event;
    out.number(step.index);
    if (step.kind == PlanStep::Kind::kDrop) out.number(step.version);
  }
  out.text(tape);
  return out.finish();
}

struct Parsed {
  std::uint64_t made_for = 0;
  Plan plan;
  std::string tape;
};

Parsed parse(std::string_view bytes) {
  ByteReader in(bytes, "LT0152", "the plan");
  in.header(kMagic, kVersion);
  Parsed parsed;
  for (int shift = 0; shift < 64; shift += 8) {
    parsed.made_for |= std::uint64_t{in.byte()} << shift;
  }
  Plan& plan = parsed.plan;
  for (std::uint64_t* number :
       {&plan.budget_bytes, &plan.peak_bytes, &plan.plain_ns, &plan.total_ns, &plan.bound_ns}) {
    *number = in.number();
  }
  plan.steps.resize(in.count(2, "steps"));
  std::uint64_t event = 0;
  for (PlanStep& step : plan.steps) {
    const std::uint64_t head = in.number();
    event += head >> 1;
    if (event >= StorageId::kNone) in.fail("a step belongs to no event");
    step.event = static_cast<std::uint32_t>(event);
    step.kind = static_cast<PlanStep::Kind>(head & 1);
    step.index = static_cast<std::uint32_t>(in.number_below(StorageId::kNone, "a step's index"));
    if (step.kind == PlanStep::Kind::kDrop) {
      step.version = static_cast<std::uint32_t>(in.number_below(StorageId::kNone, "a version"));
    }
  }
  parsed.tape = in.text();
  in.finish();
  return parsed;
}

void check(const Parsed& parsed, const Trace& trace) {
  const Plan& plan = parsed.plan;
  if (parsed.made_for != fingerprint(trace)) {
    throw FormatError(
        "LT0153",
        "the plan is for another tape: storages, ops or times differ. Plan again from "
        "this tape");
  }
  if (plan.plain_ns != plain_ns(trace) || plan.bound_ns > plan.total_ns) {
    throw FormatError("LT0153", "the plan's times are not those of its tape. Plan again");
  }
  if (const auto problem = find_problem(trace, plan)) {
    throw FormatError("LT0153", concat("the plan cannot be followed: ", problem->what, " (step ",
                                       problem->step, " of ", plan.steps.size(), "). Plan again"));
  }
}

}  // namespace

std::string to_plan_bytes(const Plan& plan, const Trace& trace) {
  return to_bytes(plan, trace, {});
}

std::string to_plan_bytes(const Plan& plan, const Tape& tape) {
  return to_bytes(plan, trace_of(tape), to_tape_bytes(tape));
}

Plan parse_plan_bytes(std::string_view bytes, const Trace& trace) {
  Parsed parsed = parse(bytes);
  check(parsed, trace);
  return std::move(parsed.plan);
}

StepPlan parse_step_plan_bytes(std::string_view bytes) {
  Parsed parsed = parse(bytes);
  if (parsed.tape.empty()) {
    throw FormatError("LT0154",
                      "the plan has no tape with it, so no step can be told to be the one it is "
                      "for. Write it again with lowtide plan");
  }
  StepPlan step{parse_tape_bytes(parsed.tape, "the tape of the plan"), {}};
  check(parsed, trace_of(step.tape));
  step.plan = std::move(parsed.plan);
  return step;
}

void write_plan(const std::string& path, const Plan& plan, const Trace& trace) {
  write_file(path, to_plan_bytes(plan, trace));
}

void write_plan(const std::string& path, const Plan& plan, const Tape& tape) {
  write_file(path, to_plan_bytes(plan, tape));
}

Plan read_plan(const std::string& path, const Trace& trace) {
  return parse_plan_bytes(read_file(path), trace);
}

StepPlan read_step_plan(const std::string& path) { return parse_step_plan_bytes(read_file(path)); }

}  // namespace lowtide
