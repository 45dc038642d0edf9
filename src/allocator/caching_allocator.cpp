// The model follows the order of the original's own steps, so that equal sizes in equal order give
// equal addresses.
//
// Blocks of a segment are a chain by address; free ones stand in their pool's set, ordered by
// stream, size and address, so that the first that fits is the best fit with the lowest address.
// A reservation for expandable segments is one chain too: mapped blocks behave like others, and
// unmapped ones stand in a set of their own, by address. Mapping takes whole pages from the lowest
// place with room.
//
// Tested by tests/allocator/caching_allocator_test.cpp against a slow model that keeps a plain
// list, and by trace_replay_test.cpp against traces.

#include "src/allocator/caching_allocator.h"

#include <algorithm>

#include "src/base/assert.h"

namespace lowtide {
namespace {

constexpr Bytes kSmallRequest = 1_MiB;
constexpr Bytes kMinBlock = 512;
constexpr Bytes kSmallPage = 2_MiB;
// Address space costs nothing; the original reserves 9/8 of the card.
constexpr Bytes kMadeReservation = std::uint64_t{1} << 48;

}  // namespace

std::uint32_t CachingAllocator::pool_for(const Lane& lane, bool is_small) {
  for (std::uint32_t i = 0; i < pools_.size(); ++i) {
    const Pool& pool = pools_[i];
    if (pool.first == lane.pool_first && pool.second == lane.pool_second &&
        pool.is_small == is_small) {
      return i;
    }
  }
  Pool& made = pools_.emplace_back();
  made.first = lane.pool_first;
  made.second = lane.pool_second;
  made.is_small = is_small;
  return static_cast<std::uint32_t>(pools_.size() - 1);
}

BlockId CachingAllocator::new_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<BlockId>(blocks_.size() - 1);
  }
  const BlockId id = unused_.back();
  unused_.pop_back();
  blocks_[id] = block;
  return id;
}

void CachingAllocator::drop_block(BlockId id) {
  blocks_[id] = Block{};
  unused_.push_back(id);
}

// Cuts [size, end) off and returns it, unlisted.
BlockId CachingAllocator::split_off(BlockId id, Bytes size) {
  Block rest = blocks_[id];
  rest.address += size;
  rest.size -= size;
  rest.requested = 0;
  rest.in_use = rest.pending = false;
  rest.previous = id;
  const BlockId made = new_block(rest);
  if (rest.next != kNone) blocks_[rest.next].previous = made;
  blocks_[id].next = made;
  blocks_[id].size = size;
  return made;
}

CachingAllocator::FreeKey CachingAllocator::key_of(BlockId id) const {
  const Block& block = blocks_[id];
  return {block.stream, block.size, block.address, id};
}

void CachingAllocator::insert_free(BlockId id) {
  Block& block = blocks_[id];
  Pool& pool = pools_[block.pool];
  if (block.mapped) {
    block.collected_at = pool.searches;
    pool.free.insert(key_of(id));
  } else {
    pool.unmapped.insert({block.stream, block.address, id});
  }
}

void CachingAllocator::erase_free(BlockId id) {
  const Block& block = blocks_[id];
  Pool& pool = pools_[block.pool];
  if (block.mapped) {
    pool.free.erase(key_of(id));
  } else {
    pool.unmapped.erase({block.stream, block.address, id});
  }
}

bool CachingAllocator::can_join(BlockId id, BlockId other) const {
  return other != kNone && !blocks_[other].in_use && blocks_[other].mapped == blocks_[id].mapped;
}

// `other`, a listed neighbour, becomes a part of `id`, which is not listed.
void CachingAllocator::join(BlockId id, BlockId other) {
  erase_free(other);
  Block& block = blocks_[id];
  const Block& gone = blocks_[other];
  if (block.previous == other) {
    block.address = gone.address;
    block.previous = gone.previous;
    if (block.previous != kNone) blocks_[block.previous].next = id;
  } else {
    block.next = gone.next;
    if (block.next != kNone) blocks_[block.next].previous = id;
  }
  block.size += gone.size;
  drop_block(other);
}

void CachingAllocator::reserve(Bytes bytes) {
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
}

