// Tested by tests/watch: growth_history_test.cpp, step_curve_test.cpp, programs_test.cpp, and in
// Python by tests/watch/programs_test.py.

#include "src/watch/watch_runtime.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/flat_hash_map.h>
#include <pthread.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <unordered_set>

#include "src/hook/saved_tensor_hooks.h"
#include "src/hook/tensor_block.h"
#include "src/watch/fixes.h"

namespace lowtide {
namespace {

// A block's tag: | generation of the watch 8 | origin 24 | step of its birth 32 |
constexpr std::uint64_t tag_of(std::uint32_t generation, std::uint32_t origin,
                               std::uint32_t birth) {
  return (std::uint64_t{generation & 0xff} << 56) | (std::uint64_t{origin} << 32) | birth;
}
constexpr std::uint32_t generation_of(std::uint64_t tag) {
  return static_cast<std::uint32_t>(tag >> 56);
}
constexpr std::uint32_t origin_of(std::uint64_t tag) {
  return static_cast<std::uint32_t>(tag >> 32) & 0xff'ffff;
}
constexpr std::uint32_t birth_of(std::uint64_t tag) { return static_cast<std::uint32_t>(tag); }

// Below both, a tensor that is held at a peak is not worth a word.
constexpr Bytes kSmallestFall = 4096;
constexpr double kSmallestShare = 0.02;
// What has no graph is said later than what has: by then it is known what a graph explains.
constexpr std::uint32_t kEnoughOfBytes = GrowthHistory::kEnough + 2;
// Containers of graphs are no fault while truncated backpropagation keeps graphs on purpose.
constexpr std::uint32_t kEnoughWhenKept = 24;
constexpr std::uint32_t kEnoughWithoutHolder = 10;
// More survivors are looked through at every n-th step only.
constexpr std::size_t kNodesForEachStep = std::size_t{1} << 16;
constexpr std::uint32_t kBackwardsWithoutOptimizer = 64;

// See Note [Close and counting steps].
constexpr std::uint64_t kFirstCloseSteps = 16;
constexpr std::uint64_t kPeriod = 128;
constexpr std::uint64_t kCloseOfPeriod = 8;
constexpr std::uint64_t kLongestLook = 64;  // because of one count that rises
constexpr std::uint32_t kRisesToLook = 3;   // of a count
constexpr std::uint32_t kRisesToGoOn = 2;   // of what may be named soon
// No more than these and an eighth of all steps are close.
constexpr std::uint64_t kCloseSteps = 64;
// Of the nodes of a backward, those that are followed.
constexpr std::uint32_t kFollowedFirst = 32;
constexpr std::uint32_t kFollowedEvery = 16;
constexpr std::size_t kMostFollowed = std::size_t{1} << 16;

template <typename F>
void for_each_tensor(c10::ArrayRef<c10::IValue> values, F&& f) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (const at::Tensor& tensor = value.toTensor(); tensor.defined()) f(tensor);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (tensor.defined()) f(tensor);
      }
    } else if (value.isOptionalTensorList()) {
      for (const auto& element : value.toListRef()) {
        if (element.isTensor() && element.toTensor().defined()) f(element.toTensor());
      }
    }
  }
}

// "losses" of "losses[17]".
std::string without_index(const std::string& path) { return path.substr(0, path.rfind('[')); }

bool any_requires_grad(c10::ArrayRef<c10::IValue> inputs) {
  bool any = false;
  for_each_tensor(inputs, [&](const at::Tensor& tensor) { any |= tensor.requires_grad(); });
  return any;
}

}  // namespace

WatchRuntime& WatchRuntime::instance() {
  static auto& runtime = *new WatchRuntime;
  return runtime;
}

WatchRuntime::WatchRuntime() {
  chunks_[0].store(new Origin[kChunk], std::memory_order_release);
  origin_count_ = 1 + kSizes;  // the first: outside of any op
  pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork(false); },
                 [] { instance().after_fork(true); });
}

void WatchRuntime::before_fork() { mutex_.before_fork(); }

void WatchRuntime::after_fork(bool in_child) {
  mutex_.after_fork(in_child);
  if (in_child && is_on_.load(std::memory_order_relaxed)) {
    is_on_.store(false, std::memory_order_relaxed);
    set_close(false);
    hook::cpu_memory().set_block_watcher(nullptr);
  }
}

// ---- sessions ----

std::shared_ptr<WatchSession> WatchRuntime::begin(const WatchOptions& options) {
  hook::cpu_memory().require_active();
  auto session = std::make_shared<WatchSession>();
  session->options = options;
  std::vector<NodeEntry> old;
  {
    const std::lock_guard lock(mutex_);
    if (sessions_.empty()) {
      forget_blocks();
      old.swap(nodes_);
      old.insert(old.end(), std::make_move_iterator(followed_.begin()),
                 std::make_move_iterator(followed_.end()));
      followed_.clear();
      findings_.clear();
      held_.clear();
      followed_count_.forget();
      close_steps_ = close_until_ = 0;
      look_.store(Watch::Look::kAsNeeded, std::memory_order_relaxed);
      step_.store(0, std::memory_order_relaxed);
      ops_.store(0, std::memory_order_relaxed);
      for (std::atomic<bool>* flag : {&profiles_, &saw_backward_, &saw_optimizer_, &marked_,
                                      &uses_optimizer_, &keeps_graph_}) {
        flag->store(false, std::memory_order_relaxed);
      }
      backwards_since_optimizer_ = 0;
      is_on_.store(true, std::memory_order_release);
    }
    session->first_step = step_.load(std::memory_order_relaxed);
    session->first_op = ops_.load(std::memory_order_relaxed);
    session->first_finding = findings_.size();
    sessions_.push_back(session);
  }
  hook::cpu_memory().set_block_watcher(this);
  if (session->first_step == 0) set_close(true);
  return session;
}

