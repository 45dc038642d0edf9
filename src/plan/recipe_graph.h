#pragma once
// What can be rebuilt from what: storages, the ops that wrote them, and which are there now.
//
// The runtime (or the simulator) feeds it what happens and asks what to drop. It decides nothing
// itself: a DropPolicy, which the graph owns and the feeder never sees, does.
//
//   RecipeGraph graph(std::make_unique<OnlinePolicy>());
//   StorageId w = graph.add_storage(4096);            // a source: no op wrote it
//   StorageId h = graph.add_storage(1 << 20);
//   graph.add_op(12'000, {{w}}, {{h}}, now);          // h = f(w): h's recipe is this op
//   graph.set_droppable(h, true);                     // only the runtime holds it
//   while (live + request > limit) {
//     auto victim = graph.next_victim(live + request - limit, now);
//     if (!victim) refuse();
//     if (others_hold(*victim)) { graph.deny(*victim); continue; }
//     release_bytes(*victim);
//     graph.dropped(*victim);
//   }
//   BringBackPlan plan = bring_back_plan(graph, {{h}});   // bring_back.h
//   for (OpId op : plan.ops) { ...run it...; }
//   graph.brought_back(h);
//
// Recipes. A storage's recipe is the ordered list of the ops that wrote it: the op that made it and
// its in-place writes. An op may write several storages. A storage's version is the number of
// writes it has had; an op remembers the version of each storage that it read. A storage no op
// wrote (a parameter, the batch) is a source and never droppable.
//
// States of a storage, all told by the feeder:
//   there / not there       dropped(), brought_back()
//   droppable or not        only the runtime holds it, and every write of it was seen
//   live / released         released(): no one will ask for it again. Its block may be kept, as a
//                           checkpoint to rebuild others from; it is the cheapest to go
//   held, hard or soft      hard: an input of the op that runs now. soft: the rest of a bring-back
//                           needs it; dropped only when nothing else is left
//   copied                  not there, but its bytes are kept elsewhere (a spill file, a packed
//                           form): it comes back by being read, and needs no recipe for that
//
// Not thread-safe: the feeder's lock guards it. Bytes, costs and order only; no torch, no clock of
// its own. Every call is O(1) or O(log n) but for what its comment says. Ids are dense and are
// given out again after forgotten(), so that a long run does not grow it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lowtide/bytes.h"
#include "src/tape/ids.h"

namespace lowtide {

class DropPolicy;

enum class Hold : std::uint8_t { kSoft, kHard };

// How a storage comes back after a drop.
enum class Way : std::uint8_t {
  kRecompute,  // its recipe runs again
  kCopy,       // its bytes are read from where they were put
};

// What it takes to drop a storage by putting its bytes elsewhere.
struct CopyCost {
  std::uint64_t away_ns = 0;
  std::uint64_t back_ns = 0;
  Bytes kept_bytes = 0;  // what the copy takes of the memory that the drop shall free
};

class RecipeGraph {
 public:
  // One storage that an op reads, at the version it read.
  struct Read {
    StorageId storage;  // not valid() when the storage has been forgotten since
    std::uint32_t version = 0;
  };

  explicit RecipeGraph(std::unique_ptr<DropPolicy> policy);
  ~RecipeGraph();
  RecipeGraph(const RecipeGraph&) = delete;
  RecipeGraph& operator=(const RecipeGraph&) = delete;

  // Puts another policy in charge from now on; it starts from the state as it stands. O(storages).
  void set_policy(std::unique_ptr<DropPolicy> policy);

  // --- what happened ---

  // A storage of `bytes` now exists: there, live, not droppable, not held, no recipe.
  StorageId add_storage(Bytes bytes);

  // An op ran, took `cost_ns`, read and wrote. It is appended to the recipe of each storage in
  // `writes`; their versions go up by one. A storage that is read and written (in place) is in
  // both lists. Duplicates are dropped. Counts as a use of all of them at `clock_ns`.
  // A write in place over a source leaves it a source (only its version goes up), and makes sources
  // of all else that the op wrote: it cannot be run again on what it read. Such an op is not kept:
  // the id returned is not valid. writes_over_source() tells beforehand; see dependents(). Ops must
  // be added in the order in which they ran: ops compare by order(), not by id.
  OpId add_op(std::uint64_t cost_ns, std::span<const StorageId> reads,
              std::span<const StorageId> writes, std::uint64_t clock_ns);

  // Whether add_op() with these would be a write in place over a source.
  bool writes_over_source(std::span<const StorageId> reads,
                          std::span<const StorageId> writes) const;

