#include "src/hook/gradient_graph.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <new>
#include <unordered_set>
#include <utility>

#include "lowtide/error.h"
#include "src/base/assert.h"
#include "src/hook/host.h"
#include "src/hook/host_errors.h"

namespace lowtide::hook {
namespace {

namespace autograd = torch::autograd;
using autograd::Node;
using autograd::variable_list;

class SinkNode final : public Node {
 public:
  variable_list apply(variable_list&&) override {
    LOWTIDE_ASSERT(!"a gradient ran past the end of a graph");
    return {};
  }
  std::string name() const override { return "lowtide::GradientSinks"; }
};

// Gives its gradients away, so that the first addition to one of them can be made in place.
class SeedNode final : public Node {
 public:
  SeedNode(autograd::edge_list&& roots, std::vector<at::Tensor> gradients)
      : Node(std::move(roots)), gradients_(std::move(gradients)) {
    add_input_metadata(trigger());
  }
  // The engine starts with a gradient; this one says nothing.
  static const at::Tensor& trigger() {
    static const at::Tensor empty = at::empty({0});
    return empty;
  }
  variable_list apply(variable_list&&) override { return std::move(gradients_); }
  std::string name() const override { return "lowtide::Seeds"; }

 private:
  variable_list gradients_;
};

class FunctionNode final : public Node {
 public:
  FunctionNode(std::shared_ptr<GraphFunction> function, autograd::edge_list&& edges)
      : Node(std::move(edges)), function_(std::move(function)) {}
  ~FunctionNode() override { function_->release(); }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return with_host_errors([&] {
      std::vector<bool> wanted(num_outputs());
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = task_should_compute_output(i);
      return function_->backward(std::move(gradients), next_edges(), wanted);
    });
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    function_->release();
  }
  std::string name() const override { return function_->name(); }

 private:
  const std::shared_ptr<GraphFunction> function_;
};

// libtorch shows this member of the task under way on this thread; the task is around it. Checked
// with torch 2.13.0, and each time against what else libtorch tells of the task.
autograd::GraphTask* current_graph_task() {
  const auto* const member = autograd::get_current_graph_task_exec_info();
  if (member == nullptr) return nullptr;
  alignas(autograd::GraphTask) static std::byte place[sizeof(autograd::GraphTask)];
  static const auto offset =
      reinterpret_cast<std::byte*>(&reinterpret_cast<autograd::GraphTask*>(place)->exec_info_) -
      place;
  auto* const bytes = reinterpret_cast<std::byte*>(
      const_cast<std::unordered_map<Node*, autograd::GraphTask::ExecInfo>*>(member));
  auto* const task = reinterpret_cast<autograd::GraphTask*>(bytes - offset);
  if (&task->nodes_in_graph_ != autograd::get_current_graph_task_nodes_in_graph() ||
      static_cast<int>(task->id_) != autograd::get_current_graph_task_id() ||
      task->keep_graph_ != autograd::get_current_graph_task_keep_graph()) {
    throw TorchError("LT0604",
                     "cannot read the backward under way: libtorch lays it out in another way than "
                     "the " TORCH_VERSION
                     " that this build is for. Build Lowtide again, or install "
                     "torch==" TORCH_VERSION);
  }
  return task;
}

}  // namespace

GradientEdge gradient_edge(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad() ? autograd::impl::gradient_edge(tensor)
                                                    : GradientEdge();
}

at::Tensor leaf_of(const GradientEdge& edge) {
  const auto* const node = dynamic_cast<const autograd::AccumulateGrad*>(edge.function.get());
  return node == nullptr ? at::Tensor() : node->variable;
}

GraphMark::GraphMark()
    : sequence_(at::sequence_number::peek()), thread_(at::RecordFunction::currentThreadId()) {}

bool GraphMark::made_since(const Node& node) const {
  // Nodes that accumulate have the highest number there is.
  return node.sequence_nr() >= sequence_ && node.sequence_nr() < at::sequence_number::peek() &&
         node.thread_id() == thread_;
}