WatchReport WatchRuntime::end(const std::shared_ptr<WatchSession>& session) {
  WatchReport made = report(*session);
  std::vector<NodeEntry> old;
  std::vector<NodeEntry> old_followed;
  const std::lock_guard lock(mutex_);
  std::erase(sessions_, session);
  if (sessions_.empty() && is_on_.load(std::memory_order_relaxed)) {
    is_on_.store(false, std::memory_order_relaxed);
    profiles_.store(false, std::memory_order_relaxed);
    set_close(false);
    hook::cpu_memory().set_block_watcher(nullptr);
    old.swap(nodes_);
    old_followed.swap(followed_);
  }
  return made;
}

WatchReport WatchRuntime::report(const WatchSession& session) const {
  const std::lock_guard lock(mutex_);
  WatchReport report;
  report.steps = step_.load(std::memory_order_relaxed) - session.first_step;
  report.ops = ops_.load(std::memory_order_relaxed) - session.first_op;
  report.findings.assign(findings_.begin() + static_cast<std::ptrdiff_t>(
                                                 std::min(session.first_finding, findings_.size())),
                         findings_.end());
  return report;
}

void WatchRuntime::mark_step() {
  if (!is_on_.load(std::memory_order_relaxed)) return;
  marked_.store(true, std::memory_order_relaxed);
  const hook::ObserverPause unseen;
  end_step();
}

void WatchRuntime::optimizer_stepped() {
  uses_optimizer_.store(true, std::memory_order_relaxed);
  saw_optimizer_.store(true, std::memory_order_relaxed);
  backwards_since_optimizer_ = 0;
}

void WatchRuntime::look(Watch::Look look) {
  const bool is_on = is_on_.load(std::memory_order_relaxed);
  hook::cpu_memory().set_block_watcher(is_on && look != Watch::Look::kNot ? this : nullptr);
  const std::lock_guard lock(mutex_);
  look_.store(look, std::memory_order_relaxed);
  profiles_.store(false, std::memory_order_relaxed);
  forget_blocks();  // what went meanwhile was not seen
  set_close(is_on && look != Watch::Look::kNot &&
            is_to_be_close(step_.load(std::memory_order_relaxed)));
}

void WatchRuntime::set_close(bool close) {
  is_close_.store(close, std::memory_order_relaxed);
  hook::watch_ops(close ? this : nullptr);
}

void WatchRuntime::forget_blocks() {
  generation_.store(generation_.load(std::memory_order_relaxed) % 255 + 1,
                    std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < origin_count_; ++i) origin(i).forget();
}

void WatchRuntime::Origin::forget() {
  live_bytes.store(0, std::memory_order_relaxed);
  nodes = 0;
  node_history = {};
  byte_history = {};
  has_nodes = has_bytes = false;
  nodes_named = bytes_named = held_named = false;
  held_seen = tries = 0;
  next_try = 0;
}

// ---- what happens ----

WatchRuntime::Running& WatchRuntime::running() {
  thread_local Running running;
  return running;
}

void WatchRuntime::before(const hook::Operator& op, c10::ArrayRef<c10::IValue> inputs) noexcept {
  try {
    ops_.fetch_add(1, std::memory_order_relaxed);
    Running& now = running();
    const std::int64_t backward = hook::current_backward_id();
    const bool grad_mode = c10::GradMode::is_enabled();
    now.in_backward = backward != -1;
    if (now.in_backward) {
      thread_local std::int64_t known = -1;
      thread_local const hook::ProgramPlace* place_of_known = nullptr;
      if (known != backward) {
        known = backward;
        place_of_known = hook::current_place();
        if (hook::current_backward_keeps_graph()) {
          keeps_graph_.store(true, std::memory_order_relaxed);
        }
        saw_backward_.store(true, std::memory_order_relaxed);
      }
      now.place = place_of_known;
    } else {
      if (grad_mode && saw_backward_.load(std::memory_order_relaxed) &&
          !marked_.load(std::memory_order_relaxed) &&
          (!uses_optimizer_.load(std::memory_order_relaxed) ||
           saw_optimizer_.load(std::memory_order_relaxed)) &&
          any_requires_grad(inputs)) {
        now.is_active = false;
        end_step();
        if (!is_close_.load(std::memory_order_relaxed)) return;
      }
      // What only writes over its arguments makes nothing that could survive.
      const bool only_writes = op.written_arguments != 0 && !grad_mode;
      now.place = only_writes ? nullptr : hook::current_place();
    }
    now.op = &op;
    now.origin = -1;
    now.is_active = true;
    if (profiles_.load(std::memory_order_relaxed)) {
      const std::uint32_t step = step_.load(std::memory_order_relaxed);
      for_each_tensor(inputs, [&](const at::Tensor& tensor) {
        if (hook::MemoryBlock* block = hook::block_of(tensor)) block->watch_used = step + 1;
      });
    }
  } catch (...) {
    // Out of memory for our own tables: the op goes unseen.
  }
}

