#include "src/lint/gradient_graph.h"

namespace lowtide::lint {
namespace {

bool is_leaf(const GraphNode& node) { return node.op == GraphOp::kParameter; }

}  // namespace

GraphId GradientGraph::add(GraphNode node) {
  nodes_.push_back(std::move(node));
  return static_cast<GraphId>(nodes_.size() - 1);
}

LoopId GradientGraph::begin_loop(LoopRun run) {
  loops_.push_back(run);
  return static_cast<LoopId>(loops_.size() - 1);
}

WhereId GradientGraph::enter(WhereId parent, LoopId loop, int pass) {
  wheres_.push_back({parent, loop, pass});
  return static_cast<WhereId>(wheres_.size() - 1);
}

int GradientGraph::pass_of(WhereId place, LoopId loop) const {
  for (; place != 0; place = where(place).parent) {
    if (where(place).loop == loop) return where(place).pass;
  }
  return 0;
}

bool GradientGraph::inside(WhereId place, LoopId loop) const { return pass_of(place, loop) != 0; }

LoopId GradientGraph::crossed(WhereId then, WhereId now) const {
  for (; now != 0; now = where(now).parent) {
    const int pass = pass_of(then, where(now).loop);
    if (pass != 0 && pass < where(now).pass) return where(now).loop;
  }
  return 0;
}

void GradientGraph::run_backward(GraphId target, NodeId origin, WhereId where, bool retain,
                                 bool frees, bool trains, bool supposed) {
  if (supposed && !has_history(target)) return;
  backward_runs_.push_back({origin, where, target, retain});
  const int run = static_cast<int>(backward_runs_.size());
  // Backward works on the target, so if nothing else gives it history, what it is made of by
  // arithmetic has some.
  std::vector<GraphId> open;
  if (!has_history(target)) open.push_back(target);
  while (!open.empty()) {
    GraphNode& node = nodes_[static_cast<std::size_t>(open.back())];
    open.pop_back();
    if (node.confirmed) continue;
    node.confirmed = true;
    if (node.op == GraphOp::kArithmetic || node.op == GraphOp::kFunction ||
        node.op == GraphOp::kAlias || node.op == GraphOp::kJoin) {
      open.insert(open.end(), node.inputs.begin(), node.inputs.end());
    }
  }
  strength_.clear();
  nodes_[static_cast<std::size_t>(target)].confirmed = true;
  // Bit 1: seen. Bit 2: seen by a way on which an earlier backward counts.
  std::vector<std::uint8_t> seen(nodes_.size());
  std::vector<std::pair<GraphId, bool>> ways{{target, true}};
  while (!ways.empty()) {
    const auto [id, counts] = ways.back();
    ways.pop_back();
    const std::uint8_t bits = counts ? 3 : 1;
    if ((seen[static_cast<std::size_t>(id)] & bits) == bits) continue;
    seen[static_cast<std::size_t>(id)] |= bits;
    GraphNode& node = nodes_[static_cast<std::size_t>(id)];
    if (is_leaf(node) || node.detached) continue;
    if (counts && node.backward != 0 && node.backward != run) {
      BackwardRun& earlier = backward_runs_[static_cast<std::size_t>(node.backward - 1)];
      if (crossed(earlier.where, where) != 0 && crossed(node.where, where) != 0) {
        earlier.reaches_back = true;
      } else {
        earlier.needed_again = true;
      }
    }
    node.backwarded = true;
    node.backward = run;
    if (frees) node.freed = true;
    if (retain) node.retained = true;
    if (trains) node.trained = true;
    for (const GraphId input : node.inputs) ways.emplace_back(input, counts && !node.other_branch);
  }
}

bool GradientGraph::has_history(GraphId id) {
  if (id == 0) return false;
  strength_.resize(nodes_.size(), 0);
  return has_history(id, 0);
}

bool GradientGraph::has_history(GraphId id, int depth) {
  std::int8_t& memo = strength_[static_cast<std::size_t>(id)];
  if (memo != 0) return memo == 2;
  const GraphNode& node = nodes_[static_cast<std::size_t>(id)];
  bool yes = node.certain || node.confirmed;
  if (!yes && node.op != GraphOp::kCall && depth < 2000) {
    for (const GraphId input : node.inputs) {
      if (has_history(input, depth + 1)) {
        yes = true;
        break;
      }
    }
  }
  strength_[static_cast<std::size_t>(id)] = yes ? 2 : 1;
  return yes;
}

namespace {

enum class Walk : std::uint8_t { kOn, kNotPast, kStop };

bool is_call(const GraphNode& node) {
  return node.op == GraphOp::kForward || node.op == GraphOp::kCall;
}

// Visits what is reached from `start` by next(), each node once. True: a visit said kStop.
template <class Visit, class Next>
bool walk(GraphId size, GraphId start, Visit visit, Next next) {
  std::vector<bool> seen(static_cast<std::size_t>(size));
  std::vector<GraphId> open{start};
  while (!open.empty()) {
    const GraphId at = open.back();
    open.pop_back();
    if (seen[static_cast<std::size_t>(at)]) continue;
    seen[static_cast<std::size_t>(at)] = true;
    const Walk way = visit(at);
    if (way == Walk::kStop) return true;
    if (way == Walk::kNotPast) continue;
    const auto& more = next(at);
    open.insert(open.end(), more.begin(), more.end());
  }
  return false;
}

}  // namespace

bool GradientGraph::from_parameters_only(GraphId id) const {
  bool parameter = false;
  const bool other = walk(
      size(), id,
      [&](GraphId at) {
        const GraphNode& node = (*this)[at];
        if (is_leaf(node)) {
          parameter = true;
          return Walk::kNotPast;
        }
        return is_call(node) ? Walk::kStop : Walk::kOn;
      },
      [&](GraphId at) -> const auto& { return (*this)[at].inputs; });
  return parameter && !other;
}

bool GradientGraph::from_parameters_by_calls(GraphId id) const {
  bool parameter = false;
  const bool other = walk(
      size(), id,
      [&](GraphId at) {
        const GraphNode& node = (*this)[at];
        parameter = parameter || is_leaf(node);
        const bool unknown = node.op == GraphOp::kCall && node.inputs.empty();
        return unknown || node.op == GraphOp::kForward ? Walk::kStop : Walk::kOn;
      },
      [&](GraphId at) -> const auto& { return (*this)[at].inputs; });
  return parameter && !other;
}

bool GradientGraph::reaches(GraphId from, GraphId to) const {
  return walk(
      size(), to, [&](GraphId at) { return at == from ? Walk::kStop : Walk::kOn; },
      [&](GraphId at) -> const auto& { return (*this)[at].inputs; });
}

bool GradientGraph::activations_freed(GraphId id) const {
  return walk(
      size(), id,
      [&](GraphId at) {
        const GraphNode& node = (*this)[at];
        if (node.freed) return Walk::kStop;
        return is_call(node) ? Walk::kNotPast : Walk::kOn;
      },
      [&](GraphId at) -> const auto& { return (*this)[at].inputs; });
}

void GradientGraph::index_uses() {
  uses_.assign(nodes_.size(), {});
  for (GraphId id = 1; id < size(); ++id) {
    for (const GraphId input : (*this)[id].inputs) {
      uses_[static_cast<std::size_t>(input)].push_back(id);
    }
  }
}

bool GradientGraph::thrown_away(GraphId id) const {
  return !walk(
      size(), id,
      [&](GraphId at) {
        const GraphNode& node = (*this)[at];
        const bool used = node.backwarded || node.escaped || node.confirmed || node.kept;
        return used ? Walk::kStop : Walk::kOn;
      },
      [&](GraphId at) -> const auto& { return uses_[static_cast<std::size_t>(at)]; });
}

bool GradientGraph::cut_somewhere(GraphId id) const {
  return walk(
      size(), id, [&](GraphId at) { return (*this)[at].cut ? Walk::kStop : Walk::kOn; },
      [&](GraphId at) -> const auto& { return uses_[static_cast<std::size_t>(at)]; });
}

bool GradientGraph::dropped_somewhere(GraphId id) const {
  return walk(
      size(), id, [&](GraphId at) { return (*this)[at].dropped ? Walk::kStop : Walk::kOn; },
      [&](GraphId at) -> const auto& { return uses_[static_cast<std::size_t>(at)]; });
}

}  // namespace lowtide::lint
