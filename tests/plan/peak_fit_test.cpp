#include "src/plan/peak_fit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace lowtide {
namespace {

// Writes a log by hand. Blocks are freed by the number that make() gave.
class Writer {
 public:
  explicit Writer(std::uint64_t batch) { log.batch_size = batch; }

  std::uint32_t make(const std::string& op, Bytes bytes, StepPhase phase = StepPhase::kForward,
                     const std::string& module = "", bool same_op = false) {
    AllocationLog::Block block;
    block.bytes = bytes;
    block.op = name(op);
    block.module = name(module);
    block.op_number = same_op ? op_number_ : ++op_number_;
    block.phase = phase;
    log.blocks.push_back(block);
    const auto index = static_cast<std::uint32_t>(log.blocks.size() - 1);
    log.events.push_back({index, true});
    return index;
  }
  void free(std::uint32_t block) { log.events.push_back({block, false}); }
  void end_step() { log.step_ends.push_back(log.events.size()); }

  AllocationLog log;

 private:
  std::uint32_t name(const std::string& text) {
    const auto found = std::find(log.names.begin(), log.names.end(), text);
    if (found != log.names.end()) return static_cast<std::uint32_t>(found - log.names.begin());
    log.names.push_back(text);
    return static_cast<std::uint32_t>(log.names.size() - 1);
  }
  std::uint32_t op_number_ = 0;
};

std::int64_t peak_of(const AllocationLog& log) {
  std::int64_t live = 0;
  std::int64_t peak = 0;
  for (const AllocationLog::Event& event : log.events) {
    const auto bytes = static_cast<std::int64_t>(log.blocks[event.block].bytes);
    live += event.is_made ? bytes : -bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

using Program = std::function<AllocationLog(std::uint64_t batch)>;

PeakFit fit_of(const Program& program, std::vector<std::uint64_t> batches, std::uint64_t to) {
  std::vector<AllocationLog> logs;
  for (const std::uint64_t batch : batches) logs.push_back(program(batch));
  return fit_peak(logs, to);
}

TEST_CASE("the peak may move to another op as the batch grows") {
  const auto program = [](std::uint64_t batch) {
    Writer step(batch);
    const auto fixed = step.make("optimizer", 1000, StepPhase::kOptimizer);
    step.free(fixed);
    const auto a = step.make("wide", 10 * batch + 100);
    step.free(a);
    step.make("wider", 30 * batch);
    step.end_step();
    return step.log;
  };
  const PeakFit fit = fit_of(program, {2, 3, 4}, 100);
  CHECK(fit.growth_bytes == 3000);
  CHECK(fit.op == "wider");
  CHECK(fit.way == FitWay::kEveryAllocation);
  CHECK(fit.scattered_points == 0);
  CHECK(fit.growth_by_phase[2] == 1000);
  // The logs' own peaks are all of the fixed block: a line through them would see no growth.
  CHECK(peak_of(program(4)) == 1000);
}

TEST_CASE("random steps on straight lines are foretold to the byte") {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    struct Action {
      bool makes;
      Bytes fixed;
      Bytes each;
      std::size_t which;
      StepPhase phase;
    };
    std::vector<Action> actions;
    std::size_t live = 0;
    for (int i = 0; i < 40; ++i) {
      const bool makes = live == 0 || random() % 3 != 0;
      actions.push_back({makes, random() % 1000, random() % 50, makes ? 0 : random() % live,
                         static_cast<StepPhase>(random() % 3)});
      makes ? ++live : --live;
    }
    const auto program = [&](std::uint64_t batch) {
      Writer step(batch);
      std::vector<std::uint32_t> there;
      int i = 0;
      for (const Action& action : actions) {
        if (++i == 20) step.end_step();
        if (action.makes) {
          there.push_back(step.make("op" + std::to_string(i % 7),
                                    action.fixed + action.each * batch, action.phase));
        } else {
          step.free(there[action.which]);
          there.erase(there.begin() + static_cast<std::ptrdiff_t>(action.which));
        }
      }
      step.end_step();
      return step.log;
    };
    const std::uint64_t to = 5 + random() % 500;
    CHECK(fit_of(program, {2, 3}, to).growth_bytes == peak_of(program(to)));
    const PeakFit fit = fit_of(program, {2, 3, 5}, to);
    CHECK(fit.growth_bytes == peak_of(program(to)));
    CHECK(fit.error_bound == 0);
    std::int64_t kinds = 0;
    for (const std::int64_t bytes : fit.by_kind) kinds += bytes;
    CHECK(kinds == fit.growth_bytes);
    std::int64_t modules = 0;
    for (const PeakFit::Module& module : fit.by_module) modules += module.bytes;
    CHECK(modules == fit.growth_bytes);
  }
}

TEST_CASE("what grows with the square of the batch needs a fourth log, and is exact then") {
  const auto program = [](std::uint64_t batch) {
    Writer step(batch);
    step.make("scores", 16 * batch * batch);
    step.make("rows", 100 * batch);
    step.end_step();
    return step.log;
  };
  const PeakFit three = fit_of(program, {4, 6, 8}, 64);
  CHECK(three.scattered_points == 1);
  CHECK(three.error_bound > 0.05);
  const PeakFit four = fit_of(program, {4, 6, 8, 10}, 64);
  CHECK(four.growth_bytes == 16 * 64 * 64 + 100 * 64);
  CHECK(four.curved_points == 1);
  CHECK(four.error_bound < 1);
}

TEST_CASE("ops that only some sizes run are aligned around") {
  // From batch 4 on another kernel: one more block inside, and one op that smaller ones do not run.
  const auto program = [](std::uint64_t batch) {
    Writer step(batch);
    const auto x = step.make("x", 100 * batch);
    if (batch >= 4) {
      const auto scratch = step.make("buffer", 7);
      step.free(scratch);
    }
    const auto y = step.make("conv", 50 * batch);
    if (batch >= 4) {
      const auto inner = step.make("conv", 3, StepPhase::kForward, "", true);
      step.free(inner);
    }
    const auto z = step.make("z", 200 * batch);
    step.free(z);
    step.free(y);
    step.free(x);
    step.end_step();
    return step.log;
  };
  const PeakFit fit = fit_of(program, {2, 3, 4}, 50);
  CHECK(fit.way == FitWay::kAligned);
  CHECK(fit.growth_bytes == 350 * 50);
  CHECK(fit.op == "z");
}

TEST_CASE("a loop over the samples is one moment") {
  const auto program = [](std::uint64_t batch) {
    Writer step(batch);
    std::vector<std::uint32_t> kept;
    for (std::uint64_t i = 0; i < batch; ++i) kept.push_back(step.make("sample", 1000));
    const auto sum = step.make("stack", 1000 * batch);
    for (const std::uint32_t block : kept) step.free(block);
    step.free(sum);
    step.end_step();
    return step.log;
  };
  CHECK(fit_of(program, {2, 3, 4}, 60).growth_bytes == 2000 * 60);
}

TEST_CASE("scattered sizes are those that grow from nothing") {
  const auto program = [](std::uint64_t batch) {
    Writer step(batch);
    step.make("expert", 1000 * batch + (batch % 3) * 100);
    step.end_step();
    return step.log;
  };
  const PeakFit fit = fit_of(program, {4, 5, 6, 7, 8}, 40);
  CHECK(fit.scattered_points == 1);
  CHECK(fit.growth_bytes >= 40'000);
  CHECK(fit.growth_bytes <= 41'500);
  CHECK(fit.error_bound > 0);
}

TEST_CASE("steps that have nothing in common are compared by phase") {
  const auto program = [](std::uint64_t batch) {
    Writer step(batch);
    for (std::uint64_t i = 0; i < 4000; ++i) {
      step.free(step.make("op" + std::to_string(i * 8 + batch), 10 * batch));
    }
    step.free(step.make("last" + std::to_string(batch), 5 * batch, StepPhase::kBackward));
    step.end_step();
    return step.log;
  };
  const PeakFit fit = fit_of(program, {2, 3, 4}, 20);
  CHECK(fit.way == FitWay::kPhases);
  CHECK(fit.growth_bytes == 200);
  CHECK(fit.growth_by_phase[1] == 100);
}

TEST_CASE("kinds are told from when blocks come and go") {
  Writer step(4);
  AllocationLog::Block weight;
  weight.bytes = 5000;
  weight.kind = StorageKind::kParameter;
  weight.was_there = true;
  step.log.blocks.push_back(weight);
  const auto inside = step.make("forward", 30);
  const auto saved = step.make("forward", 400, StepPhase::kForward, "layer", true);
  step.free(inside);
  const auto passing = step.make("passing", 20);
  step.make("next", 1);
  step.free(passing);
  step.make("backward", 600, StepPhase::kBackward);
  step.free(saved);
  step.end_step();
  const PeakFit fit = fit_peak(std::vector<AllocationLog>{step.log}, 4);
  CHECK(fit.growth_bytes == 1001);
  CHECK(fit.phase == StepPhase::kBackward);
  const auto of = [&](StorageKind kind) { return fit.by_kind[static_cast<std::size_t>(kind)]; };
  CHECK(of(StorageKind::kParameter) == 5000);
  CHECK(of(StorageKind::kSaved) == 401);
  CHECK(of(StorageKind::kProgram) == 600);
  CHECK(fit.by_module.front().name.empty());
  CHECK(fit.by_module.back().name == "layer");
}

}  // namespace
}  // namespace lowtide