void WatchRuntime::after(const hook::Operator& op, c10::ArrayRef<c10::IValue> outputs) noexcept {
  Running& now = running();
  if (!now.is_active) return;
  try {
    if (c10::GradMode::is_enabled()) {
      const void* last = nullptr;
      const auto watch_node = [&](const at::Tensor& tensor) {
        const void* node = hook::node_of(tensor);
        if (node == nullptr || node == last) return;
        last = node;
        const std::uint32_t index = origin_of_running(now);
        if (tensor.numel() == 1) origin(index).is_scalar.store(true, std::memory_order_relaxed);
        hook::NodeWatch watch(tensor);
        const std::lock_guard lock(mutex_);
        nodes_.push_back({std::move(watch), index, step_.load(std::memory_order_relaxed)});
      };
      for_each_tensor(outputs, [&](const at::Tensor& tensor) {
        watch_node(tensor);
        // A write into a view gives the base a new history.
        if (op.written_arguments != 0) {
          const at::Tensor& base = hook::base_of(tensor);
          if (!base.is_same(tensor)) watch_node(base);
        }
      });
    }
  } catch (...) {
  }
  now.is_active = false;
}

// A counting step's. It also ends the step: where a node was made after a backward.
void WatchRuntime::count_block(hook::MemoryBlock& block) {
  thread_local std::uint64_t newest_node = 0;
  if (hook::current_backward_id() != -1) {
    saw_backward_.store(true, std::memory_order_relaxed);
    follow_running_node();
    newest_node = at::sequence_number::peek();
  } else if (saw_backward_.load(std::memory_order_relaxed) &&
             !marked_.load(std::memory_order_relaxed) &&
             (!uses_optimizer_.load(std::memory_order_relaxed) ||
              saw_optimizer_.load(std::memory_order_relaxed)) &&
             c10::GradMode::is_enabled() && at::sequence_number::peek() != newest_node) {
    end_step();
  }
  const auto size = static_cast<std::uint32_t>(std::bit_width(block.size_bytes));
  const std::uint32_t index = std::min(std::max(size, 1U), kSizes);
  block.watch_tag = tag_of(generation_.load(std::memory_order_relaxed), index,
                           step_.load(std::memory_order_relaxed));
  origin(index).live_bytes.fetch_add(1, std::memory_order_relaxed);
}

void WatchRuntime::follow_running_node() {
  thread_local std::int64_t backward = -1;
  thread_local std::uint32_t count = 0;
  thread_local const void* last = nullptr;
  hook::NodeWatch watch = hook::NodeWatch::of_running();
  if (watch.node() == nullptr) return;
  if (const std::int64_t now = hook::current_backward_id(); now != backward) {
    backward = now;
    count = 0;
  } else if (watch.node() == last) {
    return;
  }
  last = watch.node();
  if (count++ >= kFollowedFirst && count % kFollowedEvery != 0) return;
  const std::lock_guard lock(mutex_);
  if (followed_.size() >= kMostFollowed) return;
  followed_.push_back({std::move(watch), 0, step_.load(std::memory_order_relaxed)});
}

void WatchRuntime::block_made(hook::MemoryBlock& block) noexcept {
  try {
    if (!is_close_.load(std::memory_order_relaxed)) {
      count_block(block);
      return;
    }
    Running& now = running();
    const std::uint32_t index = now.is_active ? origin_of_running(now) : 0;
    block.watch_tag = tag_of(generation_.load(std::memory_order_relaxed), index,
                             step_.load(std::memory_order_relaxed));
    origin(index).live_bytes.fetch_add(static_cast<std::int64_t>(block.size_bytes),
                                       std::memory_order_relaxed);
    if (profiles_.load(std::memory_order_relaxed)) {
      const std::lock_guard lock(mutex_);
      curve_.made(block.size_bytes);
    }
  } catch (...) {
  }
}

