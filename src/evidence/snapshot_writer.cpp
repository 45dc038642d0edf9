// Containers enter the memo before they are filled, and lists are filled by at most a thousand
// elements at once, as CPython does, whose readers this is for.
//
// Tested by tests/evidence/snapshot_writer_test.cpp.

#include "src/evidence/snapshot_writer.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lowtide {
namespace {

class PickleOut {
 public:
  void begin() { out_ += "\x80\x04"; }
  std::string end() {
    out_ += '.';
    return std::move(out_);
  }

  void integer(std::int64_t value) {
    if (value < 0) {
      out_ += "\x8a\x08";
      number(static_cast<std::uint64_t>(value), 8);
    } else {
      integer(static_cast<std::uint64_t>(value));
    }
  }
  void integer(std::uint64_t value) {
    if (value < 256) {
      out_ += 'K';
      number(value, 1);
    } else if (value < 65536) {
      out_ += 'M';
      number(value, 2);
    } else if (value < (std::uint64_t{1} << 31)) {
      out_ += 'J';
      number(value, 4);
    } else {
      // Signed, so that the highest bit takes a byte more.
      const bool is_wide = value >> 63 != 0;
      out_ += "\x8a";
      out_ += is_wide ? '\x09' : '\x08';
      number(value, 8);
      if (is_wide) out_ += '\0';
    }
  }
  void real(double value) {
    std::uint64_t bits = 0;
    static_assert(sizeof bits == sizeof value);
    __builtin_memcpy(&bits, &value, sizeof bits);
    out_ += 'G';
    number(__builtin_bswap64(bits), 8);
  }
  void truth(bool value) { out_ += value ? '\x88' : '\x89'; }
  void text(std::string_view value) {
    const auto [known, is_new] = texts_.try_emplace(std::string(value), memo_);
    if (!is_new) return fetch(known->second);
    if (value.size() < 256) {
      out_ += '\x8c';
      number(value.size(), 1);
    } else {
      out_ += 'X';
      number(value.size(), 4);
    }
    out_ += value;
    memoize();
  }
  void pair(std::uint64_t first, std::uint64_t second) {
    integer(first);
    integer(second);
    out_ += '\x86';
    memoize();
  }

  // Returns its place in the memo.
  template <typename Fill>
  std::uint32_t dict(Fill fill) {
    out_ += '}';
    const std::uint32_t place = memoize();
    out_ += '(';
    fill();
    out_ += 'u';
    return place;
  }
  template <typename Element>
  std::uint32_t list(std::size_t count, Element element) {
    constexpr std::size_t kBatch = 1000;
    out_ += ']';
    const std::uint32_t place = memoize();
    for (std::size_t first = 0; first < count; first += kBatch) {
      out_ += '(';
      for (std::size_t i = first; i < std::min(count, first + kBatch); ++i) element(i);
      out_ += 'e';
    }
    return place;
  }
  void fetch(std::uint32_t place) {
    if (place < 256) {
      out_ += 'h';
      number(place, 1);
    } else {
      out_ += 'j';
      number(place, 4);
    }
  }

 private:
  void number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i));
  }
  std::uint32_t memoize() {
    out_ += '\x94';
    return memo_++;
  }

  std::string out_;
  std::uint32_t memo_ = 0;
  std::unordered_map<std::string, std::uint32_t> texts_;
};

