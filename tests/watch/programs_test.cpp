// The step watch on small C++ programs: each faulty one is named by line within a few steps, and
// the same one mended gives no alarm. Compiled with -g: lines come from debug information.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lowtide/budget.h"
#include "lowtide/watch.h"

namespace lowtide {
namespace {

constexpr int kSteps = 12;

struct Model {
  at::Tensor w1 = (at::randn({32, 64}) * 0.1).requires_grad_();
  at::Tensor w2 = (at::randn({64, 8}) * 0.1).requires_grad_();
  at::Tensor operator()(const at::Tensor& x) const { return x.mm(w1).relu().mm(w2); }
  void update() {
    const at::NoGradGuard no_grad;
    for (at::Tensor* w : {&w1, &w2}) {
      if (!w->grad().defined()) continue;
      w->sub_(w->grad(), 0.01);
      w->mutable_grad().reset();
    }
  }
};

at::Tensor loss_of(const at::Tensor& out) { return out.square().mean(); }
at::Tensor batch() { return at::randn({16, 32}); }

WatchReport watched(const std::function<void(Watch&)>& program) {
  at::manual_seed(0);
  WatchOptions options;
  std::size_t told = 0;
  options.on_finding = [&](const WatchFinding&) { ++told; };
  Watch watch(options);
  program(watch);
  const WatchReport report = watch.report();
  CHECK(told == report.findings.size());
  return report;
}

std::string here(int line) { return std::string(__FILE__) + ":" + std::to_string(line); }

// One alarm of that kind, at that line.
void check_named(const WatchReport& report, WatchFinding::Kind kind, int line) {
  INFO(report.to_text());
  REQUIRE(report.has_alarm());
  const WatchFinding& finding = report.findings.front();
  CHECK(to_string(finding.kind) == std::string(to_string(kind)));
  // The file's name as the compiler was given it may be relative.
  const std::string want = here(line);
  const std::string base = want.substr(want.rfind('/') + 1);
  CHECK(finding.line.substr(finding.line.rfind('/') + 1) == base);
  CHECK(finding.step <= 7);
  CHECK(finding.nodes_per_step > 0);
  CHECK(finding.chain.find("held by the tensor") != std::string::npos);
  CHECK_FALSE(finding.fix.empty());
}

void check_quiet(const WatchReport& report) {
  INFO(report.to_text());
  CHECK(report.steps >= kSteps - 2);
  CHECK_FALSE(report.has_alarm());
}

using Kind = WatchFinding::Kind;

TEST_CASE("a total with history is named, and is not without") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      at::Tensor total = at::zeros({});
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor loss = loss_of(model(batch()));
        loss.backward();
        model.update();
        const at::Tensor part = is_faulty ? loss : loss.detach();
        line = __LINE__ + 1;
        total = total + part;
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphCarried, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("a total added to in place is named, and is not without history") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      at::Tensor total = at::zeros({});
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor loss = loss_of(model(batch()));
        loss.backward();
        model.update();
        const at::Tensor part = is_faulty ? loss : loss.detach();
        line = __LINE__ + 1;
        total += part;
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphCarried, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("losses in a vector are named, and their numbers are not") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      std::vector<at::Tensor> losses;
      for (int i = 0; i < kSteps; ++i) {
        line = __LINE__ + 1;
        at::Tensor loss = model(batch()).square().mean();
        loss.backward();
        model.update();
        losses.push_back(is_faulty ? loss : loss.detach());
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphKept, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("outputs in a map are named, and detached ones are not") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      std::map<int, at::Tensor> outputs;
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor x = batch();
        line = __LINE__ + 1;
        const at::Tensor out = x.mm(model.w1).relu().mm(model.w2);
        loss_of(out).backward();
        model.update();
        outputs[i] = is_faulty ? out : out.detach();
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphKept, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("a state that is carried is named, and a detached one is not") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      const at::Tensor w = (at::randn({8, 8}) * 0.1).requires_grad_();
      at::Tensor h = at::zeros({16, 8});
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor in = is_faulty ? h : h.detach();
        const at::Tensor x = model(batch());
        line = __LINE__ + 1;
        h = at::tanh(x + in.mm(w));
        loss_of(h).backward({}, /*retain_graph=*/true);
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphCarried, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("a member that averages with history is named, and without is not") {
  int line = 0;
  struct Averages {
    at::Tensor mean = at::zeros({8});
  };
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      Averages averages;
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor out = model(batch());
        loss_of(out).backward();
        model.update();
        const at::Tensor now = (is_faulty ? out : out.detach()).mean(0) * 0.1;
        line = __LINE__ + 1;
        averages.mean = averages.mean * 0.9 + now;
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphCarried, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("a teacher averaged with gradients is named, and under no_grad is not") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      at::Tensor teacher = model.w2.detach().clone();
      for (int i = 0; i < kSteps; ++i) {
        loss_of(model(batch())).backward();
        model.update();
        const at::AutoGradMode mode(is_faulty);
        const at::Tensor student = model.w2 * 0.1;
        line = __LINE__ + 1;
        teacher = teacher * 0.9 + student;
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphCarried, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("a cache that is never hit is named, and one that fills is not") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      const at::Tensor w = (at::randn({32, 32}) * 0.1).requires_grad_();
      std::map<int, at::Tensor> cache;
      for (int i = 0; i < kSteps; ++i) {
        const int key = is_faulty ? i : i % 3;
        if (!cache.contains(key)) {
          const at::Tensor x = batch();
          line = __LINE__ + 1;
          cache[key] = x.mm(w);
        }
        const at::Tensor in = is_faulty ? cache[key] : cache[key].detach();
        loss_of(model(in)).backward();
        model.update();
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphKept, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("outputs of an evaluation are named where steps are marked, and under no_grad are not") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch& watch) {
      const at::AutoGradMode mode(is_faulty);
      Model model;
      std::vector<at::Tensor> outputs;
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor x = batch();
        line = __LINE__ + 1;
        outputs.push_back(x.mm(model.w1).relu().mm(model.w2));
        watch.step();
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphKept, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("a hook's collection of features is named, and a detached one is not") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    const auto report = watched([&](Watch&) {
      Model model;
      std::vector<at::Tensor> features;
      const std::function<void(const at::Tensor&)> hook = [&](const at::Tensor& h) {
        features.push_back(is_faulty ? h : h.detach());
      };
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor x = batch();
        line = __LINE__ + 1;
        const at::Tensor h = x.mm(model.w1).relu();
        hook(h);
        loss_of(h.mm(model.w2)).backward();
        model.update();
      }
    });
    if (is_faulty)
      check_named(report, Kind::kGraphKept, line);
    else
      check_quiet(report);
  }
}

TEST_CASE("a tensor held at the next step's peak is named with the bytes, and a freed one is not") {
  int line = 0;
  for (const bool is_faulty : {true, false}) {
    at::Tensor scores;
    const auto report = watched([&](Watch&) {
      const at::Tensor w = (at::randn({32, 4096}) * 0.1).requires_grad_();
      for (int i = 0; i < kSteps; ++i) {
        const at::Tensor x = batch().repeat({8, 1});
        x.mm(w).square().mean().backward();
        w.mutable_grad().reset();
        const at::NoGradGuard no_grad;
        line = __LINE__ + 1;
        scores = x.mm(w);
        if (!is_faulty) scores.reset();
      }
    });
    INFO(report.to_text());
    REQUIRE(report.has_alarm() == is_faulty);
    if (!is_faulty) continue;
    const WatchFinding& finding = report.findings.front();
    CHECK(finding.kind == Kind::kHeldAtPeak);
    CHECK(finding.line.ends_with("programs_test.cpp:" + std::to_string(line)));
    CHECK(finding.fall_bytes == 128 * 4096 * 4);
  }
}

TEST_CASE("right programs are quiet: accumulation, bounded replay, two backwards, kept data") {
  check_quiet(watched([](Watch&) {
    Model model;
    for (int i = 0; i < 4 * kSteps; ++i) {
      (loss_of(model(batch())) / 4).backward();
      if (i % 4 == 3) model.update();
    }
  }));
  check_quiet(watched([](Watch&) {
    Model model;
    std::deque<at::Tensor> replay;
    for (int i = 0; i < 2 * kSteps; ++i) {
      const at::Tensor out = model(batch());
      loss_of(out).backward();
      model.update();
      replay.push_back(out.detach());
      if (replay.size() > 5) replay.pop_front();
    }
  }));
  check_quiet(watched([](Watch&) {
    Model first;
    Model second;
    for (int i = 0; i < kSteps; ++i) {
      loss_of(first(batch())).backward();
      first.update();
      loss_of(second(batch())).backward();
      second.update();
    }
  }));
  check_quiet(watched([](Watch&) {
    Model model;
    std::vector<at::Tensor> data;
    for (int i = 0; i < kSteps; ++i) data.push_back(batch());
    for (const at::Tensor& x : data) {
      loss_of(model(x)).backward();
      model.update();
    }
  }));
}

TEST_CASE("within a budget the same is named") {
  int line = 0;
  const MemoryBudget budget(Bytes{1} << 30);
  const auto report = watched([&](Watch&) {
    Model model;
    at::Tensor total = at::zeros({});
    for (int i = 0; i < kSteps; ++i) {
      const at::Tensor loss = loss_of(model(batch()));
      loss.backward();
      model.update();
      line = __LINE__ + 1;
      total = total + loss;
    }
  });
  check_named(report, Kind::kGraphCarried, line);
  CHECK(budget.report().steps >= kSteps - 2);
}

TEST_CASE("the report as JSON") {
  WatchReport report;
  report.steps = 9;
  report.ops = 120;
  WatchFinding finding;
  finding.kind = Kind::kGraphKept;
  finding.step = 5;
  finding.op = "aten::mse_loss";
  finding.line = "train.py:30";
  finding.stored_at = "train.py:31";
  finding.held_by = "losses[4]";
  finding.chain = "graph of 20 nodes";
  finding.bytes_per_step = 4;
  finding.nodes_per_step = 5;
  finding.graph_nodes = 20;
  finding.fix = "store the number";
  report.findings.push_back(finding);
  CHECK(report.to_json() == R"({
  "steps": 9,
  "ops": 120,
  "findings": [
    {
      "kind": "graph_kept",
      "alarm": true,
      "step": 5,
      "op": "aten::mse_loss",
      "line": "train.py:30",
      "stored_at": "train.py:31",
      "held_by": "losses[4]",
      "chain": "graph of 20 nodes",
      "bytes_per_step": 4,
      "nodes_per_step": 5.0,
      "graph_nodes": 20,
      "peak_bytes": 0,
      "fall_bytes": 0,
      "fix": "store the number"
    }
  ]
})");
  CHECK(report.to_text() ==
        "watched 9 steps, 120 ops: 1 finding, 0 notes\n"
        "  step 5: memory grows by 4 B and 5 graph nodes a step: graph of 20 nodes; made by "
        "aten::mse_loss at train.py:30. Fix: store the number\n");
  CHECK(WatchReport().to_text() == "watched 0 steps, 0 ops: nothing grows\n");
}

}  // namespace
}  // namespace lowtide
