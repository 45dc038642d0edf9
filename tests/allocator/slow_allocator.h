#pragma once
// The caching allocator once more, for tests: a plain list of blocks that is searched from end to
// end for everything, and a record of what happened, as a snapshot has it. Written from the rules,
// not from the fast model.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "src/allocator/allocator_settings.h"
#include "src/evidence/snapshot.h"

namespace lowtide {

class SlowAllocator {
 public:
  struct Block {
    std::uint64_t address;
    Bytes size;
    Bytes requested = 0;
    Lane lane;
    bool is_small = false;
    bool in_use = false;
    bool pending = false;
    bool mapped = true;
    int segment = 0;  // blocks of one segment or reservation touch and may merge
    bool expandable = false;
    std::uint64_t freed_at = 0;  // searches when it became free
  };
  struct Event {
    EventAction action;
    std::uint64_t address;
    Bytes size;
    Lane lane;
  };

  AllocatorSettings settings;
  Bytes capacity = AllocatorSettings::kNoLimit;
  std::function<std::uint64_t(Bytes)> driver;  // where the next segment or reservation lies
  std::vector<Event> events;

  std::optional<std::uint64_t> allocate(Bytes requested, const Lane& lane) {
    const Bytes size = settings.rounded(requested);
    const bool is_small = size <= 1_MiB;
    auto found = search(size, lane, is_small);
    if (found == kNone && collects()) collect_garbage();
    if (found == kNone) found = grow(size, lane, is_small);
    if (found == kNone && give_back_oversize(size, lane, is_small))
      found = grow(size, lane, is_small);
    if (found == kNone) {
      finish_pending();
      give_back();
      found = grow(size, lane, is_small);
    }
    if (found == kNone) {
      events.push_back({EventAction::kOom, 0, size, lane});
      return std::nullopt;
    }
    const Bytes rest = blocks[found].size - size;
    const bool cut = is_small || settings.expandable_segments
                         ? rest >= 512
                         : size < settings.max_split_size && rest > 1_MiB;
    if (cut) split(found, size);
    blocks[found].in_use = true;
    blocks[found].requested = requested;
    events.push_back({EventAction::kAlloc, blocks[found].address, requested, lane});
    return blocks[found].address;
  }

  void request_free(std::uint64_t address, bool at_once) {
    Block& block = at(address);
    events.push_back({EventAction::kFreeRequested, address, block.requested, block.lane});
    block.pending = true;
    pending.push_back(address);
    if (at_once) finish_free(address);
  }

  void finish_free(std::uint64_t address) {
    std::erase(pending, address);
    Block& block = at(address);
    events.push_back({EventAction::kFreeCompleted, address, block.requested, block.lane});
    block.in_use = block.pending = false;
    block.requested = 0;
    merge_around(address);
  }

  void empty_cache() {
    finish_pending();
    give_back();
  }

  Bytes reserved() const {
    Bytes bytes = 0;
    for (const Block& block : blocks) bytes += block.mapped ? block.size : 0;
    return bytes;
  }

  std::vector<std::uint64_t> pending;  // in the order of their frees
  std::vector<Block> blocks;           // by address

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  Block& at(std::uint64_t address) {
    return *std::find_if(blocks.begin(), blocks.end(), [&](const Block& block) {
      return block.address == address && block.in_use;
    });
  }