  // The program (not a replay) used it. Clocks never run backwards.
  void used(StorageId id, std::uint64_t clock_ns);

  // Whether the storage may be proposed by next_victim(). Ignored for storages with no recipe that
  // cannot be copied: they are never proposed.
  void set_droppable(StorageId id, bool droppable);

  // The storage can also be dropped by a copy, at this cost; nullopt: it cannot, which is so at
  // first.
  void set_copy_cost(StorageId id, const std::optional<CopyCost>& cost);

  // No one will ask for it again: neither the program nor a saved tensor. Droppable from now on
  // if it has a recipe.
  void released(StorageId id);

  // Its bytes are gone; must be there. By recompute it must have a recipe.
  void dropped(StorageId id, Way way = Way::kRecompute);
  void copy_gone(StorageId id);     // a copied storage with a recipe is not copied any more
  void brought_back(StorageId id);  // its bytes are there again, at the latest version

  // A measured cost replaces the old one (a replay may show that the first run was a slow one).
  void set_cost(OpId op, std::uint64_t cost_ns);

  // Its recipe no longer holds (an unseen write, an op not known to be repeatable): the storage is
  // a source from now on. Must be there or copied. Other recipes that read older versions of it:
  // the feeder must strip those too (stale_readers() lists them).
  void strip_recipe(StorageId id);

  // A storage that is released and that no recipe reads any more: of no use to anyone. The feeder
  // gives its block back, if it is there, and calls forgotten(), which may make others useless; so
  //   while (auto id = graph.next_useless()) { free_block(*id); graph.forgotten(*id); }
  // after released(), outside of a bring-back, keeps the graph small without recursion. nullopt:
  // there is none. Those held are passed over; ask again after the hold.
  std::optional<StorageId> next_useless();

  // The record is gone. Ops whose written storages are all forgotten are forgotten with it. Recipes
  // that still read it keep an invalid Read; see is_read(). O(its edges).
  void forgotten(StorageId id);

  void hold(StorageId id, Hold strength);    // counted
  void unhold(StorageId id, Hold strength);  // undoes one hold() of that strength

  // --- what to do ---

  // The storage to drop next: there, droppable, not held hard; soft-held only when nothing else
  // is left. Does not mark it dropped: follow with dropped() or deny(). nullopt: nothing is left.
  // `bytes_needed` is what is missing, a hint.
  std::optional<StorageId> next_victim(Bytes bytes_needed, std::uint64_t clock_ns);
  // The way in which the victim goes at least cost.
  Way way(StorageId victim) const;

  // The victim cannot be dropped just now: someone else still holds it. It is asked for again
  // after a while that doubles each time, or sooner if set_droppable(id, true) says so, and before
  // next_victim() gives up: but each at most once between two calls of dropped(), brought_back() or
  // add_storage(), so that a loop over next_victim() and deny() ends.
  void deny(StorageId id, std::uint64_t clock_ns);

  // --- what is known ---

  Bytes bytes(StorageId id) const { return storages_[id.index()].bytes; }
  bool is_there(StorageId id) const { return storages_[id.index()].there; }
  // Not there, and comes back by being read.
  bool is_copied(StorageId id) const { return storages_[id.index()].copied; }
  // Lost if nothing holds it: neither there, nor copied, nor with a recipe.
  bool can_be_dropped(StorageId id) const {
    return has_recipe(id) || storages_[id.index()].copy.has_value();
  }
  const std::optional<CopyCost>& copy_cost(StorageId id) const {
    return storages_[id.index()].copy;
  }
  bool is_droppable(StorageId id) const { return storages_[id.index()].droppable; }
  bool is_released(StorageId id) const { return storages_[id.index()].released; }
  bool is_held(StorageId id, Hold strength) const;
  bool has_recipe(StorageId id) const { return storages_[id.index()].first_write != kNil; }
  // Some op in another storage's recipe still reads it. (In-place ops read what they write.)
  // O(its own writes).
  bool is_read(StorageId id) const;
  std::uint32_t version(StorageId id) const { return storages_[id.index()].version; }
  std::uint64_t last_use_ns(StorageId id) const { return storages_[id.index()].last_use_ns; }
  // Whether the op is still part of a recipe. Ask before its id can have been given out again.
  bool exists(OpId op) const { return ops_[op.index()].used; }
  std::uint64_t cost_ns(OpId op) const { return ops_[op.index()].cost_ns; }
  // Place of the op in the order of running; larger is later.
  std::uint64_t order(OpId op) const { return ops_[op.index()].order; }

