#pragma once
// Sees the leaf ops of the whole process: which op ran, on what, with what result.
//
//   class Recorder : public hook::OpListener { ... };
//   hook::listen_to_ops(&recorder);     // every thread, from now on
//   hook::listen_to_ops(nullptr);
//
// Note [Leaf ops]
// A leaf op is the outermost dispatcher call that does arithmetic of its own. Composite calls
// (linear, lstm, dropout) are transparent: their parts are the leaves. So are calls that autocast,
// __torch_dispatch__ or functorch take over: what they call below is the leaf. What a leaf calls
// inside is the kernel's own business and is not seen.
//
// This is RecordFunction underneath: it sees all threads, and costs about 0.1 us an op. Exceptions
// cannot leave a RecordFunction callback: a listener must not throw. OpInterception
// (op_interceptor.h) is the other way to see ops: it may throw and change arguments, on one thread.

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lowtide/export.h"

namespace lowtide::hook {

// What is constant for an operator. Made once, never freed.
struct Operator {
  c10::OperatorHandle handle;
  std::string name;                 // "aten::add_.Tensor"
  std::uint64_t written_arguments;  // bit i: argument i is written, by its schema's alias marks
  int generator_argument;           // position, or -1
  bool composite;                   // on the CPU it is made of other ops
  bool has_autocast;                // autocast has a kernel for it
  bool is_aten;
  bool is_random;   // draws from a generator
  bool is_factory;  // leaves its result's contents undefined (empty and its kin)
  bool
      reads_shapes;  // looks at its inputs' sizes and dtype only (empty_like, rand_like, new_zeros)
  bool fills_whole;  // in-place, and its result does not depend on what was there (fill_, copy_)
  bool is_batch_norm;  // writes running statistics that its schema does not mark
  // For one that draws and takes no generator: the overload that is the same with one, at
  // `drawing_position` among its arguments.
  std::optional<c10::OperatorHandle> drawing;
  int drawing_position = -1;
};

// Belongs to one call of a leaf op; made by the listener in before().
struct OpTicket : at::ObserverContext {
  const Operator* op = nullptr;
  // The op, or one that its kernel calls, draws from `generator` and not from what it was given.
  virtual void draws_from(const at::Generator& /*generator*/) {}
  bool is_for_listener = true;
  class OpWatcher* watcher = nullptr;  // has seen its before()
};

class OpListener {
 public:
  virtual ~OpListener() = default;

  // Before the kernel. `inputs` are valid during the call only. Null: after() is not called.
  // Runs on the op's thread with the observer paused. Must not throw.
  virtual std::unique_ptr<OpTicket> before(const Operator& op,
                                           c10::ArrayRef<c10::IValue> inputs) noexcept = 0;
  // After it, also when it threw: then `outputs` is empty.
  virtual void after(OpTicket& ticket, c10::ArrayRef<c10::IValue> outputs) noexcept = 0;
};

// Sees the same ops beside the listener, without tickets: who only watches.
class OpWatcher {
 public:
  virtual ~OpWatcher() = default;

  // Before the listener's, and after it. Must not throw, nor keep anything of what it is shown.
  virtual void before(const Operator& op, c10::ArrayRef<c10::IValue> inputs) noexcept = 0;
  virtual void after(const Operator& op, c10::ArrayRef<c10::IValue> outputs) noexcept = 0;
};

// As listen_to_ops(), for one watcher. It must live for ever: the end of an op whose beginning it
// saw is shown to it even when it was taken away meanwhile. May be called by the watcher itself.
LOWTIDE_API void watch_ops(OpWatcher* watcher);

// Shows ops to `listener` from now on; null stops it and costs nothing afterwards. One listener at
// a time. Calls on other threads that are under way may still reach the old listener.
LOWTIDE_API void listen_to_ops(OpListener* listener);

// The leaf op that runs on this thread and that the listener has a ticket for; else null.
LOWTIDE_API const Operator* running_op() noexcept;
// Tells its ticket which generator it draws from; see OpCall::replace_generator().
void running_op_draws_from(const at::Generator& generator);
// Nodes of the graph that it made have this sequence number or a later one, on this thread.
std::uint64_t first_node_of_running_op() noexcept;

// Hides this thread's ops from the listener while it lives.
class LOWTIDE_API ObserverPause {
 public:
  ObserverPause() noexcept;
  ~ObserverPause();
  ObserverPause(const ObserverPause&) = delete;
  ObserverPause& operator=(const ObserverPause&) = delete;

 private:
  bool before_;
};

}  // namespace lowtide::hook
