// One pass over the events. A request for what is missing is a loop of rounds: plan, run the ops of
// the plan in order, and if one finds an input gone (room had to be made from what was only softly
// held), plan again with what has arrived held hard. No recursion, so depth costs nothing; the
// number of rounds is bounded, so a budget that is too small is told and not thrashed at.
//
// Tested by tests/plan/simulator_test.cpp: schedules are replayed by code of their own.

#include "src/plan/simulator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/plan/bring_back.h"
#include "src/plan/recipe_graph.h"

namespace lowtide {
namespace {

using Outcome = SimulationResult::Outcome;

// Proposes whatever can go, in any order.
class AnyPolicy final : public DropPolicy {
 public:
  void attach(const RecipeGraph& graph) override {
    graph_ = &graph;
    graph.for_storages([&](StorageId id) { candidates_.push_back(id); });
  }
  void on_added(StorageId) override {}
  void on_state(StorageId id) override { look_at(id); }
  void on_used(StorageId) override {}
  void on_dropped(StorageId) override {}
  void on_brought_back(StorageId id) override { look_at(id); }
  void on_forgotten(StorageId) override {}
  std::optional<StorageId> next_victim(Bytes, std::uint64_t) override {
    while (!candidates_.empty()) {
      const StorageId id = candidates_.back();
      candidates_.pop_back();
      if (can_go(id)) return id;
    }
    return std::nullopt;
  }
  void on_denied(StorageId, std::uint64_t) override {}

 private:
  bool can_go(StorageId id) const {
    return id.index() < graph_->storage_slots() && graph_->has_recipe(id) && graph_->is_there(id) &&
           graph_->is_droppable(id) && !graph_->is_held(id, Hold::kHard) &&
           !graph_->is_held(id, Hold::kSoft);
  }
  void look_at(StorageId id) {
    if (can_go(id)) candidates_.push_back(id);
  }

  const RecipeGraph* graph_ = nullptr;
  std::vector<StorageId> candidates_;
};

class Simulation {
 public:
  Simulation(const Trace& trace, const SimulationOptions& options,
             std::unique_ptr<DropPolicy> policy)
      : trace_(trace),
        options_(options),
        graph_(std::move(policy)),
        id_of_(trace.storages.size()),
        views_of_(trace.storages.size()),
        live_refs_(trace.storages.size(), 0),
        aside_version_(trace.storages.size(), 0) {
    result_.plain_ns = plain_ns(trace);
    time_limit_ns_ =
        static_cast<std::uint64_t>(options.time_limit * static_cast<double>(result_.plain_ns)) + 1;
  }

  SimulationResult run() {
    for (std::uint32_t i = 0; i < trace_.events.size(); ++i) {
      event_ = i;
      if (!step(trace_.events[i])) {
        result_.stopped_at = i;
        break;
      }
      // What is asked for is used before anything else happens.
      if (options_.eager && trace_.events[i].kind != TraceEvent::Kind::kNeed) drop_all();
    }
    result_.total_ns = clock_ns_;
    return result_;
  }

 private:
  bool step(const TraceEvent& event) {
    const StorageId id{event.index};
    switch (event.kind) {
      case TraceEvent::Kind::kSource:
        if (!make_room(bytes(id))) return false;
        appear(id);
        occupy(bytes(id));
        return true;
      case TraceEvent::Kind::kRun:
        return run_op(OpId{event.index});
      case TraceEvent::Kind::kNeed:
        if (!bring_back({&id, 1})) return false;
        graph_.used(graph_id(id), clock_ns_);
        return true;
      case TraceEvent::Kind::kHold:
        if (!bring_back({&id, 1})) return false;
        graph_.set_droppable(graph_id(trace_.root(id)), false);
        return true;
      case TraceEvent::Kind::kUnhold:
        graph_.set_droppable(graph_id(trace_.root(id)), true);
        return true;
      case TraceEvent::Kind::kRelease:
        release(id);
        return true;
      case TraceEvent::Kind::kPin:
        if (!bring_back({&id, 1})) return false;
        graph_.hold(graph_id(trace_.root(id)), Hold::kHard);
        return true;
      case TraceEvent::Kind::kFree:
        graph_.released(graph_id(id));
        collect();
        return true;
    }
    return false;
  }

  // A view dies with its base; the base is released when all its views are, too.
  void release(StorageId id) {
    const StorageId root = trace_.root(id);
    if (id != root) graph_.released(graph_id(id));
    if (--live_refs_[root.index()] == 0 && !trace_.storages[root.index()].source) {
      graph_.released(graph_id(root));
    }
    collect();
  }

