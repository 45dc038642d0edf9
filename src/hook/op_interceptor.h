#pragma once
// Sees each dispatcher call of this thread before and after it runs; may change its arguments,
// and may stop it by throwing.
//
//   class Printer : public hook::OpObserver { ... };
//   Printer printer;
//   hook::OpInterception seen(printer);   // until the scope ends
//
// Unlike a RecordFunction callback, an observer may throw (callbacks' exceptions are swallowed), is
// not limited in number, and leaves the profiler's slots alone. It costs a boxed call: about 0.3 us
// an op, only while a scope is active on the thread. Ops that draw random numbers are run one at a
// time among all observed threads, so that an observer can tell what a shared generator gave to
// which.
//
// Note [Where a call stands]
// Composite ops (linear, dropout, batch_norm) are implemented by calling other ops; so are many
// kernels. Observers see all of these calls. `top_level` is a call made by the user's code (or by
// libtorch outside of any op); `inside_kernel` is one made by a kernel below autograd, which
// cannot be told apart from the kernel's own arithmetic: nothing is saved there.

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
struct FunctionSchema;
}  // namespace c10

namespace lowtide::hook {

// What is constant for an operator.
struct OpTraits {
  const c10::FunctionSchema* schema;
  std::size_t num_arguments;
  // Bit i: argument i may be written (64 arguments at most; no aten op has more). Includes what
  // schemas do not say: the running statistics of batch norm.
  std::uint64_t written_arguments;
  // Those of them that the schema declares: autograd gives them a new history.
  std::uint64_t declared_written;
  // Whether the schema alone says that nothing is written.
  bool functional;
  // Position of the Generator argument, or -1.
  int generator_argument;
};

// "aten::add_.Tensor". Allocates: for messages.
std::string op_name(const c10::FunctionSchema& schema);

struct OpCall {
  const OpTraits& traits;
  std::vector<c10::IValue>& stack;  // arguments are its last num_arguments entries
  bool top_level;
  bool inside_kernel;
  // For ops that take a generator: the one that was passed, or the default one; and the one that
  // the op will draw from, which an observer may replace with replace_generator().
  at::Generator asked_generator;
  at::Generator generator;

  c10::IValue& argument(std::size_t i) { return stack[stack.size() - traits.num_arguments + i]; }
  void replace_generator(const at::Generator& asked, const at::Generator& used);
};

class OpObserver {
 public:
  virtual ~OpObserver();
  // Before the call, outermost observer first; an exception stops it and travels to the caller.
  virtual void before(OpCall& call) = 0;
  // After it returned, innermost observer first; `stack` ends with its `num_results` results. Not
  // called when the op throws.
  virtual void after(const OpCall& call, std::size_t num_results) = 0;
};

// Shows this thread's ops to `observer` while it lives; ends in reverse order, on its own thread.
class OpInterception {
 public:
  enum class Outer {
    kShare,  // observers further out see the ops too
    kPause,  // they see nothing while this one is active
  };
  OpInterception(OpObserver& observer, Outer outer);
  ~OpInterception();
  OpInterception(const OpInterception&) = delete;
  OpInterception& operator=(const OpInterception&) = delete;

  // The op that runs, innermost, or null; known only while an interception is active.
  static const OpTraits* current_op() noexcept;
  // Whether any observer is active on this thread.
  static bool active() noexcept;

  struct State;

 private:
  friend struct State;
  OpObserver& observer_;
  OpInterception* const outer_;       // what to go back to
  OpInterception* const also_shown_;  // who else sees the ops
  int depth_before_;
  const OpTraits* op_before_;
  bool included_before_;
};

// Keeps observed ops on other threads from drawing random numbers while it lives. For who sets the
// state of a generator that others draw from: an op's state must not change under it.
class DrawHold {
 public:
  DrawHold();
  ~DrawHold();
  DrawHold(const DrawHold&) = delete;
  DrawHold& operator=(const DrawHold&) = delete;
};

// Hides the ops of its own from the observers while it lives, and runs them below autograd,
// autocast, torch.func's transforms and Python's dispatch modes.
class UnobservedOps {
 public:
  UnobservedOps();
  ~UnobservedOps();
  UnobservedOps(const UnobservedOps&) = delete;
  UnobservedOps& operator=(const UnobservedOps&) = delete;

 private:
  c10::impl::LocalDispatchKeySet before_;
  // The modes that are entered; kernels ask whether there are any.
  std::optional<c10::impl::TorchDispatchModeTLS> modes_;
};

}  // namespace lowtide::hook
