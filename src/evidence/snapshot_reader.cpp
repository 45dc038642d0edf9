// Turns the dicts of a snapshot into rows while the pickle is being read.
//
// A dict is known by one key that only its kind has: "action" an event, "filename" a frame, "state"
// a block, "total_size" a segment, "stage" an annotation, "real_size" a history entry of torch 2.0.
// Every other key may be missing, and unknown ones are passed over, so that files of older and
// newer versions of torch read the same way. Frames and stacks are kept once each however often the
// file repeats them.
//
// Rows are made in the order of reading; what the file's lists say is put together at the end
// (`assemble`), where each row may be used once.
//
// Tested by tests/evidence/snapshot_reader_test.cpp.

#include "src/evidence/snapshot_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <type_traits>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

// Known texts stand first in the pool, in this order, so that an id says which it is.
enum Known : std::uint32_t {
  kEmptyText,
  kAction,
  kAddr,
  kSize,
  kStream,
  kTimeUs,
  kFrames,
  kPoolId,
  kDeviceFree,
  kFilename,
  kName,
  kLine,
  kAddress,
  kRequestedSize,
  kState,
  kHistory,
  kRealSize,
  kTotalSize,
  kBlocks,
  kDevice,
  kSegmentType,
  kSegmentPoolId,
  kIsExpandable,
  kStage,
  kKnownTexts,
};
constexpr std::array<std::string_view, kKnownTexts> kKnownNames{"",
                                                                "action",
                                                                "addr",
                                                                "size",
                                                                "stream",
                                                                "time_us",
                                                                "frames",
                                                                "pool_id",
                                                                "device_free",
                                                                "filename",
                                                                "name",
                                                                "line",
                                                                "address",
                                                                "requested_size",
                                                                "state",
                                                                "history",
                                                                "real_size",
                                                                "total_size",
                                                                "blocks",
                                                                "device",
                                                                "segment_type",
                                                                "segment_pool_id",
                                                                "is_expandable",
                                                                "stage"};

constexpr std::size_t kMaxDevices = 1024;

enum Tag : std::uint8_t {
  kFrameTag = 1,
  kStackTag,
  kEventTag,
  kBlockTag,
  kSegmentTag,
  kAnnotationTag,
  kHistoryTag,
  kIgnoredTag,  // a list of nothing that a snapshot is made of
};

// Ids of equal things, found by hash. The caller keeps the things.
class IdTable {
 public:
  // The id of a thing that `equals`, or `count` after noting that it is the one with that id.
  template <typename Equals, typename HashOf>
  std::uint32_t intern(std::uint64_t hash, std::uint32_t count, Equals equals, HashOf hash_of) {
    if (slots_.size() < 2 * (std::size_t{count} + 1)) grow(count, hash_of);
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = hash & mask;
    for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
      if (equals(slots_[slot] - 1)) return slots_[slot] - 1;
    }
    slots_[slot] = count + 1;
    return count;
  }

 private:
  template <typename HashOf>
  void grow(std::uint32_t count, HashOf hash_of) {
    slots_.assign(slots_.empty() ? 256 : 2 * slots_.size(), 0);
    const std::size_t mask = slots_.size() - 1;
    for (std::uint32_t id = 0; id < count; ++id) {
      std::size_t slot = hash_of(id) & mask;
      while (slots_[slot] != 0) slot = (slot + 1) & mask;
      slots_[slot] = id + 1;
    }
  }

  std::vector<std::uint32_t> slots_;
};

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

struct BlockRow {
  std::uint64_t address = 0;
  Bytes size = 0;
  Bytes requested = 0;
  StackId stack = 0;
  BlockState state = BlockState::kInactive;
  bool has_address = false;
  bool has_requested = false;
};

struct SegmentRow {
  SnapshotSegment segment;
  PickleValue blocks;
};

struct HistoryRow {
  Bytes real_size = 0;
  StackId stack = 0;
};

class SnapshotFolder : public PickleFolder {
 public:
  SnapshotFolder(const std::string& name, PickleHeap& heap) : heap_(heap) {
    snapshot_.name = name;
    for (const std::string_view known : kKnownNames) heap_.texts.intern(known);
    snapshot_.lanes.push_back({});
    lane_ids_.intern(
        hash_of_lane({}), 0, [](std::uint32_t) { return false; },
        [](std::uint32_t) { return std::uint64_t{0}; });
  }

