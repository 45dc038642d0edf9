#pragma once
// Saved-tensor hooks from C++: who decides how a tensor that autograd saves is kept.
//
//   class Recorder : public hook::SavedTensorProvider { ... };
//   Recorder recorder;
//   {
//     hook::SavedTensorScope scope(recorder);   // this thread, until the scope ends
//     y = model(x);                             // each save asks recorder.make_hooks()
//   }
//
// Providers nest: the innermost is asked first; one that declines (returns null) passes the tensor
// on to the next one out, and when all decline autograd keeps the tensor itself. The hooks of a
// Python program (torch.autograd.graph.saved_tensors_hooks) are one of them. Where torch has
// switched default hooks off (torch.func) nobody is asked.
//
// Also here: the few other things of autograd's that a holder of saved tensors needs.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lowtide/export.h"

namespace torch::autograd {
class SavedVariable;
}  // namespace torch::autograd

namespace lowtide::hook {

// Keeps one saved tensor: call_pack_hook is called once, at once, with grad mode off;
// call_unpack_hook in each backward that needs the tensor, on that backward's thread; destruction
// means that the graph let go of it.
using SavedTensorHooks = torch::autograd::SavedVariableHooks;

// Hooks that know the very tensor that was saved.
//
// Note [Which tensor it is]
// Without hooks autograd hands out the tensor that a function was given, and functions of the
// user's rely on it: they write to `w.grad`, ask for attributes, or return it as a gradient (which
// AccumulateGrad takes for its own when nobody else refers to it). What a hook returns is handed
// out as it is when it needs no gradient; of any other autograd makes a new tensor. So a host whose
// functions can tell asks these hooks for the tensor itself, and gives back what was made anew.
class IdentityHooks : public SavedTensorHooks {
 public:
  // The tensor that was saved; undefined when it is not kept, or was a result of the very node that
  // saved it (autograd makes those anew, too).
  virtual at::Tensor original() { return {}; }
  // `tensor`, unpacked from these hooks, is the saved tensor from now on.
  virtual void adopt(const at::Tensor& /*tensor*/) {}

  // Compiled autograd's question, which hooks from C++ cannot answer; and how hooks_of() asks.
  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const final;
};

// The hooks that keep a saved tensor, if they are such; else null.
LOWTIDE_API IdentityHooks* hooks_of(const torch::autograd::SavedVariable& saved);

// While it lives, who unpacks on this thread takes originals where they are kept.
class LOWTIDE_API OriginalsAsked {
 public:
  OriginalsAsked() noexcept;
  ~OriginalsAsked();
  OriginalsAsked(const OriginalsAsked&) = delete;
  OriginalsAsked& operator=(const OriginalsAsked&) = delete;
  static bool active() noexcept;

 private:
  bool before_;
};

class SavedTensorProvider {
 public:
  virtual ~SavedTensorProvider();

  // Called on the thread that records the graph, once a saved tensor, before the tensor is known:
  // autograd may ask and then not pack (wrapped numbers), so count in call_pack_hook, not here.
  // Null declines. Must not throw anything but what may unwind through the running op.
  virtual std::unique_ptr<SavedTensorHooks> make_hooks() = 0;
};

// Makes `provider` the innermost one of this thread while it lives. Scopes must end in reverse
// order, on the thread that began them. `provider` must outlive the scope.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorProvider& provider);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  // The provider that this thread would ask first, or null.
  static SavedTensorProvider* innermost() noexcept;

 private:
  friend class EngineHooks;
  SavedTensorProvider& provider_;
  SavedTensorScope* outer_;
  std::size_t host_hooks_;  // of Python's own hooks, when it began: later ones are further in
};

// Makes `provider` the last to be asked, on every thread, when all scopes have declined; null takes
// it away. It must outlive every graph that it made hooks for.
void set_process_provider(SavedTensorProvider* provider);

// A tensor kept as autograd keeps one: under the providers in force, or by reference with a check
// that it was not changed in place since.
class SavedTensor {
 public:
  SavedTensor() noexcept;
  explicit SavedTensor(const at::Tensor& tensor);
  ~SavedTensor();
  SavedTensor(SavedTensor&&) noexcept;
  SavedTensor& operator=(SavedTensor&&) noexcept;

  // Throws c10::Error, in PyTorch's own words, if the tensor was changed in place.
  at::Tensor unpack() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The version counter of a tensor, kept without the tensor. Counters belong to tensors: views and
// detach() share one, .data() does not. Inference tensors have none; such a version never differs.
class TensorVersion {
 public:
  TensorVersion() noexcept = default;
  explicit TensorVersion(const at::Tensor& tensor);

  bool changed() const { return counter_.enabled() && counter_.current_version() != version_; }
  std::uint32_t recorded() const noexcept { return version_; }
  std::uint32_t current() const { return counter_.enabled() ? counter_.current_version() : 0; }
  // Makes `tensor` share this counter.
  void give_to(const at::Tensor& tensor) const {
    if (counter_.enabled()) tensor.unsafeGetTensorImpl()->set_version_counter(counter_);
  }
  // Sets the counter back, for who undid the writes.
  void restore(std::uint32_t version) {
    if (counter_.enabled()) counter_.set_version(version);
  }

 private:
  c10::VariableVersion counter_;
  std::uint32_t version_ = 0;
};

// How a tensor takes part in graphs. It may change after it was saved (detach_(),
// requires_grad_()).
struct GraphPlace {
  bool requires_grad = false;
  bool is_leaf = true;

  // Looks only: a view that was written gets no new node by it.
  static GraphPlace of(const at::Tensor& tensor);
  bool operator==(const GraphPlace&) const = default;
};

// Whether the node that runs on this thread is a custom function (of C++'s or the host's): those
// may use saved tensors that have left the graph since.
bool custom_function_runs();

// Number of the backward that runs on this thread, or -1 outside of one; numbers are not reused.
std::int64_t current_backward_id();
// Whether that backward keeps the graph (retain_graph or create_graph).
bool current_backward_keeps_graph();
// Runs `callback` when the backward of this thread ends well. Only inside a backward.
void at_end_of_backward(std::function<void()> callback);

// Whether `tensor`, which is being saved, is a result of the very node that saves it: then a
// reference from the node to the tensor would be a cycle. True also when that cannot be told.
bool is_output_of_newest_node(const at::Tensor& tensor);

// Gives `tensor`, which must be a leaf, a grad_fn that leads nowhere: like an intermediate result
// it may be changed in place, and gradients with respect to it can be asked for.
void make_intermediate(const at::Tensor& tensor);

// How many hold `tensor`. A Python wrapper lives as long as the tensor, once there is one, and
// holds it; it counts only while something in Python refers to it.
std::size_t holder_count(const at::Tensor& tensor);

// Whether a function of the host's that saves `tensor` could miss something of it when it is made
// anew: a class of its own, attributes. False when it is one of torch's ops that saves.
bool is_more_than_data(const at::Tensor& tensor);

// The base of a view that autograd tracks, else `tensor` itself; lives as long as `tensor`.
const at::Tensor& base_of(const at::Tensor& tensor);

}  // namespace lowtide::hook
