#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/rnn.h>

#include <map>
#include <tuple>
#include <vector>

#include "lowtide/error.h"
#include "lowtide/memory_meter.h"
#include "lowtide/sequence.h"

namespace lowtide {
namespace {

using Tensors = std::vector<at::Tensor>;
using LstmState = std::tuple<at::Tensor, at::Tensor>;

// The twin: the loop.
struct Unroll {
  template <class Step, class State>
  auto operator()(Step step, State state, const at::Tensor& inputs) const {
    Tensors outputs;
    for (const at::Tensor& part : inputs.unbind(0)) {
      auto result = step(std::as_const(state), part);
      state = std::move(result.first);
      outputs.push_back(std::move(result.second));
    }
    return std::pair(std::move(state), at::stack(outputs));
  }
};

struct Scan {
  ScanOptions options;
  template <class Step, class State>
  auto operator()(Step step, State state, const at::Tensor& inputs) const {
    return scan(std::move(step), std::move(state), inputs, options);
  }
};

at::Tensor parameter(at::IntArrayRef shape) { return at::randn(shape).set_requires_grad(true); }

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.equal(b);
}

template <class Program>
std::shared_ptr<ScanReport> check_same(Program program, Bytes memory) {
  ScanOptions options;
  options.memory = memory;
  options.report = std::make_shared<ScanReport>();
  at::manual_seed(7);
  Tensors expected = program(Unroll());
  expected.push_back(at::detail::getDefaultCPUGenerator().get_state());
  at::manual_seed(7);
  Tensors found = program(Scan{options});
  found.push_back(at::detail::getDefaultCPUGenerator().get_state());
  REQUIRE(expected.size() == found.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(expected[i], found[i]));
  }
  return options.report;
}

template <class Module>
Tensors gradients(const Module& module) {
  Tensors found;
  for (const at::Tensor& p : module->parameters()) found.push_back(p.grad());
  return found;
}

TEST_CASE("an LSTM cell's gradients are the unroll's, whatever the memory") {
  at::set_num_threads(1);
  for (const Bytes memory : {20_KiB, 24_KiB, 60_KiB, 0_KiB, 1_GiB}) {
    for (const std::int64_t steps : {1, 2, 3, 37}) {
      CAPTURE(memory);
      CAPTURE(steps);
      const auto report = check_same(
          [&](const auto& run) {
            torch::nn::LSTMCell cell(5, 8);
            const at::Tensor h = parameter({4, 8}), c = parameter({4, 8}),
                             x = parameter({steps, 4, 5});
            auto [last, y] = run(
                [&](const LstmState& state, const at::Tensor& part) {
                  LstmState next = cell->forward(part, state);
                  return std::pair(next, std::get<0>(next));
                },
                LstmState(h, c), x);
            (y.square().sum() + std::get<1>(last).sin().sum()).backward();
            Tensors found = gradients(cell);
            found.insert(found.end(), {y, h.grad(), c.grad(), x.grad()});
            return found;
          },
          memory);
      if (memory == 20_KiB && steps == 37) CHECK(report->backward_runs > 0);
    }
  }
}

TEST_CASE("GRU and RNN cells, with weights that the program uses elsewhere too") {
  const auto check = [](auto make) {
    const auto report = check_same(
        [&](const auto& run) {
          auto cell = make();
          const at::Tensor x = parameter({31, 4, 8});
          const auto step = [&](const at::Tensor& h, const at::Tensor& part) {
            at::Tensor next = cell->forward(part, h);
            return std::pair(next, next);
          };
          auto [h, y] = run(step, at::zeros({4, 8}), x.matmul(cell->weight_hh.narrow(0, 0, 8)));
          auto [h2, y2] = run(step, h, y);
          (y2.matmul(cell->weight_ih.narrow(0, 0, 8)).sum() + h2.sum()).backward();
          Tensors found = gradients(cell);
          found.push_back(x.grad());
          return found;
        },
        20_KiB);
    CHECK_FALSE(report->unrolled);
  };
  check([] { return torch::nn::GRUCell(8, 8); });
  check([] { return torch::nn::RNNCell(8, 8); });
}

TEST_CASE("a step of the user's own: nests, random numbers, captured tensors with a history") {
  using State = std::map<std::string, std::vector<at::Tensor>>;
  for (const Bytes memory : {24_KiB, 48_KiB, 200_KiB}) {
    const auto report = check_same(
        [](const auto& run) {
          const at::Tensor v = parameter({8, 8}), x = parameter({41, 4, 8});
          const at::Tensor w = v / v.norm();
          auto [last, y] = run(
              [&](const State& state, const at::Tensor& part) {
                const at::Tensor& h = state.at("h")[0];
                at::Tensor next = at::tanh(at::dropout(h, 0.2, true).matmul(w) + part.matmul(w));
                State after;
                after["h"] = {next};
                after["sums"] = {state.at("sums")[0] + next, state.at("sums")[1] + 1};
                return std::pair(after, (next * w.select(0, 0)).sum());
              },
              State{{"h", {at::zeros({4, 8})}}, {"sums", {at::zeros({4, 8}), at::zeros({})}}}, x);
          (last.at("sums")[0].sum() + y.square().sum() + w.sum()).backward();
          return Tensors{last.at("sums")[1], y, v.grad(), x.grad()};
        },
        memory);
    CHECK_FALSE(report->unrolled);
  }
}