  // Gives back what no one can ask for again.
  void collect() {
    while (const auto node = graph_.next_useless()) {
      const StorageId id = trace_id_[node->index()];
      if (graph_.is_there(*node)) live_bytes_ -= bytes(id);
      graph_.forgotten(*node);
      id_of_[id.index()] = StorageId{};
    }
  }

  bool run_op(OpId id) {
    const TraceOp& op = trace_.ops[id.index()];
    needed_.assign(op.reads.begin(), op.reads.end());
    for (const StorageId written : op.writes) {
      if (graph_id(written).valid()) needed_.push_back(written);
    }
    if (!bring_back(needed_) || !before_write(op) || !bring_back(needed_)) return false;
    for (const StorageId id_needed : needed_) graph_.hold(root_id(id_needed), Hold::kHard);
    Bytes made = op.working_bytes;
    for (const StorageId written : op.writes) {
      if (!id_of_[written.index()].valid()) made += bytes(written);
    }
    const bool fits = make_room(made);
    for (const StorageId id_needed : needed_) graph_.unhold(root_id(id_needed), Hold::kHard);
    if (!fits) return false;

    occupy(made);
    clock_ns_ += op.cost_ns;
    tell(SimulatedEvent::Kind::kRun, id.index());
    live_bytes_ -= op.working_bytes;
    reads_.clear();
    writes_.clear();
    for (const StorageId read : op.reads) {
      reads_.push_back(graph_id(read));
      // The base's own clock: a view in use keeps it young.
      if (trace_.root(read) != read) graph_.used(root_id(read), clock_ns_);
    }
    made_.clear();
    for (const StorageId written : op.writes) {
      if (!id_of_[written.index()].valid()) {
        appear(written);
        if (!trace_.storages[written.index()].base.valid()) made_.push_back(written);
      }
      writes_.push_back(graph_id(written));
    }
    const OpId added = graph_.add_op(op.cost_ns, reads_, writes_, clock_ns_);
    if (added.valid()) {
      if (trace_op_.size() <= added.index()) trace_op_.resize(added.index() + 1);
      trace_op_[added.index()] = id;
    }
    for (const StorageId written : op.writes) {
      if (trace_.root(written) != written) graph_.used(root_id(written), clock_ns_);
    }
    for (const StorageId id_made : made_) graph_.set_droppable(graph_id(id_made), true);
    return true;
  }

  // A write to a source breaks the recipes that read it: what is still wanted of them is brought
  // back and kept, as the runtime does.
  bool before_write(const TraceOp& op) {
    reads_.clear();
    writes_.clear();
    for (const StorageId read : op.reads) reads_.push_back(graph_id(read));
    for (const StorageId written : op.writes) {
      if (graph_id(written).valid()) writes_.push_back(graph_id(written));
    }
    if (!graph_.writes_over_source(reads_, writes_)) return true;
    std::vector<StorageId> broken;
    for (const StorageId written : writes_) {
      const std::vector<StorageId> more = graph_.dependents(written);
      broken.insert(broken.end(), more.begin(), more.end());
    }
    std::sort(broken.begin(), broken.end());
    broken.erase(std::unique(broken.begin(), broken.end()), broken.end());
    std::vector<StorageId> wanted;
    std::vector<StorageId> kept;  // room must not be made from what cannot be rebuilt afterwards
    for (const StorageId node : broken) {
      if (graph_.is_there(node)) {
        kept.push_back(root_of_node(node));
        graph_.hold(kept.back(), Hold::kHard);
      } else if (!graph_.is_released(node)) {
        wanted.push_back(trace_id_[node.index()]);
      }
    }
    const bool fits = bring_back(wanted);
    for (const StorageId node : kept) graph_.unhold(node, Hold::kHard);
    if (!fits) return false;
    for (const StorageId node : broken) {
      if (graph_.is_there(node)) graph_.strip_recipe(node);
    }
    collect();
    return true;
  }

  void appear(StorageId id) {
    const StorageId node = graph_.add_storage(bytes(id));
    id_of_[id.index()] = node;
    if (trace_id_.size() <= node.index()) trace_id_.resize(node.index() + 1);
    trace_id_[node.index()] = id;
    const StorageId root = trace_.root(id);
    ++live_refs_[root.index()];
    if (root != id) views_of_[root.index()].push_back(id);
  }

