#pragma once
// The runtime behind Watch. One a process:
//
//   op        --before/after-->  the running op's place; nodes that it made        (any thread)
//   block     --made/gone-->     counts by origin; a tag with the step of its birth
//   step ends --end_step-->      GrowthHistory of each origin --> what grows --> name_growth()
//   some steps: StepCurve        --> what was held at the peak --> name_held()
//
// An origin is an op and a place of the program. Blocks are counted by origin without a table of
// blocks: the origin stands in the block's header. Nodes are watched by weak references, which are
// looked through once a step.
//
// Note [Who keeps a graph]
// Of the nodes that survive, those of a chain are told by its edges: a node of one step that leads
// to a node of an earlier one. The node that is led to was made by the op that carries (total +
// loss, the cell that gives the next state). Where no edge crosses steps, each step's graph is kept
// by a tensor of its own: in Python those tensors are looked for, else they are the nodes to which
// no other leads.
//
// Note [Close and counting steps]
// To be shown an op costs some microseconds, most of them libtorch's own (RecordFunction, and the
// boxes that arguments and results are put into), which is more than a watch may take of each op.
// So ops are looked at in close steps only: the first ones, a few of every 128, and when something
// seems to grow. In the other steps the block listener alone is there. It counts blocks by their
// size (the origins from 1 to kSizes stand for sizes), and follows some of the nodes that run in
// backward: whoever keeps a graph keeps a tensor that its ops made, or a node that ran. When one of
// these counts rises from step to step the steps that follow are close, at the pace of the growth.
//
// Locks: mutex_ guards all but the origins' counts. It is not held while the host looks for
// holders, while callbacks run, nor when nodes are let go (that may free tensors).

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lowtide/watch.h"
#include "src/base/forkable_mutex.h"
#include "src/hook/device_memory.h"
#include "src/hook/graph_node.h"
#include "src/hook/host.h"
#include "src/hook/op_observer.h"
#include "src/hook/program_place.h"
#include "src/watch/growth_history.h"
#include "src/watch/step_curve.h"

namespace lowtide {

// One Watch that lives.
struct WatchSession {
  WatchOptions options;
  std::uint64_t first_step = 0;
  std::uint64_t first_op = 0;
  std::size_t first_finding = 0;
};

class WatchRuntime final : public hook::OpWatcher, public hook::BlockListener {
 public:
  // Lives for ever, because blocks may outlive the last Watch.
  static WatchRuntime& instance();

  std::shared_ptr<WatchSession> begin(const WatchOptions& options);
  WatchReport end(const std::shared_ptr<WatchSession>& session);
  WatchReport report(const WatchSession& session) const;
  void mark_step();
  void optimizer_stepped();
  void look(Watch::Look look);  // for benches

  // hook::OpWatcher
  void before(const hook::Operator& op, c10::ArrayRef<c10::IValue> inputs) noexcept override;
  void after(const hook::Operator& op, c10::ArrayRef<c10::IValue> outputs) noexcept override;
  // hook::BlockListener
  void block_made(hook::MemoryBlock& block) noexcept override;
  void block_gone(hook::MemoryBlock& block) noexcept override;

 private:
  friend class Sorter;
  WatchRuntime();

  struct Origin {
    const hook::Operator* op = nullptr;  // null: outside of any op
    const hook::ProgramPlace* place = nullptr;
    std::atomic<std::int64_t> live_bytes{0};  // of a size: live blocks
    std::atomic<bool> is_scalar{false};       // its results have one element
    std::atomic<bool> in_backward{false};     // it ran in a backward
    // Guarded by mutex_.
    std::int64_t nodes = 0;  // surviving, of the step that is being ended
    GrowthHistory node_history;
    GrowthHistory byte_history;
    bool has_nodes = false;
    bool has_bytes = false;
    bool nodes_named = false;
    bool bytes_named = false;
    bool held_named = false;
    std::uint64_t next_try = 0;   // the step from which on its growth is looked into again
    std::uint32_t tries = 0;      // of a size: how often steps were close because of it
    std::uint32_t held_seen = 0;  // in how many looked-at steps the peak would have fallen

