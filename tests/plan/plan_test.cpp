#include "src/plan/plan.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <random>
#include <string>

#include "lowtide/error.h"
#include "src/base/byte_codec.h"
#include "src/plan/plan_file.h"
#include "src/plan/planner.h"
#include "tests/plan/made_traces.h"

namespace lowtide {
namespace {

constexpr auto kDrop = PlanStep::Kind::kDrop;
constexpr auto kReplay = PlanStep::Kind::kReplay;

// w(4) -> a(10) -> b(20), then c(5) reads a and b; c is pinned.
Trace three_ops() {
  Trace trace;
  const StorageId w = trace.add_source(4);
  const StorageId a = trace.add_storage(10);
  const StorageId b = trace.add_storage(20);
  const StorageId c = trace.add_storage(5);
  trace.run(7, {{w}}, {{a}});
  trace.run(8, {{a}}, {{b}});
  trace.run(9, {{a, b}}, {{c}});
  trace.release(a);
  trace.release(b);
  trace.pin(c);
  return trace;
}

Plan sound_plan() {
  Plan plan;
  plan.budget_bytes = 39;
  plan.peak_bytes = 39;
  plan.plain_ns = 24;
  plan.total_ns = 31;
  // a goes after b is made and comes back before c.
  plan.steps = {{3, kDrop, 1, 0}, {3, kReplay, 0, 0}, {4, kDrop, 1, 0}, {4, kDrop, 2, 0}};
  return plan;
}

std::string problem(const Trace& trace, const Plan& plan) {
  const auto found = find_problem(trace, plan);
  return found ? found->what : "none";
}

TEST_CASE("a sound plan has no problem") { CHECK(problem(three_ops(), sound_plan()) == "none"); }

TEST_CASE("each thing that cannot be is found and named") {
  const Trace trace = three_ops();
  const auto with = [&](auto change) {
    Plan plan = sound_plan();
    change(plan);
    return problem(trace, plan);
  };
  CHECK(with([](Plan& p) { p.steps[1].index = 1; }) == "op 1 runs but storage 1 is not there");
  CHECK(with([](Plan& p) { p.steps.erase(p.steps.begin() + 1); }) ==
        "op 2 runs but storage 1 is not there");
  CHECK(with([](Plan& p) { p.budget_bytes = 38; }) ==
        "39 bytes are there at once, 1 over the budget");
  CHECK(with([](Plan& p) { p.peak_bytes = 40; }) == "its peak is 39 bytes, not 40 as it claims");
  CHECK(with([](Plan& p) { p.total_ns = 30; }) == "it takes 31 ns, not 30 as it claims");
  CHECK(with([](Plan& p) { p.steps[0].index = 0; }) ==
        "storage 0 is dropped but nothing makes it again");
  CHECK(with([](Plan& p) { p.steps[0].index = 3; }) == "storage 3 is dropped but is not there");
  CHECK(with([](Plan& p) { p.steps[0].index = 99; }) == "storage 99 is dropped but is not there");
  CHECK(with([](Plan& p) { p.steps[0].version = 1; }) == "storage 1 is dropped but is not there");
  CHECK(with([](Plan& p) { p.steps[1].index = 2; }) == "op 2 runs again before it has run");
  CHECK(with([](Plan& p) { p.steps[1].index = 99; }) == "op 99 runs again before it has run");
  CHECK(with([](Plan& p) { p.steps[3].event = 2; }) == "it stands after a step of a later event");
  CHECK(with([](Plan& p) { p.steps.push_back({99, kDrop, 3, 0}); }) == "there is no event so late");
  CHECK(with([](Plan& p) { p.steps.push_back({7, kDrop, 3, 0}); }) ==
        "storage 3 is dropped while the program holds it");
}

TEST_CASE(
    "what an op overwrites becomes the next version, and an older one can be made beside it") {
  Trace trace;
  const StorageId w = trace.add_source(1);
  const StorageId a = trace.add_storage(10);
  const StorageId b = trace.add_storage(1);
  trace.run(5, {{w}}, {{a}});
  trace.run(6, {{a}}, {{a}});
  trace.run(7, {{a}}, {{b}});
  trace.pin(b);
  Plan plan;
  plan.budget_bytes = plan.peak_bytes = 12;
  plan.plain_ns = 18;
  plan.total_ns = 18 + 11;
  plan.steps = {{3, kDrop, 1, 1}, {3, kReplay, 0, 0}, {3, kReplay, 1, 0}, {4, kDrop, 1, 1}};
  CHECK(problem(trace, plan) == "none");
  plan.steps[0].version = 0;
  CHECK(problem(trace, plan) == "storage 1 is dropped but is not there");
}

TEST_CASE("a view goes with its base") {
  Trace trace;
  const StorageId w = trace.add_source(1);
  const StorageId a = trace.add_storage(10);
  const StorageId view = trace.add_storage(0, a);
  const StorageId b = trace.add_storage(1);
  trace.run(5, {{w}}, {{a}});
  trace.run(1, {{a}}, {{view}});
  trace.run(7, {{view}}, {{b}});
  Plan plan;
  plan.budget_bytes = plan.peak_bytes = 12;
  plan.total_ns = 18;
  plan.steps = {{3, kDrop, 1, 0}, {3, kReplay, 0, 0}};
  CHECK(problem(trace, plan) == "op 2 runs but storage 2 is not there");
  plan.steps.push_back({3, kReplay, 1, 0});
  plan.total_ns = 19;
  CHECK(problem(trace, plan) == "none");
}

// Every replay and every drop of a plan is there for a reason.
TEST_CASE("a planner's plan without one of its replays has a problem, and never does one with it") {
  std::mt19937 random(21);
  for (int round = 0; round < 40; ++round) {
    const Trace trace = testing::random_step(random, 12, round % 2 == 0);
    const Bytes floor = lowest_budget(trace).bytes;
    PlannerOptions options;
    options.budget_bytes = floor + (natural_peak(trace) - floor) / 3;
    options.most_tries = 100;
    const auto plan = Planner(trace).plan(options).plan;
    if (!plan) continue;
    CHECK_FALSE(find_problem(trace, *plan).has_value());
    for (std::size_t i = 0; i < plan->steps.size(); ++i) {
      if (plan->steps[i].kind != kReplay) continue;
      Plan without = *plan;
      without.total_ns -= trace.ops[plan->steps[i].index].cost_ns;
      without.steps.erase(without.steps.begin() + static_cast<std::ptrdiff_t>(i));
      CHECK(find_problem(trace, without).has_value());
    }
  }
}

TEST_CASE("a plan written to a file reads back, for its trace only") {
  const Trace trace = three_ops();
  const Plan plan = sound_plan();
  const std::string bytes = to_plan_bytes(plan, trace);
  CHECK(bytes.size() < 50);
  CHECK(parse_plan_bytes(bytes, trace) == plan);
  const auto path = std::filesystem::temp_directory_path() / "lowtide_plan_test.plan";
  write_plan(path.string(), plan, trace);
  CHECK(read_plan(path.string(), trace) == plan);
  std::filesystem::remove(path);
  CHECK_THROWS_AS(read_plan(path.string(), trace), IoError);

  const auto id_of = [](const std::string& text, const Trace& against) -> std::string {
    try {
      parse_plan_bytes(text, against);
    } catch (const FormatError& error) {
      return error.id();
    }
    return "read";
  };
  Trace slower = trace;
  slower.ops[1].cost_ns += 1;
  CHECK(id_of(bytes, slower) == "LT0153");
  Trace unlike = trace;  // in nothing that following the plan would notice
  unlike.add_storage(1);
  CHECK(id_of(bytes, unlike) == "LT0153");
  Plan wrong = plan;
  wrong.steps[1].index = 1;
  CHECK(id_of(to_plan_bytes(wrong, trace), trace) == "LT0153");
  wrong = plan;
  wrong.bound_ns = 1000;
  CHECK(id_of(to_plan_bytes(wrong, trace), trace) == "LT0153");
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    CHECK(id_of(damaged, trace) == "LT0152");
    CHECK(id_of(bytes.substr(0, at), trace) == "LT0152");
    if (at + 8 >= bytes.size()) continue;
    ByteWriter with_sum;
    with_sum.raw(damaged.substr(0, damaged.size() - 8));
    const std::string id = id_of(with_sum.finish(), trace);
    CHECK((id == "LT0152" || id == "LT0153" || id == "read"));
  }
}

}  // namespace
}  // namespace lowtide
