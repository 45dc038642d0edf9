#include "lowtide/checkpoint.h"

#include <c10/core/GradMode.h>

#include <mutex>
#include <sstream>
#include <utility>

#include "lowtide/error.h"
#include "src/base/assert.h"
#include "src/base/text.h"
#include "src/checkpoint/kept_input.h"
#include "src/checkpoint/region_trace.h"
#include "src/hook/ambient_state.h"
#include "src/hook/host.h"
#include "src/hook/host_errors.h"
#include "src/hook/op_interceptor.h"
#include "src/hook/saved_tensor_hooks.h"

// How a region gives its memory back and gets it again.
//
// During the first run each tensor that autograd saves gets a hook object that does not hold the
// tensor: only the number of the slot, and the region's frame. The frame holds the function, its
// inputs, and for each slot what the tensor looked like. Hooks hold the frame, and nothing else
// does, so it goes when the region's graph goes.
//
// When backward unpacks the first slot, the function is run again from the kept inputs with hooks
// that put the i-th saved tensor into slot i, and hold it by reference: an op that fills the tensor
// after it was saved (rrelu's noise) is seen. Once a backward (a graph task) one replay serves all
// slots; a slot's tensor is let go when its node frees it, or when it was handed out if the graph
// is kept, so a retained graph does not hold every region's tensors at once.
//
// The replay stops at the last slot that is still wanted. If the op that packs it may yet write to
// its arguments the op is let finish, and the stop comes with the next op; else it comes at once,
// and the op's own work is spared. A custom function that saves is let finish too: libtorch's node
// for it, left by an exception there, would hold its own output for ever.
//
// Parameters are not waited for: a leaf that needs grad is held by its hook, as autograd would hold
// it.
//
// Nested regions need no care here. An inner region's inputs are saved as tensors of the outer one,
// so its replay first causes the outer one's, which stops once it has them.
//
// Worked example: f(x) = relu(x @ w1) @ w2 saves x, w1, relu's result r, r again, w2: five slots,
// of which w1 and w2 are held. backward of the last matmul unpacks slot 3: the replay computes x @
// w1 and relu, packs 0, 2 and 3, and stops before the second matmul.
//
// Threads: `mutex_` guards the slots and the replay; it is held while the function runs, so two
// backwards of one graph wait for each other here. Different regions have different frames.
//
// Tested by region_test.cpp and its siblings.

namespace lowtide {
namespace checkpoint_impl {
namespace {

constexpr std::int64_t kNoBackward = -1;
constexpr std::int64_t kNothingReplayed = -2;

struct Slot {
  // Sizes, then strides (strided tensors only).
  c10::SmallVector<std::int64_t, 8> geometry;
  std::uint32_t dims = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  hook::TensorVersion version;
  const c10::FunctionSchema* op = nullptr;
  std::uint64_t op_hash = 0;
  bool wanted = true;         // its hook is alive
  bool held_by_hook = false;  // and has the tensor itself
  at::Tensor tensor;          // from the last replay
};

void describe_geometry(const at::Tensor& tensor, Slot& slot) {
  slot.dtype = tensor.scalar_type();
  slot.device = tensor.device();
  if (tensor.is_nested()) return;
  const auto sizes = tensor.sizes();
  slot.dims = static_cast<std::uint32_t>(sizes.size());
  slot.geometry.assign(sizes.begin(), sizes.end());
  if (tensor.layout() != at::kStrided) return;
  const auto strides = tensor.strides();
  slot.geometry.append(strides.begin(), strides.end());
}

std::string to_text(const Slot& slot) {
  std::ostringstream out;
  const at::IntArrayRef all(slot.geometry);
  out << c10::toString(slot.dtype) << " of shape " << all.slice(0, slot.dims);
  if (all.size() > slot.dims) out << " and strides " << all.slice(slot.dims);
  out << " on " << slot.device;
  if (slot.op != nullptr) out << ", saved by " << hook::op_name(*slot.op);
  return std::move(out).str();
}

// PyTorch's own words, so that who looks for them finds them.
void check_version(const Slot& slot) {
  if (!slot.version.changed()) return;
  const at::IntArrayRef all(slot.geometry);
  TORCH_CHECK(
      false,
      "one of the variables needed for gradient computation has been modified by an inplace "
      "operation: [",
      c10::DeviceTypeName(slot.device.type()), c10::toString(slot.dtype), "Type ",
      all.slice(0, slot.dims), "] is at version ", slot.version.current(), "; expected version ",
      slot.version.recorded(),
      " instead. Hint: enable anomaly detection to find the operation that failed to compute "
      "its gradient, with torch.autograd.set_detect_anomaly(True).");
}

}  // namespace

class Frame final : public std::enable_shared_from_this<Frame> {
 public:
  Frame(std::shared_ptr<detail::RegionBody> body, const CheckpointOptions& options);

