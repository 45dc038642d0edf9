// A replay as recorded goes through the events in order. What the program did (alloc, free) is
// asked of the model; what the driver side did on its own account (segments given back, pages
// unmapped) is done to it; where new segments lie is answered from the segment events that precede
// an allocation.
//
// A what-if replay takes the program's part only. Segments that were given back in the recording
// are a call of empty_cache, which the program would make again, unless room was needed just then,
// in which case the allocator did it itself, and does so in the model when it has to: the recording
// shows a new segment right after, one that did not fit under the largest total ever recorded.
//
// Tested by tests/allocator/trace_replay_test.cpp.

#include "src/allocator/trace_replay.h"

#include <algorithm>

namespace lowtide {
namespace {

// What the driver deals in.
constexpr Bytes kDriverPage = 2_MiB;

}  // namespace

DeviceReplay::DeviceReplay(const Snapshot& snapshot, std::int64_t device)
    : snapshot_(snapshot), device_(device), settings_(settings_of(snapshot)) {
  trace_.device = device;
  if (snapshot.is_budget) {
    start_.problems.push_back("a budget counts bytes of CPU tensors: there are no blocks to place");
    return;
  }
  if (!snapshot.settings.known) {
    // Older versions do not write their settings; expandable segments can be seen.
    for (const SnapshotSegment& segment : snapshot.segments) {
      settings_.expandable_segments |= segment.is_expandable;
    }
  }
  if (const DeviceTrace* trace = snapshot.trace_of(device)) trace_ = *trace;
  start_ = find_start(snapshot, device, settings_);
  const EventColumns& events = snapshot.events;
  for (std::uint32_t i = 0; i < trace_.count; ++i) {
    has_completed_frees_ |= events.action[trace_.first + i] == EventAction::kFreeCompleted;
  }
  find_cache_emptyings();
  find_live_blocks();
}

Lane DeviceReplay::lane_of(std::uint32_t event) const {
  return event < start_.lanes.size() ? start_.lanes[event]
                                     : snapshot_.lanes[snapshot_.events.lane[trace_.first + event]];
}

void DeviceReplay::find_cache_emptyings() {
  const EventColumns& events = snapshot_.events;
  empties_cache_.assign(trace_.count, false);
  const auto change = [&](std::uint32_t event) -> std::int64_t {
    const auto size = static_cast<std::int64_t>(events.size[trace_.first + event]);
    switch (events.action[trace_.first + event]) {
      case EventAction::kSegmentAlloc:
      case EventAction::kSegmentMap:
        return size;
      case EventAction::kSegmentFree:
      case EventAction::kSegmentUnmap:
        return -size;
      default:
        return 0;
    }
  };
  // Totals relative to the start are enough: only their order matters.
  std::int64_t total = 0;
  std::int64_t most = 0;
  for (std::uint32_t i = 0; i < trace_.count; ++i) most = std::max(most, total += change(i));
  total = 0;
  for (std::uint32_t i = 0; i < trace_.count;) {
    if (change(i) >= 0) {
      total += change(i++);
      continue;
    }
    const std::int64_t before = total;
    const std::uint32_t first = i;
    while (i < trace_.count && change(i) < 0) total += change(i++);
    const bool grows_next = i < trace_.count && change(i) > 0;
    const bool failed_next =
        i < trace_.count && events.action[trace_.first + i] == EventAction::kOom;
    const bool made_room = failed_next || (grows_next && before + change(i) > most);
    // Collecting garbage gives segments back too, with no call of the program's.
    if (!made_room && settings_.garbage_collection_threshold == 0) empties_cache_[first] = true;
  }
}

void DeviceReplay::find_live_blocks() {
  if (is_exact()) {
    for (const StartSegment& segment : start_.segments) {
      for (const auto& block : segment.live) live_at_start_.emplace_back(block, segment.lane);
    }
  } else {
    // What the segments hold and the trace did not make.
    std::unordered_map<std::uint64_t, std::pair<CachingAllocator::BlockView, Lane>> live;
    for (const SnapshotSegment& segment : snapshot_.segments) {
      if (segment.device != device_) continue;
      for (const SnapshotBlock& block : snapshot_.blocks_of(segment)) {
        if (!block.is_live()) continue;
        live[block.address] = {{block.address, block.size, block.requested, block.state},
                               segment.lane};
      }
    }
    const EventColumns& events = snapshot_.events;
    const auto freed =
        has_completed_frees_ ? EventAction::kFreeCompleted : EventAction::kFreeRequested;
    for (std::uint32_t i = trace_.count; i-- > 0;) {
      const std::uint32_t row = trace_.first + i;
      if (events.action[row] == EventAction::kAlloc) live.erase(events.address[row]);
      if (events.action[row] == freed) {
        live[events.address[row]] = {
            {events.address[row], events.size[row], events.size[row], BlockState::kAllocated},
            lane_of(i)};
      }
    }
    for (const auto& [address, block] : live) live_at_start_.push_back(block);
    std::sort(live_at_start_.begin(), live_at_start_.end(),
              [](const auto& a, const auto& b) { return a.first.address < b.first.address; });
  }
  // The peak, for what is asked for first when the largest comes first.
  const EventColumns& events = snapshot_.events;
  const auto freed =
      has_completed_frees_ ? EventAction::kFreeCompleted : EventAction::kFreeRequested;
  std::unordered_map<std::uint64_t, std::pair<Bytes, Lane>> made;
  Bytes now = 0;
  for (const auto& [block, lane] : live_at_start_) now += block.requested;
  peak_requested_ = now;
  std::uint32_t peak_after = 0;  // events
  std::unordered_map<std::uint64_t, Bytes> sizes;
  for (const auto& [block, lane] : live_at_start_) sizes[block.address] = block.requested;
  for (std::uint32_t i = 0; i < trace_.count; ++i) {
    const std::uint32_t row = trace_.first + i;
    if (events.action[row] == EventAction::kAlloc) {
      now += events.size[row];
      sizes[events.address[row]] = events.size[row];
    } else if (events.action[row] == freed) {
      const auto found = sizes.find(events.address[row]);
      if (found == sizes.end()) continue;
      now -= found->second;
      sizes.erase(found);
    }
    if (now > peak_requested_) {
      peak_requested_ = now;
      peak_after = i + 1;
    }
  }
  for (std::uint32_t i = 0; i < peak_after; ++i) {
    const std::uint32_t row = trace_.first + i;
    if (events.action[row] == EventAction::kAlloc) {
      made[events.address[row]] = {events.size[row], lane_of(i)};
    } else if (events.action[row] == freed) {
      made.erase(events.address[row]);
    }
  }
  for (const auto& [address, request] : made) live_at_peak_.push_back(request);
  std::sort(live_at_peak_.begin(), live_at_peak_.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second.stream < b.second.stream;
  });
}