  // Everything in `wanted` is there afterwards. False: refused.
  bool bring_back(std::span<const StorageId> wanted) {
    targets_.clear();
    for (const StorageId id : wanted) targets_.push_back(graph_id(id));
    bool missing = false;
    for (const StorageId id : targets_) missing |= !graph_.is_there(id);
    if (!missing) return true;
    ++result_.bring_backs;
    if (options_.eager) drop_all();
    for (int round = 1;; ++round) {
      result_.most_rounds = std::max(result_.most_rounds, round);
      if (round > options_.round_limit) return refuse(Outcome::kThrash);
      // What is there already is wanted with the rest; it may go once, not twice.
      const Hold strength = round == 1 && !options_.eager ? Hold::kSoft : Hold::kHard;
      held_.clear();
      for (const StorageId id : targets_) {
        if (strength == Hold::kSoft || options_.eager || graph_.is_there(id)) {
          held_.push_back(root_of_node(id));
          graph_.hold(held_.back(), strength);
        }
      }
      const bool goes_on = run_plan();
      for (const StorageId id : held_) graph_.unhold(id, strength);
      if (!goes_on) return false;
      missing = false;
      for (const StorageId id : targets_) missing |= !graph_.is_there(id);
      if (!missing) return true;
    }
  }

  // Runs as much of a plan for targets_ as finds its inputs. False: refused.
  bool run_plan() {
    const BringBackPlan& plan = planner_.plan(graph_, targets_);
    for (const OpId op : plan.ops) hold_reads(op);
    std::size_t next = 0;
    bool goes_on = true;
    for (; next < plan.ops.size(); ++next) {
      const OpId op = plan.ops[next];
      if (!inputs_are_there(op)) break;
      goes_on = replay(op);
      if (!goes_on) break;
      unhold_reads(op);
    }
    for (; next < plan.ops.size(); ++next) unhold_reads(plan.ops[next]);
    for (const StorageId node : asides_) {
      if (std::exchange(aside(node), 0) != 0) live_bytes_ -= graph_.bytes(node);
    }
    asides_.clear();
    return goes_on;
  }

  Hold plan_hold() const { return options_.eager ? Hold::kHard : Hold::kSoft; }
  void hold_reads(OpId op) {
    graph_.for_reads(op, [&](RecipeGraph::Read read) {
      if (read.storage.valid()) graph_.hold(root_of_node(read.storage), plan_hold());
    });
  }
  void unhold_reads(OpId op) {
    graph_.for_reads(op, [&](RecipeGraph::Read read) {
      if (read.storage.valid()) graph_.unhold(root_of_node(read.storage), plan_hold());
    });
  }

  bool as_read_there(const RecipeGraph::Read& read) const {
    return graph_.is_there(read.storage) && read.version == graph_.version(read.storage);
  }
  bool inputs_are_there(OpId op) {
    bool there = true;
    graph_.for_reads(op, [&](RecipeGraph::Read read) {
      LOWTIDE_ASSERT(read.storage.valid());
      there &= as_read_there(read) ||
               aside_version_[trace_id_[read.storage.index()].index()] == read.version ||
               read.version == 0;
    });
    return there;
  }

  bool replay(OpId op) {
    const OpId id = trace_op_[op.index()];
    const TraceOp& traced = trace_.ops[id.index()];
    // A storage's first write needs its block, also where the storage is there: an op makes all of
    // its outputs.
    Bytes made = traced.working_bytes;
    for (const StorageId written : traced.writes) {
      if (aside_version_[written.index()] == 0) made += bytes(written);
    }
    graph_.for_reads(op, [&](RecipeGraph::Read read) {
      if (as_read_there(read)) graph_.hold(root_of_node(read.storage), Hold::kHard);
    });
    const bool fits = make_room(made);
    graph_.for_reads(op, [&](RecipeGraph::Read read) {
      if (as_read_there(read)) graph_.unhold(root_of_node(read.storage), Hold::kHard);
    });
    if (!fits) return false;
    occupy(made);
    clock_ns_ += traced.cost_ns;
    ++result_.replays;
    tell(SimulatedEvent::Kind::kReplay, id.index());
    live_bytes_ -= traced.working_bytes;
    if ((clock_ns_ > time_limit_ns_ && !options_.eager) ||
        result_.replays > options_.replay_limit) {
      return refuse(Outcome::kThrash);
    }
    brought_.clear();
    graph_.for_writes(op, [&](StorageId written, std::uint32_t version) {
      const bool latest = version == graph_.version(written);
      if (latest && !graph_.is_there(written)) {
        aside(written) = 0;  // its block is the storage's now
        brought_.push_back(written);
      } else if (latest) {
        aside(written) = 0;  // a double
        live_bytes_ -= graph_.bytes(written);
      } else {
        if (aside(written) == 0) asides_.push_back(written);
        aside(written) = version;
      }
    });
    // Outputs that are forgotten are made all the same.
    for (const StorageId written : traced.writes) {
      if (!graph_id(written).valid()) live_bytes_ -= bytes(written);
    }
    for (const StorageId node : brought_) graph_.brought_back(node);
    if (options_.eager) drop_all();
    return true;
  }