  RegionTrace& trace() noexcept { return trace_; }
  std::uint32_t pack(const at::Tensor& tensor, bool held_by_hook, std::uint64_t op_hash);
  void check(std::uint32_t index) const { check_version(slots_[index]); }
  at::Tensor unpack(std::uint32_t index);
  void release(std::uint32_t index) noexcept;
  void finish(const CheckpointOptions& options);

  // Takes the next tensor that a replay saves.
  void replay_pack(const at::Tensor& tensor);

 private:
  void replay(std::int64_t backward);
  [[noreturn]] void diverge(std::size_t index, const Slot& now) const;
  void drop_tensors() noexcept;

  const std::shared_ptr<detail::RegionBody> body_;
  const bool early_stop_;
  const hook::AmbientState ambient_;
  std::vector<std::optional<KeptInput>> inputs_;  // empty where the tensor given is undefined
  RegionTrace trace_;
  bool finished_ = false;

  std::recursive_mutex mutex_;
  std::vector<Slot> slots_;
  std::int64_t replayed_for_ = kNothingReplayed;

  // While a replay runs.
  struct Progress {
    ReplayObserver* observer;
    std::size_t expected;  // slots when it began; more may come if the first run is under way
    std::size_t stop_after;
    std::size_t next = 0;
    bool done = false;
    std::exception_ptr failure;
  };
  Progress* progress_ = nullptr;
};

namespace {

class FirstRunHooks final : public hook::IdentityHooks {
 public:
  FirstRunHooks(std::shared_ptr<Frame> frame, const FirstRunObserver& observer)
      : frame_(std::move(frame)), observer_(&observer) {}
  ~FirstRunHooks() override {
    if (packed_) frame_->release(index_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    hook::with_host_errors([&] { pack(tensor); });
  }
  at::Tensor call_unpack_hook() override {
    return hook::with_host_errors([&] { return unpack(); });
  }
  at::Tensor original() override { return parameter_; }
  void adopt(const at::Tensor& tensor) override { adopted_ = tensor; }

 private:
  void pack(const at::Tensor& tensor) {
    const bool is_parameter = tensor.requires_grad() && tensor.is_leaf();
    index_ = frame_->pack(tensor, is_parameter, observer_->op_hash());
    packed_ = true;
    // The Variable, not its data: who replaces the data of a parameter wants that seen.
    if (is_parameter) parameter_ = tensor;
  }
  at::Tensor unpack() {
    if (!parameter_.defined()) return frame_->unpack(index_);
    frame_->check(index_);
    return parameter_;
  }

  const std::shared_ptr<Frame> frame_;
  const FirstRunObserver* observer_;  // valid while packing
  std::uint32_t index_ = 0;
  bool packed_ = false;
  at::Tensor parameter_;
  at::Tensor adopted_;  // so that nobody takes it for his own
};

class FirstRunProvider final : public hook::SavedTensorProvider {
 public:
  FirstRunProvider(std::shared_ptr<Frame> frame, const FirstRunObserver& observer)
      : frame_(std::move(frame)), observer_(observer) {}
  std::unique_ptr<hook::SavedTensorHooks> make_hooks() override {
    return std::make_unique<FirstRunHooks>(frame_, observer_);
  }

 private:
  const std::shared_ptr<Frame> frame_;
  const FirstRunObserver& observer_;
};

// The replay's own graph keeps its tensors like any other, for who asks for gradients inside the
// region.
class ReplayHooks final : public hook::SavedTensorHooks {
 public:
  explicit ReplayHooks(Frame& frame) : frame_(&frame) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    held_ = tensor.requires_grad() && tensor.is_leaf() ? tensor : tensor.tensor_data();
    hook::with_host_errors([&] { frame_->replay_pack(tensor); });
  }
  at::Tensor call_unpack_hook() override { return held_; }

 private:
  Frame* frame_;  // valid while packing
  at::Tensor held_;
};

class ReplayProvider final : public hook::SavedTensorProvider {
 public:
  explicit ReplayProvider(Frame& frame) : frame_(frame) {}
  std::unique_ptr<hook::SavedTensorHooks> make_hooks() override {
    return std::make_unique<ReplayHooks>(frame_);
  }

 private:
  Frame& frame_;
};

// The body's inputs, there only while the replay runs.
class FilledInputs {
 public:
  FilledInputs(detail::RegionBody& body, const std::vector<std::optional<KeptInput>>& inputs,
               ReplayObserver& observer) {
    body.collect_inputs(places_);
    LOWTIDE_ASSERT(places_.size() == inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i]) *places_[i] = inputs[i]->for_replay(observer);
    }
  }
  ~FilledInputs() {
    for (at::Tensor* place : places_) *place = at::Tensor();
  }

