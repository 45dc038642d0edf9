#pragma once
// Nodes of autograd's graph, followed without being kept.
//
//   NodeWatch watch(tensor);      // the node that made it
//   watch.is_gone();              // nothing holds that node any more, nor what it saved
//
// A node that is watched is freed as ever, with all that it saved; a few hundred bytes of it stay
// until the NodeWatch goes.
//
// Checked with torch 2.13.0: torch/csrc/autograd/node.h (release_resources), variable.h.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lowtide::hook {

// The node that made the tensor, or null. Looks only: a view's history is not renewed for it.
const void* node_of(const at::Tensor& tensor) noexcept;

class NodeWatch {
 public:
  NodeWatch() noexcept = default;
  // Of the tensor's node; without one, a watch that is gone from the start.
  explicit NodeWatch(const at::Tensor& tensor);
  // Of the node whose backward runs on this thread, unless it is one that accumulates.
  static NodeWatch of_running();
  ~NodeWatch();
  NodeWatch(NodeWatch&& other) noexcept;
  NodeWatch& operator=(NodeWatch&& other) noexcept;

  bool is_gone() const noexcept;
  const void* node() const noexcept { return node_; }

 private:
  friend class HeldNodes;
  const void* node_ = nullptr;
};

// Holds nodes while it lives, so that the graph can be walked.
class HeldNodes {
 public:
  HeldNodes();
  ~HeldNodes();
  HeldNodes(const HeldNodes&) = delete;
  HeldNodes& operator=(const HeldNodes&) = delete;

  // False: it is gone.
  bool hold(const NodeWatch& watch);

  // The nodes that a node's gradients go to. The node must be held, here or by one that is.
  static std::vector<const void*> next_of(const void* node);
  // "AddBackward0"
  static std::string name_of(const void* node);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide::hook
