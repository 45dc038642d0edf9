// A state is an event and the set of values there before it. From it the event may happen, an op
// may run again, or, where either finds no room, one value may go. Tested by
// tests/plan/planner_test.cpp against Dijkstra's algorithm without the estimate.

#include "src/plan/small_search.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_map>

namespace lowtide {
namespace {

using Kind = StepGraph::Step::Kind;

template <typename F>
void for_bits(std::uint64_t set, F&& f) {
  for (; set != 0; set &= set - 1) f(static_cast<std::uint32_t>(std::countr_zero(set)));
}

}  // namespace

SmallSearch::SmallSearch(const StepGraph& graph) : graph_(graph) {
  const auto values = graph.values();
  std::vector<Set> bit(values.size(), 0);
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    if (values[v].root != v) return;
    if (values[v].producer == StepGraph::kNone) continue;
    if (value_of_.size() == kMostValues) return;
    bit[v] = Set{1} << value_of_.size();
    value_of_.push_back(v);
    bytes_.push_back(values[v].bytes);
    producer_.push_back(values[v].producer);
  }
  possible_ = true;
  for (std::uint32_t op = 0; op < graph.ops().size(); ++op) {
    Op made;
    for (const std::uint32_t read : graph.reads(op)) {
      made.reads |= bit[read];
      if (bit[read] == 0) made.until = std::min(made.until, values[read].gone_at);
    }
    made.made_bytes = static_cast<std::int64_t>(graph.ops()[op].working_bytes);
    for (const std::uint32_t written : graph.writes(op)) {
      made.writes |= bit[written];
      made.made_bytes += static_cast<std::int64_t>(values[written].bytes);
    }
    for (const std::uint32_t old : graph.consumed(op)) {
      made.consumed |= bit[old];
      made.made_bytes -= static_cast<std::int64_t>(values[old].bytes);
    }
    ops_.push_back(made);
  }
  Bytes sources = 0;
  Set held = 0;
  std::vector<std::uint8_t> is_source_held(values.size(), 0);
  for (std::uint32_t event = 0; event <= graph.end(); ++event) {
    source_bytes_.push_back(sources);
    held_.push_back(held);
    Set used = 0;
    Set wanted = 0;
    for (std::uint32_t i = 0; i < value_of_.size(); ++i) {
      const StepGraph::Value& value = values[value_of_[i]];
      const auto uses = graph.uses(value_of_[i]);
      const bool later = !uses.empty() && uses.back() >= event;
      if (later && value.born < event) used |= Set{1} << i;
      if (later || value.last_need >= event) wanted |= Set{1} << i;
    }
    used_later_.push_back(used);
    wanted_.push_back(wanted | held);
    if (event == graph.end()) break;
    const StepGraph::Step step = graph.steps()[event];
    if (step.kind == Kind::kSource) sources += values[step.index].bytes;
    if (step.kind == Kind::kFree) sources -= values[step.index].bytes;
    if (step.kind == Kind::kHold) held |= bit[step.index];
    if (step.kind == Kind::kUnhold) held &= ~bit[step.index];
    if (step.kind != Kind::kRun) continue;
    for (const std::uint32_t old : graph.consumed(step.index)) {
      for (const std::uint32_t written : graph.writes(step.index)) {
        if (values[written].storage != values[old].storage) continue;
        const bool is_source = bit[old] == 0 || is_source_held[old] != 0;
        // A source that is overwritten stays where it was: its block is counted with the sources.
        is_source_held[written] = is_source;
        if ((held & bit[old]) != 0 || is_source) held |= bit[written];
        if (bit[old] == 0) sources -= values[old].bytes;
      }
      held &= ~bit[old];
    }
  }
}

Bytes SmallSearch::bytes_of(Set set) const {
  Bytes total = 0;
  for_bits(set, [&](std::uint32_t i) { total += bytes_[i]; });
  return total;
}

// At least so much must run again: the ops of what is used and not there, and of what they read.
std::uint64_t SmallSearch::missing_ns(std::uint32_t event, Set set) const {
  std::uint64_t total = 0;
  Set open = used_later_[event] & ~set;
  Set seen = open;
  while (open != 0) {
    const auto i = static_cast<std::uint32_t>(std::countr_zero(open));
    open &= open - 1;
    const std::uint32_t op = producer_[i];
    total += graph_.ops()[op].cost_ns;
    const Set others = ops_[op].writes & ~(Set{1} << i);
    // Its other outputs come with it.
    open &= ~others;
    seen |= others;
    const Set more = ops_[op].reads & ~set & ~seen;
    seen |= more;
    open |= more;
  }
  return total;
}