 private:
  std::vector<at::Tensor*> places_;
};

}  // namespace

Frame::Frame(std::shared_ptr<detail::RegionBody> body, const CheckpointOptions& options)
    : body_(std::move(body)), early_stop_(options.early_stop) {
  std::vector<at::Tensor*> places;
  body_->collect_inputs(places);
  inputs_.reserve(places.size());
  for (at::Tensor* place : places) {
    inputs_.emplace_back();
    if (place->defined()) inputs_.back().emplace(*place);
    *place = at::Tensor();
  }
}

std::uint32_t Frame::pack(const at::Tensor& tensor, bool held_by_hook, std::uint64_t op_hash) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  Slot& slot = slots_.emplace_back();
  describe_geometry(tensor, slot);
  slot.version = hook::TensorVersion(tensor);
  const hook::OpTraits* const op = hook::OpInterception::current_op();
  slot.op = op == nullptr ? nullptr : op->schema;
  slot.op_hash = op_hash;
  slot.held_by_hook = held_by_hook;
  return static_cast<std::uint32_t>(slots_.size() - 1);
}

void Frame::release(std::uint32_t index) noexcept {
  at::Tensor freed_after_unlock;
  std::unique_lock<std::recursive_mutex> lock(mutex_, std::try_to_lock);
  if (!lock) {
    const hook::HostUnlocked unlocked;
    lock.lock();
  }
  slots_[index].wanted = false;
  std::swap(freed_after_unlock, slots_[index].tensor);
}

void Frame::finish(const CheckpointOptions& options) {
  std::shared_ptr<SpillFile> file;
  for (auto& input : inputs_) {
    if (!input) continue;
    input->follow_writes(trace_);
    input->first_run_ended();
  }
  finished_ = true;
  if (options.offload == Offload::kNone || slots_.empty()) return;
  for (auto& input : inputs_) {
    if (input) input->offload(options, file);
  }
}

void Frame::drop_tensors() noexcept {
  for (Slot& slot : slots_) slot.tensor = at::Tensor();
  replayed_for_ = kNothingReplayed;
}

at::Tensor Frame::unpack(std::uint32_t index) {
  const std::int64_t backward = hook::current_backward_id();
  const hook::HostUnlocked unlocked;
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  check_version(slots_[index]);
  if (backward == kNoBackward || backward != replayed_for_ || !slots_[index].tensor.defined()) {
    replay(backward);
  }
  at::Tensor result = slots_[index].tensor;
  LOWTIDE_ASSERT(result.defined());
  if (backward == kNoBackward) {
    drop_tensors();
  } else if (hook::current_backward_keeps_graph()) {
    slots_[index].tensor = at::Tensor();
  }
  return result;
}

void Frame::replay(std::int64_t backward) {
  drop_tensors();
  ReplayObserver observer(trace_, this);
  Progress progress{&observer, slots_.size(), 0, 0, false, nullptr};
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].wanted && !slots_[i].held_by_hook) progress.stop_after = i;
  }
  for (auto& input : inputs_) {
    if (input && !finished_) input->follow_writes(trace_);
  }

  Progress* const outer_progress = std::exchange(progress_, &progress);
  try {
    const FilledInputs filled(*body_, inputs_, observer);
    const hook::AmbientScope ambient(ambient_);
    ReplayProvider provider(*this);
    const hook::SavedTensorScope save(provider);
    const hook::OpInterception intercept(observer, hook::OpInterception::Outer::kPause);
    try {
      std::optional<hook::HostErrorsPause> own;
      if (!body_->is_hosts()) own.emplace();
      body_->run_again();
    } catch (const hook::ReplayDone& done) {
      if (done.frame != this) throw;
    } catch (...) {
      // On the way through the region it may have become another.
      if (progress.failure) std::rethrow_exception(progress.failure);
      throw;
    }
    if (progress.failure) std::rethrow_exception(progress.failure);
    if (!progress.done && progress.next < progress.expected) {
      throw DivergenceError(
          "LT0202",
          concat("cannot replay a checkpointed region: it saved ", progress.next,
                 " tensors for backward, and ", progress.expected,
                 " the first time; the first one missing is number ", progress.next, " (",
                 to_text(slots_[progress.next]),
                 "). The region must do the same when it runs again: does it depend on something "
                 "that changed in between?"),
          {{"tensor", static_cast<std::int64_t>(progress.next)},
           {"saved_first", static_cast<std::int64_t>(progress.expected)}});
    }
  } catch (...) {
    progress_ = outer_progress;
    drop_tensors();
    throw;
  }
  progress_ = outer_progress;
  replayed_for_ = backward;
  if (backward == kNoBackward) return;
  // A backward that does not visit all of the region leaves tensors behind.
  hook::at_end_of_backward([weak = weak_from_this(), backward] {
    const std::shared_ptr<Frame> frame = weak.lock();
    if (frame == nullptr) return;
    const std::lock_guard<std::recursive_mutex> lock(frame->mutex_);
    if (frame->replayed_for_ == backward) frame->drop_tensors();
  });
}