std::size_t cut_graph(std::vector<GradientEdge>& roots, const GraphMark& mark,
                      const std::function<void(GradientEdge&)>& leave,
                      const std::function<void(Node&)>& visit) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> open;
  const auto follow = [&](GradientEdge& edge) {
    Node* const node = edge.function.get();
    if (node == nullptr) return;
    if (!mark.made_since(*node)) {
      leave(edge);
    } else if (seen.insert(node).second) {
      open.push_back(node);
    }
  };
  for (GradientEdge& root : roots) follow(root);
  while (!open.empty()) {
    Node* const node = open.back();
    open.pop_back();
    if (visit) visit(*node);
    for (GradientEdge& edge : node->next_edges()) follow(edge);
  }
  return seen.size();
}

GradientSinks::GradientSinks() : node_(c10::make_intrusive<SinkNode>()) {}

GradientEdge GradientSinks::end_at(const at::Tensor& tensor) {
  GradientEdge edge(node_, node_->add_input_metadata(tensor));
  autograd::impl::set_gradient_edge(tensor, edge);
  return edge;
}

GradientEdge GradientSinks::end_like(const GradientEdge& edge) {
  const auto& data = edge.function->input_metadata(edge.input_nr);
  return GradientEdge(node_, node_->add_input_metadata(data.options(), data.shape_as_dim_vector(),
                                                       data.is_tensor_subclass(),
                                                       data.is_nested_tensor(), data.grad_dtype()));
}

std::vector<at::Tensor> run_backward(std::vector<GradientEdge> roots,
                                     std::vector<at::Tensor> gradients,
                                     const std::vector<GradientEdge>& ends) {
  LOWTIDE_ASSERT(roots.size() == gradients.size());
  if (roots.empty()) return std::vector<at::Tensor>(ends.size());
  const GradientEdge seeds(c10::make_intrusive<SeedNode>(std::move(roots), std::move(gradients)),
                           0);
  const HostUnlocked unlocked;
  return autograd::Engine::get_default_engine().execute(
      {seeds}, {SeedNode::trigger()}, /*keep_graph=*/false, /*create_graph=*/false,
      /*accumulate_grad=*/false, ends);
}

at::Tensor take_pending_gradient(const GradientEdge& edge) {
  autograd::GraphTask* const task = current_graph_task();
  if (task == nullptr) return {};
  const std::lock_guard<std::mutex> lock(task->mutex_);
  const auto found = task->not_ready_.find(edge.function.get());
  if (found == task->not_ready_.end()) return {};
  return std::exchange(found->second.buffer.at(edge.input_nr), at::Tensor());
}

GraphFunction::~GraphFunction() = default;

void attach(std::shared_ptr<GraphFunction> function, std::vector<GradientEdge> edges,
            const std::vector<at::Tensor>& outputs) {
  const auto node = c10::make_intrusive<FunctionNode>(std::move(function), std::move(edges));
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    autograd::impl::set_gradient_edge(output, GradientEdge(node, node->add_input_metadata(output)));
  }
}

CastCache::State CastCache::now() {
  State state;
  state.enabled = at::autocast::is_autocast_cache_enabled();
  state.nesting = at::autocast::increment_nesting() - 1;
  at::autocast::decrement_nesting();
  return state;
}

std::optional<CastCache::Cast> CastCache::cast_at(const GradientEdge& edge) {
  const Node* const node = edge.function.get();
  if (node == nullptr || node->num_outputs() != 1 || node->num_inputs() != 1 ||
      node->name() != "ToCopyBackward0") {
    return std::nullopt;
  }
  at::Tensor leaf = leaf_of(node->next_edge(0));
  if (!leaf.defined()) return std::nullopt;
  return Cast{std::move(leaf), c10::typeMetaToScalarType(node->input_metadata(0).dtype())};
}

CastCache::CastCache(const State& state, const std::vector<Cast>& casts)
    : state_(state), clear_(!casts.empty()) {
  if (state_.nesting > 0) at::autocast::increment_nesting();
  if (!clear_) return;
  use_here();
  at::autocast::clear_cache();
  for (const Cast& cast : casts) {
    kept_.push_back(at::autocast::cached_cast(cast.dtype, cast.leaf, cast.leaf.device().type()));
    edges_.push_back(gradient_edge(kept_.back()));
  }
}

void CastCache::use_here() const { at::autocast::set_autocast_cache_enabled(state_.enabled); }

CastCache::~CastCache() {
  if (clear_) at::autocast::clear_cache();
  if (state_.nesting > 0) at::autocast::decrement_nesting();
}

}  // namespace lowtide::hook
