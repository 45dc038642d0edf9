#include "src/hook/op_interceptor.h"

#include "src/hook/host_errors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

#include <memory>
#include <mutex>
#include <string>

#include "src/hook/generator_state.h"
#include "src/hook/op_observer.h"

// Every dispatcher call computes its key set from the tensors and from thread-local included and
// excluded keys, and takes the highest key's kernel. A key above all others that no library uses
// gets a boxed fallback here, once, when the library is loaded; including that key for a thread
// turns the observers on, and a thread that does not include it pays nothing.
//
// The fallback passes the call on with redispatchBoxed and the keys below its own. The key stays
// included meanwhile, so calls made by the op come here again (see Note [Where a call stands]).
//
// torch names the key for tests; kObserverKey is the one place that says so. Checked for
// torch 2.13: no kernel and no other fallback uses it. A second registration throws at load.
//
// Tested by tests/checkpoint.

namespace lowtide::hook {
namespace {

constexpr auto kObserverKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
// torch.func's transforms, Python's dispatch modes, and what goes with either.
constexpr c10::DispatchKeySet kTransforms =
    c10::functorch_transforms_ks | c10::python_ks |
    c10::DispatchKeySet({c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                         c10::DispatchKey::FuncTorchDynamicLayerBackMode,
                         c10::DispatchKey::FuncTorchBatchedDecomposition,
                         c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::Functionalize,
                         c10::DispatchKey::PreDispatch, c10::DispatchKey::PythonDispatcher});
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kObserverKey);

OpTraits make_traits(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OpTraits traits{&schema, schema.arguments().size(), 0, 0, !schema.is_mutable(), -1};
  std::uint64_t running_statistics = 0;
  for (std::size_t i = 0; i < traits.num_arguments && i < 64; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const std::uint64_t bit = std::uint64_t{1} << i;
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      traits.written_arguments |= bit;
    }
    if (argument.name() == "running_mean" || argument.name() == "running_var") {
      running_statistics |= bit;
    }
    const auto& type = argument.type();
    if (type->kind() == c10::TypeKind::GeneratorType ||
        (type->kind() == c10::TypeKind::OptionalType &&
         type->expectRef<c10::OptionalType>().getElementType()->kind() ==
             c10::TypeKind::GeneratorType)) {
      traits.generator_argument = static_cast<int>(i);
    }
  }
  traits.declared_written = traits.written_arguments;
  if (running_statistics != 0 && schema.name().find("backward") == std::string::npos) {
    traits.written_arguments |= running_statistics;
    traits.functional = false;
  }
  return traits;
}

const OpTraits& traits_of(const c10::OperatorHandle& op) {
  // A schema lives as long as its operator; each thread has its own cache, so no lock is needed.
  // Entries are on the heap because nested calls may grow the table while one is in use.
  thread_local ska::flat_hash_map<const c10::FunctionSchema*, std::unique_ptr<OpTraits>> cache;
  auto& entry = cache[&op.schema()];
  if (entry == nullptr) entry = std::make_unique<OpTraits>(make_traits(op));
  return *entry;
}

thread_local OpInterception* innermost = nullptr;
thread_local int depth = 0;
thread_local const OpTraits* running_traits = nullptr;

// Guards nothing of ours: see the header. Recursive, because ops that draw call each other.
std::recursive_mutex& draw_mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

at::Generator generator_of(OpCall& call) {
  const c10::IValue& given =
      call.argument(static_cast<std::size_t>(call.traits.generator_argument));
  if (given.isGenerator()) {
    at::Generator generator = given.toGenerator();
    if (generator.defined()) return generator;
  }
  for (std::size_t i = 0; i < call.traits.num_arguments; ++i) {
    const c10::IValue& argument = call.argument(i);
    if (argument.isTensor() && argument.toTensor().defined()) {
      return default_generator(argument.toTensor().device());
    }
    if (argument.isDevice()) return default_generator(argument.toDevice());
  }
  return default_generator();
}