std::uint64_t CachingAllocator::place(Bytes size, const Lane& lane, bool mapped) {
  if (options_.driver != nullptr) {
    if (const auto known = options_.driver(size, lane, mapped)) return *known;
  }
  const std::uint64_t address = next_address_;
  next_address_ += size;
  return address;
}

void CachingAllocator::add_reservation(std::uint64_t address, Bytes size, const Lane& lane,
                                       bool is_small) {
  make_reservation(address, size, lane, is_small);
}

BlockId CachingAllocator::make_reservation(std::uint64_t address, Bytes size, const Lane& lane,
                                           bool is_small) {
  Block block;
  block.address = address;
  block.size = size;
  block.pool = pool_for(lane, is_small);
  block.stream = lane.stream;
  block.mapped = false;
  block.reservation = static_cast<std::uint32_t>(reservations_.size());
  reservations_.push_back(
      {address, size, is_small ? kSmallPage : options_.settings.large_segment_size});
  const BlockId id = new_block(block);
  insert_free(id);
  return id;
}

std::vector<BlockId> CachingAllocator::add_segment(std::uint64_t address, Bytes size,
                                                   const Lane& lane, bool is_small,
                                                   bool is_expandable,
                                                   const std::vector<BlockView>& blocks) {
  BlockId id = kNone;
  if (is_expandable) {
    // The unmapped block that it lies in, cut to its place.
    const Pool& pool = pools_[pool_for(lane, is_small)];
    auto after = pool.unmapped.upper_bound({lane.stream, address, kNone});
    LOWTIDE_ASSERT(after != pool.unmapped.begin());
    id = std::prev(after)->id;
    LOWTIDE_ASSERT(blocks_[id].address <= address &&
                   address + size <= blocks_[id].address + blocks_[id].size);
    erase_free(id);
    if (blocks_[id].address < address) {
      const BlockId rest = split_off(id, address - blocks_[id].address);
      insert_free(id);
      id = rest;
    }
    if (blocks_[id].size > size) insert_free(split_off(id, size));
    blocks_[id].mapped = true;
  } else {
    Block block;
    block.address = address;
    block.size = size;
    block.pool = pool_for(lane, is_small);
    block.stream = lane.stream;
    id = new_block(block);
  }
  reserve(size);
  std::vector<BlockId> ids;
  for (const BlockView& live : blocks) {
    LOWTIDE_ASSERT(blocks_[id].address <= live.address && live.size > 0 &&
                   live.address + live.size <= address + size);
    if (blocks_[id].address < live.address) {
      const BlockId rest = split_off(id, live.address - blocks_[id].address);
      insert_free(id);
      id = rest;
    }
    const BlockId used = id;
    if (blocks_[id].size > live.size) id = split_off(id, live.size);
    blocks_[used].requested = live.requested;
    blocks_[used].in_use = true;
    blocks_[used].pending = live.state == BlockState::kPendingFree;
    if (blocks_[used].pending) pending_.push_back(used);
    allocated_ += live.size;
    ids.push_back(used);
  }
  if (!blocks_[id].in_use) {
    // Ranges of a reservation that touch are one.
    if (can_join(id, blocks_[id].previous)) join(id, blocks_[id].previous);
    insert_free(id);
  }
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return ids;
}

std::optional<BlockId> CachingAllocator::find_free(const Request& request) {
  const AllocatorSettings& settings = options_.settings;
  Pool& pool = pools_[request.pool];
  if (settings.garbage_collection_threshold > 0 &&
      options_.capacity != AllocatorSettings::kNoLimit) {
    ++pool.searches;
  }
  const std::uint64_t stream = request.lane.stream;
  auto found = pool.free.lower_bound({stream, request.size, 0, 0});
  const auto is_ours = [&](auto at) { return at != pool.free.end() && at->stream == stream; };
  if (!is_ours(found)) return std::nullopt;
  const auto is_expandable = [&](auto at) { return blocks_[at->id].reservation != kNone; };
  if (is_expandable(found)) {
    if (settings.expandable_segments) {
      // A block counts as large as it can grow.
      const auto grown = [&](auto at) {
        const Block& block = blocks_[at->id];
        const bool grows = block.next != kNone && !blocks_[block.next].mapped;
        return block.size + (grows ? blocks_[block.next].size : 0);
      };
      auto next = std::next(found);
      while (is_expandable(found) && is_ours(next) && grown(next) < grown(found)) found = next++;
    } else {
      do ++found;
      while (is_ours(found) && is_expandable(found));
      if (!is_ours(found)) return std::nullopt;
    }
  }
  const bool oversize = request.size >= settings.max_split_size;
  if (!oversize && found->size >= settings.max_split_size) return std::nullopt;
  if (oversize && found->size >= request.size + settings.max_non_split_rounding) {
    return std::nullopt;
  }
  const BlockId id = found->id;
  pool.free.erase(found);
  return id;
}

