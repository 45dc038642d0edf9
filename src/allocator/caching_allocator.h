#pragma once
// CUDA's caching allocator of one device as a model: the same blocks at the same addresses as
// libtorch's, without a GPU.
//
//   CachingAllocator allocator({.settings = settings, .capacity = 24_GiB});
//   auto block = allocator.allocate(1000, lane);   // nullopt: out of memory
//   allocator.free(*block);
//   allocator.peak_reserved();
//
// Modelled: rounding, pools by size, streams and private pools, best fit with the lowest address on
// ties, splitting and merging, max_split_size, the retry that gives cached segments back, garbage
// collection, expandable segments, frees that wait for another stream. One known flaw of the
// original is kept: after the retry the pool is not searched again, so a request can fail although
// a block for it was just freed.
//
// Where the driver puts segments cannot be known; `Driver` says it when it is known.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "lowtide/bytes.h"
#include "src/allocator/allocator_settings.h"
#include "src/evidence/snapshot.h"

namespace lowtide {

// A block of the model. Handed out, split off and merged ones are numbered alike; a number is given
// out again after its block is gone.
using BlockId = std::uint32_t;

class CachingAllocator {
 public:
  // Where the next piece of memory lies, if that is known: for a segment of `size`, or for the
  // reservation of an expandable one. nullopt: anywhere that is free.
  using Driver =
      std::function<std::optional<std::uint64_t>(Bytes size, const Lane& lane, bool mapped)>;

  struct Options {
    AllocatorSettings settings = {};
    Bytes capacity = AllocatorSettings::kNoLimit;  // of the card, for this process
    Driver driver = nullptr;
  };

  struct BlockView {
    std::uint64_t address;
    Bytes size;
    Bytes requested;
    BlockState state;
    bool operator==(const BlockView&) const = default;
  };

  explicit CachingAllocator(Options options) : options_(std::move(options)) {}
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // The start. A reservation is address space for expandable segments; it must be there before the
  // mapped ranges in it. A segment (a mapped range, when expandable) comes with the live blocks in
  // it, by address; they must lie inside and not overlap, and the rest of it is free. Returns the
  // ids of the blocks.
  void add_reservation(std::uint64_t address, Bytes size, const Lane& lane, bool is_small);
  std::vector<BlockId> add_segment(std::uint64_t address, Bytes size, const Lane& lane,
                                   bool is_small, bool is_expandable,
                                   const std::vector<BlockView>& blocks);

  // Requests.
  std::optional<BlockId> allocate(Bytes requested, const Lane& lane);
  // The end of a request whose search found nothing before blocks were given free: it takes new
  // memory although a block may fit now.
  std::optional<BlockId> allocate_after_retry(Bytes requested, const Lane& lane);
  void free(BlockId block);
  // Freed by the program but in use by another stream until free().
  void set_pending(BlockId block);
  void empty_cache();

  // What the driver's side is known to have done, for exact replay. False when the model cannot:
  // there is no such free segment.
  bool release_segment(std::uint64_t address, Bytes size);
  bool unmap(std::uint64_t address, Bytes size);

  // Free memory at the moment, seen from a request: what lies in the pool and stream that it would
  // be served from, and what lies elsewhere.
  struct FreeSpace {
    Bytes usable = 0;
    Bytes largest_usable = 0;  // one block
    Bytes elsewhere = 0;
  };
  FreeSpace free_for(Bytes requested, const Lane& lane) const;

  BlockView view(BlockId block) const;
  Bytes reserved() const { return reserved_; }
  Bytes peak_reserved() const { return peak_reserved_; }
  Bytes allocated() const { return allocated_; }
  Bytes peak_allocated() const { return peak_allocated_; }
  std::uint64_t retries() const { return retries_; }
  // Mapped blocks by address.
  std::vector<BlockView> layout() const;

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;

  struct Block {
    std::uint64_t address = 0;
    Bytes size = 0;
    Bytes requested = 0;
    std::uint64_t collected_at = 0;  // searches of its pool when it became free
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;
    std::uint32_t pool = 0;
    std::uint64_t stream = 0;
    std::uint32_t reservation = kNone;  // of an expandable segment
    bool in_use = false;
    bool pending = false;
    bool mapped = true;
  };
  struct FreeKey {
    std::uint64_t stream;
    Bytes size;
    std::uint64_t address;
    BlockId id;
    bool operator<(const FreeKey& other) const {
      if (stream != other.stream) return stream < other.stream;
      if (size != other.size) return size < other.size;
      if (address != other.address) return address < other.address;
      return id < other.id;
    }
  };
  struct UnmappedKey {
    std::uint64_t stream;
    std::uint64_t address;
    BlockId id;
    bool operator<(const UnmappedKey& other) const {
      if (stream != other.stream) return stream < other.stream;
      return address != other.address ? address < other.address : id < other.id;
    }
  };
  struct Pool {
    std::uint64_t first = 0;  // the private pool's id; 0, 0 is the default one
    std::uint64_t second = 0;
    bool is_small = false;
    std::set<FreeKey> free;
    std::set<UnmappedKey> unmapped;
    std::uint64_t searches = 0;
    bool is_private() const { return first != 0 || second != 0; }
  };
  struct Reservation {
    std::uint64_t address;
    Bytes size;
    Bytes page;
  };
  struct Request {
    Bytes size;
    Bytes segment_size;
    Lane lane;
    std::uint32_t pool;
  };

  Request request_for(Bytes requested, const Lane& lane);
  std::uint32_t pool_for(const Lane& lane, bool is_small);
  BlockId new_block(const Block& block);
  void drop_block(BlockId id);
  BlockId split_off(BlockId id, Bytes size);
  void insert_free(BlockId id);
  void erase_free(BlockId id);
  FreeKey key_of(BlockId id) const;
  bool can_join(BlockId id, BlockId other) const;
  void join(BlockId id, BlockId other);
  std::optional<BlockId> find_free(const Request& request);
  std::optional<BlockId> new_segment(const Request& request);
  std::optional<BlockId> expand(const Request& request);
  BlockId find_expandable(const Request& request);
  BlockId make_reservation(std::uint64_t address, Bytes size, const Lane& lane, bool is_small);
  bool map(BlockId id, Bytes size);
  void unmap_range(BlockId id, std::uint64_t begin, std::uint64_t end);
  bool should_split(const Block& block, Bytes size) const;
  BlockId hand_out(BlockId id, const Request& request, Bytes requested);
  void collect_garbage(std::uint32_t pool);
  bool release_oversize(const Request& request);
  void release_cached();
  void release_whole(BlockId id);
  void free_pending();
  std::uint64_t place(Bytes size, const Lane& lane, bool mapped);
  void reserve(Bytes bytes);

  Options options_;
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;
  std::vector<Pool> pools_;
  std::vector<Reservation> reservations_;
  std::vector<BlockId> pending_;
  // Above every address that a GPU gives out, so that made-up ones never meet real ones.
  std::uint64_t next_address_ = std::uint64_t{1} << 60;
  Bytes reserved_ = 0;
  Bytes peak_reserved_ = 0;
  Bytes allocated_ = 0;
  Bytes peak_allocated_ = 0;
  std::uint64_t retries_ = 0;
};

}  // namespace lowtide
