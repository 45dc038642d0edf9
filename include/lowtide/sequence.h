#pragma once
// Long sequences: exact backpropagation through any number of steps in memory that is chosen, and
// truncated backpropagation.
//
//   // A step takes the state and its part of the inputs, and gives the next state and an output.
//   auto step = [&](const State& state, const at::Tensor& x) {
//     auto [h, c] = cell->forward(x, state);
//     at::Tensor loss = at::mse_loss(readout->forward(h), ...);
//     return std::pair(State{h, c}, loss);
//   };
//   auto [last, losses] = lowtide::scan(step, State{h0, c0}, inputs, {.memory = 64_MiB});
//   losses.sum().backward();            // the gradients of the full unroll, bit for bit
//
// scan() is the loop `for t: state, y[t] = step(state, x[t])` with y stacked. It keeps a few of the
// states that it passes and no graph; backward runs the steps between them again, in an order that
// needs the fewest runs (Griewank and Walther, "Algorithm 799: Revolve", ACM TOMS 26(1), 2000),
// applied to blocks of steps whose graphs fit in memory whole.
//
// Gradients. They flow to the first state, the inputs, and whatever the step captures: parameters,
// and tensors with a history of their own. Where the step's ops are deterministic, values and
// gradients are those of the full unroll bit for bit, also for weights that other parts of the
// program share, several scans of the same weights, and under autocast. The unroll that is meant
// takes its inputs by unbind(0) and stacks its outputs.
//
// What a step may do: draw random numbers, from the default generator and those in
// options.generators; change the state it was given in place; return its input state, or a state
// tensor as an output; hold nested scans and checkpoints. What it may not: keep tensors with their
// graph outside of the state, or change captured tensors in place (batch norm's running
// statistics). Such steps are refused (LT0223). A replay is compared with the first run by a
// checksum of states and outputs, and backward throws if it went another way (LT0224).
//
// Cost. `runs` of ScanReport: each step runs once in the forward, once with its graph in backward,
// and in between as often as the memory makes necessary. Where the whole graph fits it is kept, and
// nothing runs again. Double backward is refused (LT0225).
//
// Threads: a scan may run on any thread, its backward on another.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lowtide/bytes.h"
#include "lowtide/checkpoint.h"
#include "lowtide/export.h"

namespace lowtide {

// What a scan planned and did. Counts of steps include those that were run to measure.
struct ScanReport {
  std::int64_t steps = 0;
  std::int64_t block_steps = 0;    // steps whose graph is made whole, and freed, at a time
  std::int64_t states = 0;         // states that are kept at most, that of the start included
  Bytes state_bytes = 0;           // of one kept state
  Bytes step_bytes = 0;            // of one step's graph
  Bytes memory = 0;                // what states and graph may take together
  std::int64_t planned_runs = 0;   // without a graph: the first pass and what is run again
  std::int64_t forward_runs = 0;   // steps run by the forward
  std::int64_t backward_runs = 0;  // steps run again by backwards, without keeping their graph
  std::int64_t graph_runs = 0;     // and with it
  bool unrolled = false;           // the whole graph fits, and was kept

  // For people, one line.
  LOWTIDE_API std::string to_text() const;
};

struct ScanOptions {
  // Bytes for kept states and the graph of a block. 0: as many as make each step run at most once
  // more than with a graph, which grows with the square root of the length. Not counted: inputs,
  // outputs, parameters and their gradients, and what one step takes while it runs.
  Bytes memory = 0;

  // Generators other than the default one that the step draws from.
  std::vector<at::Generator> generators = {};

  // Filled in as the scan goes; may be null.
  std::shared_ptr<ScanReport> report = nullptr;
};

namespace detail {

// A step, as the library sees it: tensors only.
class LOWTIDE_API ScanBody {
 public:
  ScanBody() = default;
  virtual ~ScanBody();
  ScanBody(const ScanBody&) = delete;
  ScanBody& operator=(const ScanBody&) = delete;