void WatchRuntime::block_gone(hook::MemoryBlock& block) noexcept {
  try {
    const std::uint64_t tag = block.watch_tag;
    const bool is_ours =
        tag != 0 && generation_of(tag) == generation_.load(std::memory_order_relaxed);
    const bool is_counted = is_ours && is_size(origin_of(tag));
    if (is_ours) {
      origin(origin_of(tag))
          .live_bytes.fetch_sub(is_counted ? 1 : static_cast<std::int64_t>(block.size_bytes),
                                std::memory_order_relaxed);
    }
    if (profiles_.load(std::memory_order_relaxed)) {
      const std::uint32_t step = step_.load(std::memory_order_relaxed);
      // Not read in this step, and made in an earlier one.
      const bool is_held =
          is_ours && !is_counted && birth_of(tag) < step && block.watch_used != step + 1;
      // Gradients that zero_grad() lets go are no part of what a variable held.
      const bool is_gradient =
          is_held && origin(origin_of(tag)).in_backward.load(std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      curve_.gone(block.size_bytes, is_held ? origin_of(tag) : StepCurve::kNotHeld,
                  2 * ops_.load(std::memory_order_relaxed) + (is_gradient ? 1 : 0));
    }
  } catch (...) {
  }
}

std::uint32_t WatchRuntime::origin_of_running(Running& now) {
  if (now.origin < 0) {
    now.origin = find_or_make_origin(now.op, now.place);
    if (now.in_backward) {
      origin(static_cast<std::uint32_t>(now.origin))
          .in_backward.store(true, std::memory_order_relaxed);
    }
  }
  return static_cast<std::uint32_t>(now.origin);
}

std::uint32_t WatchRuntime::find_or_make_origin(const hook::Operator* op,
                                                const hook::ProgramPlace* place) {
  struct Hash {
    std::size_t operator()(const std::pair<const void*, const void*>& key) const {
      return (reinterpret_cast<std::uintptr_t>(key.first) * 0x9e37'79b9'7f4a'7c15) ^
             (reinterpret_cast<std::uintptr_t>(key.second) >> 3);
    }
  };
  thread_local ska::flat_hash_map<std::pair<const void*, const void*>, std::uint32_t, Hash> cache;
  const std::pair<const void*, const void*> key(op, place);
  const auto cached = cache.find(key);
  if (cached != cache.end()) return cached->second;
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = origin_index_.try_emplace(key, 0);
  if (is_new && origin_count_ < kChunk * kChunks) {
    const std::uint32_t index = origin_count_;
    auto& chunk = chunks_[index / kChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      chunk.store(new Origin[kChunk], std::memory_order_release);
    }
    origin(index).op = op;
    origin(index).place = place;
    known->second = index;
    ++origin_count_;
  }
  return cache[key] = known->second;
}

// ---- a step ends ----

bool WatchRuntime::is_to_be_close(std::uint64_t step) const {
  const Watch::Look look = look_.load(std::memory_order_relaxed);
  if (look != Watch::Look::kAsNeeded) return look == Watch::Look::kClosely;
  if (step < kFirstCloseSteps) return true;
  if (close_steps_ >= kCloseSteps + step / 8) return false;
  return step % kPeriod < kCloseOfPeriod || step < close_until_;
}

// Of close steps whose step before was close too.
bool WatchRuntime::is_profiled(std::uint64_t step) const {
  return (step >= 2 && step <= 4) ||
         (step >= kPeriod && (step % kPeriod == 2 || step % kPeriod == 3));
}

// What rose is given the time to be named; what is not named then is looked at ever more rarely.
void WatchRuntime::look_closer(Origin& because, std::uint32_t step, std::uint64_t pace) {
  if (step < because.next_try) return;
  const std::uint64_t end = step + std::min(kLongestLook, 2 + (GrowthHistory::kEnough + 3) * pace);
  close_until_ = std::max(close_until_, end);
  because.next_try = end + (kLongestLook << std::min(because.tries++, 16U));
}

void WatchRuntime::finish_curve() {
  if (!profiles_.load(std::memory_order_relaxed)) return;
  const std::vector<StepCurve::Group> groups = curve_.end();
  const Bytes peak = curve_.peak_bytes();
  for (const StepCurve::Group& group : groups) {
    if (group.fall_bytes < kSmallestFall ||
        static_cast<double>(group.fall_bytes) < kSmallestShare * static_cast<double>(peak)) {
      continue;
    }
    Origin& one = origin(group.origin);
    if (one.held_named || ++one.held_seen < 2) continue;
    one.held_named = true;
    held_.push_back({group.origin, group.bytes, group.fall_bytes, peak});
  }
}

std::size_t WatchRuntime::drop_those_gone(std::vector<NodeEntry>& entries,
                                          std::vector<NodeEntry>& gone, std::uint32_t step) {
  std::size_t kept = 0;
  std::size_t older = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].watch.is_gone()) {
      gone.push_back(std::move(entries[i]));
      continue;
    }
    if (entries[i].birth < step) {
      ++origin(entries[i].origin).nodes;
      ++older;
    }
    if (kept != i) std::swap(entries[kept], entries[i]);
    ++kept;
  }
  entries.resize(kept);
  return older;
}

// True when something is to be named.
bool WatchRuntime::count_close_step(std::uint32_t step, std::vector<NodeEntry>& gone) {
  const std::size_t every = 1 + nodes_.size() / kNodesForEachStep;
  if (step % every != 0) return false;
  bool grows = false;
  for (std::uint32_t i = 0; i < origin_count_; ++i) origin(i).nodes = 0;
  drop_those_gone(nodes_, gone, step);
  for (std::uint32_t i = 0; i < origin_count_; ++i) {
    if (is_size(i)) continue;
    Origin& one = origin(i);
    bool rises = false;
    if (one.nodes > 0 || one.has_nodes) {
      if (!one.has_nodes && step > 0) one.node_history.add(step - 1, 0);
      one.has_nodes = true;
      one.node_history.add(step, one.nodes);
      grows |= !one.nodes_named && step >= one.next_try && one.node_history.is_growing(step);
      rises = !one.nodes_named && one.node_history.is_growing(step, kRisesToGoOn);
    }
    const std::int64_t bytes = one.live_bytes.load(std::memory_order_relaxed);
    if (bytes > 0 || one.has_bytes) {
      one.has_bytes = true;
      one.byte_history.add(step, bytes);
      grows |= !one.bytes_named && one.byte_history.is_growing(step, kEnoughOfBytes);
      rises |= !one.bytes_named && one.byte_history.is_growing(step, kRisesToGoOn);
    }
    if (rises) {
      const std::uint64_t pace = std::max(one.node_history.pace(), one.byte_history.pace());
      close_until_ = std::max(close_until_, step + std::min(kLongestLook, 2 + 3 * pace));
    }
  }
  return grows;
}