  // Calls f(OpId, version after the write) for the recipe's ops, first to last; f returns false to
  // stop.
  template <typename F>
  void for_recipe(StorageId id, F&& f) const {
    for (Link w = storages_[id.index()].first_write; w != kNil; w = writes_[w].next_of_storage) {
      if (!f(writes_[w].op, writes_[w].version)) return;
    }
  }
  // Calls f(Read) for what `op` read. Forgotten storages have an invalid id.
  template <typename F>
  void for_reads(OpId op, F&& f) const {
    for (Link r = ops_[op.index()].first_read; r != kNil; r = reads_[r].next_of_op) {
      f(Read{reads_[r].storage, reads_[r].version});
    }
  }
  // Calls f(OpId, version read) for the ops that read `id`.
  template <typename F>
  void for_readers(StorageId id, F&& f) const {
    for (Link r = storages_[id.index()].first_reader; r != kNil; r = reads_[r].next_of_storage) {
      f(reads_[r].op, reads_[r].version);
    }
  }
  // Calls f(StorageId, version after the write) for what `op` wrote.
  template <typename F>
  void for_writes(OpId op, F&& f) const {
    for (Link w = ops_[op.index()].first_write; w != kNil; w = writes_[w].next_of_op) {
      f(writes_[w].storage, writes_[w].version);
    }
  }
  // Calls f(StorageId) for every storage that is not forgotten.
  template <typename F>
  void for_storages(F&& f) const {
    for (std::uint32_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].used) f(StorageId{i});
    }
  }

  // Storages that are rebuilt from `id`, directly or through others: what a write to a source
  // breaks. Before such a write the feeder brings back those of them that are dropped and not
  // released, and then strips all that are there. O(what is found and its edges).
  std::vector<StorageId> dependents(StorageId id) const;
  // What ops that read it wrote.
  std::vector<StorageId> direct_dependents(StorageId id) const;

  // Storages whose recipes read a version of `id` older than the one that is there now: they can be
  // rebuilt only by rebuilding `id` on the side, and not at all once `id` is stripped.
  std::vector<StorageId> stale_readers(StorageId id) const;

  std::size_t storage_slots() const { return storages_.size(); }
  std::size_t op_slots() const { return ops_.size(); }
  std::size_t storage_count() const { return storages_.size() - free_storages_.size(); }
  std::size_t op_count() const { return ops_.size() - free_ops_.size(); }
  Bytes memory_bytes() const;  // what this object itself takes

 private:
  using Link = std::uint32_t;
  static constexpr Link kNil = 0xffffffffu;

  struct StorageNode {
    Bytes bytes = 0;
    std::uint64_t last_use_ns = 0;
    Link first_write = kNil;
    Link last_write = kNil;
    Link first_reader = kNil;
    std::uint32_t version = 0;
    std::uint16_t hard_holds = 0;
    std::uint16_t soft_holds = 0;
    std::optional<CopyCost> copy;
    bool copied = false;
    bool used = false;
    bool there = false;
    bool droppable = false;
    bool released = false;
  };
  struct OpNode {
    std::uint64_t cost_ns = 0;
    std::uint64_t order = 0;
    Link first_read = kNil;
    Link first_write = kNil;
    bool used = false;
  };
  struct ReadEdge {
    OpId op;
    StorageId storage;
    std::uint32_t version = 0;
    Link next_of_op = kNil;
    Link next_of_storage = kNil;
    Link previous_of_storage = kNil;
  };
  struct WriteEdge {
    OpId op;
    StorageId storage;
    std::uint32_t version = 0;  // after the write
    Link next_of_op = kNil;
    Link previous_of_op = kNil;
    Link next_of_storage = kNil;
  };

  StorageNode& node(StorageId id);
  bool is_useless(StorageId id) const {
    const StorageNode& storage = storages_[id.index()];
    return storage.used && storage.released && !is_read(id);
  }
  void drop_writes(StorageId id);
  void forget_op(OpId op);

  std::vector<StorageNode> storages_;
  std::vector<OpNode> ops_;
  std::vector<ReadEdge> reads_;
  std::vector<WriteEdge> writes_;
  std::vector<StorageId> useless_;  // perhaps: to be looked at again
  std::vector<StorageId> free_storages_;
  std::vector<OpId> free_ops_;
  std::vector<Link> free_reads_;
  std::vector<Link> free_writes_;
  std::uint64_t next_order_ = 0;
  std::unique_ptr<DropPolicy> policy_;
};

}  // namespace lowtide
