#include "src/hook/saved_tensor_hooks.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <atomic>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "src/base/assert.h"
#include "src/hook/host.h"
#include "src/hook/op_observer.h"

// How saved-tensor hooks are reached from C++.
//
// Autograd asks Engine::get_default_engine() for hooks each time that it saves a tensor, and which
// engine that is may be set once a process (set_default_engine_stub; checked for torch 2.13). So
// one engine stands in front of the engine that was there: it answers the question for hooks from
// this thread's stack of providers, and passes everything else on. In a C++ program the engine
// behind is libtorch's own; in a Python process it is Python's, whose symbols are hidden and which
// therefore could not be derived from. Nothing depends on which one it is.
//
// The stack is a linked list through the scopes, so pushing and popping cost two stores.
//
// Threads: providers are per thread and are not carried to others. Fork: nothing is held. The
// engine is leaked, because graphs may be destroyed after static destructors have begun.
//
// Tested by saved_tensor_hooks_test.cpp.

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13,
              "src/hook uses internals of torch 2.13; check each of them before widening this");

namespace lowtide::hook {
namespace {

namespace autograd = torch::autograd;

thread_local SavedTensorScope* innermost_scope = nullptr;
std::atomic<SavedTensorProvider*> process_provider{nullptr};

}  // namespace

class EngineHooks {
 public:
  // The host's own hooks (Python's saved_tensors_hooks) have their place among the scopes, and the
  // process provider comes after all of them.
  static std::unique_ptr<SavedTensorHooks> ask(autograd::Engine& behind) {
    bool is_behind_asked = false;
    const auto ask_behind = [&] {
      is_behind_asked = true;
      return behind.get_default_saved_variable_hooks();
    };
    for (SavedTensorScope* scope = innermost_scope; scope != nullptr; scope = scope->outer_) {
      if (!is_behind_asked && host_hooks() > scope->host_hooks_) {
        if (auto hooks = ask_behind()) return hooks;
      }
      if (auto hooks = scope->provider_.make_hooks()) return hooks;
    }
    if (!is_behind_asked) {
      if (auto hooks = ask_behind()) return hooks;
    }
    SavedTensorProvider* last = process_provider.load(std::memory_order_acquire);
    return last == nullptr ? nullptr : last->make_hooks();
  }
  // How many pairs of the host's hooks are in force on this thread.
  static std::size_t host_hooks() {
    return at::SavedTensorDefaultHooks::get_tls_state().stack.size();
  }
};

namespace {

class ForwardingEngine final : public autograd::Engine {
 public:
  explicit ForwardingEngine(autograd::Engine& behind) : behind_(behind) {}

  autograd::variable_list execute(const autograd::edge_list& roots,
                                  const autograd::variable_list& inputs, bool keep_graph,
                                  bool create_graph, bool accumulate_grad,
                                  const autograd::edge_list& outputs) override {
    return behind_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<autograd::GraphTask>& graph_task,
      c10::intrusive_ptr<autograd::Node> graph_root,
      autograd::InputBuffer&& input_buffer) override {
    return behind_.execute_with_graph_task(graph_task, std::move(graph_root),
                                           std::move(input_buffer));
  }
  std::unique_ptr<autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return behind_.make_anomaly_metadata();
  }
  std::unique_ptr<SavedTensorHooks> get_default_saved_variable_hooks() override {
    return EngineHooks::ask(behind_);
  }
  void thread_on_exception(const std::shared_ptr<autograd::GraphTask>& graph_task,
                           const c10::intrusive_ptr<autograd::Node>& fn,
                           std::exception& e) override {
    behind_.thread_on_exception(graph_task, fn, e);
  }
  void thread_init(int device, const std::shared_ptr<autograd::ReadyQueue>& ready_queue,
                   bool should_increment) override {
    behind_.thread_init(device, ready_queue, should_increment);
  }