void WatchRuntime::count_step(std::uint32_t step, std::vector<NodeEntry>& gone) {
  for (std::uint32_t i = 1; i <= kSizes; ++i) {
    Origin& one = origin(i);
    one.byte_history.add(step, one.live_bytes.load(std::memory_order_relaxed));
    if (one.byte_history.is_growing(step, kRisesToLook)) {
      look_closer(one, step, one.byte_history.pace());
    }
  }
  const auto older = static_cast<std::int64_t>(drop_those_gone(followed_, gone, step));
  followed_count_.node_history.add(step, older);
  if (followed_count_.node_history.is_growing(step, kRisesToLook)) {
    look_closer(followed_count_, step, followed_count_.node_history.pace());
  }
}

void WatchRuntime::end_step() {
  std::vector<NodeEntry> gone;
  const std::uint32_t step = step_.load(std::memory_order_relaxed);
  bool grows = false;
  bool holds = false;
  {
    const std::lock_guard lock(mutex_);
    if (!is_on_.load(std::memory_order_relaxed)) return;
    if (!saw_optimizer_.load(std::memory_order_relaxed) &&
        ++backwards_since_optimizer_ > kBackwardsWithoutOptimizer) {
      uses_optimizer_.store(false, std::memory_order_relaxed);
    }
    saw_backward_.store(false, std::memory_order_relaxed);
    saw_optimizer_.store(false, std::memory_order_relaxed);
    finish_curve();

    if (is_close_.load(std::memory_order_relaxed)) {
      grows = count_close_step(step, gone);
    } else {
      count_step(step, gone);
    }
    holds = !held_.empty();
  }
  gone.clear();
  if (grows) name_growth(step);
  if (holds) name_held(step);
  const std::lock_guard lock(mutex_);
  if (step % 32 == 0) keeps_graph_.store(false, std::memory_order_relaxed);
  step_.store(step + 1, std::memory_order_relaxed);
  const bool was_close = is_close_.load(std::memory_order_relaxed);
  const bool close = is_to_be_close(step + 1);
  if (close != was_close) set_close(close);
  if (was_close) ++close_steps_;
  profiles_.store(false, std::memory_order_relaxed);
  if (close && was_close && is_profiled(step + 1)) {
    curve_.begin(hook::cpu_memory().ledger().live());
    profiles_.store(true, std::memory_order_relaxed);
  }
}

// ---- naming ----

std::string WatchRuntime::op_text(std::uint32_t index) const {
  const hook::Operator* op = origin(index).op;
  if (op == nullptr) return "";
  return op->name.substr(0, op->name.find('.'));
}

std::string WatchRuntime::line_text(std::uint32_t index) const {
  return hook::text_of(origin(index).place);
}

// The nodes that are there, held and linked.
struct WatchRuntime::Graph {
  struct Node {
    std::uint32_t origin = 0;
    std::uint32_t birth = 0;
    bool has_parent = false;
    std::vector<std::size_t> next;  // of those that are watched, through those that are not
  };
  hook::HeldNodes held;
  std::vector<const void*> raw;
  std::vector<Node> nodes;
  std::unordered_map<const void*, std::size_t> index;

  // The watched nodes that are first met from `node`, which is held.
  std::vector<std::size_t> first_watched_below(const void* node, std::size_t most) const {
    std::vector<std::size_t> found;
    std::unordered_set<const void*> seen;
    std::vector<const void*> open = hook::HeldNodes::next_of(node);
    while (!open.empty() && seen.size() < most) {
      const void* next = open.back();
      open.pop_back();
      if (!seen.insert(next).second) continue;
      if (const auto known = index.find(next); known != index.end()) {
        found.push_back(known->second);
        continue;
      }
      for (const void* below : hook::HeldNodes::next_of(next)) open.push_back(below);
    }
    return found;
  }

  void link() {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      nodes[i].next = first_watched_below(raw[i], 1024);
      for (const std::size_t next : nodes[i].next) nodes[next].has_parent = true;
    }
  }

  // How many nodes of steps before `step` are reached from `begin`, by origin.
  std::unordered_map<std::uint32_t, std::uint64_t> survivors_from(
      const std::vector<std::size_t>& begin, std::uint32_t step) const {
    std::unordered_map<std::uint32_t, std::uint64_t> counts;
    std::vector<bool> seen(nodes.size());
    std::vector<std::size_t> open;
    for (const std::size_t i : begin) {
      if (!seen[i]) open.push_back(i);
      seen[i] = true;
    }
    while (!open.empty()) {
      const std::size_t i = open.back();
      open.pop_back();
      if (nodes[i].birth < step) ++counts[nodes[i].origin];
      for (const std::size_t next : nodes[i].next) {
        if (seen[next]) continue;
        seen[next] = true;
        open.push_back(next);
      }
    }
    return counts;
  }
};

