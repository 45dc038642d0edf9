#pragma once
// Activation checkpointing: run a part of a model without keeping what its backward needs, and run
// it again when backward gets there. Memory for time; losses and gradients are bit for bit those of
// the plain run.
//
//   at::Tensor y = lowtide::checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//   auto [a, b] = lowtide::checkpoint(two_headed, std::make_tuple(x, mask, 3));   // spread
//   model->push_back(lowtide::checkpoint_wrapper(torch::nn::Linear(64, 64)));
//   y = lowtide::checkpoint_sequential(layers, /*segments=*/4, x);
//
// What a region may do: draw random numbers (from the default generator or its own), update buffers
// (batch norm's statistics move once), change its inputs in place, return anything, contain other
// regions, run under autocast. Double backward, autograd::grad, retain_graph, several backwards and
// backward from another thread work as without. It is never replayed wrong: if the second run
// departs from the first one, or something that it read was changed in between, backward throws
// DivergenceError and says which tensor.
//
// What it does not do:
// - It cannot see state that is no tensor. A region that reads a clock, a file or its own
// std::mt19937
//   must get equal answers twice. Numbers and shapes that reach an op are compared between the
//   runs; values computed by hand into fresh tensors are not.
// - Ops that write into tensors without saying so in their schema (custom kernels) are not seen.
// The
//   running statistics of batch norm, which PyTorch's schemas keep silent about, are.
// - While a region is replayed, buffers that it writes hold their old values for a moment: do not
//   read them from another thread meanwhile.
// - Where grad mode is off it is a plain call and keeps nothing.
//
// Cost: see docs/design/checkpoint.md. Threads: a region may run on any thread, several at once.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lowtide/export.h"

namespace torch::nn {
class Module;
}

namespace lowtide {

// Where a region's inputs wait for the replay.
enum class Offload {
  kNone,  // where they are, by reference: costs nothing while someone else holds them too
  kHost,  // in host memory; inputs that are there already are held by reference, so on a CPU-only
          // machine this gains nothing
  kDisk,  // in an unlinked file that only this process can read; costs a write, and a read per
          // replay
};

struct CheckpointOptions {
  // Whether a replay ends once the last tensor that backward still needs is there. Off, it runs to
  // the region's end, which costs time and lets it notice tensors saved beyond the first run's.
  bool early_stop = true;

  // Inputs smaller than 64 KiB, parameters, and inputs that the region changes in place stay where
  // they are. Inside another region inputs belong to that region's replay and are not moved either.
  Offload offload = Offload::kNone;

  // Folder for kDisk; empty means $TMPDIR or /tmp. One open file a region, until its graph is
  // freed.
  std::string offload_directory = {};