  PickleValue fold_dict(PickleValue record, std::span<const PickleValue> items) override {
    if (record.is(PickleValue::Kind::kNone)) {
      std::uint32_t keys = 0;
      for (std::size_t i = 0; i < items.size(); i += 2) {
        if (items[i].is(PickleValue::Kind::kText) && items[i].index() < kKnownTexts) {
          keys |= 1u << items[i].index();
        }
      }
      const auto has = [keys](Known key) { return (keys & (1u << key)) != 0; };
      if (has(kStage)) {
        record = new_row(kAnnotationTag, snapshot_.annotations);
      } else if (has(kAction)) {
        record = new_event();
      } else if (has(kFilename)) {
        return fold_frame({}, items);
      } else if (has(kState)) {
        record = new_row(kBlockTag, block_rows_);
      } else if (has(kTotalSize)) {
        record = new_row(kSegmentTag, segment_rows_);
      } else if (has(kRealSize)) {
        record = new_row(kHistoryTag, history_rows_);
      } else {
        return {};
      }
    }
    switch (record.tag()) {
      case kFrameTag:
        return fold_frame(snapshot_.frames[record.index()], items);
      case kEventTag:
        fill_event(record.index(), items);
        break;
      case kBlockTag:
        fill_block(block_rows_[record.index()], items);
        break;
      case kSegmentTag:
        fill_segment(segment_rows_[record.index()], items);
        break;
      case kAnnotationTag:
        fill_annotation(snapshot_.annotations[record.index()], items);
        break;
      case kHistoryTag:
        fill_history(history_rows_[record.index()], items);
        break;
      default:
        break;
    }
    return record;
  }

  PickleValue fold_list(PickleValue record, std::span<const PickleValue> items) override {
    bool is_stack = true;
    bool has_rows = false;
    for (const PickleValue item : items) {
      is_stack = is_stack && item.is_record(kFrameTag);
      has_rows |= item.is(PickleValue::Kind::kList) ||
                  (item.is(PickleValue::Kind::kRecord) && item.tag() >= kEventTag &&
                   item.tag() <= kHistoryTag);
    }
    if (!is_stack) {
      // Lists of rows and of lists are kept, and pool ids, which are two numbers. Others may be
      // anything, of any length.
      if (has_rows || items.size() <= 2) return {};
      return PickleValue::record(kIgnoredTag, 0);
    }
    if (record.is_record(kIgnoredTag)) return record;
    stack_in_hand_.clear();
    if (record.is_record(kStackTag)) {
      const auto earlier = snapshot_.frames_of(record.index());
      stack_in_hand_.assign(earlier.begin(), earlier.end());
    }
    for (const PickleValue item : items) stack_in_hand_.push_back(item.index());
    return PickleValue::record(kStackTag, intern_stack());
  }

  std::vector<PickleValue> unfold_list(PickleValue record) override {
    std::vector<PickleValue> frames;
    if (!record.is_record(kStackTag)) return frames;
    for (const std::uint32_t frame : snapshot_.frames_of(record.index())) {
      frames.push_back(PickleValue::record(kFrameTag, frame));
    }
    return frames;
  }

  std::string progress() const override {
    const std::size_t events = snapshot_.events.count();
    return concat(segment_rows_.size(), " segments, ", block_rows_.size(), " blocks, ", events,
                  " events");
  }

  Snapshot assemble(PickleValue root) {
    PickleValue segments = root;
    PickleValue traces;
    if (root.is(PickleValue::Kind::kDict)) {
      segments = heap_.find(root, "segments");
      traces = heap_.find(root, "device_traces");
      read_settings(heap_.find(root, "allocator_settings"));
      const PickleValue own = heap_.find(root, "lowtide");
      if (own.is(PickleValue::Kind::kDict)) {
        const PickleValue memory = heap_.find(own, "memory");
        const PickleValue refusal = heap_.find(own, "refusal");
        if (memory.is(PickleValue::Kind::kText)) {
          snapshot_.is_budget = heap_.texts.view(memory.index()) == "cpu budget";
        }
        if (refusal.is(PickleValue::Kind::kText)) {
          snapshot_.refusal = heap_.texts.view(refusal.index());
        }
      }
    } else {
      snapshot_.list_only = true;
    }
    const auto is_sequence = [](PickleValue value) {
      return value.is(PickleValue::Kind::kList) || value.is(PickleValue::Kind::kTuple);
    };
    if (!is_sequence(segments)) {
      refuse(
          "it is a pickle, but has neither a list of segments nor a dict with one under "
          "\"segments\". Snapshots are written by torch.cuda.memory._dump_snapshot");
    }
    assemble_segments(heap_.elements(segments));
    if (is_sequence(traces)) assemble_traces(heap_.elements(traces));
    // Each device is a pass over the segments.
    if (snapshot_.devices().size() > kMaxDevices) {
      refuse(concat("it has segments of more than ", kMaxDevices,
                    " devices. The file is damaged or made by hand"));
    }
    snapshot_.texts = std::move(heap_.texts);
    return std::move(snapshot_);
  }

