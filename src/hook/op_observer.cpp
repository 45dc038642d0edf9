// RecordFunction callbacks, narrowed to leaf ops (see Note [Leaf ops]).
//
// The callback is added once when the library is loaded, as libtorch asks, and disabled at once;
// listening enables it. Operators are recognised by the address of their name, which lives in the
// operator's schema: asking RecordFunction for the schema would copy it each time.
//
// Which kernel runs for a composite op follows the dispatcher's own rule: on the CPU the composite
// kernel is taken unless the op has a kernel of its own for CPU, AutogradCPU or for all backends.
// Eleven aten ops have a composite kernel and others; that rule decides each as it runs.
//
// Checked with torch 2.13.0. Tested by tests/fit/budget_test.cpp.

#include "src/hook/op_observer.h"

#include <ATen/Parallel.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/function_schema.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/flat_hash_map.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace lowtide::hook {
namespace {

using c10::DispatchKey;

std::atomic<OpListener*> g_listener{nullptr};
std::atomic<OpWatcher*> g_watcher{nullptr};
thread_local bool t_hidden = false;  // inside a leaf op, or paused
thread_local const Operator* t_running = nullptr;
thread_local OpTicket* t_ticket = nullptr;    // of t_running
thread_local std::uint64_t t_first_node = 0;  // number of the first node that it may make

constexpr std::array<std::string_view, 9> kFactories{"aten::empty",
                                                     "aten::empty_like",
                                                     "aten::empty_strided",
                                                     "aten::new_empty",
                                                     "aten::new_empty_strided",
                                                     "aten::empty_permuted",
                                                     "aten::empty_quantized",
                                                     "aten::_empty_affine_quantized",
                                                     "aten::resize_"};

constexpr std::array<std::string_view, 12> kReadShapes{
    "aten::empty_like", "aten::new_empty", "aten::new_empty_strided", "aten::zeros_like",
    "aten::ones_like",  "aten::full_like", "aten::new_zeros",         "aten::new_ones",
    "aten::new_full",   "aten::rand_like", "aten::randn_like",        "aten::randint_like"};

constexpr std::array<std::string_view, 11> kWholeFills{
    "aten::fill_",    "aten::zero_",       "aten::copy_",     "aten::normal_",
    "aten::uniform_", "aten::bernoulli_",  "aten::random_",   "aten::exponential_",
    "aten::cauchy_",  "aten::log_normal_", "aten::geometric_"};

template <std::size_t n>
bool is_one_of(const std::string& name, const std::array<std::string_view, n>& names) {
  for (const std::string_view candidate : names) {
    if (name == candidate) return true;
  }
  return false;
}

bool runs_as_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(DispatchKey::AutogradCPU) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
}

bool takes_generator(const c10::Argument& argument) {
  const auto& type = argument.type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->expectRef<c10::OptionalType>().getElementType()->kind() ==
             c10::TypeKind::GeneratorType;
}

// rand -> rand.generator, randint.low -> randint.low_generator, low_dtype -> low_generator_dtype.
void find_drawing_overload(Operator& described) {
  const c10::FunctionSchema& schema = described.handle.schema();
  const std::string& overload = schema.overload_name();
  std::string name = overload.empty() ? "generator" : overload + "_generator";
  if (overload == "low_dtype") name = "low_generator_dtype";
  const auto other = c10::Dispatcher::singleton().findSchema({schema.name(), name});
  if (!other.has_value()) return;
  const auto& with = other->schema().arguments();
  const auto& without = schema.arguments();
  if (with.size() != without.size() + 1) return;
  int position = -1;
  for (std::size_t i = 0, j = 0; i < with.size(); ++i) {
    if (position < 0 && takes_generator(with[i])) {
      position = static_cast<int>(i);
    } else if (j == without.size() || with[i].name() != without[j++].name()) {
      return;
    }
  }
  described.drawing = *other;
  described.drawing_position = position;
}

Operator describe(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& base = schema.name();
  Operator described{op,
                     base,
                     0,
                     -1,
                     runs_as_composite(op),
                     false,
                     base.rfind("aten::", 0) == 0,
                     op.hasTag(at::Tag::nondeterministic_seeded),
                     is_one_of(base, kFactories),
                     is_one_of(base, kReadShapes),
                     is_one_of(base, kWholeFills),
                     base == "aten::native_batch_norm",
                     std::nullopt};
  if (!schema.overload_name().empty()) described.name += "." + schema.overload_name();
  described.has_autocast = op.hasKernelForDispatchKey(DispatchKey::AutocastCPU) &&
                           !op.isKernelFallthroughKernel(DispatchKey::AutocastCPU);
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      described.written_arguments |= std::uint64_t{1} << i;
    }
    if (takes_generator(arguments[i])) described.generator_argument = static_cast<int>(i);
  }
  if (described.is_random && described.generator_argument < 0) find_drawing_overload(described);
  return described;
}