  // Generators whose numbers the region draws by hand, not through an op. Those that are passed to
  // ops are found without being named here, and so is the default one.
  std::vector<at::Generator> generators = {};
};

// Note [Tensors inside your own types]
// To make a type of yours transparent, so that tensors inside it are kept as inputs, overload in
// the type's namespace
//
//   template <class Visit>
//   void visit_tensors(Batch& batch, Visit&& visit) { visit(batch.image); visit(batch.masks); }
//
// `visit` takes any supported type. Supported without an overload: tensors, optional, pair, tuple,
// array, variant, and containers of these (vector, list, map, unordered_map, ...). Tensors in any
// other type are held as a captured tensor is: right, but not offloaded.
namespace detail {

template <class T, class = void>
struct HasVisitTensors : std::false_type {};
struct AnyVisitor {
  template <class T>
  void operator()(T&) const {}
};
template <class T>
struct HasVisitTensors<
    T, std::void_t<decltype(visit_tensors(std::declval<T&>(), std::declval<AnyVisitor&>()))>>
    : std::true_type {};

template <class T, class = void>
struct IsContainer : std::false_type {};
template <class T>
struct IsContainer<T, std::void_t<typename T::value_type, decltype(std::declval<T&>().begin()),
                                  decltype(std::declval<T&>().end())>> : std::true_type {};

template <class T, template <class...> class Template>
struct IsInstance : std::false_type {};
template <template <class...> class Template, class... Args>
struct IsInstance<Template<Args...>, Template> : std::true_type {};

template <class T>
struct IsStdArray : std::false_type {};
template <class T, std::size_t n>
struct IsStdArray<std::array<T, n>> : std::true_type {};

// Calls `found` with each tensor in `value`, in a fixed order.
template <class T, class Found>
void for_each_tensor(T& value, Found& found) {
  if constexpr (std::is_const_v<T>) {
    // Keys of maps: no tensors to replace there.
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    found(value);
  } else if constexpr (HasVisitTensors<T>::value) {
    auto visit = [&found](auto& part) { for_each_tensor(part, found); };
    visit_tensors(value, visit);
  } else if constexpr (IsInstance<T, std::optional>::value) {
    if (value.has_value()) for_each_tensor(*value, found);
  } else if constexpr (IsInstance<T, std::variant>::value) {
    std::visit([&found](auto& part) { for_each_tensor(part, found); }, value);
  } else if constexpr (IsInstance<T, std::pair>::value) {
    for_each_tensor(value.first, found);
    for_each_tensor(value.second, found);
  } else if constexpr (IsInstance<T, std::tuple>::value) {
    std::apply([&found](auto&... parts) { (for_each_tensor(parts, found), ...); }, value);
  } else if constexpr (IsInstance<T, c10::ArrayRef>::value) {
    static_assert(!IsInstance<T, c10::ArrayRef>::value,
                  "an ArrayRef does not own its elements, and the replay comes later: pass a "
                  "std::vector to lowtide::checkpoint");
  } else if constexpr (IsContainer<T>::value) {
    if constexpr (std::is_class_v<typename T::value_type> &&
                  std::is_reference_v<decltype(*value.begin())>) {
      for (auto& part : value) for_each_tensor(part, found);
    }
  }
}

// A region's function with its inputs, as the library sees it.
class LOWTIDE_API RegionBody {
 public:
  RegionBody() = default;
  virtual ~RegionBody();
  RegionBody(const RegionBody&) = delete;
  RegionBody& operator=(const RegionBody&) = delete;

  // The places of the inputs' tensors, in a fixed order.
  virtual void collect_inputs(std::vector<at::Tensor*>& places) = 0;
  // Runs the function on what is in those places and drops the result.
  virtual void run_again() = 0;
  // Whether the function is another language's, whose errors pass through it.
  virtual bool is_hosts() const { return false; }
};

template <class F, class Arg>
decltype(auto) call_one(F& fn, Arg& argument) {
  if constexpr (std::is_invocable_v<F&, Arg&>) {
    return std::invoke(fn, argument);
  } else {
    return std::invoke(fn, std::move(argument));
  }
}

// `inputs` is the caller's own copy: lvalues of it where the function takes them, else moved.
template <class F, class In>
decltype(auto) call(F& fn, In& inputs) {
  if constexpr (IsInstance<In, std::tuple>::value) {
    return std::apply(
        [&fn](auto&... arguments) -> decltype(auto) {
          if constexpr (std::is_invocable_v<F&, decltype(arguments)...>) {
            return std::invoke(fn, arguments...);
          } else {
            return std::invoke(fn, std::move(arguments)...);
          }
        },
        inputs);
  } else {
    return call_one(fn, inputs);
  }
}

template <class F, class In>
class Body final : public RegionBody {
 public:
  template <class F2, class In2>
  Body(F2&& fn, In2&& inputs) : fn_(std::forward<F2>(fn)), inputs_(std::forward<In2>(inputs)) {}

  void collect_inputs(std::vector<at::Tensor*>& places) override {
    auto found = [&places](at::Tensor& tensor) { places.push_back(&tensor); };
    for_each_tensor(inputs_, found);
  }
  void run_again() override {
    In inputs = inputs_;
    if constexpr (std::is_copy_constructible_v<F>) {
      F fn = fn_;  // state that the function changes in itself starts anew
      static_cast<void>(call(fn, inputs));
    } else {
      static_cast<void>(call(fn_, inputs));
    }
  }
  F& function() { return fn_; }

