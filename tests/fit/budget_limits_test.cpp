// Limits in all their forms, steps, reports, events and errors of a budget.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "lowtide/budget.h"
#include "lowtide/error.h"
#include "src/base/json.h"
#include "tests/fit/training.h"

using namespace lowtide;  // the tests of one header

namespace {

constexpr Bytes kBlock = 256 * 256 * sizeof(float);

// Saves `depth` blocks; each is cheap to make again.
at::Tensor chain_loss(const at::Tensor& w, int depth) {
  at::Tensor y = w * 2;
  for (int i = 0; i < depth; ++i) y = at::sin(y);
  return y.sum();
}

at::Tensor weight() { return at::full({256, 256}, 0.5).requires_grad_(true); }

Bytes live() { return MemoryMeter().live_bytes(); }

std::int64_t number(const BudgetError& error, const std::string& key) {
  return std::get<std::int64_t>(error.details().at(key));
}

}  // namespace

TEST_CASE("a limit is read from bytes and shares, and refused otherwise") {
  CHECK(BudgetLimit::parse("6GiB").bytes() == Bytes{6} << 30);
  CHECK(BudgetLimit::parse("1000").bytes() == 1000);
  CHECK(BudgetLimit::parse("50%").share() == 0.5);
  CHECK(BudgetLimit::parse("12.5%").share() == 0.125);
  CHECK(BudgetLimit::parse("100%").is_share());
  for (const char* bad : {"0%", "101%", "-5%", "%", "x%", "50 %", "nan%"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH_AS(BudgetLimit::parse(bad), doctest::Contains("LT0305"), UsageError);
  }
  CHECK_THROWS_WITH_AS(BudgetLimit::parse("six"), doctest::Contains("LT0101"), UsageError);
}

TEST_CASE("a share is of what the step adds to what stays") {
  at::set_num_threads(1);
  const at::Tensor w = weight();
  const Bytes start = live();
  const MemoryBudget budget(BudgetLimit::share(0.5));
  CHECK(budget.report().limit_bytes == 0);
  for (int step = 0; step < 4; ++step) {
    w.mutable_grad() = at::Tensor();
    chain_loss(w, 20).backward();
    if (step == 1) CHECK(budget.report().drops == 0);
  }
  const BudgetReport report = budget.report();
  // Static: w was there before; its gradient is there once backward has ended.
  const Bytes fixed = start + kBlock;
  CHECK(report.limit_bytes > fixed + 8 * kBlock);
  CHECK(report.limit_bytes < fixed + 13 * kBlock);
  CHECK(report.share == 0.5);
  CHECK(report.drops > 0);
  CHECK(report.steps == 3);
}

TEST_CASE("nested budgets: the lowest limit is in force, and each has its own report") {
  at::set_num_threads(1);
  const at::Tensor w = weight();
  const MemoryBudget outer(live() + 30 * kBlock);
  chain_loss(w, 20).backward();
  CHECK(outer.report().drops == 0);
  {
    const MemoryBudget inner(live() + 10 * kBlock);
    chain_loss(w, 20).backward();
    CHECK(inner.report().drops > 0);
    CHECK(inner.report().peak_bytes <= inner.report().limit_bytes);
    const MemoryBudget wider(live() + 100 * kBlock);
    CHECK_THROWS_AS(at::empty({256 * 256 * 20}), BudgetError);
    CHECK(wider.report().refusals == 1);
  }
  const std::uint64_t drops = outer.report().drops;
  CHECK(drops > 0);
  chain_loss(w, 20).backward();
  CHECK(outer.report().drops == drops);
}

TEST_CASE("a report goes on being right after its budget, and the next budget starts afresh") {
  at::set_num_threads(1);
  const at::Tensor w = weight();
  BudgetReport first;
  {
    const MemoryBudget budget(live() + 10 * kBlock);
    chain_loss(w, 20).backward();
    first = budget.report();
  }
  CHECK(first.drops > 0);
  CHECK(first.recomputed_ops > 0);
  const MemoryBudget budget(live() + 30 * kBlock);
  chain_loss(w, 20).backward();
  CHECK(budget.report().drops == 0);
  CHECK(budget.report().smallest_budget_bytes == 0);
}

TEST_CASE("a refusal names the op, the numbers and the kinds, and leaves everything usable") {
  at::set_num_threads(1);
  // Of a size that no other budget here has seen.
  const at::Tensor w = at::full({257, 256}, 0.5).requires_grad_(true);
  const Bytes block = w.nbytes();
  const Bytes start = live();
  const MemoryBudget budget(start + 4 * block);
  std::vector<at::Tensor> held;
  try {
    for (int i = 0; i < 8; ++i) held.push_back(at::sin(w));
    FAIL("not refused");
  } catch (const c10::OutOfMemoryError& caught) {
    const auto& error = dynamic_cast<const BudgetError&>(caught);
    CHECK(error.id() == "LT0301");
    CHECK(std::get<std::string>(error.details().at("op")) == "aten::sin");
    CHECK(number(error, "request_bytes") == static_cast<std::int64_t>(block));
    CHECK(number(error, "limit_bytes") == static_cast<std::int64_t>(start + 4 * block));
    CHECK(number(error, "live_bytes") == static_cast<std::int64_t>(start + 4 * block));
    CHECK(number(error, "smallest_budget_bytes") == static_cast<std::int64_t>(start + 5 * block));
    CHECK(number(error, "smallest_budget_is_bound") == 1);
    CHECK(number(error, "live_parameters_bytes") == static_cast<std::int64_t>(block));
    const std::string text = error.what();
    CHECK(text.find("aten::sin") != std::string::npos);
    CHECK(text.find("The program itself holds 1.00 MiB made by aten::sin") != std::string::npos);
  }
  CHECK(held.size() == 4);
  CHECK(held[3].data_ptr<float>()[7] == std::sin(0.5F));
  CHECK(budget.report().program_bytes == 4 * block);
  REQUIRE(!budget.report().program_holds.empty());
  CHECK(budget.report().program_holds[0].op == "aten::sin");
  CHECK(budget.report().program_holds[0].tensors == 4);
  held.clear();
  const at::Tensor small = at::full({64, 64}, 0.5).requires_grad_(true);
  chain_loss(small, 3).backward();
  CHECK(small.grad().defined());
}

TEST_CASE("a step known not to fit is refused before anything is dropped for it") {
  at::set_num_threads(1);
  const at::Tensor w = weight();
  const MemoryBudget roomy(live() + 40 * kBlock);
  const auto loss = [&] {
    // All outputs are the program's own, so none can be dropped.
    std::vector<at::Tensor> held;
    at::Tensor y = w * 2;
    for (int i = 0; i < 10; ++i) held.push_back(y = at::sin(y));
    return at::stack(held).sum();
  };
  for (int step = 0; step < 3; ++step) loss().backward();
  const Bytes smallest = roomy.report().smallest_budget_bytes;
  REQUIRE(smallest > live() + 8 * kBlock);
  const std::uint64_t drops = roomy.report().drops;
  {
    const MemoryBudget tight(smallest - 2 * kBlock);
    try {
      loss().backward();
      FAIL("not refused");
    } catch (const BudgetError& error) {
      CHECK(number(error, "smallest_budget_is_bound") == 0);
      CHECK(number(error, "smallest_budget_bytes") >= static_cast<std::int64_t>(smallest));
      CHECK(std::string(error.what()).find("cannot be made to fit") != std::string::npos);
    }
    CHECK(roomy.report().drops == drops);
    // A smaller step is not taken for it.
    chain_loss(w, 3).backward();
  }
  const MemoryBudget enough(smallest + kBlock);
  loss().backward();
}

TEST_CASE("steps end where a new graph begins to grow, or only where they are marked") {
  at::set_num_threads(1);
  const at::Tensor w = weight();
  const Bytes limit = live() + 40 * kBlock;
  {
    const MemoryBudget budget(limit);
    for (int step = 0; step < 3; ++step) {
      at::Tensor loss = chain_loss(w, 3);
      loss.backward();
      loss.item<float>();
      const c10::NoGradGuard no_grad;
      const_cast<at::Tensor&>(w).add_(w.grad(), -0.1);
    }
    CHECK(budget.report().steps == 2);  // the third has not ended
    CHECK(budget.report().step_ns.size() == 2);
  }
  MemoryBudget budget(limit);
  budget.mark_step();
  for (int step = 0; step < 4; ++step) {
    chain_loss(w, 3).backward();
    if (step % 2 == 1) budget.mark_step();
  }
  CHECK(budget.report().steps == 3);
}

TEST_CASE("memory is told apart by what ops do with it") {
  at::set_num_threads(1);
  const at::Tensor w = weight();
  at::Tensor momentum = at::zeros_like(w);
  const MemoryBudget budget(live() + 40 * kBlock);
  const MemoryMeter meter;
  const at::Tensor loss = chain_loss(w, 5);
  CHECK(meter.by_kind()[MemoryKind::kParameters] == kBlock);
  CHECK(meter.by_kind()[MemoryKind::kSaved] >= 5 * kBlock);
  loss.backward();
  CHECK(meter.by_kind()[MemoryKind::kSaved] == 0);
  CHECK(meter.by_kind()[MemoryKind::kGradients] == kBlock);
  const c10::NoGradGuard no_grad;
  momentum.mul_(0.9).add_(w.grad());
  const_cast<at::Tensor&>(w).add_(momentum, -0.1);
  CHECK(meter.by_kind()[MemoryKind::kOptimizerState] == kBlock);
  CHECK(meter.by_kind()[MemoryKind::kParameters] == kBlock);
  CHECK(meter.by_kind()[MemoryKind::kWorkspace] == 0);
}

TEST_CASE("events tell every drop, recomputation, refusal and step; the trace file has them all") {
  at::set_num_threads(1);
  const at::Tensor w = weight();
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / "lowtide_budget_trace_test.json";
  std::array<std::uint64_t, 6> seen{};
  BudgetReport report;
  {
    BudgetOptions options;
    options.on_event = [&](const BudgetEvent& event) {
      ++seen[static_cast<std::size_t>(event.kind)];
      CHECK(event.op != nullptr);
      CHECK(event.live_bytes > 0);
    };
    options.trace_path = path.string();
    const MemoryBudget budget(live() + 10 * kBlock, options);
    for (int step = 0; step < 3; ++step) chain_loss(w, 20).backward();
    CHECK_THROWS_AS(at::empty({256 * 256 * 100}), BudgetError);
    at::ones({2}).sum();
    report = budget.report();
  }
  CHECK(seen[0] == report.drops);
  CHECK(seen[1] == report.recomputed_ops);
  CHECK(seen[2] == report.refusals);
  CHECK(seen[3] == report.steps);
  CHECK(report.drops > 0);
  CHECK(report.refusals == 1);
  CHECK(report.steps == 2);
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  const Json trace = parse_json(text.str());
  std::uint64_t recomputations = 0;
  for (const Json& event : trace.at("traceEvents").as_array()) {
    if (const Json* category = event.find("cat"); category->as_string() == "recompute") {
      if (event.at("ph").as_string() == "X") ++recomputations;
    }
  }
  CHECK(recomputations == report.recomputed_ops);
  std::filesystem::remove(path);
}

TEST_CASE("a trace that cannot be written and an unknown log level are refused at once") {
  BudgetOptions options;
  options.trace_path = "/no/such/folder/trace.json";
  CHECK_THROWS_WITH_AS(MemoryBudget(1 << 30, options), doctest::Contains("LT0307"), UsageError);
  setenv("LOWTIDE_LOG", "loud", 1);
  CHECK_THROWS_WITH_AS(MemoryBudget(Bytes{1} << 40), doctest::Contains("LT0308"), UsageError);
  unsetenv("LOWTIDE_LOG");
  const MemoryBudget budget(Bytes{1} << 40);
}

TEST_CASE("verify_replay passes ops that are repeatable, random and in place") {
  at::set_num_threads(1);
  BudgetOptions options;
  options.verify_replay = true;
  const at::Tensor w = weight();
  const MemoryBudget budget(live() + 60 * kBlock, options);
  at::Tensor y = at::dropout(w * 2, 0.5, true);
  y = (y + 1).relu_() * 3;
  (y * y).sum().backward();
  CHECK(w.grad().defined());
}

TEST_CASE("a report as JSON has its documented keys") {
  const MemoryBudget budget(Bytes{1} << 40);
  const Json report = parse_json(budget.report().to_json());
  for (const char* key : {"limit_bytes",
                          "share",
                          "peak_bytes",
                          "steps",
                          "step_ns",
                          "drops",
                          "dropped_bytes",
                          "recomputed_ops",
                          "recompute_ns",
                          "resident_growth_bytes",
                          "outside_bytes",
                          "spilled_tensors",
                          "spilled_bytes",
                          "spill_wait_ns",
                          "packed_tensors",
                          "packed_bytes",
                          "packed_into_bytes",
                          "pack_ns",
                          "refusals",
                          "smallest_budget_bytes",
                          "budget_lower_bound_bytes",
                          "program_bytes",
                          "program_holds"}) {
    CAPTURE(key);
    CHECK(report.find(key) != nullptr);
  }
}