TEST_CASE("scan_cell is the loop over the cell") {
  at::manual_seed(1);
  torch::nn::LSTMCell cell(5, 8);
  const at::Tensor x = at::randn({30, 4, 5}), zero = at::zeros({4, 8});
  auto [last, y] = scan_cell(cell, LstmState(zero, zero), x, {.memory = 24_KiB});
  LstmState state(zero, zero);
  for (const at::Tensor& part : x.unbind(0)) state = cell->forward(part, state);
  CHECK(same_bits(std::get<0>(last), std::get<0>(state)));
  CHECK(same_bits(y.select(0, 29), std::get<0>(state)));
}

TEST_CASE("scan_steps needs no inputs") {
  const at::Tensor w = parameter({8, 8});
  const auto step = [&](const at::Tensor& h) { return std::pair(at::tanh(h.matmul(w)), h.sum()); };
  auto [h, y] = scan_steps(step, at::ones({2, 8}), 50, {.memory = 16_KiB});
  (h.sum() + y.sum()).backward();
  const at::Tensor found = w.grad().clone();
  w.mutable_grad() = at::Tensor();
  at::Tensor state = at::ones({2, 8});
  Tensors outputs;
  for (int t = 0; t < 50; ++t) {
    auto [next, output] = step(state);
    state = next;
    outputs.push_back(output);
  }
  (state.sum() + at::stack(outputs).sum()).backward();
  CHECK(same_bits(found, w.grad()));
}

TEST_CASE("truncated_bptt detaches between windows and gives their outputs") {
  const at::Tensor w = parameter({8, 8}), x = at::randn({10, 2, 8});
  std::vector<std::int64_t> lengths;
  at::Tensor last = truncated_bptt(
      [&](const at::Tensor& h, const at::Tensor& part) {
        at::Tensor next = at::tanh(h.matmul(w) + part);
        return std::pair(next, next.sum());
      },
      at::zeros({2, 8}), x, 4,
      [&](const at::Tensor& losses, const at::Tensor& h) {
        lengths.push_back(losses.size(0));
        CHECK(h.requires_grad());
        losses.sum().backward();
      });
  CHECK(lengths == std::vector<std::int64_t>{4, 4, 2});
  CHECK_FALSE(last.requires_grad());
  const at::Tensor found = w.grad().clone();
  w.mutable_grad() = at::Tensor();
  at::Tensor h = at::zeros({2, 8});
  for (int begin = 0; begin < 10; begin += 4) {
    h = h.detach();
    Tensors losses;
    for (int t = begin; t < std::min(10, begin + 4); ++t) {
      h = at::tanh(h.matmul(w) + x.select(0, t));
      losses.push_back(h.sum());
    }
    at::stack(losses).sum().backward();
  }
  CHECK(same_bits(found, w.grad()));
}

template <class Action>
std::string error_id(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.id();
  }
  return "";
}

TEST_CASE("what cannot be right is refused") {
  const at::Tensor w = parameter({8, 8}), x = at::randn({12, 2, 8}), h = at::zeros({2, 8});
  const ScanOptions options{.memory = 16_KiB};
  const auto step = [&](const at::Tensor& state, const at::Tensor& part) {
    at::Tensor next = at::tanh(state.matmul(w) + part);
    return std::pair(next, next);
  };
  CHECK(error_id([&] { scan(step, h, at::Tensor(), options); }) == "LT0220");
  CHECK(error_id([&] { scan_steps([](const at::Tensor& s) { return std::pair(s, s); }, h, 0); }) ==
        "LT0220");
  CHECK(error_id([&] { scan(step, h, x, {.memory = 100}); }) == "LT0221");
  CHECK(error_id([&] {
          int n = 0;
          scan([n](const at::Tensor& s,
                   const at::Tensor& part) mutable { return std::pair(s, part.narrow(0, 0, ++n)); },
               h, x, options);
        }) == "LT0222");
  Tensors kept;
  CHECK(error_id([&] {
          scan(
              [&](const at::Tensor& s, const at::Tensor& part) {
                at::Tensor next = at::tanh(s.matmul(w) + part);
                kept.push_back(next.sum());
                return std::pair(next, next);
              },
              h, x, options);
        }) == "LT0223");
  CHECK(error_id([&] {
          auto [last, y] = scan(step, h, x, options);
          {
            const at::NoGradGuard no_grad;
            w.mul_(2);
          }
          y.sum().backward();
        }) == "LT0224");
  CHECK(error_id([&] {
          auto [last, y] = scan(step, h, x, options);
          torch::autograd::grad({y.sum()}, {w}, {}, /*retain_graph=*/true, /*create_graph=*/true);
        }) == "LT0225");
  CHECK(error_id([&] {
          truncated_bptt(step, h, x, 0, [](const at::Tensor&, const at::Tensor&) {});
        }) == "LT0226");
}

}  // namespace
}  // namespace lowtide