 private:
  using Items = std::span<const PickleValue>;

  [[noreturn]] void refuse(const std::string& what) const {
    throw FormatError("LT0715", concat("cannot use ", snapshot_.name, ": ", what));
  }

  template <typename Row>
  static PickleValue new_row(Tag tag, std::vector<Row>& rows) {
    rows.emplace_back();
    return PickleValue::record(tag, static_cast<std::uint32_t>(rows.size() - 1));
  }

  // Numbers.

  WideInteger integer(PickleValue value, const char* what) const {
    WideInteger read;
    if (!heap_.read_integer(value, read)) {
      refuse(concat("\"", what, "\" is no integer (after ", progress(),
                    "). The file is damaged or made by hand"));
    }
    return read;
  }

  Bytes size(PickleValue value, const char* what) const {
    const WideInteger read = integer(value, what);
    if (read.negative || (read.magnitude >> 62) != 0) {
      refuse(concat("\"", what, "\" is ", read.negative ? "negative" : "over 2^62", " (after ",
                    progress(), "). The file is damaged or made by hand"));
    }
    return read.magnitude;
  }

  // Addresses and streams are 64 bits; libtorch writes them as signed.
  std::uint64_t word(PickleValue value, const char* what) const {
    return integer(value, what).magnitude;
  }

  std::int64_t signed_word(PickleValue value, const char* what) const {
    return static_cast<std::int64_t>(integer(value, what).magnitude);
  }

  static std::uint32_t text_id(PickleValue value) {
    return value.is(PickleValue::Kind::kText) ? value.index() : std::uint32_t{kEmptyText};
  }

  bool truth(PickleValue value) const {
    WideInteger read;
    return heap_.read_integer(value, read) && read.magnitude != 0;
  }

  static StackId stack_id(PickleValue value) {
    return value.is_record(kStackTag) ? value.index() : 0;
  }

  void read_pool_id(PickleValue value, Lane& lane) const {
    const std::vector<PickleValue> parts = heap_.elements(value);
    if (parts.size() != 2) return;
    lane.pool_first = word(parts[0], "segment_pool_id");
    lane.pool_second = word(parts[1], "segment_pool_id");
  }

  static std::uint64_t hash_of_lane(const Lane& lane) {
    return mix(mix(mix(7, lane.stream), lane.pool_first), lane.pool_second);
  }

  std::uint32_t intern_lane(const Lane& lane) {
    auto& lanes = snapshot_.lanes;
    if (lanes[last_lane_] == lane) return last_lane_;
    last_lane_ = lane_ids_.intern(
        hash_of_lane(lane), static_cast<std::uint32_t>(lanes.size()),
        [&](std::uint32_t id) { return lanes[id] == lane; },
        [&](std::uint32_t id) { return hash_of_lane(lanes[id]); });
    if (last_lane_ == lanes.size()) lanes.push_back(lane);
    return last_lane_;
  }

  // Frames and stacks.

  static std::uint64_t hash_of_frame(const SnapshotFrame& frame) {
    return mix(mix(mix(1, frame.function), frame.file), static_cast<std::uint64_t>(frame.line));
  }

