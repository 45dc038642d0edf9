// Storages, ops and two kinds of edges in four pools with free lists; edges are links of lists that
// start at their ends, so that adding and forgetting touch only what they concern.
//
// Tested by tests/plan/recipe_graph_test.cpp.

#include "src/plan/recipe_graph.h"

#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/plan/drop_policy.h"

namespace lowtide {
namespace {

template <typename T>
std::uint32_t take_slot(std::vector<T>& pool, std::vector<std::uint32_t>& free) {
  if (!free.empty()) {
    const std::uint32_t slot = free.back();
    free.pop_back();
    return slot;
  }
  LOWTIDE_ASSERT(pool.size() < 0xffffffffu);
  pool.emplace_back();
  return static_cast<std::uint32_t>(pool.size() - 1);
}

template <typename T, typename Tag>
Id<Tag> take_slot(std::vector<T>& pool, std::vector<Id<Tag>>& free) {
  if (!free.empty()) {
    const Id<Tag> slot = free.back();
    free.pop_back();
    return slot;
  }
  LOWTIDE_ASSERT(pool.size() < Id<Tag>::kNone);
  pool.emplace_back();
  return Id<Tag>{static_cast<std::uint32_t>(pool.size() - 1)};
}

}  // namespace

DropPolicy::~DropPolicy() = default;

RecipeGraph::RecipeGraph(std::unique_ptr<DropPolicy> policy) { set_policy(std::move(policy)); }

RecipeGraph::~RecipeGraph() = default;

void RecipeGraph::set_policy(std::unique_ptr<DropPolicy> policy) {
  LOWTIDE_ASSERT(policy != nullptr);
  policy->attach(*this);
  policy_ = std::move(policy);
}

RecipeGraph::StorageNode& RecipeGraph::node(StorageId id) {
  LOWTIDE_ASSERT(id.index() < storages_.size() && storages_[id.index()].used);
  return storages_[id.index()];
}

StorageId RecipeGraph::add_storage(Bytes bytes) {
  const StorageId id = take_slot(storages_, free_storages_);
  StorageNode& storage = storages_[id.index()];
  storage = StorageNode{};
  storage.bytes = bytes;
  storage.used = true;
  storage.there = true;
  policy_->on_added(id);
  return id;
}

OpId RecipeGraph::add_op(std::uint64_t cost_ns, std::span<const StorageId> reads,
                         std::span<const StorageId> writes, std::uint64_t clock_ns) {
  const OpId op = take_slot(ops_, free_ops_);
  ops_[op.index()] = OpNode{};
  ops_[op.index()].cost_ns = cost_ns;
  ops_[op.index()].order = next_order_++;
  ops_[op.index()].used = true;

  const bool over_source = writes_over_source(reads, writes);

  // The newest reader of a storage stands first in its list: one look finds a repeated argument.
  Link last_read = kNil;
  for (const StorageId id : reads) {
    StorageNode& storage = node(id);
    if (storage.first_reader != kNil && reads_[storage.first_reader].op == op) continue;
    const Link link = take_slot(reads_, free_reads_);
    reads_[link] = ReadEdge{op, id, storage.version, kNil, storage.first_reader, kNil};
    if (storage.first_reader != kNil) reads_[storage.first_reader].previous_of_storage = link;
    storage.first_reader = link;
    (last_read == kNil ? ops_[op.index()].first_read : reads_[last_read].next_of_op) = link;
    last_read = link;
  }
  for (const StorageId id : writes) {
    StorageNode& storage = node(id);
    if (storage.last_write != kNil && writes_[storage.last_write].op == op) continue;
    ++storage.version;
    if (over_source) {
      drop_writes(id);
      continue;
    }
    const Link link = take_slot(writes_, free_writes_);
    OpNode& made = ops_[op.index()];
    writes_[link] = WriteEdge{op, id, storage.version, made.first_write, kNil, kNil};
    if (made.first_write != kNil) writes_[made.first_write].previous_of_op = link;
    made.first_write = link;
    (storage.last_write == kNil ? storage.first_write
                                : writes_[storage.last_write].next_of_storage) = link;
    storage.last_write = link;
  }
  // Told only now that every edge stands.
  for (const StorageId id : reads) used(id, clock_ns);
  for (const StorageId id : writes) {
    used(id, clock_ns);
    policy_->on_state(id);
  }
  if (ops_[op.index()].first_write != kNil) return op;
  forget_op(op);
  return OpId{};
}

bool RecipeGraph::writes_over_source(std::span<const StorageId> reads,
                                     std::span<const StorageId> writes) const {
  return std::any_of(writes.begin(), writes.end(), [&](StorageId written) {
    return !has_recipe(written) && std::find(reads.begin(), reads.end(), written) != reads.end();
  });
}

void RecipeGraph::used(StorageId id, std::uint64_t clock_ns) {
  node(id).last_use_ns = clock_ns;
  policy_->on_used(id);
}

void RecipeGraph::set_droppable(StorageId id, bool droppable) {
  node(id).droppable = droppable;
  policy_->on_state(id);
}

void RecipeGraph::set_copy_cost(StorageId id, const std::optional<CopyCost>& cost) {
  node(id).copy = cost;
  policy_->on_copy_cost(id);
}

void RecipeGraph::released(StorageId id) {
  StorageNode& storage = node(id);
  storage.released = true;
  storage.droppable = true;
  policy_->on_state(id);
  if (is_useless(id)) useless_.push_back(id);
}

std::optional<StorageId> RecipeGraph::next_useless() {
  while (!useless_.empty()) {
    const StorageId id = useless_.back();
    useless_.pop_back();
    const StorageNode& storage = storages_[id.index()];
    // Once the last hold goes, unhold() puts it here again.
    if (is_useless(id) && storage.hard_holds == 0 && storage.soft_holds == 0) return id;
  }
  return std::nullopt;
}

void RecipeGraph::dropped(StorageId id, Way way) {
  StorageNode& storage = node(id);
  LOWTIDE_ASSERT(storage.there && (way == Way::kCopy || storage.first_write != kNil));
  storage.there = false;
  storage.copied = way == Way::kCopy;
  policy_->on_dropped(id);
}

void RecipeGraph::copy_gone(StorageId id) {
  StorageNode& storage = node(id);
  LOWTIDE_ASSERT(storage.copied && storage.first_write != kNil);
  storage.copied = false;
  policy_->on_dropped(id);
}

void RecipeGraph::brought_back(StorageId id) {
  StorageNode& storage = node(id);
  LOWTIDE_ASSERT(!storage.there);
  storage.there = true;
  storage.copied = false;
  policy_->on_brought_back(id);
}

void RecipeGraph::set_cost(OpId op, std::uint64_t cost_ns) {
  LOWTIDE_ASSERT(op.index() < ops_.size() && ops_[op.index()].used);
  ops_[op.index()].cost_ns = cost_ns;
}

void RecipeGraph::strip_recipe(StorageId id) {
  LOWTIDE_ASSERT(node(id).there || node(id).copied);
  drop_writes(id);
  policy_->on_state(id);
}

void RecipeGraph::forgotten(StorageId id) {
  node(id);
  policy_->on_forgotten(id);
  drop_writes(id);
  StorageNode& storage = storages_[id.index()];
  for (Link link = storage.first_reader; link != kNil;) {
    ReadEdge& read = reads_[link];
    const Link next = read.next_of_storage;
    read.storage = StorageId{};
    read.next_of_storage = read.previous_of_storage = kNil;
    link = next;
  }
  storage = StorageNode{};
  free_storages_.push_back(id);
}

// Takes the storage out of the lists of the ops that wrote it, and forgets ops that then wrote
// nothing.
void RecipeGraph::drop_writes(StorageId id) {
  StorageNode& storage = storages_[id.index()];
  for (Link link = storage.first_write; link != kNil;) {
    const WriteEdge write = writes_[link];
    if (write.previous_of_op != kNil) {
      writes_[write.previous_of_op].next_of_op = write.next_of_op;
    } else {
      ops_[write.op.index()].first_write = write.next_of_op;
    }
    if (write.next_of_op != kNil) writes_[write.next_of_op].previous_of_op = write.previous_of_op;
    free_writes_.push_back(link);
    if (ops_[write.op.index()].first_write == kNil) forget_op(write.op);
    link = write.next_of_storage;
  }
  storage.first_write = storage.last_write = kNil;
}

void RecipeGraph::forget_op(OpId op) {
  for (Link link = ops_[op.index()].first_read; link != kNil;) {
    const ReadEdge read = reads_[link];
    if (read.storage.valid()) {
      if (read.previous_of_storage != kNil) {
        reads_[read.previous_of_storage].next_of_storage = read.next_of_storage;
      } else {
        storages_[read.storage.index()].first_reader = read.next_of_storage;
      }
      if (read.next_of_storage != kNil) {
        reads_[read.next_of_storage].previous_of_storage = read.previous_of_storage;
      }
      if (is_useless(read.storage)) useless_.push_back(read.storage);
    }
    free_reads_.push_back(link);
    link = read.next_of_op;
  }
  ops_[op.index()] = OpNode{};
  free_ops_.push_back(op);
}

bool RecipeGraph::is_read(StorageId id) const {
  for (Link r = storages_[id.index()].first_reader; r != kNil; r = reads_[r].next_of_storage) {
    for (Link w = ops_[reads_[r].op.index()].first_write; w != kNil; w = writes_[w].next_of_op) {
      if (writes_[w].storage != id) return true;
    }
  }
  return false;
}

void RecipeGraph::hold(StorageId id, Hold strength) {
  StorageNode& storage = node(id);
  std::uint16_t& count = strength == Hold::kHard ? storage.hard_holds : storage.soft_holds;
  LOWTIDE_ASSERT(count < 0xffffu);
  if (++count == 1) policy_->on_state(id);
}

void RecipeGraph::unhold(StorageId id, Hold strength) {
  StorageNode& storage = node(id);
  std::uint16_t& count = strength == Hold::kHard ? storage.hard_holds : storage.soft_holds;
  LOWTIDE_ASSERT(count > 0);
  if (--count > 0) return;
  policy_->on_state(id);
  if (is_useless(id)) useless_.push_back(id);
}

bool RecipeGraph::is_held(StorageId id, Hold strength) const {
  const StorageNode& storage = storages_[id.index()];
  return (strength == Hold::kHard ? storage.hard_holds : storage.soft_holds) > 0;
}

std::optional<StorageId> RecipeGraph::next_victim(Bytes bytes_needed, std::uint64_t clock_ns) {
  return policy_->next_victim(bytes_needed, clock_ns);
}

Way RecipeGraph::way(StorageId victim) const { return policy_->way(victim); }

void RecipeGraph::deny(StorageId id, std::uint64_t clock_ns) {
  node(id);
  policy_->on_denied(id, clock_ns);
}

std::vector<StorageId> RecipeGraph::dependents(StorageId id) const {
  std::vector<StorageId> found;
  std::vector<bool> seen(storages_.size(), false);
  seen[id.index()] = true;
  const auto look = [&](StorageId from) {
    for_readers(from, [&](OpId op, std::uint32_t) {
      for_writes(op, [&](StorageId written, std::uint32_t) {
        if (seen[written.index()]) return;
        seen[written.index()] = true;
        found.push_back(written);
      });
    });
  };
  look(id);
  for (std::size_t next = 0; next < found.size(); ++next) look(found[next]);
  return found;
}

std::vector<StorageId> RecipeGraph::direct_dependents(StorageId id) const {
  std::vector<StorageId> found;
  for_readers(id, [&](OpId op, std::uint32_t) {
    for_writes(op, [&](StorageId written, std::uint32_t) {
      if (written != id) found.push_back(written);
    });
  });
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<StorageId> RecipeGraph::stale_readers(StorageId id) const {
  std::vector<StorageId> stale;
  const std::uint32_t latest = version(id);
  for_readers(id, [&](OpId op, std::uint32_t read_version) {
    if (read_version == latest) return;
    for_writes(op, [&](StorageId written, std::uint32_t) {
      if (written != id) stale.push_back(written);
    });
  });
  std::sort(stale.begin(), stale.end());
  stale.erase(std::unique(stale.begin(), stale.end()), stale.end());
  return stale;
}

Bytes RecipeGraph::memory_bytes() const {
  return storages_.capacity() * sizeof(StorageNode) + ops_.capacity() * sizeof(OpNode) +
         reads_.capacity() * sizeof(ReadEdge) + writes_.capacity() * sizeof(WriteEdge) +
         free_storages_.capacity() * sizeof(StorageId) + free_ops_.capacity() * sizeof(OpId) +
         (free_reads_.capacity() + free_writes_.capacity()) * sizeof(Link);
}

}  // namespace lowtide
