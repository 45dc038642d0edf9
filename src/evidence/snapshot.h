#pragma once
// A snapshot of CUDA's caching allocator as tables: what torch.cuda.memory._dump_snapshot, or
// torch::cuda::_memory_snapshot_pickled in C++, wrote down.
//
//   Snapshot snapshot = read_snapshot("snapshot.pickle");      // snapshot_reader.h
//   for (const DeviceTrace& trace : snapshot.traces) { .. }
//   snapshot.frames_of(stack);                                  // innermost first
//
// `segments` and `blocks` are the allocator's state when the snapshot was taken; `events` is what
// it did before, for as long as it was recording. Requested sizes are what programs asked for;
// block sizes are rounded up. Events carry requested sizes (of segments, for segment events).
//
// docs/formats/snapshot.md lists the forms a snapshot comes in.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lowtide/bytes.h"
#include "src/evidence/pickle_value.h"

namespace lowtide {

enum class EventAction : std::uint8_t {
  kAlloc,
  kFreeRequested,  // the program let go of it
  kFreeCompleted,  // and no stream uses it any more
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kSnapshot,
  kOom,
  kOther,  // one that later versions of torch have made up
};
constexpr std::size_t kEventActions = 10;
const char* action_name(EventAction action);

enum class BlockState : std::uint8_t { kInactive, kAllocated, kPendingFree };

// A call stack: a place in Snapshot's tables. 0 is the empty one.
using StackId = std::uint32_t;

struct SnapshotFrame {
  std::uint32_t function = 0;  // ids in texts
  std::uint32_t file = 0;
  std::int64_t line = 0;
  bool operator==(const SnapshotFrame&) const = default;
};

// Which stream, and which pool: {0, 0} is the default one, others are those of CUDA graphs and
// MemPool.
struct Lane {
  std::uint64_t stream = 0;
  std::uint64_t pool_first = 0;
  std::uint64_t pool_second = 0;
  bool operator==(const Lane&) const = default;
  bool is_private() const { return pool_first != 0 || pool_second != 0; }
};

struct SnapshotBlock {
  std::uint64_t address = 0;
  Bytes size = 0;
  Bytes requested = 0;  // 0 for a free one
  StackId stack = 0;
  BlockState state = BlockState::kInactive;
  bool is_live() const { return state != BlockState::kInactive; }
};

struct SnapshotSegment {
  std::int64_t device = 0;
  std::uint64_t address = 0;
  Bytes size = 0;
  Lane lane;
  StackId stack = 0;
  std::uint32_t first_block = 0;  // [first_block, first_block + block_count), by address
  std::uint32_t block_count = 0;
  bool is_small = false;
  bool is_expandable = false;
};

// One row an event, as columns. For kOom, `address` is the free memory that the device had.
struct EventColumns {
  std::vector<EventAction> action;
  std::vector<std::uint64_t> address;
  std::vector<Bytes> size;
  std::vector<std::int64_t> time_us;  // 0: not recorded
  std::vector<StackId> stack;
  std::vector<std::uint32_t> lane;  // index into Snapshot::lanes

  std::size_t count() const { return action.size(); }
};

// The events of one device: rows [first, first + count).
struct DeviceTrace {
  std::int64_t device = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct SnapshotAnnotation {
  std::uint32_t stage = 0;  // text ids: START or END, and what
  std::uint32_t name = 0;
  std::int64_t device = 0;
  std::int64_t time_us = 0;
};

// What the allocator was told, as the snapshot has it. Versions before 2.3 do not write it.
struct SnapshotSettings {
  bool known = false;
  std::string configuration;         // PYTORCH_CUDA_ALLOC_CONF
  Bytes max_split_size = 0;          // 0: no limit
  Bytes max_non_split_rounding = 0;  // 0: not written
  Bytes large_segment_size = 0;      // 0: not written
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  std::array<std::uint32_t, 16> roundup_power2_divisions{};  // for 1 MiB, 2 MiB .. 32 GiB and more
};

// The file of frames that Lowtide itself wrote, for memory that has no stacks: the op that made a
// block, and outermost what the block is for (kind_name()).
constexpr std::string_view kLowtideFile = "[lowtide]";

struct Snapshot {
  std::string name;  // of the file
  // Written at a refusal of a memory budget: bytes of CPU tensors, counted and not placed, so that
  // there is no allocator to replay. `refusal` is the error's message.
  bool is_budget = false;
  std::string refusal;
  bool list_only = false;
  std::vector<SnapshotSegment> segments;
  std::vector<SnapshotBlock> blocks;
  EventColumns events;
  std::vector<DeviceTrace> traces;  // those with events, by device
  std::vector<Lane> lanes;
  std::vector<SnapshotAnnotation> annotations;
  SnapshotSettings settings;

  TextPool texts;
  std::vector<SnapshotFrame> frames;
  std::vector<std::uint32_t> stack_frames;      // frame ids, stacks one after the other
  std::vector<std::uint64_t> stack_ends{0, 0};  // stack s is [stack_ends[s], stack_ends[s + 1])

  std::span<const std::uint32_t> frames_of(StackId stack) const {
    return std::span(stack_frames)
        .subspan(stack_ends[stack], stack_ends[stack + 1] - stack_ends[stack]);
  }
  std::size_t stack_count() const { return stack_ends.size() - 1; }
  std::span<const SnapshotBlock> blocks_of(const SnapshotSegment& segment) const {
    return std::span(blocks).subspan(segment.first_block, segment.block_count);
  }
  // "device 0"; "the CPU" for a budget's.
  std::string device_name(std::int64_t device) const;
  // The devices that have segments or events, in order.
  std::vector<std::int64_t> devices() const;
  const DeviceTrace* trace_of(std::int64_t device) const;
};

// Adds sizes from files; throws FormatError (LT0715) when a sum passes 2^63.
class SizeSum {
 public:
  SizeSum& operator+=(Bytes bytes) {
    if (__builtin_add_overflow(total_, bytes, &total_) || (total_ >> 63) != 0) refuse();
    return *this;
  }
  SizeSum& operator-=(Bytes bytes) {
    total_ -= bytes;
    return *this;
  }
  Bytes value() const { return total_; }

 private:
  [[noreturn]] static void refuse();
  Bytes total_ = 0;
};

}  // namespace lowtide
