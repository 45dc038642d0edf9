// The snapshot knows every block at the end. Going back over the trace, an allocation takes its
// block away and a completed free puts one there; segments come and go the same way.
//
// What the trace lacks is the size of the blocks that were freed in it, since it has requested
// sizes only. Their size is the rounded request, and in the large pool whatever lies between it and
// the next live block when that is too little for a free block of its own (at most 1 MiB): that was
// never cut off. Blocks that lived through the whole trace have their size in the snapshot.
//
// Tested by tests/allocator/trace_replay_test.cpp.

#include "src/allocator/start_state.h"

#include <algorithm>
#include <map>

#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr Bytes kLeastLargeBlock = 1_MiB;
constexpr Bytes kSmallSegment = 2_MiB;

struct Live {
  Bytes requested = 0;
  Bytes size = 0;   // 0: not known
  Bytes slack = 0;  // beyond the rounded request, as far as an allocation behind it has told
  bool pending = false;
  Lane lane;
};

class Undo {
 public:
  Undo(const Snapshot& snapshot, std::int64_t device, const AllocatorSettings& settings)
      : snapshot_(snapshot), device_(device), settings_(settings) {}

  StartState run() {
    read_end();
    const DeviceTrace* trace = snapshot_.trace_of(device_);
    if (trace != nullptr) undo_all(*trace);
    if (trace != nullptr && start_.problems.empty()) find_slack(*trace);
    build();
    return std::move(start_);
  }

 private:
  void problem(const std::string& what) {
    // One is enough to say that it can't be exact; hundreds of the same kind say no more.
    if (start_.problems.size() < 3) {
      start_.problems.push_back(concat("device ", device_, ": ", what));
    }
  }

  void read_end() {
    for (const SnapshotSegment& segment : snapshot_.segments) {
      if (segment.device != device_) continue;
      if (segment.size == 0 || segment.address + segment.size < segment.address) {
        problem(concat("the segment at ", segment.address, " has an impossible size"));
        continue;
      }
      StartSegment& at = segments_[segment.address];
      at = {segment.address,  segment.size,          segment.lane,
            segment.is_small, segment.is_expandable, {}};
      reserved_ += segment.size;
      std::uint64_t next = segment.address;
      for (const SnapshotBlock& block : snapshot_.blocks_of(segment)) {
        if (block.address != next || block.size == 0) {
          problem(concat("the blocks of the segment at ", segment.address,
                         " do not follow each other"));
          break;
        }
        next += block.size;
        if (block.is_live()) {
          live_[block.address] = {block.requested, block.size, 0,
                                  block.state == BlockState::kPendingFree, segment.lane};
        }
      }
      if (next != segment.address + segment.size) {
        problem(concat("the blocks of the segment at ", segment.address, " do not fill it"));
      }
      if (segment.is_expandable) note_mapped(segment.address, at);
    }
    for (auto at = segments_.begin(); at != segments_.end(); ++at) {
      const auto next = std::next(at);
      if (next != segments_.end() && at->first + at->second.size > next->first) {
        problem(concat("the segments at ", at->first, " and ", next->first, " overlap"));
      }
    }
    start_.peak_reserved = reserved_;
  }

  // The segment that `address` lies in.
  StartSegment* segment_at(std::uint64_t address) {
    auto after = segments_.upper_bound(address);
    if (after == segments_.begin()) return nullptr;
    StartSegment& found = std::prev(after)->second;
    return address - found.address < found.size ? &found : nullptr;
  }