  std::size_t index_of(std::uint64_t address) const {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].address == address) return i;
    }
    return kNone;
  }

  void split(std::size_t i, Bytes size) {
    Block rest = blocks[i];
    rest.address += size;
    rest.size -= size;
    rest.requested = 0;
    rest.in_use = rest.pending = false;
    rest.freed_at = searches[{blocks[i].lane.pool_first, blocks[i].is_small}];
    blocks[i].size = size;
    blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest);
  }

  bool joins(std::size_t a, std::size_t b) const {
    return b < blocks.size() && blocks[a].segment == blocks[b].segment && !blocks[a].in_use &&
           !blocks[b].in_use && blocks[a].mapped == blocks[b].mapped;
  }

  std::size_t merge_around(std::uint64_t address) {
    std::size_t i = index_of(address);
    blocks[i].freed_at = searches[{blocks[i].lane.pool_first, blocks[i].is_small}];
    if (joins(i, i + 1)) {
      blocks[i].size += blocks[i + 1].size;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
    if (i > 0 && joins(i, i - 1)) {
      blocks[i].size += blocks[i - 1].size;
      blocks[i].address = blocks[i - 1].address;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(--i));
    }
    return i;
  }

  bool collects() const {
    return settings.garbage_collection_threshold > 0 && capacity != AllocatorSettings::kNoLimit;
  }

  // Free, mapped blocks of a pool and stream, by size and then address.
  std::vector<std::size_t> candidates(const Lane& lane, bool is_small) const {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Block& block = blocks[i];
      if (!block.in_use && block.mapped && block.lane == lane && block.is_small == is_small) {
        all.push_back(i);
      }
    }
    std::sort(all.begin(), all.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(blocks[a].size, blocks[a].address) <
             std::pair(blocks[b].size, blocks[b].address);
    });
    return all;
  }

  std::size_t search(Bytes size, const Lane& lane, bool is_small) {
    if (collects()) ++searches[{lane.pool_first, is_small}];
    std::vector<std::size_t> fit;
    for (const std::size_t i : candidates(lane, is_small)) {
      if (blocks[i].size >= size) fit.push_back(i);
    }
    if (fit.empty()) return kNone;
    std::size_t chosen = 0;
    if (blocks[fit[0]].expandable && settings.expandable_segments) {
      const auto grown = [&](std::size_t i) {
        Bytes bytes = blocks[i].size;
        if (i + 1 < blocks.size() && blocks[i + 1].segment == blocks[i].segment &&
            !blocks[i + 1].mapped) {
          bytes += blocks[i + 1].size;
        }
        return bytes;
      };
      while (chosen + 1 < fit.size() && blocks[fit[chosen]].expandable &&
             grown(fit[chosen + 1]) < grown(fit[chosen])) {
        ++chosen;
      }
    } else if (blocks[fit[0]].expandable) {
      do ++chosen;
      while (chosen < fit.size() && blocks[fit[chosen]].expandable);
      if (chosen == fit.size()) return kNone;
    }
    const Bytes found = blocks[fit[chosen]].size;
    if (size < settings.max_split_size && found >= settings.max_split_size) return kNone;
    if (size >= settings.max_split_size && found >= size + settings.max_non_split_rounding) {
      return kNone;
    }
    return fit[chosen];
  }

  std::size_t insert(const Block& block) {
    const auto place = std::find_if(blocks.begin(), blocks.end(), [&](const Block& other) {
      return other.address > block.address;
    });
    const auto made = blocks.insert(place, block);
    return static_cast<std::size_t>(made - blocks.begin());
  }

  std::size_t grow(Bytes size, const Lane& lane, bool is_small) {
    if (settings.expandable_segments) return expand(size, lane, is_small);
    const Bytes bytes = settings.segment_for(size);
    if (bytes > capacity || reserved() + bytes > capacity) return kNone;
    const std::uint64_t address = driver(bytes);
    events.push_back({EventAction::kSegmentAlloc, address, bytes, lane});
    return insert({address, bytes, 0, lane, is_small, false, false, true, ++segments, false});
  }

  Bytes page(bool is_small) const { return is_small ? 2_MiB : settings.large_segment_size; }

  // Lowest place of its stream and pool where free and unmapped blocks together have room.
  std::size_t expand(Bytes size, const Lane& lane, bool is_small) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Block& block = blocks[i];
        if (block.mapped || block.lane != lane || block.is_small != is_small) continue;
        std::size_t first = i;
        if (i > 0 && blocks[i - 1].segment == block.segment && !blocks[i - 1].in_use) first = i - 1;
        Bytes room = 0;
        for (std::size_t j = first; j < blocks.size() && room < size &&
                                    blocks[j].segment == block.segment && !blocks[j].in_use;
             ++j) {
          room += blocks[j].size;
        }
        if (room >= size) return map_until(blocks[first].address, size);
      }
      const Bytes reservation = std::uint64_t{1} << 36;
      insert({driver(reservation), reservation, 0, lane, is_small, false, false, false, ++segments,
              true});
    }
    return kNone;
  }

  std::size_t map_until(std::uint64_t address, Bytes size) {
    for (;;) {
      std::size_t i = index_of(address);
      if (blocks[i].mapped && blocks[i].size >= size) return i;
      const Bytes missing = blocks[i].mapped ? size - blocks[i].size : size;
      if (blocks[i].mapped) ++i;  // the unmapped one behind it
      const Bytes step = page(blocks[i].is_small);
      const Bytes wanted = std::min(missing, blocks[i].size);
      const Bytes bytes = std::min((wanted + step - 1) / step * step, blocks[i].size);
      if (reserved() + bytes > capacity) return kNone;
      events.push_back({EventAction::kSegmentMap, blocks[i].address, bytes, blocks[i].lane});
      if (blocks[i].size > bytes) {
        Block rest = blocks[i];
        rest.address += bytes;
        rest.size -= bytes;
        blocks[i].size = bytes;
        blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1, rest);
      }
      blocks[i].mapped = true;
      address = blocks[merge_around(blocks[i].address)].address;
    }
  }

  bool is_whole(std::size_t i) const {
    if (blocks[i].in_use || blocks[i].expandable) return false;
    for (std::size_t j = 0; j < blocks.size(); ++j) {
      if (j != i && blocks[j].segment == blocks[i].segment) return false;
    }
    return true;
  }

  void give_back_whole(std::size_t i) {
    events.push_back(
        {EventAction::kSegmentFree, blocks[i].address, blocks[i].size, blocks[i].lane});
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void collect_garbage() {
    const auto limit =
        static_cast<Bytes>(settings.garbage_collection_threshold * static_cast<double>(capacity));
    if (reserved() <= limit) return;
    const Bytes target = reserved() - limit;
    Bytes reclaimed = 0;
    const auto age = [&](const Block& block) { return searches[{0, false}] - block.freed_at; };
    const auto eligible = [&](std::size_t i) {
      return !blocks[i].is_small && !blocks[i].lane.is_private() && is_whole(i);
    };
    // The age to beat follows from those left when a round begins.
    for (bool freed = true; freed && reclaimed < target;) {
      std::uint64_t total = 0;
      std::uint64_t count = 0;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (!eligible(i)) continue;
        total += age(blocks[i]);
        ++count;
      }
      freed = false;
      if (count == 0) return;
      const double least = static_cast<double>(total) / static_cast<double>(count);
      for (std::size_t i = blocks.size(); i-- > 0;) {
        if (!eligible(i) || static_cast<double>(age(blocks[i])) < least) continue;
        reclaimed += blocks[i].size;
        give_back_whole(i);
        freed = true;
      }
    }
  }

  bool give_back_oversize(Bytes size, const Lane& lane, bool is_small) {
    if (settings.max_split_size == AllocatorSettings::kNoLimit) return false;
    const Bytes wanted = std::max(size, settings.max_split_size);
    std::vector<std::size_t> all;
    for (const std::size_t i : candidates(lane, is_small)) {
      if (!blocks[i].expandable) all.push_back(i);
    }
    for (const std::size_t i : all) {
      if (blocks[i].size < wanted) continue;
      give_back_whole(i);
      return true;
    }
    Bytes released = 0;
    std::vector<std::uint64_t> addresses;
    for (auto i = all.rbegin(); i != all.rend() && released < wanted; ++i) {
      if (blocks[*i].size < settings.max_split_size) break;
      released += blocks[*i].size;
      addresses.push_back(blocks[*i].address);
    }
    for (const std::uint64_t address : addresses) give_back_whole(index_of(address));
    return released >= wanted;
  }

  void finish_pending() {
    const std::vector<std::uint64_t> all = pending;
    for (const std::uint64_t address : all) finish_free(address);
  }

  void give_back() {
    for (const bool is_small : {false, true}) {
      for (std::size_t i = blocks.size(); i-- > 0;) {
        if (blocks[i].is_small == is_small && !blocks[i].lane.is_private() && is_whole(i)) {
          give_back_whole(i);
        }
      }
      std::vector<std::uint64_t> addresses;
      for (const Block& block : blocks) {
        if (block.expandable && block.mapped && !block.in_use && block.is_small == is_small &&
            !block.lane.is_private()) {
          addresses.push_back(block.address);
        }
      }
      for (const std::uint64_t address : addresses) unmap(index_of(address));
    }
  }

  void unmap(std::size_t i) {
    std::uint64_t base = blocks[i].address;
    for (const Block& block : blocks) {
      if (block.segment == blocks[i].segment) base = std::min(base, block.address);
    }
    const Bytes step = page(blocks[i].is_small);
    const std::uint64_t first = base + (blocks[i].address - base + step - 1) / step * step;
    const std::uint64_t last = base + (blocks[i].address + blocks[i].size - base) / step * step;
    if (first >= last) return;
    events.push_back({EventAction::kSegmentUnmap, first, last - first, blocks[i].lane});
    if (blocks[i].address < first) {
      split(i, first - blocks[i].address);
      ++i;
    }
    if (blocks[i].address + blocks[i].size > last) split(i, last - first);
    blocks[i].mapped = false;
    merge_around(blocks[i].address);
  }

  std::map<std::pair<std::uint64_t, bool>, std::uint64_t> searches;
  int segments = 0;
};

}  // namespace lowtide