 private:
  autograd::Engine& behind_;
};

ForwardingEngine* installed_engine = nullptr;

void install_engine() {
  static const bool installed = [] {
    installed_engine = new ForwardingEngine(autograd::Engine::get_default_engine());
    autograd::set_default_engine_stub([]() -> autograd::Engine& { return *installed_engine; });
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

namespace {

thread_local const IdentityHooks** t_found = nullptr;
thread_local bool t_originals = false;

}  // namespace

std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>>
IdentityHooks::retrieve_unpack_hook_data() const {
  if (t_found == nullptr) return SavedTensorHooks::retrieve_unpack_hook_data();
  *t_found = this;
  return std::nullopt;
}

// A SavedVariable shows nothing of its hooks but the answer to compiled autograd's question.
IdentityHooks* hooks_of(const autograd::SavedVariable& saved) {
  if (!saved.has_hooks()) return nullptr;
  const IdentityHooks* found = nullptr;
  const auto** const before = std::exchange(t_found, &found);
  try {
    static_cast<void>(saved.retrieve_unpack_hook_data());
  } catch (const c10::Error&) {
    found = nullptr;  // hooks from elsewhere
  }
  t_found = before;
  return const_cast<IdentityHooks*>(found);
}

OriginalsAsked::OriginalsAsked() noexcept : before_(std::exchange(t_originals, true)) {}
OriginalsAsked::~OriginalsAsked() { t_originals = before_; }
bool OriginalsAsked::active() noexcept { return t_originals; }

GraphPlace GraphPlace::of(const at::Tensor& tensor) {
  const autograd::AutogradMeta* meta = autograd::impl::get_autograd_meta(tensor);
  return {tensor.requires_grad(), meta == nullptr || meta->grad_fn_ == nullptr};
}

bool custom_function_runs() {
  const auto node = autograd::get_current_node();
  if (node == nullptr) return false;
  // Their types are templates or hidden, so they are known by name.
  const std::string_view name = typeid(*node).name();
  return name.find("autograd7CppNode") != std::string_view::npos ||
         name.find("autograd6PyNode") != std::string_view::npos;
}

SavedTensorProvider::~SavedTensorProvider() = default;

SavedTensorScope::SavedTensorScope(SavedTensorProvider& provider)
    : provider_(provider), outer_(innermost_scope), host_hooks_(EngineHooks::host_hooks()) {
  install_engine();
  innermost_scope = this;
}

SavedTensorScope::~SavedTensorScope() { innermost_scope = outer_; }

SavedTensorProvider* SavedTensorScope::innermost() noexcept {
  return innermost_scope == nullptr ? nullptr : &innermost_scope->provider_;
}

void set_process_provider(SavedTensorProvider* provider) {
  install_engine();
  process_provider.store(provider, std::memory_order_release);
}

struct SavedTensor::Impl {
  autograd::SavedVariable variable;
};

SavedTensor::SavedTensor() noexcept = default;
SavedTensor::SavedTensor(const at::Tensor& tensor)
    : impl_(new Impl{autograd::SavedVariable(tensor, /*is_output=*/false)}) {}
SavedTensor::~SavedTensor() = default;
SavedTensor::SavedTensor(SavedTensor&&) noexcept = default;
SavedTensor& SavedTensor::operator=(SavedTensor&&) noexcept = default;

at::Tensor SavedTensor::unpack() const {
  LOWTIDE_ASSERT(impl_ != nullptr);
  return impl_->variable.unpack();
}

TensorVersion::TensorVersion(const at::Tensor& tensor) {
  if (tensor.is_inference()) return;
  counter_ = tensor.unsafeGetTensorImpl()->version_counter();
  if (counter_.enabled()) version_ = counter_.current_version();
}

std::int64_t current_backward_id() { return autograd::get_current_graph_task_id(); }

bool current_backward_keeps_graph() { return autograd::get_current_graph_task_keep_graph(); }

void at_end_of_backward(std::function<void()> callback) {
  autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

void make_intermediate(const at::Tensor& tensor) {
  auto node = c10::make_intrusive<autograd::Error>(
      "internal error: backward ran past the inputs of a checkpointed region's replay");
  const auto output = node->add_input_metadata(tensor);
  autograd::impl::set_gradient_edge(tensor, autograd::Edge(std::move(node), output));
}

bool is_output_of_newest_node(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  // Each thread counts its own nodes.
  if (node == nullptr || node->thread_id() != at::RecordFunction::currentThreadId()) return false;
  // An op may make several nodes before it saves their results.
  if (running_op() != nullptr) return node->sequence_nr() >= first_node_of_running_op();
  // A function of the user's saves after its forward, which may have made nodes too.
  const Host::Saves saves = saves_now(node.get());
  if (saves != Host::Saves::kUnknown) return saves == Host::Saves::kYes;
  return node->sequence_nr() + 1 >= at::sequence_number::peek();
}

std::size_t holder_count(const at::Tensor& tensor) {
  const std::size_t count = tensor.use_count();
  PyObject* const wrapper = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return is_idle_wrapper(wrapper) ? count - 1 : count;
}

bool is_more_than_data(const at::Tensor& tensor) {
  if (const Operator* op = running_op(); op != nullptr && op->is_aten) return false;
  return is_special_wrapper(tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj());
}

const at::Tensor& base_of(const at::Tensor& tensor) {
  return tensor.is_view() ? static_cast<const at::Tensor&>(tensor._base()) : tensor;
}

}  // namespace lowtide::hook
