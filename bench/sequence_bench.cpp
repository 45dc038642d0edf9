// What exact backpropagation through a long sequence takes, in a memory that does not grow.
//
//   build/release/bin/sequence_bench [memory in MiB = 16] [longest = 100000] [longest unroll =
//   100000]
//
// One thread. An LSTM cell of 32 inputs and 128 hidden units, batch 8, with a readout and a loss in
// each step. For each length: peak of tensor bytes above inputs, losses and parameters, CPU time of
// forward and backward, how often steps ran, and the time beside revolve's optimum: the fewest runs
// for the states that the memory holds (Griewank and Walther 2000, over single steps) at the time
// of a run, and the time of a step's forward and backward in the unroll, both measured here.
// Gradients are compared with the unroll's, bit for bit, up to the longest length that is unrolled.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <tuple>
#include <vector>

#include "bench/measurement.h"
#include "lowtide/memory_meter.h"
#include "lowtide/sequence.h"
#include "src/sequence/revolve.h"

namespace {

using lowtide::bench::processor_seconds;
using State = std::tuple<at::Tensor, at::Tensor>;
using Inputs = std::tuple<at::Tensor, at::Tensor>;

constexpr std::int64_t kBatch = 8, kWidth = 32, kHidden = 128;

struct Model {
  at::Tensor w_ih = parameter({4 * kHidden, kWidth}), w_hh = parameter({4 * kHidden, kHidden});
  at::Tensor b_ih = parameter({4 * kHidden}), b_hh = parameter({4 * kHidden});
  at::Tensor readout = parameter({kWidth, kHidden});

  static at::Tensor parameter(at::IntArrayRef shape) {
    return at::randn(shape).mul_(0.08).set_requires_grad(true);
  }
  std::vector<at::Tensor> all() const { return {w_ih, w_hh, b_ih, b_hh, readout}; }

