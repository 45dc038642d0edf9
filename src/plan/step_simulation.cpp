// Tested by tests/plan/step_simulation_test.cpp, and against counted peaks by
// tests/fit/simulated_peaks_test.cpp.

#include "src/plan/step_simulation.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "src/base/assert.h"
#include "src/plan/bring_back.h"
#include "src/plan/online_policy.h"
#include "src/plan/recipe_graph.h"
#include "src/plan/step_follower.h"

namespace lowtide {
namespace {

// Smaller storages have no recipe in the runtime (storage_table.h).
constexpr Bytes kSmallestRecipe = 1024;

class Simulation {
 public:
  Simulation(const Tape& tape, const Plan& plan, Bytes budget_bytes)
      : tape_(tape),
        budget_(budget_bytes),
        storages_(tape.storages.size()),
        graph_(std::make_unique<OnlinePolicy>()),
        known_(std::make_shared<const KnownStep>(tape)),
        follower_(known_, std::make_shared<const PlanGaps>(known_->trace, plan), graph_) {}

  SimulatedStep run() {
    for (const TapeEvent& event : tape_.events) {
      if (!happen(event)) return result_;
    }
    result_.done = true;
    result_.choices_beyond_plan = follower_.choices_beyond_plan();
    return result_;
  }

 private:
  struct Storage {
    StorageId node;  // of the graph
    std::uint32_t saved = 0;
    std::uint32_t holds = 0;
    bool there = false;
  };
  // What a replay makes and no saved tensor waits for.
  struct Aside {
    std::uint32_t version = 0;
    std::uint32_t uses = 0;  // still to come
  };

  Bytes bytes(StorageId id) const { return tape_.storages[id.index()].bytes; }
  Storage& storage(StorageId id) { return storages_[id.index()]; }
  StorageId node_of(StorageId id) {
    StorageId& node = storage(id).node;
    if (!node.valid()) {
      node = graph_.add_storage(bytes(id));
      if (id_of_.size() <= node.index()) id_of_.resize(node.index() + 1);
      id_of_[node.index()] = id;
    }
    return node;
  }
  void look_at_holds(StorageId id) {
    const Storage& s = storage(id);
    if (s.node.valid()) graph_.set_droppable(s.node, s.saved > 0 && s.holds == 0);
  }

  bool happen(const TapeEvent& event) {
    const StorageId id{event.index};
    switch (event.kind) {
      case TapeEvent::Kind::kMake:
        if (!make_room(bytes(id))) return false;
        occupy(bytes(id));
        storage(id).there = true;
        return true;
      case TapeEvent::Kind::kRun:
        follower_.op_begins();
        return run_op(OpId{event.index});
      case TapeEvent::Kind::kFree:
        free(id);
        return true;
      case TapeEvent::Kind::kPack: {
        const StorageId saved = tape_.saved[event.index].storage;
        ++storage(saved).saved;
        const StorageId node = node_of(saved);
        look_at_holds(saved);
        const auto number = follower_.packed(node, bytes(saved), "");
        LOWTIDE_ASSERT(number.has_value());
        number_of_[event.index] = *number;
        return true;
      }
      case TapeEvent::Kind::kUnpack: {
        const StorageId saved = tape_.saved[event.index].storage;
        const bool follows = follower_.unpacked(number_of_.at(event.index));
        LOWTIDE_ASSERT(follows);
        return bring_back(saved);
      }
      case TapeEvent::Kind::kForget: {
        const StorageId saved = tape_.saved[event.index].storage;
        --storage(saved).saved;
        look_at_holds(saved);
        return true;
      }
      case TapeEvent::Kind::kHold:
        ++storage(id).holds;
        look_at_holds(id);
        return true;
      case TapeEvent::Kind::kUnhold:
        --storage(id).holds;
        look_at_holds(id);
        return true;
      case TapeEvent::Kind::kMark:
        return true;
    }
    return false;
  }

  bool run_op(OpId op) {
    const TapeOp& taped = tape_.ops[op.index()];
    Bytes made = taped.working_bytes;
    for (const StorageId id : tape_.writes(op)) made += storage(id).there ? 0 : bytes(id);
    if (!make_room(made)) return false;
    occupy(made);
    live_ -= taped.working_bytes;
    result_.plain_ns += taped.cost_ns;
    result_.total_ns += taped.cost_ns;
    std::vector<StorageId> reads;
    std::vector<StorageId> writes;
    for (const StorageId id : tape_.writes(op)) storage(id).there = true;
    if (taped.has(OpFlag::kNotRepeatable)) return true;
    for (const StorageId id : tape_.reads(op)) reads.push_back(node_of(id));
    for (const StorageId id : tape_.writes(op)) {
      if (bytes(id) >= kSmallestRecipe) writes.push_back(node_of(id));
    }
    if (writes.empty()) return true;
    const OpId added = graph_.add_op(taped.cost_ns, reads, writes, result_.total_ns);
    if (!added.valid()) return true;
    if (op_of_.size() <= added.index()) op_of_.resize(added.index() + 1);
    op_of_[added.index()] = op;
    return true;
  }

  void free(StorageId id) {
    Storage& s = storage(id);
    if (s.there) live_ -= bytes(id);
    const bool was_there = s.there;
    s.there = false;
    if (!s.node.valid()) return;
    if (graph_.has_recipe(s.node)) {
      graph_.released(s.node);
      if (was_there) graph_.dropped(s.node);
    } else {
      graph_.forgotten(s.node);
      s.node = StorageId{};
    }
  }

  // The saved tensor's bytes are there afterwards. Two rounds, as Replayer has.
  bool bring_back(StorageId target) {
    if (storage(target).there) return true;
    if (round(target, Hold::kSoft) && storage(target).there) return true;
    drop_all();
    return round(target, Hold::kHard) && storage(target).there;
  }

