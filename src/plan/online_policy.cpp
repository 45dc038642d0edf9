// The score of policy.md's best online policy, without its scan.
//
// The problem: a score depends on the dropped neighbourhood and on the clock, so both every drop
// and every nanosecond change many scores, and a decision must still be cheap.
//
// The method. The clock acts on all storages of like cost per byte alike: ScoreBuckets keeps them
// by half octaves of it, the longest unused on top, and compares tops only. The neighbourhood is
// weighed lazily:
//  - Costs mostly rise (a neighbour was dropped). A rise need not be known until the storage is
//  about
//    to be chosen: the winner is weighed again, and if it has become dearer goes back and the next
//    one is looked at.
//  - Costs fall only when a storage comes back, is released or is forgotten. Then those that reach
//  it
//    through dropped ones, up to kRefreshLimit, are queued, and weighed before the next choice.
// A storage is weighed for the first time when a choice is first made; a step with room to spare
// weighs nothing.
//
// Three sets of buckets are asked in turn: free (released, and nothing dropped that is still wanted
// would be rebuilt from it), regular, soft-held. A storage held hard is taken out when met at a
// top, and put back by the end of the hold. A denied one waits in a queue for a time that doubles.
//
// Works well: chains, nets with skips. Works badly: a storage just outside the walk's limit counts
// as there.
//
// Tested by tests/plan/online_policy_test.cpp against a policy that scans and weighs everything,
// and on operator logs by tests/plan/simulator_test.cpp.

#include "src/plan/online_policy.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/plan/score_buckets.h"

namespace lowtide {
namespace {

constexpr int kRefreshLimit = 32;
// A choice weighs its winner again at most so often; then the last winner is taken as it stands.
constexpr int kReweighLimit = 16;
constexpr std::uint32_t kNotQueued = 0xffffffffu;

enum class Where : std::uint8_t { kNowhere, kFree, kRegular, kSoft, kParked };

struct Slot {
  ScoreBuckets::Place place;
  std::uint32_t queued_at = kNotQueued;
  std::uint64_t weighed_at = 0;  // changes_ when it was last weighed
  std::uint64_t denied_in = 0;   // run_ in which it was last denied
  std::uint64_t due = 0;         // tick at which a parked one is asked for again
  Where where = Where::kNowhere;
  Way way = Way::kRecompute;  // the better one when it was last weighed
  std::uint8_t denials = 0;
  bool seen_released = false;
  bool needed = false;               // not there, and asked for again or read by what is needed
  std::uint32_t needed_readers = 0;  // ops that read it and wrote something needed
};

}  // namespace

class OnlinePolicy::Impl {
 public:
  explicit Impl(const OnlinePolicyOptions& options) : options_(options) {}

  void attach(const RecipeGraph& graph) {
    graph_ = &graph;
    graph.for_storages([&](StorageId id) {
      on_added(id);
      on_state(id);
    });
    graph.for_storages([&](StorageId id) { update_needed(id, false); });
  }

  void on_added(StorageId id) {
    if (slots_.size() <= id.index()) slots_.resize(graph_->storage_slots());
    slots_[id.index()] = Slot{};
    ++tick_;
    ++run_;
  }

  void on_state(StorageId id) {
    Slot& slot = slots_[id.index()];
    const bool just_released = graph_->is_released(id) && !slot.seen_released;
    if (just_released) {
      slot.seen_released = true;
      ++changes_;
      update_needed(id, false);
    }
    switch (slot.where) {
      case Where::kNowhere:
        if (eligible(id)) enqueue(id);
        break;
      case Where::kFree:
      case Where::kRegular:
        if (just_released) enqueue(id);
        break;
      case Where::kSoft:
        if (!graph_->is_held(id, Hold::kSoft)) enqueue(id);
        break;
      case Where::kParked:
        slot.where = Where::kNowhere;
        if (eligible(id)) enqueue(id);
        break;
    }
  }