  void undo_all(const DeviceTrace& trace) {
    const EventColumns& events = snapshot_.events;
    start_.lanes.resize(trace.count);
    bool has_completed = false;
    for (std::uint32_t i = 0; i < trace.count; ++i) {
      has_completed |= events.action[trace.first + i] == EventAction::kFreeCompleted;
    }
    for (std::uint32_t i = trace.count; i-- > 0 && start_.problems.empty();) {
      const std::uint32_t row = trace.first + i;
      const std::uint64_t address = events.address[row];
      const Bytes size = events.size[row];
      Lane lane = snapshot_.lanes[events.lane[row]];
      switch (events.action[row]) {
        case EventAction::kAlloc: {
          const auto found = live_.find(address);
          if (found == live_.end() || found->second.requested != size) {
            problem(concat("event ", i, " allocates ", size, " bytes at ", address,
                           ", where the snapshot has no such block"));
            break;
          }
          if (const StartSegment* segment = segment_at(address)) {
            if (!lane.is_private()) {
              lane.pool_first = segment->lane.pool_first;
              lane.pool_second = segment->lane.pool_second;
            }
          }
          live_.erase(found);
          break;
        }
        case EventAction::kFreeCompleted:
          revive(i, address, size, lane, true);
          break;
        case EventAction::kFreeRequested:
          if (!has_completed) {
            revive(i, address, size, lane, false);
          } else if (const auto found = live_.find(address); found != live_.end()) {
            found->second.pending = false;
          }
          break;
        case EventAction::kSegmentAlloc: {
          const auto found = segments_.find(address);
          if (found == segments_.end() || found->second.size != size) {
            problem(concat("event ", i, " makes a segment at ", address,
                           ", where the snapshot has none"));
            break;
          }
          if (has_live(address, size)) {
            problem(concat("event ", i, " makes the segment at ", address,
                           ", which had blocks before"));
          }
          segments_.erase(found);
          reserved_ -= size;
          break;
        }
        case EventAction::kSegmentFree:
          if (overlaps(address, size)) {
            problem(
                concat("event ", i, " frees a segment at ", address, ", where there is another"));
            break;
          }
          segments_[address] = {address, size, lane, size == kSmallSegment, false, {}};
          grow(size);
          break;
        case EventAction::kSegmentMap:
          unmap(i, address, size);
          break;
        case EventAction::kSegmentUnmap: {
          if (overlaps(address, size)) {
            problem(concat("event ", i, " unmaps ", address, ", where memory is mapped later"));
            break;
          }
          StartSegment range{address, size, lane, is_small_range(address, lane, size), true, {}};
          note_mapped(address, range);
          add_mapped(std::move(range));
          grow(size);
          break;
        }
        default:
          break;
      }
      start_.lanes[i] = lane;
    }
  }

  void grow(Bytes size) {
    reserved_ += size;
    start_.peak_reserved = std::max(start_.peak_reserved, reserved_);
  }

  void revive(std::uint32_t event, std::uint64_t address, Bytes size, Lane lane, bool pending) {
    const StartSegment* segment = segment_at(address);
    if (segment == nullptr || live_.count(address) != 0) {
      problem(concat("event ", event, " frees ", size, " bytes at ", address,
                     segment == nullptr ? ", which is in no segment" : ", which is freed twice"));
      return;
    }
    live_[address] = {size, 0, 0, pending, lane};
  }

  bool has_live(std::uint64_t address, Bytes size) const {
    const auto at = live_.lower_bound(address);
    return at != live_.end() && at->first - address < size;
  }

  bool overlaps(std::uint64_t address, Bytes size) {
    if (segment_at(address) != nullptr) return true;
    const auto after = segments_.lower_bound(address);
    return after != segments_.end() && after->first - address < size;
  }

  // Ranges that touch are one, as the allocator has them.
  void add_mapped(StartSegment range) {
    const auto joins = [](const StartSegment& before, const StartSegment& after) {
      return before.is_expandable && after.is_expandable && before.lane == after.lane &&
             before.is_small == after.is_small && before.address + before.size == after.address;
    };
    auto after = segments_.lower_bound(range.address);
    if (after != segments_.end() && joins(range, after->second)) {
      range.size += after->second.size;
      after = segments_.erase(after);
    }
    if (after != segments_.begin() && joins(std::prev(after)->second, range)) {
      std::prev(after)->second.size += range.size;
      return;
    }
    segments_[range.address] = std::move(range);
  }

  // Takes [address, address + size) out of the mapped ranges.
  void unmap(std::uint32_t event, std::uint64_t address, Bytes size) {
    StartSegment* range = segment_at(address);
    if (range == nullptr || !range->is_expandable ||
        address - range->address + size > range->size || has_live(address, size)) {
      problem(
          concat("event ", event, " maps ", address, ", where the snapshot has nothing mapped"));
      return;
    }
    StartSegment rest = *range;
    rest.size = range->address + range->size - (address + size);
    rest.address = address + size;
    range->size = address - range->address;
    const std::uint64_t first = range->address;
    if (range->size == 0) segments_.erase(first);
    if (rest.size > 0) segments_[rest.address] = rest;
    reserved_ -= size;
  }

  // Mapped ranges of one lane and size class lie in one reservation unless another's lie between.
  void note_mapped(std::uint64_t address, const StartSegment& range) {
    mapped_.emplace(address, range);
  }

  bool is_small_range(std::uint64_t address, const Lane& lane, Bytes size) const {
    auto near = mapped_.upper_bound(address);
    if (near != mapped_.begin()) {
      const StartSegment& before = std::prev(near)->second;
      if (before.lane == lane) return before.is_small;
    }
    if (near != mapped_.end() && near->second.lane == lane) return near->second.is_small;
    return size % settings_.large_segment_size != 0;
  }