// Sorts the host's tensors: by the node that made them, else by their block.
class Sorter final : public hook::TensorSorter {
 public:
  int group_of(const at::Tensor& tensor) const override {
    if (const void* node = hook::node_of(tensor)) {
      const auto known = graph->index.find(node);
      if (known != graph->index.end()) return group_of_node(known->second);
      // A node that no op was seen to make: a Python function's, a write into a view.
      for (const std::size_t below : graph->first_watched_below(node, 16)) {
        if (const int group = group_of_node(below); group >= 0) return group;
      }
      return -1;
    }
    const hook::MemoryBlock* block = hook::block_of(tensor);
    if (block == nullptr || block->watch_tag == 0) return -1;
    if (generation_of(block->watch_tag) != generation) return -1;
    if (birth_of(block->watch_tag) >= births_before) return -1;
    const auto group = group_of_origin.find(origin_of(block->watch_tag));
    return group == group_of_origin.end() ? -1 : group->second;
  }

  int group_of_node(std::size_t i) const {
    if (i >= group_of_nodes.size()) return -1;
    return group_of_nodes[i];
  }

  const WatchRuntime::Graph* graph = nullptr;
  std::vector<int> group_of_nodes;
  std::unordered_map<std::uint32_t, int> group_of_origin;
  std::uint32_t generation = 0;
  std::uint32_t births_before = 0;
};

