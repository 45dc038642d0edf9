// Nodes: one for each value that could be kept ("it is used after the moment"), one for each op
// that could have to run again. On the source's side stands what is so. source -> value, infinite,
// where the step itself uses the value later; value -> its op, the price of its bytes; op -> its
// inputs, infinite; op -> sink, its time. A cut through value -> op keeps the value, one through op
// -> sink runs the op again.
//
// Tested by tests/plan/keep_set_test.cpp against all cuts, and by planner_test.cpp: the bound
// against all schedules.

#include "src/plan/keep_set.h"

#include <algorithm>
#include <cmath>

namespace lowtide {
namespace {

// Capacities are in sixteenths of ns, in coarser units where a step takes years.
constexpr double kUnits = 16;
constexpr double kMostUnits = 1e17;
constexpr std::uint32_t kNil = 0xffffffffu;

}  // namespace

std::uint32_t FlowNetwork::add_node() {
  first_.push_back(kNil);
  return static_cast<std::uint32_t>(first_.size() - 1);
}

std::uint32_t FlowNetwork::add_edge(std::uint32_t from, std::uint32_t to, std::int64_t capacity) {
  const auto edge = static_cast<std::uint32_t>(edges_.size());
  edges_.push_back({to, first_[from], 0});
  first_[from] = edge;
  edges_.push_back({from, first_[to], 0});
  first_[to] = edge + 1;
  capacity_.push_back(capacity);
  capacity_.push_back(0);
  return edge;
}

bool FlowNetwork::find_levels() {
  level_.assign(first_.size(), -1);
  level_[0] = 0;
  queue_.assign(1, 0);
  for (std::size_t next = 0; next < queue_.size(); ++next) {
    const std::uint32_t node = queue_[next];
    for (std::uint32_t e = first_[node]; e != kNil; e = edges_[e].next) {
      if (edges_[e].left == 0 || level_[edges_[e].to] >= 0) continue;
      level_[edges_[e].to] = level_[node] + 1;
      queue_.push_back(edges_[e].to);
    }
  }
  return level_[1] >= 0;
}

std::int64_t FlowNetwork::max_flow() {
  for (std::size_t e = 0; e < edges_.size(); ++e) edges_[e].left = capacity_[e];
  std::int64_t total = 0;
  while (find_levels()) {
    at_ = first_;
    // A walk along the levels on an explicit stack: path_ holds the edges.
    path_.clear();
    std::uint32_t node = 0;
    for (;;) {
      if (node == 1) {
        std::int64_t flow = kInfinite;
        for (const std::uint32_t e : path_) flow = std::min(flow, edges_[e].left);
        std::size_t cut_at = 0;
        for (std::size_t i = path_.size(); i-- > 0;) {
          edges_[path_[i]].left -= flow;
          edges_[path_[i] ^ 1].left += flow;
          if (edges_[path_[i]].left == 0) cut_at = i;
        }
        total += flow;
        node = edges_[path_[cut_at] ^ 1].to;
        path_.resize(cut_at);
        continue;
      }
      std::uint32_t& e = at_[node];
      while (e != kNil && (edges_[e].left == 0 || level_[edges_[e].to] != level_[node] + 1)) {
        e = edges_[e].next;
      }
      if (e != kNil) {
        path_.push_back(e);
        node = edges_[e].to;
        continue;
      }
      if (path_.empty()) break;
      node = edges_[path_.back() ^ 1].to;
      path_.pop_back();
      at_[node] = edges_[at_[node]].next;
    }
  }
  return total;
}

KeepSets::KeepSets(const StepGraph& graph, std::uint32_t event)
    : graph_(graph),
      units_(std::min(kUnits, kMostUnits / static_cast<double>(graph.plain_ns() + 1))) {
  const auto values = graph.values();
  std::vector<std::uint8_t> is_here(values.size(), 0);  // there at the moment whatever is chosen
  const auto must_be_here = [&](std::uint32_t v) {
    v = values[v].root;
    if (is_here[v]) return;
    is_here[v] = 1;
    fixed_bytes_ += values[v].bytes;
  };
  using Kind = StepGraph::Step::Kind;
  std::vector<std::int32_t> holds(values.size(), 0);
  for (std::uint32_t e = 0; e < event; ++e) {
    const StepGraph::Step step = graph.steps()[e];
    if (step.kind == Kind::kHold) ++holds[values[step.index].root];
    if (step.kind == Kind::kUnhold) --holds[values[step.index].root];
    if (step.kind == Kind::kSource) ++holds[step.index];
    if (step.kind == Kind::kFree) --holds[step.index];
    if (step.kind != Kind::kRun) continue;
    for (const std::uint32_t old : graph.consumed(step.index)) {
      if (holds[old] == 0) continue;
      for (const std::uint32_t written : graph.writes(step.index)) {
        if (values[written].storage == values[old].storage) holds[written] = holds[old];
      }
      holds[old] = 0;
    }
  }
  for (std::uint32_t v = 0; v < values.size() && values[v].born < event; ++v) {
    if (holds[v] > 0) must_be_here(v);
  }
  const StepGraph::Step step = graph.steps()[event];
  if (step.kind == Kind::kRun) {
    for (const std::uint32_t read : graph.reads(step.index)) must_be_here(read);
    for (const std::uint32_t written : graph.writes(step.index)) must_be_here(written);
    for (const std::uint32_t old : graph.consumed(step.index)) fixed_bytes_ -= values[old].bytes;
    fixed_bytes_ += graph.ops()[step.index].working_bytes;
  } else if (step.kind != Kind::kNothing && step.kind != Kind::kFree) {
    must_be_here(step.index);
  }

  network_.add_node();
  network_.add_node();
  std::vector<std::uint32_t> value_node(values.size(), kNil);
  std::vector<std::uint32_t> op_node(graph.ops().size(), kNil);
  std::vector<std::uint32_t> open;
  const auto plain = graph.plain_ns_before();
  const double rest_ns = static_cast<double>(plain.back() - plain[event]) + 1;
  const auto next_use = [&](std::uint32_t v) {
    const auto uses = graph.uses(v);
    return std::upper_bound(uses.begin(), uses.end(), event);
  };
  const auto used_later = [&](std::uint32_t v) { return next_use(v) != graph.uses(v).end(); };
  const auto node_of = [&](std::uint32_t v) {
    if (value_node[v] == kNil) {
      value_node[v] = network_.add_node();
      open.push_back(v);
    }
    return value_node[v];
  };
  const auto op_node_of = [&](std::uint32_t op) {
    if (op_node[op] != kNil) return op_node[op];
    op_node[op] = network_.add_node();
    const std::uint64_t cost_ns = graph.ops()[op].cost_ns;
    op_ns_ += cost_ns;
    network_.add_edge(op_node[op], 1,
                      static_cast<std::int64_t>(static_cast<double>(cost_ns) * units_));
    for (const std::uint32_t read : graph.reads(op)) {
      const std::uint32_t root = values[read].root;
      if (is_here[root] || values[root].producer == StepGraph::kNone) continue;
      network_.add_edge(op_node[op], node_of(root), FlowNetwork::kInfinite);
    }
    return op_node[op];
  };
  for (std::uint32_t v = 0; v < values.size() && values[v].born < event; ++v) {
    if (values[v].root != v || is_here[v] || values[v].producer == StepGraph::kNone ||
        !used_later(v)) {
      continue;
    }
    network_.add_edge(0, node_of(v), FlowNetwork::kInfinite);
  }
  for (std::size_t next = 0; next < open.size(); ++next) {
    const std::uint32_t v = open[next];
    // What can never run again after the moment is kept or done without.
    const auto is_gone = [&](std::uint32_t read) {
      return values[read].producer == StepGraph::kNone && values[read].gone_at < event;
    };
    const auto reads = graph.reads(values[v].producer);
    std::uint32_t target = kNil;
    const auto views = graph.views(v);
    const auto lost = [&](std::uint32_t view) {
      return values[view].born < event && used_later(view);
    };
    if (std::any_of(reads.begin(), reads.end(), is_gone)) {
      target = 1;
    } else if (std::any_of(views.begin(), views.end(), lost)) {
      target = network_.add_node();
      network_.add_edge(target, op_node_of(values[v].producer), FlowNetwork::kInfinite);
      for (const std::uint32_t view : views) {
        if (!lost(view)) continue;
        network_.add_edge(target, op_node_of(values[view].producer), FlowNetwork::kInfinite);
      }
    } else {
      target = op_node_of(values[v].producer);
    }
    const auto use = next_use(v);
    const double far =
        use == graph.uses(v).end()
            ? 1.0
            : static_cast<double>(plain[std::min(*use, graph.end())] - plain[event]) / rest_ns;
    candidates_.push_back({v, value_node[v], target, 0, far});
    candidates_.back().edge = network_.add_edge(value_node[v], target, 0);
    all_bytes_ += values[v].bytes;
  }
}

KeepSet KeepSets::cut(double price, std::int64_t room_bytes, double far_tilt) {
  for (const Candidate& candidate : candidates_) {
    const double cost = price * (1 + far_tilt * candidate.far) * units_ *
                        static_cast<double>(graph_.values()[candidate.value].bytes);
    network_.set_capacity(candidate.edge, static_cast<std::int64_t>(std::min(cost, 1e15)));
  }
  const std::int64_t flow = network_.max_flow();
  KeepSet set;
  for (const Candidate& candidate : candidates_) {
    if (network_.is_source_side(candidate.node) && !network_.is_source_side(candidate.target)) {
      set.values.push_back(candidate.value);
      set.bytes += graph_.values()[candidate.value].bytes;
    }
  }
  set.bound_ns =
      std::max(0.0, static_cast<double>(flow) / units_ -
                        price * static_cast<double>(std::max<std::int64_t>(room_bytes, 0)));
  return set;
}

KeepSet KeepSets::within(std::int64_t room_bytes, double far_tilt, int cuts) {
  KeepSet best = cut(0, room_bytes, far_tilt);
  if (candidates_.empty() || static_cast<std::int64_t>(best.bytes) <= room_bytes) return best;
  // Above the dearest op for the smallest value nothing is kept.
  double low = 0;
  double high = 64.0 * static_cast<double>(op_ns_ + 1) / static_cast<double>(all_bytes_ + 1);
  double bound = 0;
  best = {};
  for (int i = 0; i < cuts; ++i) {
    const double price = low == 0 ? high / 64 : std::sqrt(low * high);
    KeepSet set = cut(price, room_bytes, far_tilt);
    bound = std::max(bound, set.bound_ns);
    if (static_cast<std::int64_t>(set.bytes) > room_bytes) {
      low = price;
    } else {
      high = price;
      if (set.bytes >= best.bytes) best = std::move(set);
    }
  }
  best.bound_ns = bound;
  return best;
}

}  // namespace lowtide