  bool round(StorageId target, Hold strength) {
    const StorageId node = node_of(target);
    graph_.hold(node, Hold::kHard);
    const BringBackPlan plan = bring_back_plan(graph_, {&node, 1});
    asides_.clear();
    for (const Rebuild& rebuild : plan.rebuilds) asides_[rebuild.storage];
    std::vector<std::vector<StorageId>> kept(plan.ops.size());
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      graph_.for_reads(plan.ops[i], [&](RecipeGraph::Read read) {
        if (!read.storage.valid()) return;
        const auto aside = asides_.find(read.storage);
        if (aside != asides_.end()) ++aside->second.uses;
        graph_.hold(read.storage, strength);
        kept[i].push_back(read.storage);
      });
    }
    bool goes_on = true;
    std::size_t next = 0;
    for (; goes_on && next < plan.ops.size(); ++next) {
      goes_on = replay(plan.ops[next]);
      for (const StorageId held : kept[next]) graph_.unhold(held, strength);
    }
    for (; next < plan.ops.size(); ++next) {
      for (const StorageId held : kept[next]) graph_.unhold(held, strength);
    }
    for (const auto& [held, aside] : asides_) {
      if (aside.version > 0) live_ -= graph_.bytes(held);
    }
    asides_.clear();
    graph_.unhold(node, Hold::kHard);
    return goes_on;
  }

  bool replay(OpId op) {
    std::vector<StorageId> inputs;
    bool there = true;
    graph_.for_reads(op, [&](RecipeGraph::Read read) {
      if (!read.storage.valid()) return;
      const auto aside = asides_.find(read.storage);
      const bool is_aside = aside != asides_.end() && aside->second.version > 0;
      there &= is_aside || storage(id_of_[read.storage.index()]).there;
      inputs.push_back(read.storage);
    });
    if (!there) return false;
    const OpId taped_op = op_of_[op.index()];
    const TapeOp& taped = tape_.ops[taped_op.index()];
    // In place: the block that is there becomes the next version.
    const auto is_written_in_place = [&](StorageId id) {
      return std::find(inputs.begin(), inputs.end(), storage(id).node) != inputs.end();
    };
    Bytes made = taped.working_bytes;
    for (const StorageId id : tape_.writes(taped_op)) {
      if (!is_written_in_place(id)) made += bytes(id);
    }
    for (const StorageId input : inputs) graph_.hold(input, Hold::kHard);
    const bool fits = make_room(made);
    for (const StorageId input : inputs) graph_.unhold(input, Hold::kHard);
    if (!fits) return false;
    occupy(made);
    live_ -= taped.working_bytes;
    result_.total_ns += taped.cost_ns;
    ++result_.replays;
    std::vector<StorageId> arrived;
    Bytes doubles = 0;
    for (const StorageId id : tape_.writes(taped_op)) {
      if (!is_written_in_place(id)) doubles += bytes(id);
    }
    graph_.for_writes(op, [&](StorageId written, std::uint32_t version) {
      const StorageId id = id_of_[written.index()];
      const auto aside = asides_.find(written);
      const bool in_place = is_written_in_place(id);
      const bool latest = version == graph_.version(written);
      if (latest && storage(id).saved > 0 && !storage(id).there) {
        if (!in_place) doubles -= bytes(id);
        if (aside != asides_.end()) aside->second.version = 0;
        arrived.push_back(written);
      } else if (aside != asides_.end()) {
        if (!in_place) doubles -= bytes(id);
        aside->second.version = version;
      }
    });
    live_ -= doubles;
    for (const StorageId written : arrived) {
      storage(id_of_[written.index()]).there = true;
      graph_.brought_back(written);
    }
    for (const StorageId input : inputs) {
      const auto aside = asides_.find(input);
      if (aside != asides_.end()) --aside->second.uses;
    }
    for (auto& [held, aside] : asides_) {
      if (aside.version == 0 || aside.uses > 0) continue;
      live_ -= graph_.bytes(held);
      aside.version = 0;
    }
    return true;
  }

  bool make_room(Bytes needed) {
    while (live_ + needed > budget_) {
      const auto victim = graph_.next_victim(live_ + needed - budget_, result_.total_ns);
      if (!victim) return false;
      drop(*victim);
    }
    return true;
  }
  void drop_all() {
    graph_.for_storages([&](StorageId node) {
      if (graph_.is_there(node) && graph_.is_droppable(node) && graph_.has_recipe(node) &&
          !graph_.is_held(node, Hold::kHard) && !graph_.is_held(node, Hold::kSoft)) {
        drop(node);
      }
    });
  }
  void drop(StorageId node) {
    const StorageId id = id_of_[node.index()];
    storage(id).there = false;
    graph_.dropped(node);
    live_ -= bytes(id);
    ++result_.drops;
  }
  void occupy(Bytes more) {
    live_ += more;
    result_.peak_bytes = std::max(result_.peak_bytes, live_);
  }

  const Tape& tape_;
  const Bytes budget_;
  std::vector<Storage> storages_;
  RecipeGraph graph_;
  std::shared_ptr<const KnownStep> known_;
  StepFollower follower_;
  SimulatedStep result_;
  Bytes live_ = 0;
  std::vector<StorageId> id_of_;  // the tape's, by the graph's
  std::vector<OpId> op_of_;
  std::unordered_map<std::uint32_t, std::uint32_t> number_of_;  // saved tensors in order
  std::unordered_map<StorageId, Aside> asides_;
};

}  // namespace

SimulatedStep simulate_step(const Tape& tape, const Plan& plan, Bytes budget_bytes) {
  return Simulation(tape, plan, budget_bytes).run();
}

}  // namespace lowtide