void Frame::diverge(std::size_t index, const Slot& now) const {
  const Slot& before = slots_[index];
  std::string difference = concat("it was ", to_text(before), ", now it is ", to_text(now));
  if (before.op_hash != now.op_hash && before.op == now.op && before.geometry == now.geometry) {
    difference =
        concat("it looks the same (", to_text(now),
               "), but the ops before it, or the numbers that they were given, are others");
  }
  throw DivergenceError(
      "LT0201",
      concat("cannot replay a checkpointed region: the first tensor that differs is number ", index,
             " of the ", slots_.size(), " that it saved for backward: ", difference,
             ". The region must do the same when it runs again: does it depend on something that "
             "changed in between?"),
      {{"tensor", static_cast<std::int64_t>(index)}});
}

void Frame::replay_pack(const at::Tensor& tensor) {
  LOWTIDE_ASSERT(progress_ != nullptr);
  Progress& progress = *progress_;
  // A region that catches everything must not get away with it.
  if (progress.failure) std::rethrow_exception(progress.failure);
  const std::size_t index = progress.next++;
  if (index >= progress.expected) {
    if (progress.done || !finished_) return;
    try {
      throw DivergenceError(
          "LT0202",
          concat("cannot replay a checkpointed region: it saved more than the ", progress.expected,
                 " tensors that it saved for backward the first time. The region must do "
                 "the same when it runs again: does it depend on something that changed "
                 "in between?"),
          {{"saved_first", static_cast<std::int64_t>(progress.expected)}});
    } catch (...) {
      progress.failure = std::current_exception();
      throw;
    }
  }
  Slot now;
  describe_geometry(tensor, now);
  const hook::OpTraits* const op = hook::OpInterception::current_op();
  now.op = op == nullptr ? nullptr : op->schema;
  now.op_hash = progress.observer->op_hash();
  Slot& slot = slots_[index];
  if (slot.geometry != now.geometry || slot.dtype != now.dtype || slot.device != now.device ||
      slot.op != now.op || slot.op_hash != now.op_hash) {
    try {
      diverge(index, now);
    } catch (...) {
      progress.failure = std::current_exception();
      throw;
    }
  }
  if (slot.wanted && !slot.held_by_hook) slot.tensor = tensor.tensor_data();
  if (!early_stop_ || index < progress.stop_after) return;
  progress.done = true;
  progress.observer->request_stop();
  if (op == nullptr ? KeptInput::is_keeping() : op->functional) throw hook::ReplayDone(this);
}

}  // namespace checkpoint_impl

namespace detail {

using namespace checkpoint_impl;  // NOLINT: the implementation of this namespace

RegionBody::~RegionBody() = default;

struct FirstRun::State {
  State(std::shared_ptr<RegionBody> body, const CheckpointOptions& given)
      : options(given),
        frame(std::make_shared<Frame>(std::move(body), given)),
        observer(frame->trace(), given.generators),
        provider(frame, observer),
        save(provider),
        intercept(observer, hook::OpInterception::Outer::kShare) {}

  const CheckpointOptions& options;
  std::shared_ptr<Frame> frame;
  FirstRunObserver observer;
  FirstRunProvider provider;
  hook::SavedTensorScope save;
  hook::OpInterception intercept;
};

FirstRun::FirstRun(std::shared_ptr<RegionBody> body, const CheckpointOptions& options)
    : state_(std::make_unique<State>(std::move(body), options)) {}

FirstRun::~FirstRun() = default;

void FirstRun::finish() {
  state_->observer.finish();
  const std::shared_ptr<Frame> frame = state_->frame;
  const CheckpointOptions& options = state_->options;
  state_.reset();
  frame->finish(options);
}

bool FirstRun::needed() { return c10::GradMode::is_enabled(); }

void refuse_segments(std::int64_t segments, std::int64_t modules) {
  throw UsageError("LT0206",
                   concat("cannot run ", modules, " modules in ", segments,
                          " checkpointed segments: give a number from 1 to ", modules),
                   {{"segments", segments}, {"modules", modules}});
}

void refuse_clone(const std::string& module) {
  throw UsageError("LT0207",
                   concat("cannot clone the checkpointed module ", module,
                          ": the clone() of the wrapped class gives another class. Derive the "
                          "wrapped class itself from torch::nn::Cloneable"));
}

}  // namespace detail
}  // namespace lowtide