void DeviceReplay::add_start(CachingAllocator& allocator,
                             std::unordered_map<std::uint64_t, BlockId>& blocks) const {
  for (const StartReservation& reservation : start_.reservations) {
    allocator.add_reservation(reservation.address, reservation.size, reservation.lane,
                              reservation.is_small);
  }
  for (const StartSegment& segment : start_.segments) {
    const std::vector<BlockId> ids =
        allocator.add_segment(segment.address, segment.size, segment.lane, segment.is_small,
                              segment.is_expandable, segment.live);
    for (std::size_t i = 0; i < ids.size(); ++i) blocks[segment.live[i].address] = ids[i];
  }
}

// Before the allocation at `event`, blocks that had waited for a stream were given free and then
// new memory was taken: the allocator does not search again after such a retry.
bool DeviceReplay::grew_after_free(std::uint32_t event) const {
  bool grew = false;
  for (std::uint32_t i = event; i-- > 0;) {
    switch (snapshot_.events.action[trace_.first + i]) {
      case EventAction::kSegmentAlloc:
      case EventAction::kSegmentMap:
        grew = true;
        break;
      case EventAction::kSegmentFree:
      case EventAction::kSegmentUnmap:
        break;
      case EventAction::kFreeCompleted: {
        // A free that was completed at once is the program's own.
        const bool at_once =
            i > 0 && snapshot_.events.action[trace_.first + i - 1] == EventAction::kFreeRequested &&
            snapshot_.events.address[trace_.first + i - 1] ==
                snapshot_.events.address[trace_.first + i];
        return grew && !at_once;
      }
      default:
        return false;
    }
  }
  return false;
}