  void on_copy_cost(StorageId id) {
    on_state(id);
    reweigh_soon(id);
  }

  void on_dropped(StorageId id) {
    ++changes_;
    ++run_;
    take_out(id);
    slots_[id.index()].denials = 0;
    update_needed(id, false);
  }

  void on_brought_back(StorageId id) {
    ++changes_;
    ++run_;
    update_needed(id, false);
    if (eligible(id)) enqueue(id);
    refresh_users(id);
  }

  void on_forgotten(StorageId id) {
    ++changes_;
    take_out(id);
    update_needed(id, true);
    Slot& slot = slots_[id.index()];
    if (slot.queued_at != kNotQueued) unqueue(id);
    slot = Slot{};
  }

  std::optional<StorageId> next_victim(std::uint64_t clock_ns) {
    while (!parked_.empty() && parked_.front().due <= tick_) unpark_first();
    for (;;) {
      while (!queue_.empty()) {
        const StorageId id = queue_.back();
        unqueue(id);
        weigh(id);
      }
      const auto victim = choose(clock_ns);
      if (victim) return victim;
      if (!unpark_all()) return std::nullopt;
    }
  }

  Way way(StorageId id) const { return slots_[id.index()].way; }

  void on_denied(StorageId id) {
    take_out(id);
    Slot& slot = slots_[id.index()];
    if (slot.queued_at != kNotQueued) unqueue(id);
    slot.where = Where::kParked;
    slot.denied_in = run_;
    slot.due = tick_ + (std::uint64_t{8} << slot.denials);
    if (slot.denials < 16) ++slot.denials;
    parked_.push_back({slot.due, id});
    std::push_heap(parked_.begin(), parked_.end(), later);
  }

 private:
  struct Parked {
    std::uint64_t due;
    StorageId id;
  };
  static bool later(const Parked& a, const Parked& b) { return a.due > b.due; }

  bool eligible(StorageId id) const {
    return graph_->is_there(id) && graph_->is_droppable(id) && graph_->can_be_dropped(id) &&
           graph_->bytes(id) > 0 && !graph_->is_held(id, Hold::kHard);
  }

  auto places() {
    return [this](std::uint32_t id) -> ScoreBuckets::Place& { return slots_[id].place; };
  }
  ScoreBuckets& buckets(Where where) {
    return buckets_[static_cast<std::size_t>(where) - static_cast<std::size_t>(Where::kFree)];
  }

  void put(StorageId id, Where where, float density) {
    buckets(where).insert(id.index(), density, graph_->last_use_ns(id), places());
    slots_[id.index()].where = where;
  }
  // A parked one leaves its entry in parked_ behind; it is known by its `due`.
  void take_out(StorageId id) {
    Slot& slot = slots_[id.index()];
    if (slot.where != Where::kNowhere && slot.where != Where::kParked) {
      buckets(slot.where).remove(id.index(), places());
    }
    slot.where = Where::kNowhere;
  }

  void enqueue(StorageId id) {
    Slot& slot = slots_[id.index()];
    if (slot.queued_at != kNotQueued) return;
    slot.queued_at = static_cast<std::uint32_t>(queue_.size());
    queue_.push_back(id);
  }
  void unqueue(StorageId id) {
    Slot& slot = slots_[id.index()];
    const StorageId last = queue_.back();
    queue_[slot.queued_at] = last;
    slots_[last.index()].queued_at = slot.queued_at;
    queue_.pop_back();
    slot.queued_at = kNotQueued;
  }