CachingAllocator::FreeSpace CachingAllocator::free_for(Bytes requested, const Lane& lane) const {
  const bool is_small = options_.settings.rounded(requested) <= kSmallRequest;
  FreeSpace space;
  for (const Pool& pool : pools_) {
    const bool is_its = pool.is_small == is_small && pool.first == lane.pool_first &&
                        pool.second == lane.pool_second;
    for (const FreeKey& key : pool.free) {
      if (!is_its || key.stream != lane.stream) {
        space.elsewhere += key.size;
        continue;
      }
      space.usable += key.size;
      space.largest_usable = std::max(space.largest_usable, key.size);
    }
  }
  return space;
}

std::optional<BlockId> CachingAllocator::new_segment(const Request& request) {
  const Bytes size = request.segment_size;
  if (options_.settings.expandable_segments) return expand(request);
  if (size > options_.capacity || reserved_ > options_.capacity - size) return std::nullopt;
  Block block;
  block.address = place(size, request.lane, false);
  block.size = size;
  block.pool = request.pool;
  block.stream = request.lane.stream;
  reserve(size);
  return new_block(block);
}

BlockId CachingAllocator::find_expandable(const Request& request) {
  const auto is_free = [&](BlockId id) { return id != kNone && !blocks_[id].in_use; };
  const std::uint64_t stream = request.lane.stream;
  const auto& unmapped = pools_[request.pool].unmapped;
  for (auto at = unmapped.lower_bound({stream, 0, 0}); at != unmapped.end() && at->stream == stream;
       ++at) {
    BlockId first = at->id;
    if (is_free(blocks_[first].previous)) first = blocks_[first].previous;
    Bytes room = 0;
    for (BlockId id = first; room < request.size && is_free(id); id = blocks_[id].next) {
      room += blocks_[id].size;
    }
    if (room >= request.size) return first;
  }
  const std::uint64_t address = place(kMadeReservation, request.lane, true);
  return make_reservation(address, kMadeReservation, request.lane, pools_[request.pool].is_small);
}

// Backs the first `size` bytes of an unmapped block, in whole pages. The block may grow by joining
// its neighbours. False when the card is full.
bool CachingAllocator::map(BlockId id, Bytes size) {
  const Bytes page = reservations_[blocks_[id].reservation].page;
  const Bytes bytes = std::min((size + page - 1) / page * page, blocks_[id].size);
  if (bytes > options_.capacity || reserved_ > options_.capacity - bytes) return false;
  erase_free(id);
  if (blocks_[id].size > bytes) insert_free(split_off(id, bytes));
  blocks_[id].mapped = true;
  if (can_join(id, blocks_[id].previous)) join(id, blocks_[id].previous);
  if (can_join(id, blocks_[id].next)) join(id, blocks_[id].next);
  insert_free(id);
  reserve(bytes);
  return true;
}

std::optional<BlockId> CachingAllocator::expand(const Request& request) {
  if (request.size > kMadeReservation) return std::nullopt;
  BlockId id = find_expandable(request);
  if (!blocks_[id].mapped && !map(id, std::min(blocks_[id].size, request.size))) {
    return std::nullopt;
  }
  while (blocks_[id].size < request.size) {
    const BlockId next = blocks_[id].next;
    const Bytes missing = request.size - blocks_[id].size;
    if (!map(next, std::min(missing, blocks_[next].size))) return std::nullopt;
    id = next;
  }
  erase_free(id);
  return id;
}

bool CachingAllocator::should_split(const Block& block, Bytes size) const {
  const Bytes rest = block.size - size;
  if (pools_[block.pool].is_small || options_.settings.expandable_segments) {
    return rest >= kMinBlock;
  }
  return size < options_.settings.max_split_size && rest > kSmallRequest;
}

