#pragma once
// Parts of autograd's graph as values: the edge that a tensor's gradient takes, what a piece of
// program added to the graph, a backward through that piece alone, and a node of our own that
// stands for it in the user's graph.
//
// Note [The order of additions]
// The gradient of a tensor that is used often is a sum, and floating-point sums depend on their
// order. On the CPU the engine runs ready nodes newest first, and since every edge leads to an
// older node, it runs a graph in exactly the reverse order of its making; each contribution is
// added to what is in the target's buffer at that moment. So a backward in pieces gives the bits of
// the whole one if each piece begins with the sums so far: `run_backward` seeds its ends with them,
// and `take_pending_gradient` takes what the rest of the user's graph has added before.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/node.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lowtide::hook {

using GradientEdge = torch::autograd::Edge;

// Where the gradient of `tensor` goes; not valid when it needs none.
GradientEdge gradient_edge(const at::Tensor& tensor);

// The leaf that `edge` accumulates into, or an undefined tensor.
at::Tensor leaf_of(const GradientEdge& edge);

// The nodes that this thread makes from here on.
class GraphMark {
 public:
  GraphMark();
  bool made_since(const torch::autograd::Node& node) const;

 private:
  std::uint64_t sequence_;
  std::uint64_t thread_;
};

// Calls `leave` with each edge that leads from a node made since `mark`, and reached from `roots`,
// to another; also with a root that is such an edge itself. `leave` may replace the edge. Returns
// the number of nodes made since. `visit`, if given, is called with each of them.
std::size_t cut_graph(std::vector<GradientEdge>& roots, const GraphMark& mark,
                      const std::function<void(GradientEdge&)>& leave,
                      const std::function<void(torch::autograd::Node&)>& visit = nullptr);

// Ends of a graph at which gradients arrive.
class GradientSinks {
 public:
  GradientSinks();
  // Gives `tensor`, which needs no grad, a history that ends here.
  GradientEdge end_at(const at::Tensor& tensor);
  // An end that takes what `edge` takes.
  GradientEdge end_like(const GradientEdge& edge);
  bool has(const GradientEdge& edge) const noexcept { return edge.function == node_; }

 private:
  c10::intrusive_ptr<torch::autograd::Node> node_;
};

// Runs the graph behind `roots` once and frees it. Returns what arrived at `ends`; undefined where
// nothing did. The i-th gradient, which must be defined, goes to the i-th root before anything else
// does, in this order; it is given away.
std::vector<at::Tensor> run_backward(std::vector<GradientEdge> roots,
                                     std::vector<at::Tensor> gradients,
                                     const std::vector<GradientEdge>& ends);

// Inside a backward: what was added so far to the gradient that `edge` is waiting for, which then
// starts over; undefined if nothing was. Throws TorchError (LT0604) where libtorch's task has
// another layout.
at::Tensor take_pending_gradient(const GradientEdge& edge);

// What a node of ours does in backward.
class GraphFunction {
 public:
  virtual ~GraphFunction();
  virtual std::string name() const = 0;
  // One gradient an output, undefined where none arrived; returns one an edge. `edges` are those
  // that the node has now (others may have been put in place of those given), `wanted[i]` whether
  // the i-th is asked for. On the backward's thread, grad mode as the backward has it.
  virtual std::vector<at::Tensor> backward(std::vector<at::Tensor> gradients,
                                           const std::vector<GradientEdge>& edges,
                                           const std::vector<bool>& wanted) = 0;
  // The graph is being freed.
  virtual void release() = 0;
};

// Makes a node that passes gradients on to `edges`, and gives each of `outputs` that is defined a
// history that begins there.
void attach(std::shared_ptr<GraphFunction> function, std::vector<GradientEdge> edges,
            const std::vector<at::Tensor>& outputs);

// Autocast's cache of casts, as it was in a forward, for code of that forward that runs again.
// Casts of `leaves` are in it from the start; cast(i) is where the gradient of the i-th goes.
class CastCache {
 public:
  struct Cast {
    at::Tensor leaf;
    at::ScalarType dtype;
  };
  // How autocast's cache stands on this thread.
  struct State {
    bool enabled = false;
    int nesting = 0;
  };
  static State now();
  // The cast that `edge` leads to, if it is one of a leaf.
  static std::optional<Cast> cast_at(const GradientEdge& edge);

  CastCache(const State& state, const std::vector<Cast>& casts);
  ~CastCache();
  CastCache(const CastCache&) = delete;
  CastCache& operator=(const CastCache&) = delete;
  const GradientEdge& cast(std::size_t i) const { return edges_[i]; }
  // Inside an AmbientScope, which switches the cache off.
  void use_here() const;

 private:
  State state_;
  bool clear_;
  std::vector<at::Tensor> kept_;
  std::vector<GradientEdge> edges_;
};

}  // namespace lowtide::hook