 private:
  F fn_;
  In inputs_;
};

// The first run of a region, from construction to finish().
class LOWTIDE_API FirstRun {
 public:
  FirstRun(std::shared_ptr<RegionBody> body, const CheckpointOptions& options);
  // Without finish() (an exception is under way) undoes what the constructor did.
  ~FirstRun();
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;

  void finish();

  // False where nothing would be recorded: grad mode is off.
  static bool needed();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

[[noreturn]] LOWTIDE_API void refuse_segments(std::int64_t segments, std::int64_t modules);
[[noreturn]] LOWTIDE_API void refuse_clone(const std::string& module);

}  // namespace detail

// Runs fn(inputs) now and returns its result; backward runs it again instead of finding what it
// saved.
//
// A std::tuple of inputs is spread over fn's parameters; anything else is its one argument (to pass
// a tuple as one argument, wrap it in another). `fn` and `inputs` are copied and kept until the
// graph is freed; what `fn` captures by reference must live as long. A move-only `fn` is moved, and
// then keeps what it changes in itself from run to run. Tensors that `fn` captures work, but those
// given as inputs are better: they may be changed in place by the region, are offloaded, and are
// freed with the graph.
//
// Throws what fn throws. Later, from backward: DivergenceError LT0201 (the replay saved another
// tensor), LT0202 (it saved fewer, or more), LT0203 (a tensor that the region read was changed in
// place since), LT0204 (it changes in place a captured tensor that needs grad), LT0205 (it drew by
// hand from a generator that options.generators does not list), LT0208 (it writes to a tensor that
// the first run did not write to); c10::Error where plain autograd would throw it; what fn throws
// when it runs again. All of them leave generators, buffers, grad mode and autocast as they were.
// IoError LT0210 or LT0211 if offloading fails, with nothing lost.
template <class F, class In>
auto checkpoint(F&& fn, In&& inputs, const CheckpointOptions& options = {}) {
  using Function = std::decay_t<F>;
  using Inputs = std::decay_t<In>;
  static_assert(std::is_copy_constructible_v<Inputs>,
                "the inputs of lowtide::checkpoint are used again in each replay: they must be "
                "copyable");
  Inputs arguments = inputs;
  if (!detail::FirstRun::needed()) return detail::call(fn, arguments);

  if constexpr (std::is_copy_constructible_v<Function>) {
    auto body = std::make_shared<detail::Body<Function, Inputs>>(std::as_const(fn),
                                                                 std::forward<In>(inputs));
    detail::FirstRun run(std::move(body), options);
    if constexpr (std::is_void_v<decltype(detail::call(fn, arguments))>) {
      detail::call(fn, arguments);
      run.finish();
    } else {
      auto result = detail::call(fn, arguments);
      run.finish();
      return result;
    }
  } else {
    auto body = std::make_shared<detail::Body<Function, Inputs>>(std::forward<F>(fn),
                                                                 std::forward<In>(inputs));
    Function& function = body->function();
    detail::FirstRun run(body, options);
    if constexpr (std::is_void_v<decltype(detail::call(function, arguments))>) {
      detail::call(function, arguments);
      run.finish();
    } else {
      auto result = detail::call(function, arguments);
      run.finish();
      return result;
    }
  }
}

namespace detail {

// What checkpoint() is to call for a module: its class's own forward, not the wrapper's.
template <class Wrapper, class M, class R, class... Args>
struct CallForward {
  std::shared_ptr<Wrapper> module;
  R operator()(std::decay_t<Args>&... arguments) const {
    return module->M::forward(static_cast<Args&&>(arguments)...);
  }
};

template <class M, class = void>
struct ForwardPointer {
  using type = void;  // a template or an overload set, such as Sequential's
};
template <class M>
struct ForwardPointer<M, std::void_t<decltype(&M::forward)>> {
  using type = decltype(&M::forward);
};

template <class M, class Pointer>
class CheckpointedForward;

template <class M, class C, class R, class... Args>
class CheckpointedForward<M, R (C::*)(Args...)> : public M {
 public:
  CheckpointedForward(const M& module, CheckpointOptions region_options)
      : M(module), checkpoint_options_(std::move(region_options)) {}