constexpr std::uint32_t kUnwritten = 0xffffffffu;

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const Snapshot& snapshot)
      : snapshot_(snapshot),
        frames_(snapshot.frames.size(), kUnwritten),
        stacks_(snapshot.stack_count(), kUnwritten) {}

  std::string write() {
    out_.begin();
    if (snapshot_.list_only) {
      segments();
      return out_.end();
    }
    out_.dict([&] {
      key("segments");
      segments();
      key("device_traces");
      traces();
      if (snapshot_.settings.known) {
        key("allocator_settings");
        settings();
      }
      key("external_annotations");
      annotations();
      if (snapshot_.is_budget) {
        key("lowtide");
        out_.dict([&] {
          entry("memory", "cpu budget");
          entry("refusal", snapshot_.refusal);
        });
      }
    });
    return out_.end();
  }

 private:
  void key(std::string_view name) { out_.text(name); }
  void entry(std::string_view name, std::string_view value) {
    key(name);
    out_.text(value);
  }
  void entry(std::string_view name, std::uint64_t value) {
    key(name);
    out_.integer(value);
  }
  void entry(std::string_view name, std::int64_t value) {
    key(name);
    out_.integer(value);
  }

  void stack(StackId id) {
    key("frames");
    if (stacks_[id] != kUnwritten) return out_.fetch(stacks_[id]);
    const auto frames = snapshot_.frames_of(id);
    stacks_[id] = out_.list(frames.size(), [&](std::size_t i) { frame(frames[i]); });
  }

  void frame(std::uint32_t id) {
    if (frames_[id] != kUnwritten) return out_.fetch(frames_[id]);
    const SnapshotFrame& at = snapshot_.frames[id];
    frames_[id] = out_.dict([&] {
      entry("name", snapshot_.texts.view(at.function));
      entry("filename", snapshot_.texts.view(at.file));
      entry("line", at.line);
    });
  }

  void segments() {
    out_.list(snapshot_.segments.size(), [&](std::size_t s) {
      const SnapshotSegment& segment = snapshot_.segments[s];
      const auto blocks = snapshot_.blocks_of(segment);
      Bytes allocated = 0, active = 0, requested = 0;
      for (const SnapshotBlock& block : blocks) {
        if (block.state == BlockState::kAllocated) allocated += block.size;
        if (block.is_live()) active += block.size;
        if (block.is_live()) requested += block.requested;
      }
      out_.dict([&] {
        entry("device", segment.device);
        entry("address", segment.address);
        entry("total_size", segment.size);
        entry("allocated_size", allocated);
        entry("active_size", active);
        entry("requested_size", requested);
        entry("stream", segment.lane.stream);
        entry("segment_type", segment.is_small ? "small" : "large");
        key("segment_pool_id");
        out_.pair(segment.lane.pool_first, segment.lane.pool_second);
        key("is_expandable");
        out_.truth(segment.is_expandable);
        stack(segment.stack);
        key("blocks");
        out_.list(blocks.size(), [&](std::size_t b) { this->block(blocks[b]); });
      });
    });
  }

  void block(const SnapshotBlock& block) {
    out_.dict([&] {
      entry("address", block.address);
      entry("size", block.size);
      entry("requested_size", block.requested);
      entry("state", block.state == BlockState::kInactive    ? "inactive"
                     : block.state == BlockState::kAllocated ? "active_allocated"
                                                             : "active_pending_free");
      stack(block.stack);
    });
  }

  void traces() {
    std::int64_t devices = 0;
    for (const DeviceTrace& trace : snapshot_.traces) devices = std::max(devices, trace.device + 1);
    out_.list(static_cast<std::size_t>(devices), [&](std::size_t device) {
      const DeviceTrace* trace = snapshot_.trace_of(static_cast<std::int64_t>(device));
      out_.list(trace == nullptr ? 0 : trace->count,
                [&](std::size_t i) { event(trace->first + static_cast<std::uint32_t>(i)); });
    });
  }

  void event(std::uint32_t row) {
    const EventColumns& events = snapshot_.events;
    const Lane& lane = snapshot_.lanes[events.lane[row]];
    out_.dict([&] {
      entry("action", action_name(events.action[row]));
      entry(events.action[row] == EventAction::kOom ? "device_free" : "addr", events.address[row]);
      entry("size", events.size[row]);
      entry("stream", lane.stream);
      if (events.time_us[row] != 0) entry("time_us", events.time_us[row]);
      if (lane.is_private()) {
        key("pool_id");
        out_.pair(lane.pool_first, lane.pool_second);
      }
      stack(events.stack[row]);
    });
  }

  void settings() {
    const SnapshotSettings& settings = snapshot_.settings;
    out_.dict([&] {
      entry("PYTORCH_CUDA_ALLOC_CONF", settings.configuration);
      entry("max_split_size", settings.max_split_size == 0
                                  ? std::int64_t{-1}
                                  : static_cast<std::int64_t>(settings.max_split_size));
      if (settings.max_non_split_rounding != 0) {
        entry("max_non_split_rounding_size", settings.max_non_split_rounding);
      }
      if (settings.large_segment_size != 0) {
        entry("large_segment_size", settings.large_segment_size);
      }
      key("garbage_collection_threshold");
      out_.real(settings.garbage_collection_threshold);
      key("expandable_segments");
      out_.truth(settings.expandable_segments);
      key("roundup_power2_divisions");
      out_.dict([&] {
        for (std::size_t i = 0; i < settings.roundup_power2_divisions.size(); ++i) {
          entry(std::to_string(std::uint64_t{1} << i),
                std::uint64_t{settings.roundup_power2_divisions[i]});
        }
      });
    });
  }

  void annotations() {
    out_.list(snapshot_.annotations.size(), [&](std::size_t i) {
      const SnapshotAnnotation& annotation = snapshot_.annotations[i];
      out_.dict([&] {
        entry("stage", snapshot_.texts.view(annotation.stage));
        entry("name", snapshot_.texts.view(annotation.name));
        entry("device", annotation.device);
        entry("time_us", annotation.time_us);
      });
    });
  }

  const Snapshot& snapshot_;
  PickleOut out_;
  std::vector<std::uint32_t> frames_;  // places in the memo
  std::vector<std::uint32_t> stacks_;
};

}  // namespace

std::string snapshot_pickle(const Snapshot& snapshot) { return SnapshotWriter(snapshot).write(); }

}  // namespace lowtide