BlockId CachingAllocator::hand_out(BlockId id, const Request& request, Bytes requested) {
  if (should_split(blocks_[id], request.size)) insert_free(split_off(id, request.size));
  Block& block = blocks_[id];
  block.in_use = true;
  block.pending = false;
  block.requested = requested;
  allocated_ += block.size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return id;
}

CachingAllocator::Request CachingAllocator::request_for(Bytes requested, const Lane& lane) {
  const Bytes size = options_.settings.rounded(requested);
  return {size, options_.settings.segment_for(size), lane, pool_for(lane, size <= kSmallRequest)};
}

std::optional<BlockId> CachingAllocator::allocate_after_retry(Bytes requested, const Lane& lane) {
  const Request request = request_for(requested, lane);
  const std::optional<BlockId> found = new_segment(request);
  if (!found) return std::nullopt;
  return hand_out(*found, request, requested);
}

std::optional<BlockId> CachingAllocator::allocate(Bytes requested, const Lane& lane) {
  const AllocatorSettings& settings = options_.settings;
  const Request request = request_for(requested, lane);
  std::optional<BlockId> found = find_free(request);
  if (!found && settings.garbage_collection_threshold > 0 &&
      options_.capacity != AllocatorSettings::kNoLimit) {
    collect_garbage(pool_for({}, false));
  }
  if (!found) found = new_segment(request);
  if (!found && release_oversize(request)) found = new_segment(request);
  if (!found) {
    free_pending();
    release_cached();
    ++retries_;
    found = new_segment(request);
  }
  if (!found) return std::nullopt;
  return hand_out(*found, request, requested);
}

void CachingAllocator::free(BlockId id) {
  Block& block = blocks_[id];
  LOWTIDE_ASSERT(block.in_use);
  if (block.pending) std::erase(pending_, id);
  allocated_ -= block.size;
  block.in_use = block.pending = false;
  block.requested = 0;
  if (can_join(id, block.previous)) join(id, block.previous);
  if (can_join(id, blocks_[id].next)) join(id, blocks_[id].next);
  insert_free(id);
}

void CachingAllocator::set_pending(BlockId id) {
  Block& block = blocks_[id];
  LOWTIDE_ASSERT(block.in_use);
  if (block.pending) return;
  block.pending = true;
  pending_.push_back(id);
}

void CachingAllocator::free_pending() {
  const std::vector<BlockId> all = pending_;
  for (const BlockId id : all) free(id);
}

void CachingAllocator::empty_cache() {
  free_pending();
  release_cached();
}

void CachingAllocator::collect_garbage(std::uint32_t pool_index) {
  Pool& pool = pools_[pool_index];
  const auto threshold = static_cast<Bytes>(options_.settings.garbage_collection_threshold *
                                            static_cast<double>(options_.capacity));
  if (reserved_ <= threshold) return;
  const Bytes target = reserved_ - threshold;
  Bytes reclaimed = 0;
  std::uint64_t total_age = 0;
  std::uint64_t count = 0;
  const auto is_whole = [&](BlockId id) {
    const Block& block = blocks_[id];
    return block.previous == kNone && block.next == kNone && block.reservation == kNone;
  };
  const auto age = [&](BlockId id) { return pool.searches - blocks_[id].collected_at; };
  for (const FreeKey& key : pool.free) {
    if (!is_whole(key.id)) continue;
    total_age += age(key.id);
    ++count;
  }
  bool freed = true;
  while (reclaimed < target && freed && count > 0) {
    const double limit = static_cast<double>(total_age) / static_cast<double>(count);
    freed = false;
    for (auto at = pool.free.begin(); at != pool.free.end();) {
      const BlockId id = (at++)->id;
      if (!is_whole(id) || static_cast<double>(age(id)) < limit) continue;
      freed = true;
      reclaimed += blocks_[id].size;
      total_age -= age(id);
      --count;
      release_whole(id);
    }
  }
}

