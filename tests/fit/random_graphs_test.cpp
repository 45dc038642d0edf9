#include "tests/fit/random_graphs.h"

#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <string>

#include "tests/fit/spill_directory.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

using namespace lowtide;  // the tests of one header

namespace {

const std::vector<double> kFractions{1, 0.75, 0.5, 0.35, 0.25};

std::string name_of(GraphFault::Kind kind) {
  switch (kind) {
    case GraphFault::Kind::kNone:
      return "none";
    case GraphFault::Kind::kPlainFails:
      return "fails plain";
    case GraphFault::Kind::kPlainDiffers:
      return "plain differs from itself";
    case GraphFault::Kind::kDiffers:
      return "differs";
    case GraphFault::Kind::kOverLimit:
      return "exceeds the limit";
    case GraphFault::Kind::kThrew:
      return "threw";
    case GraphFault::Kind::kDiffersAfter:
      return "plain differs after a refusal";
    case GraphFault::Kind::kRefusedAtOne:
      return "refused at the plain run's peak";
  }
  return "";
}

std::string describe(std::uint64_t seed, const GraphProgram& program, const GraphFault& fault,
                     const BudgetOptions& options) {
  return "random program " + std::to_string(seed) + " at " + std::to_string(fault.fraction) + ": " +
         name_of(fault.kind) + ": " + fault.text + "\n" + shrink(program, fault, options).to_text();
}

struct Trial {
  GraphStatistics statistics;
  std::vector<std::string> faults;          // wrong results and the like
  std::vector<std::string> refused_at_one;  // a limit that plain keeps was refused
};

// Plain PyTorch loses a graph in which a tensor was saved and then written in place
// (x = w * 2; y = sin(x); x.add_(y): the graph holds x, and x the graph). Random programs make such
// rings, so what they leave is not held against them.
struct LeaksAllowed {
#ifdef __SANITIZE_ADDRESS__
  __lsan::ScopedDisabler leaks;
#endif
};

Trial try_programs(std::uint64_t first, std::uint64_t count, const BudgetOptions& options = {}) {
  [[maybe_unused]] const LeaksAllowed allowed;
  at::set_num_threads(1);
  Trial trial;
  for (std::uint64_t seed = first; seed < first + count && trial.faults.size() < 3; ++seed) {
    const GraphProgram program = random_program(seed);
    const GraphFault fault = find_fault(program, kFractions, trial.statistics, options);
    if (!fault) continue;
    auto& list =
        fault.kind == GraphFault::Kind::kRefusedAtOne ? trial.refused_at_one : trial.faults;
    if (list.size() < 3) list.push_back(describe(seed, program, fault, options));
  }
  return trial;
}

const Trial& few() {
  static const Trial trial = try_programs(0, 200);
  return trial;
}

const Trial& many() {
  static const Trial trial = try_programs(1'000, 2'000);
  return trial;
}

void check_results(const Trial& trial, std::uint64_t count) {
  const GraphStatistics& s = trial.statistics;
  for (const std::string& fault : trial.faults) FAIL_CHECK(fault);
  INFO(s.programs, " programs, ", s.instructions, " instructions, ", s.writes, " writes, ",
       s.backwards, " backwards; ", s.finished, " runs finished, ", s.refused, " refused; ",
       s.drops, " drops, ", s.recomputed_ops, " ops run again; ", s.finite_losses, " of ", s.losses,
       " losses finite");
  // Not an idle pass: much was dropped and made again, on programs that say something.
  CHECK(s.programs == count);
  CHECK(s.backwards >= count);
  CHECK(s.writes >= 3 * count);
  CHECK(s.finished >= 3 * count / 2);
  CHECK(s.drops >= 20 * count);
  CHECK(s.recomputed_ops >= 20 * count);
  CHECK(10 * s.finite_losses >= 9 * s.losses);
}

void check_never_refused_at_one(const Trial& trial) {
  for (const std::string& refusal : trial.refused_at_one) FAIL_CHECK(refusal);
  CHECK(trial.statistics.refused_at_one == 0);
}

}  // namespace

TEST_CASE("200 random programs give the plain run's bits under a budget, or are refused") {
  check_results(few(), 200);
}

// Not yet for all: some 2 % are. A source that the program let go of stays for what is made from it
// and was dropped first (docs/design/budget.md).
TEST_CASE("200 random programs are not refused the bytes that the plain run takes" *
          doctest::may_fail()) {
  check_never_refused_at_one(few());
}

TEST_CASE("2,000 random programs give the plain run's bits under a budget, or are refused" *
          doctest::test_suite("slow")) {
  check_results(many(), 2'000);
}

TEST_CASE("2,000 random programs are not refused the bytes that the plain run takes" *
          doctest::test_suite("slow") * doctest::may_fail()) {
  check_never_refused_at_one(many());
}

namespace {

BudgetOptions spilling(bool always) {
  BudgetOptions options;
  options.spill_directory = spill_directory();
  options.always_put_away = always;
  return options;
}

BudgetOptions packing(bool always) {
  BudgetOptions options;
  options.pack = true;
  options.always_put_away = always;
  return options;
}

void check_put_away(const Trial& trial, std::uint64_t count) {
  const GraphStatistics& s = trial.statistics;
  for (const std::string& fault : trial.faults) FAIL_CHECK(fault);
  INFO(s.finished, " runs finished, ", s.refused, " refused; ", s.spilled_tensors, " spilled, ",
       s.packed_tensors, " packed, ", s.recomputed_ops, " ops run again");
  CHECK(s.programs == count);
  CHECK(s.finished >= count);
}

}  // namespace

TEST_CASE("40 random programs give the plain run's bits when all that can be is spilled") {
  const Trial trial = try_programs(5'000, 40, spilling(true));
  check_put_away(trial, 40);
  CHECK(trial.statistics.spilled_tensors >= 5 * 40);
}

TEST_CASE("40 random programs give the plain run's bits when all that can be is packed") {
  const Trial trial = try_programs(5'100, 40, packing(true));
  check_put_away(trial, 40);
  CHECK(trial.statistics.packed_tensors >= 5 * 40);
}

TEST_CASE("500 random programs give the plain run's bits when all that can be is spilled" *
          doctest::test_suite("slow")) {
  check_put_away(try_programs(6'000, 500, spilling(true)), 500);
}

TEST_CASE("500 random programs give the plain run's bits when all that can be is packed" *
          doctest::test_suite("slow")) {
  check_put_away(try_programs(6'000, 500, packing(true)), 500);
}

TEST_CASE("500 random programs give the plain run's bits with recomputing, spilling and packing" *
          doctest::test_suite("slow")) {
  BudgetOptions options = spilling(false);
  options.pack = true;
  const Trial trial = try_programs(8'000, 500, options);
  check_put_away(trial, 500);
  CHECK(trial.statistics.recomputed_ops >= 500);
}

TEST_CASE("a random program reads back from its text") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const std::string text = random_program(seed).to_text();
    CHECK(GraphProgram::parse(text).to_text() == text);
  }
}