  void unpark_first() {
    std::pop_heap(parked_.begin(), parked_.end(), later);
    const Parked parked = parked_.back();
    parked_.pop_back();
    if (parked.id.index() >= slots_.size()) return;
    Slot& slot = slots_[parked.id.index()];
    if (slot.where != Where::kParked || slot.due != parked.due) return;
    slot.where = Where::kNowhere;
    if (eligible(parked.id)) enqueue(parked.id);
  }
  // False when every parked one has been denied since the last change.
  bool unpark_all() {
    std::vector<Parked> stay;
    bool any = false;
    for (const Parked& parked : parked_) {
      Slot& slot = slots_[parked.id.index()];
      if (slot.where != Where::kParked || slot.due != parked.due) continue;
      if (slot.denied_in == run_) {
        stay.push_back(parked);
        continue;
      }
      slot.where = Where::kNowhere;
      if (!eligible(parked.id)) continue;
      enqueue(parked.id);
      any = true;
    }
    parked_ = std::move(stay);
    std::make_heap(parked_.begin(), parked_.end(), later);
    return any;
  }

  std::optional<StorageId> choose(std::uint64_t clock_ns) {
    const auto last_use = [this](std::uint32_t id) { return graph_->last_use_ns(StorageId{id}); };
    for (const Where where : {Where::kFree, Where::kRegular, Where::kSoft}) {
      const auto keep = [&](std::uint32_t index) {
        const StorageId id{index};
        if (!eligible(id)) {
          take_out(id);
          return false;
        }
        if (where != Where::kSoft && graph_->is_held(id, Hold::kSoft)) {
          take_out(id);
          weigh(id);
          return false;
        }
        return true;
      };
      for (int again = 0;; ++again) {
        const auto best = buckets(where).best(clock_ns, places(), last_use, keep);
        if (!best) break;
        const StorageId id{*best};
        const Slot& slot = slots_[id.index()];
        if (slot.weighed_at == changes_ || again == kReweighLimit) return id;
        const std::uint16_t bucket = slot.place.bucket;
        weigh(id);
        if (slot.where == where && slot.place.bucket == bucket) return id;
      }
    }
    return std::nullopt;
  }

  // Puts the storage where it belongs now.
  void weigh(StorageId id) {
    take_out(id);
    if (!eligible(id)) return;
    Slot& slot = slots_[id.index()];
    Where where = Where::kRegular;
    if (graph_->is_held(id, Hold::kSoft)) {
      where = Where::kSoft;
    } else if (graph_->is_released(id) && slot.needed_readers == 0 && graph_->has_recipe(id)) {
      where = Where::kFree;
    }
    float density = std::numeric_limits<float>::max();
    if (graph_->has_recipe(id)) {
      start_walk();
      const double cost_ns = options_.child_weight * descendants_ns(id) + ancestors_ns(id);
      density = cost_per_byte(cost_ns, graph_->bytes(id));
      slot.way = Way::kRecompute;
    }
    // A copy is read back as it is: nothing that was dropped makes that dearer.
    const auto& copy = graph_->copy_cost(id);
    if (copy.has_value() && where != Where::kFree) {
      double cost_ns = static_cast<double>(copy->away_ns) + static_cast<double>(copy->back_ns);
      if (slot.needed_readers > 0) {
        cost_ns += options_.child_weight * static_cast<double>(copy->back_ns);
      }
      const float by_copy = cost_per_byte(cost_ns, graph_->bytes(id) - copy->kept_bytes);
      if (by_copy < density || !graph_->has_recipe(id)) {
        density = by_copy;
        slot.way = Way::kCopy;
      }
    }
    slot.weighed_at = changes_;
    put(id, where, density);
  }
  static float cost_per_byte(double cost_ns, Bytes bytes) {
    return static_cast<float>(std::max(cost_ns, 1.0) / static_cast<double>(bytes));
  }

  void start_walk() {
    if (++epoch_ == 0) {
      std::fill(storage_mark_.begin(), storage_mark_.end(), 0);
      std::fill(op_mark_.begin(), op_mark_.end(), 0);
      epoch_ = 1;
    }
    if (storage_mark_.size() < graph_->storage_slots()) {
      storage_mark_.resize(graph_->storage_slots(), 0);
    }
    if (op_mark_.size() < graph_->op_slots()) {
      op_mark_.resize(graph_->op_slots(), 0);
      op_needed_.resize(graph_->op_slots(), 0);
    }
  }
  bool mark(StorageId id) {
    return storage_mark_[id.index()] != epoch_ && (storage_mark_[id.index()] = epoch_, true);
  }
  bool mark(OpId id) {
    return op_mark_[id.index()] != epoch_ && (op_mark_[id.index()] = epoch_, true);
  }

