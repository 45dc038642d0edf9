#include "src/hook/graph_node.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace lowtide::hook {
namespace {

namespace autograd = torch::autograd;
using Weak = c10::weak_intrusive_ptr<autograd::Node>;

// The watch's reference, which is one word: taken over for the call, and given back.
Weak borrow(const void* node) noexcept {
  return Weak::reclaim(static_cast<autograd::Node*>(const_cast<void*>(node)));
}

const autograd::Node& as_node(const void* node) {
  return *static_cast<const autograd::Node*>(node);
}

}  // namespace

const void* node_of(const at::Tensor& tensor) noexcept {
  if (!tensor.defined()) return nullptr;
  const autograd::AutogradMeta* meta = autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr ? nullptr : meta->grad_fn_.get();
}

NodeWatch::NodeWatch(const at::Tensor& tensor) {
  const autograd::AutogradMeta* meta =
      tensor.defined() ? autograd::impl::get_autograd_meta(tensor) : nullptr;
  if (meta == nullptr || !meta->grad_fn_) return;
  node_ = Weak(meta->grad_fn_).release();
}

NodeWatch NodeWatch::of_running() {
  NodeWatch watch;
  const auto node = autograd::get_current_node();
  // Nodes that accumulate have the highest number there is.
  constexpr auto kAccumulates = std::numeric_limits<std::uint64_t>::max();
  if (node && node->sequence_nr() != kAccumulates) watch.node_ = Weak(node).release();
  return watch;
}

NodeWatch::~NodeWatch() {
  if (node_ != nullptr) borrow(node_);
}

NodeWatch::NodeWatch(NodeWatch&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}

NodeWatch& NodeWatch::operator=(NodeWatch&& other) noexcept {
  std::swap(node_, other.node_);
  return *this;
}

bool NodeWatch::is_gone() const noexcept {
  if (node_ == nullptr) return true;
  Weak weak = borrow(node_);
  const bool gone = weak.expired();
  weak.release();
  return gone;
}

struct HeldNodes::Impl {
  std::vector<c10::intrusive_ptr<autograd::Node>> nodes;
};

HeldNodes::HeldNodes() : impl_(std::make_unique<Impl>()) {}
HeldNodes::~HeldNodes() = default;

bool HeldNodes::hold(const NodeWatch& watch) {
  if (watch.node_ == nullptr) return false;
  Weak weak = borrow(watch.node_);
  auto node = weak.lock();
  weak.release();
  if (!node) return false;
  impl_->nodes.push_back(std::move(node));
  return true;
}

std::vector<const void*> HeldNodes::next_of(const void* node) {
  std::vector<const void*> next;
  for (const autograd::Edge& edge : as_node(node).next_edges()) {
    if (edge.function) next.push_back(edge.function.get());
  }
  return next;
}

std::string HeldNodes::name_of(const void* node) { return as_node(node).name(); }

}  // namespace lowtide::hook