// Null for ranges that are no operators (RECORD_FUNCTION in user code).
const Operator* find_operator(const at::RecordFunction& range) {
  thread_local ska::flat_hash_map<const char*, const Operator*> cache;
  const char* key = range.name();
  const auto cached = cache.find(key);
  if (cached != cache.end()) return cached->second;

  const auto name = range.operator_name();
  if (!name.has_value()) return nullptr;
  const auto handle = c10::Dispatcher::singleton().findSchema(*name);
  // A range may carry a schema that is not the dispatcher's (a TorchScript function's).
  if (!handle.has_value() || handle->schema().name().c_str() != key) return nullptr;

  static std::mutex mutex;
  static auto& all = *new std::unordered_map<const char*, std::unique_ptr<const Operator>>;
  const std::lock_guard lock(mutex);
  auto& entry = all[key];
  if (entry == nullptr) entry = std::make_unique<const Operator>(describe(*handle));
  return cache[key] = entry.get();
}

// Whether something above autograd takes the call and makes other calls of it.
bool is_taken_over(const Operator& op) {
  const auto& keys = c10::impl::tls_local_dispatch_key_set();
  if (op.has_autocast && !keys.excluded_.has(DispatchKey::AutocastCPU)) return true;
  if (keys.included_.has(DispatchKey::FuncTorchDynamicLayerFrontMode) &&
      !keys.excluded_.has(DispatchKey::FuncTorchDynamicLayerFrontMode)) {
    return true;
  }
  return !keys.excluded_.has(DispatchKey::Python) &&
         c10::impl::TorchDispatchModeTLS::any_modes_set(/*skip_infra_modes=*/true);
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& range) {
  if (t_hidden || at::in_parallel_region()) return nullptr;
  OpListener* listener = g_listener.load(std::memory_order_acquire);
  OpWatcher* watcher = g_watcher.load(std::memory_order_acquire);
  if (listener == nullptr && watcher == nullptr) return nullptr;
  const Operator* op = find_operator(range);
  if (op == nullptr || op->composite || is_taken_over(*op)) return nullptr;
  const std::size_t count = range.num_inputs();
  const auto inputs = range.inputs().slice(range.inputs().size() - count, count);
  t_hidden = true;
  if (watcher != nullptr) watcher->before(*op, inputs);
  std::unique_ptr<OpTicket> ticket;
  if (listener != nullptr) ticket = listener->before(*op, inputs);
  if (ticket == nullptr) {
    if (watcher == nullptr) {
      t_hidden = false;
      return nullptr;
    }
    ticket = std::make_unique<OpTicket>();
    ticket->is_for_listener = false;
  }
  ticket->op = op;
  ticket->watcher = watcher;
  t_running = op;
  t_ticket = ticket.get();
  t_first_node = at::sequence_number::peek();
  return ticket;
}

void on_end(const at::RecordFunction& range, at::ObserverContext* context) {
  if (context == nullptr) return;
  t_running = nullptr;
  t_ticket = nullptr;
  auto& ticket = static_cast<OpTicket&>(*context);
  const auto& all = range.outputs();
  const std::size_t count = std::min(range.num_outputs(), all.size());
  const auto outputs = c10::ArrayRef<c10::IValue>(all).slice(all.size() - count, count);
  if (OpListener* listener = g_listener.load(std::memory_order_acquire)) {
    if (ticket.is_for_listener) listener->after(ticket, outputs);
  }
  if (ticket.watcher != nullptr) ticket.watcher->after(*ticket.op, outputs);
  t_hidden = false;
}

const at::CallbackHandle g_callback = [] {
  const at::CallbackHandle handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                .needsInputs(true)
                                .needsOutputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
  at::disableCallback(handle);
  return handle;
}();

void enable_callback_as_needed() {
  static std::mutex mutex;
  static bool is_enabled = false;
  const std::lock_guard lock(mutex);
  const bool is_needed = g_listener.load(std::memory_order_relaxed) != nullptr ||
                         g_watcher.load(std::memory_order_relaxed) != nullptr;
  if (is_needed == is_enabled) return;
  is_enabled = is_needed;
  if (is_needed) {
    at::reenableCallback(g_callback);
  } else {
    at::disableCallback(g_callback);
  }
}

}  // namespace

void listen_to_ops(OpListener* listener) {
  g_listener.store(listener, std::memory_order_release);
  enable_callback_as_needed();
}

void watch_ops(OpWatcher* watcher) {
  g_watcher.store(watcher, std::memory_order_release);
  enable_callback_as_needed();
}

const Operator* running_op() noexcept { return t_running; }

void running_op_draws_from(const at::Generator& generator) {
  if (t_ticket != nullptr) t_ticket->draws_from(generator);
}

std::uint64_t first_node_of_running_op() noexcept { return t_first_node; }

ObserverPause::ObserverPause() noexcept : before_(t_hidden) { t_hidden = true; }
ObserverPause::~ObserverPause() { t_hidden = before_; }

}  // namespace lowtide::hook