  virtual void step(const std::vector<at::Tensor>& state, const std::vector<at::Tensor>& inputs,
                    std::vector<at::Tensor>& next_state, std::vector<at::Tensor>& outputs) = 0;
};

struct ScanTensors {
  std::vector<at::Tensor> state;
  std::vector<at::Tensor> outputs;
};

// `inputs` have `length` along their first dimension.
LOWTIDE_API ScanTensors scan(std::shared_ptr<ScanBody> body, std::vector<at::Tensor> state,
                             std::vector<at::Tensor> inputs, std::int64_t length,
                             const ScanOptions& options);
// The length of `inputs`; throws UsageError LT0220 if they differ in it, or have none.
LOWTIDE_API std::int64_t scan_length(const std::vector<at::Tensor>& inputs);
LOWTIDE_API void check_window(std::int64_t window);
LOWTIDE_API at::Tensor part_of_sequence(const at::Tensor& input, std::int64_t index);
LOWTIDE_API std::vector<at::Tensor> stack_steps(const std::vector<std::vector<at::Tensor>>& steps);
LOWTIDE_API at::Tensor detached(const at::Tensor& tensor);

template <class T>
std::vector<at::Tensor> tensors_in(T& nest) {
  std::vector<at::Tensor> tensors;
  auto found = [&tensors](at::Tensor& tensor) { tensors.push_back(tensor); };
  for_each_tensor(nest, found);
  return tensors;
}
template <class T>
void put_tensors(T& nest, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  auto found = [&](at::Tensor& tensor) { tensor = tensors.at(next++); };
  for_each_tensor(nest, found);
}
template <class T>
void drop_tensors(T& nest) {
  auto found = [](at::Tensor& tensor) { tensor = at::Tensor(); };
  for_each_tensor(nest, found);
}

struct NoInputs {};

template <class Step, class State, class Inputs>
decltype(auto) call_step(Step& step, const State& state, const Inputs& inputs) {
  if constexpr (std::is_same_v<Inputs, NoInputs>) {
    return std::invoke(step, state);
  } else {
    return std::invoke(step, state, inputs);
  }
}

template <class Step, class State, class Inputs>
using OutputOf =
    typename std::decay_t<decltype(call_step(std::declval<Step&>(), std::declval<const State&>(),
                                             std::declval<const Inputs&>()))>::second_type;

template <class Step, class State, class Inputs>
class StepBody final : public ScanBody {
 public:
  using Outputs = OutputOf<Step, State, Inputs>;

  StepBody(Step step, State state, Inputs inputs)
      : step_(std::move(step)), state_(std::move(state)), inputs_(std::move(inputs)) {
    drop_tensors(state_);
    if constexpr (!std::is_same_v<Inputs, NoInputs>) drop_tensors(inputs_);
  }

  void step(const std::vector<at::Tensor>& state, const std::vector<at::Tensor>& inputs,
            std::vector<at::Tensor>& next_state, std::vector<at::Tensor>& outputs) override {
    State given = state_;
    put_tensors(given, state);
    Inputs part = inputs_;
    if constexpr (!std::is_same_v<Inputs, NoInputs>) put_tensors(part, inputs);
    auto result = call_step(step_, std::as_const(given), std::as_const(part));
    next_state = tensors_in(result.first);
    outputs = tensors_in(result.second);
    if (!outputs_.has_value()) {
      outputs_.emplace(std::move(result.second));
      drop_tensors(*outputs_);
    }
  }
  Outputs filled_outputs(const std::vector<at::Tensor>& outputs) const {
    Outputs filled = *outputs_;
    put_tensors(filled, outputs);
    return filled;
  }
  State filled_state(const std::vector<at::Tensor>& state) const {
    State filled = state_;
    put_tensors(filled, state);
    return filled;
  }

