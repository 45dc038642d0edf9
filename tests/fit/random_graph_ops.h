#pragma once
// The instructions of random programs (random_graphs.h): how operands are chosen, and what runs.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fit/random_graphs.h"

namespace lowtide {

// What instructions reach beside their operands.
struct GraphRunState {
  at::Generator generator;  // the program's own
  std::vector<double> losses;
};

// Where an instruction under construction finds its operands.
class GraphChooser {
 public:
  virtual ~GraphChooser() = default;
  // Makes a random register that satisfies `fits` the next operand. Null: there is none.
  virtual const at::Tensor* pick(const std::function<bool(const at::Tensor&)>& fits) = 0;
  // Makes a leaf or buffer of these sizes the next operand, an old one or a new one.
  virtual const at::Tensor* slot(GraphSlot::Kind kind, std::vector<std::int64_t> sizes,
                                 at::ScalarType dtype) = 0;
  // Appends a number in [low, high] to the instruction.
  virtual std::int64_t number(std::int64_t low, std::int64_t high) = 0;
};

struct GraphOp {
  enum class Kind : std::uint8_t { kMake, kView, kWrite, kLoss, kBackward, kRelease };
  using Tensors = std::vector<at::Tensor>;
  using Numbers = std::vector<std::int64_t>;

  std::string name;
  Kind kind = Kind::kMake;
  std::function<bool(GraphChooser&)> choose;  // false: no operands fit
  std::function<Tensors(GraphRunState&, Tensors&, const Numbers&)> run;
};

const std::vector<GraphOp>& graph_ops();
const GraphOp* find_graph_op(std::string_view name);  // null: no such op

}  // namespace lowtide