SmallResult SmallSearch::operator()(Bytes budget, std::uint64_t below_ns, double weight,
                                    int most_states) const {
  struct Node {
    std::uint32_t event;
    Set set;
    std::uint64_t cost_ns;
    std::uint32_t parent;
    std::uint32_t replayed;  // op, or kNone
  };
  struct Entry {
    double estimate;
    std::uint32_t node;
    bool operator<(const Entry& other) const {
      return estimate != other.estimate ? estimate > other.estimate : node < other.node;
    }
  };
  std::vector<Node> nodes;
  std::priority_queue<Entry> open;
  std::vector<std::unordered_map<Set, std::uint64_t>> best(graph_.end() + std::size_t{1});
  const auto plain = graph_.plain_ns_before();
  const auto reach = [&](std::uint32_t event, Set set, std::uint64_t cost, std::uint32_t parent,
                         std::uint32_t replayed) {
    set = at_event(event, set);
    const auto [found, is_new] = best[event].try_emplace(set, cost);
    if (!is_new && found->second <= cost) return;
    const std::uint64_t rest = missing_ns(event, set);
    const std::uint64_t ahead = graph_.plain_ns() - plain[event];
    if (cost + ahead + rest >= below_ns) return;
    found->second = cost;
    nodes.push_back({event, set, cost, parent, replayed});
    open.push({static_cast<double>(cost + ahead) + weight * static_cast<double>(rest),
               static_cast<std::uint32_t>(nodes.size() - 1)});
  };
  reach(0, 0, 0, StepGraph::kNone, StepGraph::kNone);
  SmallResult result;
  for (int looked = 0; !open.empty(); ++looked) {
    if (looked == most_states) return result;
    const std::uint32_t at = open.top().node;
    open.pop();
    const Node node = nodes[at];
    if (best[node.event].at(node.set) < node.cost_ns) continue;
    if (node.event == graph_.end()) {
      if ((used_later_[node.event] & ~node.set) == 0) {
        result.complete = true;
        result.replays.emplace();
        for (std::uint32_t n = at; n != StepGraph::kNone; n = nodes[n].parent) {
          if (nodes[n].replayed == StepGraph::kNone) continue;
          result.replays->push_back({nodes[nodes[n].parent].event, nodes[n].replayed});
        }
        std::reverse(result.replays->begin(), result.replays->end());
        return result;
      }
    }
    const Bytes live = source_bytes_[node.event] + bytes_of(node.set);
    bool wants_room = false;
    const auto fits = [&](std::int64_t more) {
      const bool yes = static_cast<std::int64_t>(live) + more <= static_cast<std::int64_t>(budget);
      wants_room |= !yes;
      return yes;
    };
    if (node.event < graph_.end()) {
      const StepGraph::Step step = graph_.steps()[node.event];
      if (step.kind == Kind::kRun) {
        const Op& op = ops_[step.index];
        if ((op.reads & ~node.set) == 0 && fits(op.made_bytes)) {
          reach(node.event + 1, (node.set & ~op.consumed) | op.writes,
                node.cost_ns + graph_.ops()[step.index].cost_ns, at, StepGraph::kNone);
        }
      } else if (step.kind == Kind::kSource) {
        if (fits(static_cast<std::int64_t>(graph_.values()[step.index].bytes))) {
          reach(node.event + 1, node.set, node.cost_ns, at, StepGraph::kNone);
        }
      } else {
        // At the event itself the value is still asked for.
        const bool asks =
            step.kind == Kind::kUse || step.kind == Kind::kHold || step.kind == Kind::kUnhold;
        bool there = true;
        for (std::uint32_t i = 0; asks && i < value_of_.size(); ++i) {
          if (value_of_[i] == step.index) there = (node.set >> i & 1) != 0;
        }
        if (there) reach(node.event + 1, node.set, node.cost_ns, at, StepGraph::kNone);
      }
    }
    for (std::uint32_t o = 0; o < ops_.size() && graph_.ops()[o].event < node.event; ++o) {
      const Op& op = ops_[o];
      const Set useful = op.writes & wanted_[node.event] & ~node.set;
      if (useful == 0 || (op.reads & ~node.set) != 0 || (op.consumed & held_[node.event]) != 0) {
        continue;
      }
      if (op.until != StepGraph::kNone && op.until < node.event) continue;
      if (!fits(op.made_bytes)) continue;
      reach(node.event, (node.set & ~op.consumed) | op.writes,
            node.cost_ns + graph_.ops()[o].cost_ns, at, o);
    }
    if (!wants_room) continue;
    for_bits(node.set & ~held_[node.event], [&](std::uint32_t i) {
      reach(node.event, node.set & ~(Set{1} << i), node.cost_ns, at, StepGraph::kNone);
    });
  }
  result.complete = true;
  return result;
}

}  // namespace lowtide