void WatchRuntime::name_growth(std::uint64_t step64) {
  const auto step = static_cast<std::uint32_t>(step64);
  Graph graph;
  std::vector<std::uint32_t> growing_nodes;  // not named yet
  std::vector<std::uint32_t> growing_bytes;
  std::unordered_map<std::uint32_t, double> nodes_a_step;
  std::unordered_map<std::uint32_t, double> bytes_a_step;
  std::unordered_map<std::uint32_t, std::uint32_t> rises;
  const bool keeps_graph = keeps_graph_.load(std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    for (const NodeEntry& entry : nodes_) {
      if (graph.index.contains(entry.watch.node()) || !graph.held.hold(entry.watch)) continue;
      graph.index.emplace(entry.watch.node(), graph.nodes.size());
      graph.raw.push_back(entry.watch.node());
      graph.nodes.push_back({entry.origin, entry.birth, false, {}});
    }
    for (std::uint32_t i = 0; i < origin_count_; ++i) {
      if (is_size(i)) continue;
      Origin& one = origin(i);
      if (one.node_history.is_growing(step)) {
        nodes_a_step[i] = one.node_history.per_step(step);
        rises[i] = one.node_history.rises();
        if (!one.nodes_named && step >= one.next_try) growing_nodes.push_back(i);
      }
      if (one.byte_history.is_growing(step)) {
        bytes_a_step[i] = one.byte_history.per_step(step);
        if (!one.bytes_named && one.byte_history.is_growing(step, kEnoughOfBytes)) {
          growing_bytes.push_back(i);
        }
      }
    }
  }
  graph.link();

  // Groups of tensors to look for. See Note [Who keeps a graph].
  struct Group {
    enum class What { kCarried, kKept, kTensors } what;
    std::uint32_t origin;
    std::vector<std::size_t> nodes;
    std::vector<hook::TensorHolder> holders;
  };
  std::vector<Group> groups;
  Sorter sorter;
  sorter.graph = &graph;
  sorter.group_of_nodes.assign(graph.nodes.size(), -1);
  sorter.generation = generation_.load(std::memory_order_relaxed) & 0xff;
  sorter.births_before = step;

  std::map<std::uint32_t, std::unordered_set<std::uint32_t>> carried;  // origin -> births led to
  for (const Graph::Node& node : graph.nodes) {
    for (const std::size_t next : node.next) {
      if (graph.nodes[next].birth < node.birth && node.birth <= step) {
        carried[graph.nodes[next].origin].insert(graph.nodes[next].birth);
      }
    }
  }
  const bool grows = !growing_nodes.empty();
  for (auto& [index, births] : carried) {
    if (!grows || births.size() < 3) continue;
    Group group{Group::What::kCarried, index, {}, {}};
    std::uint32_t newest = 0;
    for (const Graph::Node& node : graph.nodes) {
      if (node.origin == index) newest = std::max(newest, node.birth);
    }
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (graph.nodes[i].origin == index && graph.nodes[i].birth == newest) {
        group.nodes.push_back(i);
      }
    }
    // What carries leads to its own like of earlier steps; what is only added to it does not.
    const auto reached = graph.survivors_from(group.nodes, newest);
    const auto own = reached.find(index);
    if (own == reached.end() || own->second < 2) {
      births.clear();
      continue;
    }
    groups.push_back(std::move(group));
  }
  const bool has_host = hook::can_find_holders();
  for (std::size_t i = 0; grows && i < graph.nodes.size(); ++i) {
    const Graph::Node& node = graph.nodes[i];
    if (node.birth >= step || !nodes_a_step.contains(node.origin)) continue;
    if (!has_host && node.has_parent) continue;
    if (carried.contains(node.origin) && carried[node.origin].size() >= 3 && !has_host) continue;
    auto known = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.what == Group::What::kKept && group.origin == node.origin;
    });
    if (known == groups.end()) {
      groups.push_back({Group::What::kKept, node.origin, {}, {}});
      known = groups.end() - 1;
    }
    known->nodes.push_back(i);
  }
  for (const std::uint32_t index : growing_bytes) {
    groups.push_back({Group::What::kTensors, index, {}, {}});
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const std::size_t i : groups[g].nodes) sorter.group_of_nodes[i] = static_cast<int>(g);
    if (groups[g].what == Group::What::kTensors) {
      sorter.group_of_origin[groups[g].origin] = static_cast<int>(g);
    }
  }
  for (hook::TensorHolder& holder : hook::find_holders(sorter)) {
    groups[static_cast<std::size_t>(holder.group)].holders.push_back(std::move(holder));
  }

  // What each group's graph holds, and of that what no earlier group has named.
  std::vector<WatchFinding> found;
  std::unordered_set<std::uint32_t> named_nodes;
  std::unordered_set<std::uint32_t> named_bytes;
  std::unordered_set<std::uint32_t> held_directly;  // origins of bytes that containers hold
  for (const Group& group : groups) {
    if (group.what == Group::What::kTensors && !group.holders.empty()) {
      held_directly.insert(group.origin);
    }
  }
  const auto fill = [&](WatchFinding& finding, const Group& group) {
    const auto reached = graph.survivors_from(group.nodes, step);
    double nodes = 0;
    double bytes = 0;
    for (const auto& [index, count] : reached) {
      finding.graph_nodes += count;
      if (nodes_a_step.contains(index) && named_nodes.insert(index).second) {
        nodes += nodes_a_step[index];
      }
    }
    // The storages that its ops made, and those that it alone can hold: made by ops without nodes.
    for (const auto& [index, rate] : bytes_a_step) {
      const bool is_reached = reached.contains(index);
      if ((is_reached || !held_directly.contains(index)) && named_bytes.insert(index).second) {
        bytes += rate;
      }
    }
    finding.nodes_per_step = nodes;
    finding.bytes_per_step = static_cast<Bytes>(std::max(0.0, bytes));
  };
  const auto begin_finding = [&](const Group& group, const hook::TensorHolder* holder) {
    WatchFinding finding;
    finding.step = step64 + 1;
    finding.op = op_text(group.origin);
    finding.line = line_text(group.origin);
    if (holder != nullptr) {
      finding.held_by = holder->path;
      finding.stored_at = holder->stored_at;
    }
    return finding;
  };
  using Place = hook::TensorHolder::Place;

  for (const Group& group : groups) {
    if (group.what != Group::What::kCarried) continue;
    const hook::TensorHolder* holder = group.holders.empty() ? nullptr : &group.holders.front();
    if (has_host && group.nodes.empty()) continue;
    WatchFinding finding = begin_finding(group, holder);
    finding.kind = WatchFinding::Kind::kGraphCarried;
    fill(finding, group);
    if (finding.nodes_per_step == 0) continue;  // a second state of the same chain
    finding.chain = carried_chain(finding);
    finding.fix = carried_fix(finding, origin(group.origin).is_scalar.load());
    found.push_back(std::move(finding));
  }
  // Containers with most survivors first; what only they keep is theirs.
  std::vector<const Group*> kept;
  for (const Group& group : groups) {
    if (group.what == Group::What::kKept) kept.push_back(&group);
  }
  std::vector<std::pair<std::uint64_t, const Group*>> ranked;
  for (const Group* group : kept) {
    std::uint64_t count = 0;
    for (const auto& [index, n] : graph.survivors_from(group->nodes, step)) count += n;
    ranked.emplace_back(count, group);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [count, group] : ranked) {
    if (has_host) {
      for (const hook::TensorHolder& holder : group->holders) {
        if (holder.place == Place::kBounded || holder.tensors < 3) continue;
        if (keeps_graph && rises[group->origin] < kEnoughWhenKept) continue;
        WatchFinding finding = begin_finding(*group, &holder);
        finding.kind = WatchFinding::Kind::kGraphKept;
        fill(finding, *group);
        finding.chain = kept_chain(finding, holder);
        finding.fix = kept_fix(finding, holder, origin(group->origin).is_scalar.load());
        found.push_back(std::move(finding));
      }
    } else if (group->nodes.size() >= 3) {
      if (keeps_graph && rises[group->origin] < kEnoughWhenKept) continue;
      WatchFinding finding = begin_finding(*group, nullptr);
      finding.kind = WatchFinding::Kind::kGraphKept;
      fill(finding, *group);
      if (finding.nodes_per_step == 0) continue;
      finding.chain = kept_chain(finding, {});
      finding.fix = kept_fix(finding, {}, origin(group->origin).is_scalar.load());
      found.push_back(std::move(finding));
    }
  }
  // Something else than a tensor keeps it, a node of the graph itself or what is out of sight: said
  // late, because cycles that Python has not collected yet look the same.
  const bool any_holder = std::any_of(groups.begin(), groups.end(), [](const Group& group) {
    return group.what != Group::What::kTensors && !group.holders.empty();
  });
  if (has_host && !any_holder && found.empty() && !ranked.empty()) {
    const Group& group = *ranked.front().second;
    const std::uint32_t enough = keeps_graph ? kEnoughWhenKept : kEnoughWithoutHolder;
    if (rises[group.origin] >= enough) {
      WatchFinding finding = begin_finding(group, nullptr);
      finding.kind = WatchFinding::Kind::kGraphKept;
      fill(finding, group);
      finding.chain = unheld_chain(finding);
      finding.fix = kept_fix(finding, {}, origin(group.origin).is_scalar.load());
      found.push_back(std::move(finding));
    }
  }
  for (const Group& group : groups) {
    if (group.what != Group::What::kTensors) continue;
    if (named_bytes.contains(group.origin) && group.holders.empty()) continue;
    for (const hook::TensorHolder& holder : group.holders) {
      if (holder.place == Place::kBounded || holder.tensors < 3) continue;
      WatchFinding finding = begin_finding(group, &holder);
      finding.kind = WatchFinding::Kind::kTensorsKept;
      finding.bytes_per_step = static_cast<Bytes>(bytes_a_step[group.origin]);
      judge_tensors(finding, holder, origin(group.origin).in_backward.load());
      found.push_back(std::move(finding));
    }
    if (group.holders.empty() && !has_host) {
      WatchFinding finding = begin_finding(group, nullptr);
      finding.kind = WatchFinding::Kind::kTensorsKept;
      finding.bytes_per_step = static_cast<Bytes>(bytes_a_step[group.origin]);
      judge_tensors(finding, {}, origin(group.origin).in_backward.load());
      found.push_back(std::move(finding));
    }
  }
  {
    const std::lock_guard lock(mutex_);
    // What is not explained yet may be later: a holder that comes into sight, a longer history.
    const bool any_graph = std::any_of(found.begin(), found.end(), [](const WatchFinding& one) {
      return one.kind != WatchFinding::Kind::kTensorsKept;
    });
    for (const std::uint32_t i : growing_nodes) {
      if (any_graph)
        origin(i).nodes_named = true;
      else
        origin(i).next_try = step + std::max(GrowthHistory::kEnough, rises[i]);
    }
    for (const std::uint32_t i : growing_bytes) origin(i).bytes_named = true;
  }
  tell(std::move(found));
}