    void forget();
  };
  struct Running {
    const hook::Operator* op = nullptr;
    const hook::ProgramPlace* place = nullptr;
    std::int64_t origin = -1;
    bool is_active = false;
    bool in_backward = false;
  };
  struct NodeEntry {
    hook::NodeWatch watch;
    std::uint32_t origin;
    std::uint32_t birth;
  };
  struct Graph;  // of the nodes that are there, for naming
  struct HeldCandidate {
    std::uint32_t origin;
    Bytes bytes;
    Bytes fall_bytes;
    Bytes peak_bytes;
  };

  // At most so many origins; what comes later is counted as the first.
  static constexpr std::uint32_t kChunk = 1024;
  static constexpr std::uint32_t kChunks = 256;
  static constexpr std::uint32_t kSizes = 64;
  static bool is_size(std::uint32_t index) { return index - 1 < kSizes; }
  Origin& origin(std::uint32_t index) const {
    return chunks_[index / kChunk].load(std::memory_order_acquire)[index % kChunk];
  }
  std::uint32_t origin_of_running(Running& running);
  std::uint32_t find_or_make_origin(const hook::Operator* op, const hook::ProgramPlace* place);

  void count_block(hook::MemoryBlock& block);
  void follow_running_node();
  void forget_blocks();

  void end_step();
  std::size_t drop_those_gone(std::vector<NodeEntry>& entries, std::vector<NodeEntry>& gone,
                              std::uint32_t step);
  bool count_close_step(std::uint32_t step, std::vector<NodeEntry>& gone);
  void count_step(std::uint32_t step, std::vector<NodeEntry>& gone);
  void look_closer(Origin& because, std::uint32_t step, std::uint64_t pace);
  bool is_to_be_close(std::uint64_t step) const;
  bool is_profiled(std::uint64_t step) const;
  void set_close(bool close);
  void finish_curve();
  void name_growth(std::uint64_t step);
  void name_held(std::uint64_t step);
  void tell(std::vector<WatchFinding> findings);
  std::string op_text(std::uint32_t index) const;
  std::string line_text(std::uint32_t index) const;
  void stop();
  void before_fork();
  void after_fork(bool in_child);

  static Running& running();

  mutable ForkableMutex<std::mutex> mutex_;
  std::vector<std::shared_ptr<WatchSession>> sessions_;
  std::vector<WatchFinding> findings_;
  std::array<std::atomic<Origin*>, kChunks> chunks_{};
  std::uint32_t origin_count_ = 0;
  std::map<std::pair<const void*, const void*>, std::uint32_t> origin_index_;
  std::vector<NodeEntry> nodes_;
  std::vector<NodeEntry> followed_;  // that ran in backwards of counting steps
  Origin followed_count_;
  std::uint64_t close_steps_ = 0;
  std::uint64_t close_until_ = 0;
  StepCurve curve_;
  std::vector<HeldCandidate> held_;  // seen twice, to be named

  std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::uint32_t> step_{0};
  std::atomic<std::uint64_t> ops_{0};
  std::atomic<bool> is_on_{false};
  std::atomic<bool> is_close_{false};
  std::atomic<Watch::Look> look_{Watch::Look::kAsNeeded};
  std::atomic<bool> profiles_{false};
  std::atomic<bool> saw_backward_{false};
  std::atomic<bool> saw_optimizer_{false};
  std::atomic<bool> marked_{false};
  std::atomic<bool> uses_optimizer_{false};
  std::atomic<bool> keeps_graph_{false};  // some backward of late kept its graph
  std::uint32_t backwards_since_optimizer_ = 0;
  std::uint64_t rounds_over_nodes_ = 0;
};

}  // namespace lowtide