  // Times of the ops to rebuild what is needed and comes from `id`, each once.
  double descendants_ns(StorageId id) {
    double total = 0;
    int left = options_.walk_limit;
    stack_.clear();
    stack_.push_back(id);
    mark(id);
    while (!stack_.empty()) {
      const StorageId at = stack_.back();
      stack_.pop_back();
      if (slots_[at.index()].needed_readers == 0) continue;
      graph_->for_readers(at, [&](OpId op, std::uint32_t) {
        if (op_needed_[op.index()] == 0) return;
        if (mark(op)) total += static_cast<double>(graph_->cost_ns(op));
        graph_->for_writes(op, [&](StorageId written, std::uint32_t) {
          if (!slots_[written.index()].needed || left <= 0 || !mark(written)) return;
          --left;
          stack_.push_back(written);
        });
      });
    }
    return total;
  }

  // Times of its own recipe and, weighted, of what must be rebuilt for it, each op once.
  double ancestors_ns(StorageId id) {
    double total = 0;
    int left = options_.walk_limit;
    stack_.clear();
    stack_.push_back(id);
    storage_mark_[id.index()] = epoch_;
    while (!stack_.empty()) {
      const StorageId at = stack_.back();
      stack_.pop_back();
      const double weight = at == id                  ? 1.0
                            : graph_->is_released(at) ? options_.dead_weight
                                                      : options_.live_weight;
      if (graph_->is_copied(at)) {
        total += weight * static_cast<double>(graph_->copy_cost(at)->back_ns);
        continue;
      }
      graph_->for_recipe(at, [&](OpId op, std::uint32_t) {
        if (!mark(op)) return true;
        total += weight * static_cast<double>(graph_->cost_ns(op));
        graph_->for_reads(op, [&](RecipeGraph::Read read) {
          if (!read.storage.valid() || left <= 0) return;
          if (graph_->is_there(read.storage) && read.version == graph_->version(read.storage)) {
            return;
          }
          if (!mark(read.storage)) return;
          --left;
          stack_.push_back(read.storage);
        });
        return true;
      });
    }
    return total;
  }