  R forward(Args... arguments) {
    using Call = CallForward<CheckpointedForward, M, R, Args...>;
    auto self = std::static_pointer_cast<CheckpointedForward>(this->shared_from_this());
    return checkpoint(Call{std::move(self)}, std::tuple<std::decay_t<Args>...>(arguments...),
                      checkpoint_options_);
  }

  const CheckpointOptions& checkpoint_options() const { return checkpoint_options_; }

 private:
  CheckpointOptions checkpoint_options_;
};

template <class M, class C, class R, class... Args>
class CheckpointedForward<M, R (C::*)(Args...) const>
    : public CheckpointedForward<M, R (C::*)(Args...)> {
 public:
  using CheckpointedForward<M, R (C::*)(Args...)>::CheckpointedForward;
};

template <class M>
class CheckpointedForward<M, void> : public CheckpointedForward<M, at::Tensor (M::*)(at::Tensor)> {
 public:
  using CheckpointedForward<M, at::Tensor (M::*)(at::Tensor)>::CheckpointedForward;
};

}  // namespace detail

// A module of class M whose forward is a checkpointed region; made by checkpoint_wrapper. It is an
// M: names in the state dict, parameters, children, train() and to() are M's. clone() clones M and
// wraps the clone, so that its regions use its own weights. M::forward must be a plain function to
// be wrapped with its signature; a template (Sequential's) becomes forward(at::Tensor) ->
// at::Tensor. Default arguments of M::forward do not carry over: pass all of them.
//
// A region keeps the module alive until its graph is freed.
template <class M>
class Checkpointed final
    : public detail::CheckpointedForward<M, typename detail::ForwardPointer<M>::type> {
  using Base = detail::CheckpointedForward<M, typename detail::ForwardPointer<M>::type>;

 public:
  using Base::Base;

  // Throws UsageError LT0207 if M::clone() does not give an M.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::dynamic_pointer_cast<M>(M::clone(device));
    if (copy == nullptr) detail::refuse_clone(this->name());
    return std::make_shared<Checkpointed>(*copy, this->checkpoint_options());
  }
};

// Returns a checkpointed module that shares parameters, buffers and children with `module`, which
// may be dropped then. Usable wherever M is: in Sequential, AnyModule, register_module.
template <class M>
std::shared_ptr<Checkpointed<M>> checkpoint_wrapper(const std::shared_ptr<M>& module,
                                                    CheckpointOptions options = {}) {
  return std::make_shared<Checkpointed<M>>(*module, std::move(options));
}
template <class Holder, class M = typename Holder::ContainedType>
std::shared_ptr<Checkpointed<M>> checkpoint_wrapper(const Holder& module,
                                                    CheckpointOptions options = {}) {
  return std::make_shared<Checkpointed<M>>(*module.ptr(), std::move(options));
}

// Runs a torch::nn::Sequential (or a pointer to its Impl) in `segments` parts of nearly equal
// numbers of modules, each a region except the last, which backward needs at once. Each module
// takes and gives one tensor. Throws UsageError LT0206 unless 1 <= segments <= number of modules.
template <class Sequential>
at::Tensor checkpoint_sequential(const Sequential& sequential, std::int64_t segments,
                                 const at::Tensor& input, const CheckpointOptions& options = {}) {
  const auto modules = static_cast<std::int64_t>(sequential->size());
  if (segments < 1 || segments > modules) detail::refuse_segments(segments, modules);
  auto run = [layers = Sequential(sequential)](at::Tensor x, std::int64_t begin,
                                               std::int64_t end) mutable {
    for (auto module = layers->begin() + begin; module != layers->begin() + end; ++module) {
      x = module->template forward<at::Tensor>(std::move(x));
    }
    return x;
  };
  at::Tensor x = input;
  for (std::int64_t i = 0; i < segments; ++i) {
    const std::int64_t begin = i * modules / segments;
    const std::int64_t end = (i + 1) * modules / segments;
    x = i + 1 == segments ? run(std::move(x), begin, end)
                          : checkpoint(run, std::make_tuple(std::move(x), begin, end), options);
  }
  return x;
}

}  // namespace lowtide