RecordedReplay DeviceReplay::as_recorded() const { return replay_until(trace_.count, nullptr); }

std::optional<RecordedMoment> DeviceReplay::before(std::uint32_t event) const {
  if (!is_exact() || event >= trace_.count) return std::nullopt;
  RecordedMoment moment;
  const RecordedReplay until = replay_until(event, &moment);
  if (until.first_difference) return std::nullopt;
  return moment;
}

// The events before `end`. `moment`, unless it is null, becomes the state there.
RecordedReplay DeviceReplay::replay_until(std::uint32_t end, RecordedMoment* moment) const {
  RecordedReplay result;
  const EventColumns& events = snapshot_.events;
  for (std::uint32_t i = 0; i < end; ++i) {
    result.allocations += events.action[trace_.first + i] == EventAction::kAlloc;
  }
  if (!is_exact()) return result;

  // Segment events that no request has asked for yet.
  struct Pending {
    std::uint64_t address;
    Bytes size;
    std::uint64_t stream;
    bool mapped;
  };
  std::vector<Pending> pending;
  const auto driver = [&pending](Bytes size, const Lane& lane,
                                 bool mapped) -> std::optional<std::uint64_t> {
    for (auto at = pending.begin(); at != pending.end(); ++at) {
      if (at->mapped != mapped || at->stream != lane.stream || (!mapped && at->size != size)) {
        continue;
      }
      const std::uint64_t address = at->address;
      if (!mapped) pending.erase(at);
      return address;
    }
    return std::nullopt;
  };
  CachingAllocator allocator({.settings = settings_, .driver = driver});
  std::unordered_map<std::uint64_t, BlockId> blocks;  // by the recorded address
  add_start(allocator, blocks);
  bool driver_differs = false;
  const auto differs_at = [&](std::uint32_t event) {
    if (!result.first_difference) result.first_difference = event;
  };
  for (std::uint32_t i = 0; i < end; ++i) {
    const std::uint32_t row = trace_.first + i;
    const std::uint64_t address = events.address[row];
    const Bytes size = events.size[row];
    const Lane lane = lane_of(i);
    const auto found = blocks.find(address);
    switch (events.action[row]) {
      case EventAction::kAlloc: {
        const bool is_retry = grew_after_free(i);
        const auto block =
            is_retry ? allocator.allocate_after_retry(size, lane) : allocator.allocate(size, lane);
        if (!block) break;  // without a limit there is always room
        if (allocator.view(*block).address == address) {
          ++result.addresses_matched;
        } else {
          differs_at(i);
        }
        blocks[address] = *block;
        std::erase_if(pending, [](const Pending& at) { return at.mapped; });
        break;
      }
      case EventAction::kFreeRequested:
        if (found == blocks.end()) break;
        if (has_completed_frees_) {
          allocator.set_pending(found->second);
        } else {
          allocator.free(found->second);
          blocks.erase(found);
        }
        break;
      case EventAction::kFreeCompleted:
        if (found == blocks.end()) break;
        allocator.free(found->second);
        blocks.erase(found);
        break;
      case EventAction::kSegmentAlloc:
      case EventAction::kSegmentMap:
        pending.push_back(
            {address, size, lane.stream, events.action[row] == EventAction::kSegmentMap});
        break;
      case EventAction::kSegmentFree:
        if (!allocator.release_segment(address, size)) {
          driver_differs = true;
          differs_at(i);
        }
        break;
      case EventAction::kSegmentUnmap:
        if (!allocator.unmap(address, size)) {
          driver_differs = true;
          differs_at(i);
        }
        break;
      default:
        break;
    }
  }
  if (moment != nullptr) {
    moment->reserved = allocator.reserved();
    moment->allocated = allocator.allocated();
    moment->free = allocator.free_for(events.size[trace_.first + end], lane_of(end));
    return result;
  }
  std::vector<CachingAllocator::BlockView> recorded;
  for (const SnapshotSegment& segment : snapshot_.segments) {
    if (segment.device != device_) continue;
    for (const SnapshotBlock& block : snapshot_.blocks_of(segment)) {
      recorded.push_back({block.address, block.size, block.requested, block.state});
    }
  }
  std::sort(recorded.begin(), recorded.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  result.layout_identical = !driver_differs && allocator.layout() == recorded;
  result.peak_reserved = allocator.peak_reserved();
  result.peak_allocated = allocator.peak_allocated();
  return result;
}

WhatIfResult DeviceReplay::what_if(const WhatIf& change) const {
  WhatIfResult result;
  const AllocatorSettings settings = change.settings.value_or(settings_);
  CachingAllocator allocator({.settings = settings, .capacity = change.capacity});
  std::unordered_map<std::uint64_t, BlockId> blocks;
  const auto fail = [&](std::uint32_t event, Bytes request) {
    result.completes = false;
    result.failed_event = event;
    result.failed_request = request;
  };
  // On another card or under other settings the start would have been laid out otherwise: its
  // blocks are asked for again, in the order of their addresses.
  const bool as_it_was = is_exact() && settings == settings_ &&
                         change.capacity == AllocatorSettings::kNoLimit && !change.from_empty;
  if (as_it_was) {
    add_start(allocator, blocks);
  } else {
    for (const auto& [block, lane] : live_at_start_) {
      const auto made = allocator.allocate(block.requested, lane);
      if (!made) {
        fail(0, block.requested);
        break;
      }
      if (block.state == BlockState::kPendingFree) allocator.set_pending(*made);
      blocks[block.address] = *made;
    }
  }
  if (change.largest_first && result.completes) {
    std::vector<BlockId> warm;
    for (const auto& [bytes, lane] : live_at_peak_) {
      const auto made = allocator.allocate(bytes, lane);
      if (!made) {
        fail(0, bytes);
        break;
      }
      warm.push_back(*made);
    }
    for (const BlockId id : warm) allocator.free(id);
  }
  const EventColumns& events = snapshot_.events;
  // Blocks that the model gave free early, in a retry: their recorded frees come later.
  const auto is_live = [&](BlockId id, Bytes requested) {
    const auto view = allocator.view(id);
    return view.state != BlockState::kInactive && view.requested == requested;
  };
  for (std::uint32_t i = 0; i < trace_.count && result.completes; ++i) {
    const std::uint32_t row = trace_.first + i;
    if (empties_cache_[i] || change.empty_cache_before == i) allocator.empty_cache();
    const auto found = blocks.find(events.address[row]);
    switch (events.action[row]) {
      case EventAction::kAlloc: {
        const auto made = allocator.allocate(events.size[row], lane_of(i));
        if (!made) {
          fail(i, events.size[row]);
          break;
        }
        blocks[events.address[row]] = *made;
        break;
      }
      case EventAction::kOom: {
        const auto made = allocator.allocate(events.size[row], lane_of(i));
        if (!made) {
          fail(i, events.size[row]);
          break;
        }
        allocator.free(*made);
        break;
      }
      case EventAction::kFreeRequested:
        if (found == blocks.end() || !is_live(found->second, events.size[row])) break;
        if (has_completed_frees_) {
          allocator.set_pending(found->second);
        } else {
          allocator.free(found->second);
          blocks.erase(found);
        }
        break;
      case EventAction::kFreeCompleted:
        if (found == blocks.end()) break;
        if (is_live(found->second, events.size[row])) allocator.free(found->second);
        blocks.erase(found);
        break;
      default:
        break;
    }
  }
  result.peak_reserved = allocator.peak_reserved();
  result.peak_allocated = allocator.peak_allocated();
  result.retries = allocator.retries();
  return result;
}

Bytes DeviceReplay::smallest_capacity(const AllocatorSettings& settings) const {
  WhatIf change;
  change.settings = settings;
  change.from_empty = true;
  const auto completes = [&](Bytes pages) {
    change.capacity = pages * kDriverPage;
    return what_if(change).completes;
  };
  // Whatever was reserved at most is enough; less than what was live at most is not.
  Bytes enough = (what_if(change).peak_reserved + kDriverPage - 1) / kDriverPage;
  Bytes too_little = peak_requested_ / kDriverPage;
  if (too_little > 0) --too_little;
  if (enough == 0) return 0;
  while (enough - too_little > 1) {
    const Bytes middle = too_little + (enough - too_little) / 2;
    (completes(middle) ? enough : too_little) = middle;
  }
  return enough * kDriverPage;
}

}  // namespace lowtide