  PickleValue fold_frame(SnapshotFrame frame, Items items) {
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i].is(PickleValue::Kind::kText)) continue;
      switch (items[i].index()) {
        case kFilename:
          frame.file = text_id(items[i + 1]);
          break;
        case kName:
          frame.function = text_id(items[i + 1]);
          break;
        case kLine:
          frame.line = loose_integer(items[i + 1]);  // None, where the source is not known
          break;
        default:
          break;
      }
    }
    auto& frames = snapshot_.frames;
    const std::uint32_t id = frame_ids_.intern(
        hash_of_frame(frame), static_cast<std::uint32_t>(frames.size()),
        [&](std::uint32_t other) { return frames[other] == frame; },
        [&](std::uint32_t other) { return hash_of_frame(frames[other]); });
    if (id == frames.size()) frames.push_back(frame);
    return PickleValue::record(kFrameTag, id);
  }

  static std::uint64_t hash_of_stack(std::span<const std::uint32_t> frames) {
    std::uint64_t hash = frames.size();
    for (const std::uint32_t frame : frames) hash = mix(hash, frame);
    return hash;
  }

  StackId intern_stack() {
    const std::uint64_t hash = hash_of_stack(stack_in_hand_);
    const auto count = static_cast<std::uint32_t>(snapshot_.stack_count());
    const StackId id = stack_ids_.intern(
        hash, count,
        [&](std::uint32_t other) {
          const auto frames = snapshot_.frames_of(other);
          return std::equal(frames.begin(), frames.end(), stack_in_hand_.begin(),
                            stack_in_hand_.end());
        },
        [&](std::uint32_t other) { return hash_of_stack(snapshot_.frames_of(other)); });
    if (id == count) {
      snapshot_.stack_frames.insert(snapshot_.stack_frames.end(), stack_in_hand_.begin(),
                                    stack_in_hand_.end());
      snapshot_.stack_ends.push_back(snapshot_.stack_frames.size());
    }
    return id;
  }

  // Events.

  PickleValue new_event() {
    EventColumns& events = snapshot_.events;
    const auto row = static_cast<std::uint32_t>(events.count());
    events.action.push_back(EventAction::kOther);
    events.address.push_back(0);
    events.size.push_back(0);
    events.time_us.push_back(0);
    events.stack.push_back(0);
    events.lane.push_back(0);
    return PickleValue::record(kEventTag, row);
  }

  EventAction action_of(PickleValue value) const {
    if (!value.is(PickleValue::Kind::kText)) return EventAction::kOther;
    const std::string_view name = heap_.texts.view(value.index());
    for (std::size_t i = 0; i < kEventActions - 1; ++i) {
      if (name == action_name(static_cast<EventAction>(i))) return static_cast<EventAction>(i);
    }
    return EventAction::kOther;
  }

  EventAction cached_action_of(PickleValue value) {
    if (value != last_action_text_) {
      last_action_text_ = value;
      last_action_ = action_of(value);
    }
    return last_action_;
  }

  void fill_event(std::uint32_t row, Items items) {
    EventColumns& events = snapshot_.events;
    Lane lane = snapshot_.lanes[events.lane[row]];
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i].is(PickleValue::Kind::kText)) continue;
      const PickleValue value = items[i + 1];
      switch (items[i].index()) {
        case kAction:
          events.action[row] = cached_action_of(value);
          break;
        case kAddr:
          events.address[row] = word(value, "addr");
          break;
        case kDeviceFree:
          events.address[row] = word(value, "device_free");
          break;
        case kSize:
          events.size[row] = size(value, "size");
          break;
        case kStream:
          lane.stream = word(value, "stream");
          break;
        case kTimeUs:
          events.time_us[row] = signed_word(value, "time_us");
          break;
        case kFrames:
          events.stack[row] = stack_id(value);
          break;
        case kPoolId:
          read_pool_id(value, lane);
          break;
        default:
          break;
      }
    }
    events.lane[row] = intern_lane(lane);
  }

  // Segments and blocks.

  void fill_block(BlockRow& block, Items items) {
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i].is(PickleValue::Kind::kText)) continue;
      const PickleValue value = items[i + 1];
      switch (items[i].index()) {
        case kAddress:
          block.address = word(value, "address");
          block.has_address = true;
          break;
        case kSize:
          block.size = size(value, "size");
          break;
        case kRequestedSize:
          block.requested = size(value, "requested_size");
          block.has_requested = true;
          break;
        case kState: {
          const std::string_view state = heap_.texts.view(text_id(value));
          // torch's manual calls the second one active_awaiting_free; its code active_pending_free.
          block.state = state == "inactive"           ? BlockState::kInactive
                        : state == "active_allocated" ? BlockState::kAllocated
                                                      : BlockState::kPendingFree;
          break;
        }
        case kFrames:
          block.stack = stack_id(value);
          break;
        case kHistory: {
          const std::vector<PickleValue> entries = heap_.elements(value);
          if (!entries.empty() && entries[0].is_record(kHistoryTag)) {
            const HistoryRow& latest = history_rows_[entries[0].index()];
            block.stack = latest.stack;
            if (!block.has_requested && latest.real_size != 0) {
              block.requested = latest.real_size;
              block.has_requested = true;
            }
          }
          break;
        }
        default:
          break;
      }
    }
  }

  void fill_history(HistoryRow& entry, Items items) {
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i].is(PickleValue::Kind::kText)) continue;
      if (items[i].index() == kRealSize) entry.real_size = size(items[i + 1], "real_size");
      if (items[i].index() == kFrames) entry.stack = stack_id(items[i + 1]);
    }
  }

  void fill_segment(SegmentRow& row, Items items) {
    SnapshotSegment& segment = row.segment;
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i].is(PickleValue::Kind::kText)) continue;
      const PickleValue value = items[i + 1];
      switch (items[i].index()) {
        case kDevice:
          segment.device = signed_word(value, "device");
          break;
        case kAddress:
          segment.address = word(value, "address");
          break;
        case kTotalSize:
          segment.size = size(value, "total_size");
          break;
        case kStream:
          segment.lane.stream = word(value, "stream");
          break;
        case kSegmentType:
          segment.is_small = heap_.texts.view(text_id(value)) == "small";
          break;
        case kSegmentPoolId:
          read_pool_id(value, segment.lane);
          break;
        case kIsExpandable:
          segment.is_expandable = truth(value);
          break;
        case kFrames:
          segment.stack = stack_id(value);
          break;
        case kBlocks:
          row.blocks = value;
          break;
        default:
          break;
      }
    }
  }

  void fill_annotation(SnapshotAnnotation& annotation, Items items) {
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!items[i].is(PickleValue::Kind::kText)) continue;
      const PickleValue value = items[i + 1];
      switch (items[i].index()) {
        case kStage:
          annotation.stage = text_id(value);
          break;
        case kName:
          annotation.name = text_id(value);
          break;
        case kDevice:
          annotation.device = loose_integer(value);
          break;
        case kTimeUs:
          annotation.time_us = loose_integer(value);
          break;
        default:
          break;
      }
    }
  }

  // libtorch writes the numbers of annotations as text.
  std::int64_t loose_integer(PickleValue value) const {
    WideInteger read;
    if (heap_.read_integer(value, read)) return static_cast<std::int64_t>(read.magnitude);
    const std::string_view text = heap_.texts.view(text_id(value));
    std::int64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
  }

  // From rows to the final tables. A row is used once: a file that names one twice would grow
  // beyond its own size, and no allocator has two of the same segment.

  void assemble_segments(const std::vector<PickleValue>& elements) {
    std::vector<bool> used_segments(segment_rows_.size());
    std::vector<bool> used_blocks(block_rows_.size());
    for (const PickleValue element : elements) {
      if (!element.is_record(kSegmentTag)) {
        refuse(
            "its list of segments holds something else. Snapshots are written by "
            "torch.cuda.memory._dump_snapshot");
      }
      if (used_segments[element.index()]) refuse("it has the same segment twice");
      used_segments[element.index()] = true;
      const SegmentRow& row = segment_rows_[element.index()];
      SnapshotSegment segment = row.segment;
      segment.first_block = static_cast<std::uint32_t>(snapshot_.blocks.size());
      std::uint64_t next_address = segment.address;
      for (const PickleValue item : heap_.elements(row.blocks)) {
        if (!item.is_record(kBlockTag)) refuse("a segment's list of blocks holds something else");
        if (used_blocks[item.index()]) refuse("it has the same block twice");
        used_blocks[item.index()] = true;
        const BlockRow& read = block_rows_[item.index()];
        SnapshotBlock block;
        block.address = read.has_address ? read.address : next_address;
        block.size = read.size;
        block.state = read.state;
        block.stack = read.stack;
        if (block.is_live()) block.requested = read.has_requested ? read.requested : read.size;
        next_address = block.address + block.size;
        snapshot_.blocks.push_back(block);
      }
      segment.block_count =
          static_cast<std::uint32_t>(snapshot_.blocks.size()) - segment.first_block;
      const auto begin = snapshot_.blocks.begin() + segment.first_block;
      std::sort(begin, snapshot_.blocks.end(),
                [](const auto& a, const auto& b) { return a.address < b.address; });
      snapshot_.segments.push_back(segment);
    }
    block_rows_ = {};
    segment_rows_ = {};
  }

  void assemble_traces(const std::vector<PickleValue>& lists) {
    // As read, the rows of a device follow each other, and nothing has to be moved.
    std::vector<std::vector<std::uint32_t>> rows;
    std::size_t total = 0;
    std::uint32_t next = 0;
    bool in_order = true;
    for (const PickleValue list : lists) {
      rows.emplace_back();
      for (const PickleValue element : heap_.elements(list)) {
        if (!element.is_record(kEventTag)) refuse("a device's trace holds something else");
        if (++total > snapshot_.events.count()) refuse("it has the same event twice");
        in_order = in_order && element.index() == next++;
        rows.back().push_back(element.index());
      }
    }
    if (!in_order) {
      std::vector<std::uint32_t> order;
      for (const auto& of_device : rows)
        order.insert(order.end(), of_device.begin(), of_device.end());
      const auto reorder = [&order](auto& column) {
        std::remove_reference_t<decltype(column)> moved(order.size());
        for (std::size_t i = 0; i < order.size(); ++i) moved[i] = column[order[i]];
        column = std::move(moved);
      };
      EventColumns& events = snapshot_.events;
      reorder(events.action);
      reorder(events.address);
      reorder(events.size);
      reorder(events.time_us);
      reorder(events.stack);
      reorder(events.lane);
    }
    std::uint32_t first = 0;
    for (std::size_t device = 0; device < rows.size(); ++device) {
      const auto count = static_cast<std::uint32_t>(rows[device].size());
      if (count > 0) {
        snapshot_.traces.push_back({static_cast<std::int64_t>(device), first, count});
      }
      first += count;
    }
  }

  void read_settings(PickleValue dict) {
    if (!dict.is(PickleValue::Kind::kDict)) return;
    SnapshotSettings& settings = snapshot_.settings;
    settings.known = true;
    const auto text_at = [&](std::string_view key) {
      return heap_.texts.view(text_id(heap_.find(dict, key)));
    };
    // Absent and -1 mean "no limit".
    const auto bytes_at = [&](std::string_view key) -> Bytes {
      WideInteger read;
      if (!heap_.read_integer(heap_.find(dict, key), read) || read.negative) return 0;
      return (read.magnitude >> 62) != 0 ? 0 : read.magnitude;
    };
    settings.configuration = text_at("PYTORCH_CUDA_ALLOC_CONF");
    if (settings.configuration.empty()) settings.configuration = text_at("PYTORCH_ALLOC_CONF");
    settings.max_split_size = bytes_at("max_split_size");
    settings.max_non_split_rounding = bytes_at("max_non_split_rounding_size");
    settings.large_segment_size = bytes_at("large_segment_size");
    settings.expandable_segments = truth(heap_.find(dict, "expandable_segments"));
    heap_.read_number(heap_.find(dict, "garbage_collection_threshold"),
                      settings.garbage_collection_threshold);
    for (const auto& [key, value] : heap_.pairs(heap_.find(dict, "roundup_power2_divisions"))) {
      WideInteger read;
      const std::int64_t mebibytes = loose_integer(key);
      if (mebibytes <= 0 || !heap_.read_integer(value, read) || read.negative) continue;
      const int place = 63 - __builtin_clzll(static_cast<std::uint64_t>(mebibytes));
      if (place < static_cast<int>(settings.roundup_power2_divisions.size()) &&
          read.magnitude <= 0xffffffffu) {
        settings.roundup_power2_divisions[static_cast<std::size_t>(place)] =
            static_cast<std::uint32_t>(read.magnitude);
      }
    }
  }

  PickleHeap& heap_;
  Snapshot snapshot_;
  std::vector<BlockRow> block_rows_;
  std::vector<SegmentRow> segment_rows_;
  std::vector<HistoryRow> history_rows_;
  std::vector<std::uint32_t> stack_in_hand_;
  IdTable frame_ids_;
  IdTable stack_ids_;
  IdTable lane_ids_;
  std::uint32_t last_lane_ = 0;
  PickleValue last_action_text_;
  EventAction last_action_ = EventAction::kOther;
};

}  // namespace

Snapshot read_snapshot(ByteSource& source) {
  PickleHeap heap;
  SnapshotFolder folder(source.name(), heap);
  const PickleValue root = read_pickle(source, heap, &folder);
  return folder.assemble(root);
}

Snapshot read_snapshot(const std::string& path) {
  ByteSource source(path);
  return read_snapshot(source);
}

}  // namespace lowtide