 private:
  Step step_;
  State state_;
  Inputs inputs_;
  std::optional<Outputs> outputs_;
};

template <class Step, class State, class Inputs>
auto run_scan(Step step, State state, Inputs inputs, std::int64_t length,
              std::vector<at::Tensor> sequences, const ScanOptions& options) {
  std::vector<at::Tensor> first = tensors_in(state);
  auto body = std::make_shared<StepBody<Step, State, Inputs>>(std::move(step), std::move(state),
                                                              std::move(inputs));
  ScanTensors result = scan(body, std::move(first), std::move(sequences), length, options);
  return std::pair(body->filled_state(result.state), body->filled_outputs(result.outputs));
}

}  // namespace detail

// Runs `step` over the first dimension of the tensors in `inputs`, and returns the last state and
// the outputs, each stacked along a new first dimension: std::pair(state, outputs).
//
// `step(state, part)` returns a std::pair of the next state and the outputs. `State`, `Inputs` and
// the outputs may be nests as for lowtide::checkpoint: a tensor, tuples, pairs, vectors, types with
// visit_tensors. The next state has the same tensors as `state`, in number; shapes and dtypes may
// differ. Outputs have the same shape and dtype in each step. `step` is copied and lives as long as
// the graph; what it captures by reference must live as long.
//
// Without grad mode, or where the whole graph fits into options.memory, it is the plain loop.
//
// Throws UsageError LT0220 (inputs), LT0221 (memory too small, with the least that would do),
// LT0222 (a step's results do not fit the others'), LT0223 (see above), and what the step throws.
// Later, from backward: DivergenceError LT0224, UsageError LT0225.
template <class Step, class State, class Inputs>
auto scan(Step step, State state, Inputs inputs, const ScanOptions& options = {}) {
  std::vector<at::Tensor> sequences = detail::tensors_in(inputs);
  const std::int64_t length = detail::scan_length(sequences);
  return detail::run_scan(std::move(step), std::move(state), std::move(inputs), length,
                          std::move(sequences), options);
}

// The same without inputs: `step(state)`, `steps` times.
template <class Step, class State>
auto scan_steps(Step step, State state, std::int64_t steps, const ScanOptions& options = {}) {
  return detail::run_scan(std::move(step), std::move(state), detail::NoInputs(), steps, {},
                          options);
}

// scan() of a recurrent cell: torch::nn::LSTMCell with state std::tuple(h, c), torch::nn::GRUCell
// or torch::nn::RNNCell with state h, and modules with the same forward. Returns std::pair(last
// state, h of all steps).
template <class Cell, class State>
auto scan_cell(Cell cell, State state, const at::Tensor& inputs, const ScanOptions& options = {}) {
  return scan(
      [cell](const State& before, const at::Tensor& x) mutable {
        if constexpr (std::is_same_v<State, at::Tensor>) {
          at::Tensor h = cell->forward(x, before);
          return std::pair(h, h);
        } else {
          State after = cell->forward(x, before);
          at::Tensor h = std::get<0>(after);
          return std::pair(std::move(after), std::move(h));
        }
      },
      std::move(state), inputs, options);
}

// The state with each tensor cut from its history ("repackaged"): the same bytes, no copy. For the
// state that is carried from one window of a long sequence to the next.
template <class State>
State detach_state(State state) {
  auto found = [](at::Tensor& tensor) { tensor = detail::detached(tensor); };
  detail::for_each_tensor(state, found);
  return state;
}

// Truncated backpropagation through time (Williams and Peng, Neural Computation 2(4), 1990): runs
// `step` over windows of `window` steps, the last one may be shorter, and calls
// `each(outputs, state)` after each of them, the outputs stacked. There the loss is made and
// backward() called; the window's graph is freed when `each` returns, and the state goes on
// detached, so gradients do not reach across windows. Returns the last state, detached.
//
// Memory: one window's graph. Throws UsageError LT0220 (inputs), LT0226 (window < 1).
template <class Step, class State, class Inputs, class Each>
State truncated_bptt(Step step, State state, Inputs inputs, std::int64_t window, Each each) {
  detail::check_window(window);
  const std::vector<at::Tensor> sequences = detail::tensors_in(inputs);
  const std::int64_t length = detail::scan_length(sequences);
  using Outputs = detail::OutputOf<Step, State, Inputs>;
  for (std::int64_t begin = 0; begin < length; begin += window) {
    const std::int64_t end = std::min(begin + window, length);
    state = detach_state(std::move(state));
    std::vector<std::vector<at::Tensor>> outputs;
    std::optional<Outputs> nest;
    for (std::int64_t t = begin; t < end; ++t) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& whole : sequences) {
        parts.push_back(detail::part_of_sequence(whole, t));
      }
      Inputs part = inputs;
      detail::put_tensors(part, parts);
      auto result = step(std::as_const(state), std::as_const(part));
      state = std::move(result.first);
      outputs.push_back(detail::tensors_in(result.second));
      nest = std::move(result.second);
    }
    detail::put_tensors(*nest, detail::stack_steps(outputs));
    outputs.clear();
    each(std::move(*nest), std::as_const(state));
  }
  return detach_state(std::move(state));
}

}  // namespace lowtide