  std::uint32_t& aside(StorageId node) { return aside_version_[trace_id_[node.index()].index()]; }

  void drop_all() {
    while (const auto victim = graph_.next_victim(1, clock_ns_)) drop(*victim);
  }

  bool make_room(Bytes needed) {
    if (options_.eager) return true;
    while (live_bytes_ + needed > options_.budget_bytes) {
      const auto victim =
          graph_.next_victim(live_bytes_ + needed - options_.budget_bytes, clock_ns_);
      if (!victim) return refuse(Outcome::kNoRoom);
      drop(*victim);
    }
    return true;
  }

  void drop(StorageId node) {
    const StorageId id = trace_id_[node.index()];
    LOWTIDE_ASSERT(graph_.is_there(node));
    for (const StorageId view : views_of_[id.index()]) {
      const StorageId view_node = graph_id(view);
      if (view_node.valid() && graph_.is_there(view_node)) graph_.dropped(view_node);
    }
    graph_.dropped(node);
    live_bytes_ -= bytes(id);
    ++result_.drops;
    tell(SimulatedEvent::Kind::kDrop, id.index());
  }

  void occupy(Bytes more) {
    live_bytes_ += more;
    LOWTIDE_ASSERT(options_.eager || live_bytes_ <= options_.budget_bytes);
    result_.peak_bytes = std::max(result_.peak_bytes, live_bytes_);
  }
  bool refuse(Outcome outcome) {
    result_.outcome = outcome;
    return false;
  }
  void tell(SimulatedEvent::Kind kind, std::uint32_t index) {
    if (options_.on_event) options_.on_event({kind, index, live_bytes_, event_});
  }

  Bytes bytes(StorageId id) const { return trace_.storages[id.index()].bytes; }
  StorageId graph_id(StorageId id) const { return id_of_[id.index()]; }
  StorageId root_id(StorageId id) const { return graph_id(trace_.root(id)); }
  StorageId root_of_node(StorageId node) const { return root_id(trace_id_[node.index()]); }

  const Trace& trace_;
  const SimulationOptions& options_;
  RecipeGraph graph_;
  BringBackPlanner planner_;
  SimulationResult result_;
  std::uint32_t event_ = 0;
  std::uint64_t clock_ns_ = 0;
  std::uint64_t time_limit_ns_ = 0;
  Bytes live_bytes_ = 0;
  std::vector<StorageId> id_of_;     // the graph's id, by the trace's
  std::vector<StorageId> trace_id_;  // the other way
  std::vector<OpId> trace_op_;       // the trace's op, by the graph's
  std::vector<std::vector<StorageId>> views_of_;
  std::vector<std::uint32_t> live_refs_;      // of a root: itself and its views not yet released
  std::vector<std::uint32_t> aside_version_;  // of a temporary block; 0: there is none
  std::vector<StorageId> reads_;
  std::vector<StorageId> writes_;
  std::vector<StorageId> targets_;
  std::vector<StorageId> held_;
  std::vector<StorageId> brought_;
  std::vector<StorageId> asides_;  // that have or had a temporary block in this plan
  std::vector<StorageId> made_;
  std::vector<StorageId> needed_;
};

}  // namespace

SimulationResult simulate(const Trace& trace, const SimulationOptions& options,
                          std::unique_ptr<DropPolicy> policy) {
  return Simulation(trace, options, std::move(policy)).run();
}

std::optional<Bytes> smallest_budget(const Trace& trace, std::uint64_t most_replays) {
  SimulationOptions options;
  options.eager = true;
  options.replay_limit = most_replays;
  const SimulationResult result = simulate(trace, options, std::make_unique<AnyPolicy>());
  if (!result.done()) return std::nullopt;
  return result.peak_bytes;
}

}  // namespace lowtide