struct DepthScope {
  const OpTraits* const before = running_traits;
  explicit DepthScope(const OpTraits& op) {
    running_traits = &op;
    ++depth;
  }
  ~DepthScope() {
    running_traits = before;
    --depth;
  }
};

}  // namespace

struct OpInterception::State {
  static void before(OpInterception* shown, OpCall& call) {
    if (shown->also_shown_ != nullptr) before(shown->also_shown_, call);
    with_host_errors([&] { shown->observer_.before(call); });
  }

  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                        std::vector<c10::IValue>* stack) {
    OpInterception* const shown = innermost;
    if (shown == nullptr) {
      op.redispatchBoxed(keys & kBelow, stack);
      return;
    }
    const bool below_autograd = c10::impl::tls_local_dispatch_key_set().excluded_.has(
        c10::DispatchKey::AutogradFunctionality);
    OpCall call{traits_of(op), *stack, depth == 0, depth > 0 && below_autograd, {}, {}};
    std::unique_lock<std::recursive_mutex> drawing(draw_mutex(), std::defer_lock);
    if (call.traits.generator_argument >= 0) {
      drawing.lock();
      call.asked_generator = call.generator = generator_of(call);
    }
    before(shown, call);
    {
      DepthScope scope(call.traits);
      op.redispatchBoxed(keys & kBelow, stack);
    }
    const std::size_t num_results = call.traits.schema->returns().size();
    for (OpInterception* i = shown; i != nullptr; i = i->also_shown_) {
      i->observer_.after(call, num_results);
    }
  }
};

namespace {

// Leaked: ops run until the very end of the process.
[[gnu::used]] auto* const registration =
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
        kObserverKey,
        c10::KernelFunction::makeFromBoxedFunction<&OpInterception::State::intercept>(),
        "registered by Lowtide"));

}  // namespace

std::string op_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

OpObserver::~OpObserver() = default;

DrawHold::DrawHold() { draw_mutex().lock(); }
DrawHold::~DrawHold() { draw_mutex().unlock(); }

void OpCall::replace_generator(const at::Generator& asked, const at::Generator& used) {
  asked_generator = asked;
  generator = used;
  argument(static_cast<std::size_t>(traits.generator_argument)) = used;
  running_op_draws_from(used);
}

OpInterception::OpInterception(OpObserver& observer, Outer outer)
    : observer_(observer),
      outer_(innermost),
      also_shown_(outer == Outer::kShare ? innermost : nullptr),
      depth_before_(depth),
      op_before_(running_traits),
      included_before_(c10::impl::tls_is_dispatch_key_included(kObserverKey)) {
  innermost = this;
  depth = 0;
  running_traits = nullptr;
  if (!included_before_) c10::impl::tls_set_dispatch_key_included(kObserverKey, true);
}

OpInterception::~OpInterception() {
  if (!included_before_) c10::impl::tls_set_dispatch_key_included(kObserverKey, false);
  innermost = outer_;
  depth = depth_before_;
  running_traits = op_before_;
}

const OpTraits* OpInterception::current_op() noexcept { return running_traits; }
bool OpInterception::active() noexcept { return innermost != nullptr; }

UnobservedOps::UnobservedOps() : before_(c10::impl::tls_local_dispatch_key_set()) {
  c10::impl::LocalDispatchKeySet now = before_;
  now.included_ = now.included_.remove(kObserverKey) - kTransforms;
  now.excluded_ = now.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                  c10::autocast_dispatch_keyset | kTransforms;
  c10::impl::_force_tls_local_dispatch_key_set(now);
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    modes_ = c10::impl::TorchDispatchModeTLS::get_state();
    c10::impl::TorchDispatchModeTLS::set_state({});
  }
}

UnobservedOps::~UnobservedOps() {
  // Setting the modes includes or excludes their keys, so the keys come last.
  if (modes_) c10::impl::TorchDispatchModeTLS::set_state(std::move(*modes_));
  c10::impl::_force_tls_local_dispatch_key_set(before_);
}

}  // namespace lowtide::hook