  // Queues what is there and would be read to rebuild `id`, through dropped ones.
  void refresh_sources(StorageId id) {
    start_walk();
    int left = kRefreshLimit;
    stack_.clear();
    stack_.push_back(id);
    mark(id);
    while (!stack_.empty()) {
      const StorageId at = stack_.back();
      stack_.pop_back();
      graph_->for_recipe(at, [&](OpId op, std::uint32_t) {
        graph_->for_reads(op, [&](RecipeGraph::Read read) {
          if (!read.storage.valid() || left <= 0 || !mark(read.storage)) return;
          --left;
          if (graph_->is_there(read.storage)) {
            reweigh_soon(read.storage);
          } else {
            stack_.push_back(read.storage);
          }
        });
        return left > 0;
      });
    }
  }
  // Brings `needed` of `first` and of what it is rebuilt from up to date.
  void update_needed(StorageId first, bool forgotten) {
    if (op_needed_.size() < graph_->op_slots()) op_needed_.resize(graph_->op_slots(), 0);
    const bool was_needed = slots_[first.index()].needed;
    stack_.clear();
    stack_.push_back(first);
    while (!stack_.empty()) {
      const StorageId id = stack_.back();
      stack_.pop_back();
      Slot& slot = slots_[id.index()];
      // What is copied needs nothing of what it was made from.
      const bool needed = !graph_->is_there(id) && !graph_->is_copied(id) &&
                          !(forgotten && id == first) &&
                          (!graph_->is_released(id) || slot.needed_readers > 0);
      if (needed == slot.needed) continue;
      slot.needed = needed;
      graph_->for_recipe(id, [&](OpId op, std::uint32_t) {
        std::uint32_t& outputs = op_needed_[op.index()];
        outputs += needed ? 1 : -1;
        if (outputs != (needed ? 1u : 0u)) return true;
        graph_->for_reads(op, [&](RecipeGraph::Read read) {
          if (!read.storage.valid()) return;
          Slot& source = slots_[read.storage.index()];
          source.needed_readers += needed ? 1 : -1;
          if (graph_->is_there(read.storage)) {
            if (!needed) reweigh_soon(read.storage);
          } else if (source.needed_readers == (needed ? 1u : 0u)) {
            stack_.push_back(read.storage);
          }
        });
        return true;
      });
    }
    if (was_needed && !slots_[first.index()].needed) refresh_sources(first);
  }
  // Queues what is there and is rebuilt from `id`, through dropped ones.
  void refresh_users(StorageId id) {
    start_walk();
    int left = kRefreshLimit;
    stack_.clear();
    stack_.push_back(id);
    mark(id);
    while (!stack_.empty()) {
      const StorageId at = stack_.back();
      stack_.pop_back();
      graph_->for_readers(at, [&](OpId op, std::uint32_t) {
        if (left <= 0) return;
        graph_->for_writes(op, [&](StorageId written, std::uint32_t) {
          if (left <= 0 || !mark(written)) return;
          --left;
          if (graph_->is_there(written)) {
            reweigh_soon(written);
          } else {
            stack_.push_back(written);
          }
        });
      });
    }
  }
  void reweigh_soon(StorageId id) {
    const Where where = slots_[id.index()].where;
    if (where == Where::kRegular || where == Where::kSoft) enqueue(id);
  }

  OnlinePolicyOptions options_;
  const RecipeGraph* graph_ = nullptr;
  std::vector<Slot> slots_;
  std::array<ScoreBuckets, 3> buckets_;
  std::vector<StorageId> queue_;  // to be weighed before the next choice
  std::vector<Parked> parked_;    // a heap, the soonest first
  std::vector<StorageId> stack_;
  std::vector<std::uint32_t> storage_mark_;
  std::vector<std::uint32_t> op_mark_;
  std::vector<std::uint32_t> op_needed_;  // how many of an op's outputs are needed
  std::uint32_t epoch_ = 0;
  std::uint64_t changes_ = 1;  // of anything that a weight depends on
  std::uint64_t run_ = 1;
  std::uint64_t tick_ = 0;
};

OnlinePolicy::OnlinePolicy(const OnlinePolicyOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
OnlinePolicy::~OnlinePolicy() = default;
void OnlinePolicy::attach(const RecipeGraph& graph) { impl_->attach(graph); }
void OnlinePolicy::on_added(StorageId id) { impl_->on_added(id); }
void OnlinePolicy::on_state(StorageId id) { impl_->on_state(id); }
void OnlinePolicy::on_copy_cost(StorageId id) { impl_->on_copy_cost(id); }
void OnlinePolicy::on_used(StorageId) {}  // read from the graph when the storage is met at a top
void OnlinePolicy::on_dropped(StorageId id) { impl_->on_dropped(id); }
void OnlinePolicy::on_brought_back(StorageId id) { impl_->on_brought_back(id); }
void OnlinePolicy::on_forgotten(StorageId id) { impl_->on_forgotten(id); }
std::optional<StorageId> OnlinePolicy::next_victim(Bytes, std::uint64_t clock_ns) {
  return impl_->next_victim(clock_ns);
}
Way OnlinePolicy::way(StorageId id) const { return impl_->way(id); }
void OnlinePolicy::on_denied(StorageId id, std::uint64_t) { impl_->on_denied(id); }

}  // namespace lowtide