  std::pair<State, at::Tensor> operator()(const State& state, const Inputs& part) const {
    const auto& [h, c] = state;
    auto [h1, c1] = at::lstm_cell(std::get<0>(part), {h, c}, w_ih, w_hh, b_ih, b_hh);
    at::Tensor loss = at::mse_loss(at::linear(h1, readout), std::get<1>(part));
    return {State(h1, c1), loss};
  }
};

State zeros() { return {at::zeros({kBatch, kHidden}), at::zeros({kBatch, kHidden})}; }

std::vector<at::Tensor> take_gradients(const Model& model) {
  std::vector<at::Tensor> taken;
  for (at::Tensor p : model.all()) {
    taken.push_back(p.grad());
    p.mutable_grad() = at::Tensor();
  }
  return taken;
}

void unroll(const Model& model, const Inputs& inputs) {
  State state = zeros();
  std::vector<at::Tensor> losses;
  const auto xs = std::get<0>(inputs).unbind(0), ys = std::get<1>(inputs).unbind(0);
  for (std::size_t t = 0; t < xs.size(); ++t) {
    auto [next, loss] = model(state, Inputs(xs[t], ys[t]));
    state = next;
    losses.push_back(loss);
  }
  at::stack(losses).mean().backward();
}

Inputs make_inputs(std::int64_t steps) {
  at::manual_seed(steps);
  return {at::randn({steps, kBatch, kWidth}), at::randn({steps, kBatch, kWidth})};
}

// Seconds of a run of a step that makes no graph (scan's make one, for their bits), and of a step's
// forward and backward.
std::pair<double, double> unit_times(const Model& model) {
  constexpr std::int64_t kSteps = 2000;
  const Inputs inputs = make_inputs(kSteps);
  std::vector<double> runs, graphs;
  for (int round = 0; round < 3; ++round) {
    double begin = processor_seconds();
    {
      const at::NoGradGuard no_grad;
      State state = zeros();
      for (std::int64_t t = 0; t < kSteps; ++t) {
        auto [next, loss] = model(
            state, Inputs(std::get<0>(inputs).select(0, t), std::get<1>(inputs).select(0, t)));
        state = next;
      }
    }
    runs.push_back((processor_seconds() - begin) / kSteps);
    begin = processor_seconds();
    unroll(model, inputs);
    graphs.push_back((processor_seconds() - begin) / kSteps);
    take_gradients(model);
  }
  return {lowtide::bench::median(runs), lowtide::bench::median(graphs)};
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t memory = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 16) << 20;
  const std::int64_t longest = argc > 2 ? std::atoll(argv[2]) : 100'000;
  const std::int64_t unrolled = argc > 3 ? std::atoll(argv[3]) : 100'000;
  at::set_num_threads(1);
  at::manual_seed(0);
  const Model model;
  unit_times(model);
  std::printf("%s, 1 thread; LSTM cell %ld -> %ld, batch %ld, memory %lu MiB\n",
              lowtide::bench::processor_name().c_str(), static_cast<long>(kWidth),
              static_cast<long>(kHidden), static_cast<long>(kBatch),
              static_cast<unsigned long>(memory >> 20));
  std::printf("%8s %9s %9s %7s %9s %9s %8s %9s %9s %8s %8s  %s\n", "steps", "peak MiB", "unroll",
              "seconds", "unroll", "optimum", "ratio", "runs/step", "optimum", "us run", "us graph",
              "gradients");
  for (const std::int64_t steps : {1'000, 3'000, 10'000, 30'000, 100'000}) {
    if (steps > longest) break;
    const Inputs inputs = make_inputs(steps);
    // Around the scan, so that what else the machine does weighs on both.
    const auto [run_before, graph_before] = unit_times(model);
    lowtide::ScanOptions options;
    options.memory = memory;
    options.report = std::make_shared<lowtide::ScanReport>();
    lowtide::MemoryMeter meter;
    const std::uint64_t before = meter.live_bytes();
    double begin = processor_seconds();
    {
      auto [last, losses] = lowtide::scan(model, zeros(), inputs, options);
      losses.mean().backward();
    }
    const double seconds = processor_seconds() - begin;
    const double peak = static_cast<double>(meter.peak_bytes() - before) / (1 << 20);
    const std::vector<at::Tensor> found = take_gradients(model);
    const auto [run_after, graph_after] = unit_times(model);
    const double run = (run_before + run_after) / 2, graph = (graph_before + graph_after) / 2;

    // Revolve keeps states in what the graph of one step leaves.
    const lowtide::ScanReport& report = *options.report;
    const auto states =
        static_cast<std::int64_t>((memory - report.step_bytes) / report.state_bytes);
    const std::int64_t fewest =
        std::max(steps, lowtide::sequence::fewest_runs(steps, std::min(states, steps)));
    const double optimum = static_cast<double>(fewest) * run + static_cast<double>(steps) * graph;
    const std::int64_t runs = report.forward_runs + report.backward_runs;

    double unroll_peak = 0, unroll_seconds = 0;
    const char* same = "-";
    if (steps <= unrolled) {
      meter.reset_peak();
      const std::uint64_t live = meter.live_bytes();
      begin = processor_seconds();
      unroll(model, inputs);
      unroll_seconds = processor_seconds() - begin;
      unroll_peak = static_cast<double>(meter.peak_bytes() - live) / (1 << 20);
      const std::vector<at::Tensor> expected = take_gradients(model);
      same = "the unroll's";
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (!found[i].equal(expected[i])) same = "DIFFER";
      }
    }
    std::printf("%8ld %9.1f %9.1f %7.2f %9.2f %9.2f %8.3f %9.3f %9.3f %8.1f %8.1f  %s%s\n",
                static_cast<long>(steps), peak, unroll_peak, seconds, unroll_seconds, optimum,
                seconds / optimum, static_cast<double>(runs) / static_cast<double>(steps),
                static_cast<double>(fewest) / static_cast<double>(steps), 1e6 * run, 1e6 * graph,
                same, report.unrolled ? " (unrolled)" : "");
    std::fflush(stdout);
    if (steps == 100'000) std::printf("%s\n", report.to_text().c_str());
  }
}