void WatchRuntime::name_held(std::uint64_t step64) {
  const auto step = static_cast<std::uint32_t>(step64);
  std::vector<HeldCandidate> held;
  {
    const std::lock_guard lock(mutex_);
    held.swap(held_);
  }
  const Graph none;
  Sorter sorter;
  sorter.graph = &none;
  std::vector<WatchFinding> found;
  class ByBlock final : public hook::TensorSorter {
   public:
    int group_of(const at::Tensor& tensor) const override {
      const hook::MemoryBlock* block = hook::block_of(tensor);
      if (block == nullptr || block->watch_tag == 0 || birth_of(block->watch_tag) != birth ||
          generation_of(block->watch_tag) != generation) {
        return -1;
      }
      const auto group = groups.find(origin_of(block->watch_tag));
      return group == groups.end() ? -1 : group->second;
    }
    std::unordered_map<std::uint32_t, int> groups;
    std::uint32_t birth = 0;
    std::uint32_t generation = 0;
  } by_block;
  by_block.birth = step;
  by_block.generation = generation_.load(std::memory_order_relaxed) & 0xff;
  for (std::size_t i = 0; i < held.size(); ++i) {
    by_block.groups[held[i].origin] = static_cast<int>(i);
    WatchFinding finding;
    finding.kind = WatchFinding::Kind::kHeldAtPeak;
    finding.step = step64 + 1;
    finding.op = op_text(held[i].origin);
    finding.line = line_text(held[i].origin);
    finding.peak_bytes = held[i].peak_bytes;
    finding.fall_bytes = held[i].fall_bytes;
    found.push_back(std::move(finding));
  }
  for (const hook::TensorHolder& holder : hook::find_holders(by_block)) {
    WatchFinding& finding = found[static_cast<std::size_t>(holder.group)];
    if (!finding.held_by.empty()) continue;
    finding.held_by = holder.path;
    finding.stored_at = holder.stored_at;
  }
  for (std::size_t i = 0; i < held.size(); ++i) {
    judge_held(found[i], origin(held[i].origin).in_backward.load());
  }
  // Neither made by an op of the program nor held by a name: nothing that a `del` could free.
  std::erase_if(found,
                [](const WatchFinding& one) { return one.line.empty() && one.held_by.empty(); });
  tell(std::move(found));
}

void WatchRuntime::tell(std::vector<WatchFinding> findings) {
  std::vector<std::shared_ptr<WatchSession>> sessions;
  {
    const std::lock_guard lock(mutex_);
    sessions = sessions_;
    // The same again, because more of its graph has come to grow.
    std::erase_if(findings, [&](const WatchFinding& one) {
      return std::any_of(findings_.begin(), findings_.end(), [&](const WatchFinding& other) {
        return one.kind == other.kind && one.op == other.op && one.line == other.line &&
               without_index(one.held_by) == without_index(other.held_by);
      });
    });
    findings_.insert(findings_.end(), findings.begin(), findings.end());
  }
  for (const WatchFinding& finding : findings) {
    for (const auto& session : sessions) {
      if (session->options.on_finding) {
        session->options.on_finding(finding);
      } else if (finding.is_alarm) {
        std::fprintf(stderr, "lowtide: %s\n", finding.to_text().c_str());
      }
    }
  }
}

}  // namespace lowtide