  // Goes forward as long as a block of unknown size lives.
  void find_slack(const DeviceTrace& trace) {
    struct Placed {
      std::uint64_t end = 0;
      bool is_unknown = false;
    };
    std::map<std::uint64_t, Placed> placed;
    std::size_t unknown = 0;
    for (const auto& [address, live] : live_) {
      const Bytes size = live.size != 0 ? live.size : settings_.rounded(live.requested);
      placed[address] = {address + size, live.size == 0};
      unknown += live.size == 0;
    }
    const EventColumns& events = snapshot_.events;
    for (std::uint32_t i = 0; i < trace.count && unknown > 0; ++i) {
      const std::uint32_t row = trace.first + i;
      const std::uint64_t address = events.address[row];
      if (events.action[row] == EventAction::kFreeCompleted) {
        const auto found = placed.find(address);
        if (found == placed.end()) continue;
        unknown -= found->second.is_unknown;
        placed.erase(found);
      } else if (events.action[row] == EventAction::kAlloc) {
        const auto after = placed.lower_bound(address);
        if (after != placed.begin()) {
          const auto before = std::prev(after);
          const StartSegment* segment = segment_at(before->first);
          const Bytes gap = address - before->second.end;
          if (before->second.is_unknown && before->second.end < address &&
              gap <= kLeastLargeBlock && segment != nullptr && segment == segment_at(address) &&
              !segment->is_small && !settings_.expandable_segments) {
            live_[before->first].slack = gap;
            before->second = {address, false};
            --unknown;
          }
        }
        placed[address] = {address + settings_.rounded(events.size[row]), false};
      }
    }
  }

  void build() {
    for (const auto& [address, segment] : segments_) start_.segments.push_back(segment);
    // Ranges that touch are one chain, as the allocator has it.
    auto live = live_.begin();
    for (std::size_t i = 0; i < start_.segments.size(); ++i) {
      StartSegment& segment = start_.segments[i];
      const std::uint64_t end = segment.address + segment.size;
      std::uint64_t filled = segment.address;
      for (; live != live_.end() && live->first < end; ++live) {
        const auto next = std::next(live);
        const std::uint64_t limit = next != live_.end() && next->first < end ? next->first : end;
        const Bytes room = limit - live->first;
        Bytes size = live->second.size;
        if (size == 0) {
          size = settings_.rounded(live->second.requested) + live->second.slack;
          const bool cut_fine = segment.is_small || settings_.expandable_segments;
          const bool never_cut = size >= settings_.max_split_size;
          const Bytes most_slack = never_cut ? settings_.max_non_split_rounding : kLeastLargeBlock;
          if (size <= room && !cut_fine && room - size <= most_slack) size = room;
        }
        if (live->first < filled || size > room) {
          problem(concat("the block at ", live->first, " of ", size, " bytes has room for ", room));
          continue;
        }
        filled = live->first + size;
        segment.live.push_back(
            {live->first, size, live->second.requested,
             live->second.pending ? BlockState::kPendingFree : BlockState::kAllocated});
      }
    }
    if (live != live_.end()) problem("a block lies in no segment");
    build_reservations();
  }

  void build_reservations() {
    const auto same = [](const StartReservation& a, const StartSegment& b) {
      return a.lane == b.lane && a.is_small == b.is_small;
    };
    for (const auto& [address, range] : mapped_) {
      if (!start_.reservations.empty() && same(start_.reservations.back(), range)) continue;
      start_.reservations.push_back({address, 0, range.lane, range.is_small});
    }
    for (std::size_t i = 0; i < start_.reservations.size(); ++i) {
      StartReservation& reservation = start_.reservations[i];
      constexpr Bytes kFarAhead = Bytes{1} << 48;
      reservation.size = kFarAhead;
      if (i + 1 < start_.reservations.size()) {
        reservation.size = start_.reservations[i + 1].address - reservation.address;
      }
    }
  }

  const Snapshot& snapshot_;
  const std::int64_t device_;
  const AllocatorSettings& settings_;
  StartState start_;
  std::map<std::uint64_t, StartSegment> segments_;
  std::map<std::uint64_t, StartSegment> mapped_;  // every mapped range ever seen
  std::map<std::uint64_t, Live> live_;
  Bytes reserved_ = 0;
};

}  // namespace

StartState find_start(const Snapshot& snapshot, std::int64_t device,
                      const AllocatorSettings& settings) {
  return Undo(snapshot, device, settings).run();
}

}  // namespace lowtide