// With a max_split_size: gives back one large block that would do, or the largest ones until they
// do.
bool CachingAllocator::release_oversize(const Request& request) {
  const Bytes limit = options_.settings.max_split_size;
  if (limit == AllocatorSettings::kNoLimit) return false;
  Pool& pool = pools_[request.pool];
  const std::uint64_t stream = request.lane.stream;
  const Bytes wanted = std::max(request.size, limit);
  const auto is_plain = [&](auto at) { return blocks_[at->id].reservation == kNone; };
  auto at = pool.free.lower_bound({stream, wanted, 0, 0});
  while (at != pool.free.end() && at->stream == stream && !is_plain(at)) ++at;
  if (at != pool.free.end() && at->stream == stream) {
    release_whole(at->id);
    return true;
  }
  Bytes released = 0;
  at = pool.free.lower_bound({stream, wanted, 0, 0});
  while (released < wanted && at != pool.free.begin()) {
    const auto largest = std::prev(at);
    if (largest->stream != stream || largest->size < limit) break;
    if (is_plain(largest)) {
      released += largest->size;
      const BlockId id = largest->id;
      release_whole(id);
      at = pool.free.lower_bound({stream, wanted, 0, 0});
    } else {
      at = largest;
    }
  }
  return released >= wanted;
}

// Gives a free block that is a whole segment back.
void CachingAllocator::release_whole(BlockId id) {
  erase_free(id);
  reserved_ -= blocks_[id].size;
  drop_block(id);
}

void CachingAllocator::unmap_range(BlockId id, std::uint64_t begin, std::uint64_t end) {
  erase_free(id);
  if (blocks_[id].address < begin) {
    const BlockId rest = split_off(id, begin - blocks_[id].address);
    insert_free(id);
    id = rest;
  }
  if (blocks_[id].address + blocks_[id].size > end) insert_free(split_off(id, end - begin));
  blocks_[id].mapped = false;
  reserved_ -= end - begin;
  if (can_join(id, blocks_[id].previous)) join(id, blocks_[id].previous);
  if (can_join(id, blocks_[id].next)) join(id, blocks_[id].next);
  insert_free(id);
}

void CachingAllocator::release_cached() {
  // Large before small, as the original; private pools stay, since a graph may use them.
  for (const bool is_small : {false, true}) {
    Pool& pool = pools_[pool_for({}, is_small)];
    std::vector<BlockId> expandable;
    for (auto at = pool.free.begin(); at != pool.free.end();) {
      const BlockId id = (at++)->id;
      const Block& block = blocks_[id];
      if (block.reservation != kNone) {
        expandable.push_back(id);
      } else if (block.previous == kNone && block.next == kNone) {
        release_whole(id);
      }
    }
    for (const BlockId id : expandable) {
      const Block& block = blocks_[id];
      const Reservation& reservation = reservations_[block.reservation];
      const Bytes page = reservation.page;
      const std::uint64_t from = block.address - reservation.address;
      const std::uint64_t begin = (from + page - 1) / page * page;
      const std::uint64_t end = (from + block.size) / page * page;
      if (begin < end) unmap_range(id, reservation.address + begin, reservation.address + end);
    }
  }
}

bool CachingAllocator::release_segment(std::uint64_t address, Bytes size) {
  for (Pool& pool : pools_) {
    for (const FreeKey& key : pool.free) {
      if (key.address != address || key.size != size) continue;
      const Block& block = blocks_[key.id];
      if (block.previous != kNone || block.next != kNone || block.reservation != kNone) continue;
      release_whole(key.id);
      return true;
    }
  }
  return false;
}

bool CachingAllocator::unmap(std::uint64_t address, Bytes size) {
  for (Pool& pool : pools_) {
    for (const FreeKey& key : pool.free) {
      const Block& block = blocks_[key.id];
      if (block.reservation == kNone || block.address > address ||
          block.address + block.size < address + size) {
        continue;
      }
      unmap_range(key.id, address, address + size);
      return true;
    }
  }
  return false;
}

CachingAllocator::BlockView CachingAllocator::view(BlockId id) const {
  const Block& block = blocks_[id];
  return {block.address, block.size, block.requested,
          !block.in_use   ? BlockState::kInactive
          : block.pending ? BlockState::kPendingFree
                          : BlockState::kAllocated};
}

std::vector<CachingAllocator::BlockView> CachingAllocator::layout() const {
  std::vector<BlockView> all;
  for (BlockId id = 0; id < blocks_.size(); ++id) {
    if (blocks_[id].mapped && blocks_[id].size > 0) all.push_back(view(id));
  }
  std::sort(all.begin(), all.end(),
            [](const BlockView& a, const BlockView& b) { return a.address < b.address; });
  return all;
}

}  // namespace lowtide
