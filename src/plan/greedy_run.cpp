// The scores stand in one heap as lower bounds. A use coming nearer and a neighbour dropped only
// raise a score, and that is found out when the value is at the top: it is weighed again and goes
// back unless it is still the lowest. What lowers scores (a use that has passed, a neighbour that
// came back) offers the values concerned anew.
//
// A missing input is brought back with all its missing ancestors as one list in the order of
// running. What the rest of the list reads is held softly, in a second round hard, so that rounds
// end.
//
// Tested by tests/plan/planner_test.cpp and plan_curve_test.cpp: every schedule is replayed by code
// of its own.

#include "src/plan/greedy_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lowtide {
namespace {

constexpr float kSoft = 1e12f;
constexpr int kRounds = 16;
constexpr int kRefreshLimit = 4;
constexpr float kNearlySame = 1.2f;
// Then the lowest is taken as it stands.
constexpr int kReweighLimit = 64;

// until ^ (quarters / 4)
double root_of(double until, int quarters) {
  if (quarters == 4) return until;
  const double half = std::sqrt(until);
  if (quarters == 2) return half;
  return quarters == 3 ? half * std::sqrt(half) : std::sqrt(half);
}

}  // namespace

GreedyRun::GreedyRun(const StepGraph& graph) : graph_(graph) {
  for (const StepGraph::Value& value : graph.values()) {
    bytes_.push_back(value.bytes);
    root_.push_back(value.root);
    producer_.push_back(value.producer);
    fixed_.push_back(value.fixed);
  }
  for (std::uint32_t v = 0; v < fixed_.size(); ++v) {
    if (fixed_[v] && producer_[v] != StepGraph::kNone) expiring_.push_back(v);
  }
  std::sort(expiring_.begin(), expiring_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return graph.values()[a].last_need < graph.values()[b].last_need;
  });
  for (const StepGraph::Op& op : graph.ops()) cost_.push_back(static_cast<float>(op.cost_ns));
}

void GreedyRun::reset() {
  const std::size_t values = bytes_.size();
  present_.assign(values, 0);
  needed_.assign(values, 0);
  held_.assign(values, 0);
  locked_.assign(values, 0);
  soft_.assign(values, 0);
  next_use_.assign(values, 0);
  stamp_.assign(values, 0);
  needed_readers_.assign(values, 0);
  value_mark_.assign(values, 0);
  needed_outputs_.assign(cost_.size(), 0);
  op_mark_.assign(cost_.size(), 0);
  heap_.clear();
  free_.clear();
  epoch_ = 0;
  clock_ns_ = 0;
  live_ = 0;
  result_ = {};
}

GreedyResult GreedyRun::operator()(const GreedyOptions& options) {
  options_ = options;
  reset();
  limit_ns_ = options.time_limit_ns != 0 ? options.time_limit_ns : 3 * graph_.plain_ns() + 1;
  std::size_t expired = 0;
  for (event_ = 0; event_ < graph_.end(); ++event_) {
    while (expired < expiring_.size() && graph_.values()[expiring_[expired]].last_need < event_) {
      free_.push_back(expiring_[expired++]);
    }
    if (!step(event_)) return std::move(result_);
  }
  result_.done = true;
  result_.total_ns = clock_ns_;
  return std::move(result_);
}

bool GreedyRun::step(std::uint32_t event) {
  using Kind = StepGraph::Step::Kind;
  const StepGraph::Step step = graph_.steps()[event];
  const std::uint32_t v = step.index;
  switch (step.kind) {
    case Kind::kNothing:
      return true;
    case Kind::kSource:
      if (!make_room(bytes_[v])) return false;
      appear(v);
      return true;
    case Kind::kFree:
      vanish(v, false);
      return true;
    case Kind::kRun:
      return run_op(v);
    case Kind::kUse:
    case Kind::kHold:
    case Kind::kUnhold: {
      if (!bring_back({&v, 1})) return false;
      used(v);
      if (root_[v] != v) used(root_[v]);
      if (step.kind == Kind::kHold) hold(root_[v], 1);
      if (step.kind == Kind::kUnhold) hold(root_[v], -1);
      return true;
    }
  }
  return false;
}

bool GreedyRun::run_op(std::uint32_t op) {
  const auto reads = graph_.reads(op);
  if (!bring_back(reads)) return false;
  for (const std::uint32_t read : reads) ++locked_[root_[read]];
  Bytes more = graph_.ops()[op].working_bytes;
  for (const std::uint32_t written : graph_.writes(op)) more += bytes_[written];
  for (const std::uint32_t old : graph_.consumed(op)) more -= bytes_[old];
  const bool fits = make_room(more);
  for (const std::uint32_t read : reads) --locked_[root_[read]];
  if (!fits) return false;
  clock_ns_ += graph_.ops()[op].cost_ns;
  if (clock_ns_ > limit_ns_) return false;
  for (const std::uint32_t read : reads) {
    used(read);
    if (root_[read] != read) used(root_[read]);
  }
  for (const std::uint32_t old : graph_.consumed(op)) {
    for (const std::uint32_t written : graph_.writes(op)) {
      if (graph_.values()[written].storage == graph_.values()[old].storage) {
        held_[written] = std::exchange(held_[old], std::uint16_t{0});
      }
    }
    vanish(old, true);
  }
  for (const std::uint32_t written : graph_.writes(op)) {
    appear(written);
    if (root_[written] != written && has_future(written)) used(root_[written]);
  }
  return true;
}

// Everything in `targets` is there afterwards.
bool GreedyRun::bring_back(std::span<const std::uint32_t> targets) {
  const auto is_missing = [&](std::uint32_t v) { return !present_[v] || !present_[root_[v]]; };
  if (std::none_of(targets.begin(), targets.end(), is_missing)) return true;
  targets_.assign(targets.begin(), targets.end());
  for (int round = 0; round < kRounds; ++round) {
    collect_missing(targets_);
    if (plan_.empty()) return true;
    std::vector<std::uint16_t>& strength = round == 0 ? soft_ : locked_;
    missing_.clear();  // what is held, here
    const auto hold_root = [&](std::uint32_t v) {
      ++strength[root_[v]];
      missing_.push_back(root_[v]);
    };
    for (const std::uint32_t v : targets_) {
      if (round == 0 || present_[root_[v]]) hold_root(v);
    }
    for (const std::uint32_t op : plan_) {
      for (const std::uint32_t read : graph_.reads(op)) ++soft_[root_[read]];
    }
    const std::vector<std::uint32_t> held(missing_);
    std::size_t next = 0;
    bool goes_on = true;
    for (; next < plan_.size(); ++next) {
      const auto reads = graph_.reads(plan_[next]);
      if (std::any_of(reads.begin(), reads.end(), is_missing)) break;
      goes_on = replay(plan_[next]);
      if (!goes_on) break;
      for (const std::uint32_t read : reads) {
        if (--soft_[root_[read]] == 0) offer(root_[read]);
      }
    }
    for (; next < plan_.size(); ++next) {
      for (const std::uint32_t read : graph_.reads(plan_[next])) {
        if (--soft_[root_[read]] == 0) offer(root_[read]);
      }
    }
    for (const std::uint32_t v : held) {
      if (--strength[v] == 0) offer(v);
    }
    if (!goes_on) return false;
    if (std::none_of(targets_.begin(), targets_.end(), is_missing)) return true;
  }
  return false;
}

// plan_: the ops to run again, in order.
void GreedyRun::collect_missing(std::span<const std::uint32_t> targets) {
  start_walk();
  plan_.clear();
  stack_.clear();
  const auto want = [&](std::uint32_t v) {
    if (!present_[v] && mark(v)) stack_.push_back(v);
    const std::uint32_t root = root_[v];
    if (root != v && !present_[root] && mark(root)) stack_.push_back(root);
  };
  for (const std::uint32_t v : targets) want(v);
  while (!stack_.empty()) {
    const std::uint32_t op = producer_[stack_.back()];
    stack_.pop_back();
    if (op == StepGraph::kNone || !mark_op(op)) continue;
    plan_.push_back(op);
    for (const std::uint32_t read : graph_.reads(op)) want(read);
  }
  std::sort(plan_.begin(), plan_.end());
}

bool GreedyRun::replay(std::uint32_t op) {
  const auto reads = graph_.reads(op);
  const auto writes = graph_.writes(op);
  const auto consumed = graph_.consumed(op);
  for (const std::uint32_t read : reads) ++locked_[root_[read]];
  Bytes more = graph_.ops()[op].working_bytes;
  for (const std::uint32_t written : writes) more += bytes_[written];
  for (const std::uint32_t old : consumed) more -= bytes_[old];
  const bool fits = make_room(more);
  for (const std::uint32_t read : reads) --locked_[root_[read]];
  if (!fits) return false;
  clock_ns_ += graph_.ops()[op].cost_ns;
  if (clock_ns_ > limit_ns_) return false;
  result_.replays.push_back({event_, op});
  for (const std::uint32_t old : consumed) vanish(old, true);
  for (const std::uint32_t written : writes) {
    if (!present_[written]) appear(written);
  }
  return true;
}

bool GreedyRun::make_room(Bytes more) {
  while (live_ + more > options_.budget_bytes) {
    const std::uint32_t victim = choose();
    if (victim == StepGraph::kNone) return false;
    drop(victim);
  }
  return true;
}

std::uint32_t GreedyRun::choose() {
  while (!free_.empty()) {
    const std::uint32_t v = free_.back();
    free_.pop_back();
    if (present_[v] && !has_future(v) && needed_readers_[v] == 0 && held_[v] == 0 &&
        locked_[v] == 0 && soft_[v] == 0 && bytes_[v] > 0 && producer_[v] != StepGraph::kNone &&
        (!fixed_[v] || graph_.values()[v].last_need < event_)) {
      return v;
    }
  }
  set_aside_.clear();
  std::uint32_t chosen = StepGraph::kNone;
  for (int again = 0; !heap_.empty();) {
    const Entry top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), dearer);
    heap_.pop_back();
    if (top.stamp != stamp_[top.value] || !droppable(top.value)) continue;
    if (locked_[top.value] > 0) {
      set_aside_.push_back(top);
      continue;
    }
    const float now = score(top.value);
    if (heap_.empty() || now <= kNearlySame * heap_.front().score ||
        (top.score > 0 && ++again > kReweighLimit)) {
      chosen = top.value;
      break;
    }
    heap_.push_back({now, top.value, top.stamp});
    std::push_heap(heap_.begin(), heap_.end(), dearer);
  }
  for (const Entry& entry : set_aside_) {
    heap_.push_back(entry);
    std::push_heap(heap_.begin(), heap_.end(), dearer);
  }
  return chosen;
}

void GreedyRun::appear(std::uint32_t value) {
  present_[value] = 1;
  live_ += bytes_[value];
  update_needed(value);
  offer(value);
  refresh_around(value);
}

void GreedyRun::drop(std::uint32_t value) {
  ++result_.drops;
  for (const std::uint32_t view : graph_.views(value)) {
    if (present_[view]) vanish(view, true);
  }
  vanish(value, true);
}

void GreedyRun::vanish(std::uint32_t value, bool may_be_asked_for) {
  if (!present_[value]) return;
  present_[value] = 0;
  live_ -= bytes_[value];
  ++stamp_[value];
  if (may_be_asked_for) update_needed(value);
}

void GreedyRun::used(std::uint32_t value) {
  const auto uses = graph_.uses(value);
  std::uint32_t& next = next_use_[value];
  while (next < uses.size() && uses[next] <= event_) ++next;
  offer(value);
}

void GreedyRun::hold(std::uint32_t value, int change) {
  held_[value] = static_cast<std::uint16_t>(held_[value] + change);
  if (held_[value] == 0) offer(value);
}

// Puts the value where it belongs now.
void GreedyRun::offer(std::uint32_t value) {
  if (!present_[value] || bytes_[value] == 0) return;
  if (!has_future(value) && needed_readers_[value] == 0) {
    free_.push_back(value);
    return;
  }
  if (!droppable(value)) return;
  // Weighed when a choice is next made.
  heap_.push_back({0, value, ++stamp_[value]});
  std::push_heap(heap_.begin(), heap_.end(), dearer);
}

float GreedyRun::score(std::uint32_t value) {
  start_walk();
  double cost = options_.child_weight > 0 ? options_.child_weight * descendants_ns(value) : 0;
  cost += ancestors_ns(value);
  cost = std::max(cost, 1.0);
  const auto uses = graph_.uses(value);
  const auto plain = graph_.plain_ns_before();
  const std::uint32_t next = has_future(value) ? uses[next_use_[value]] : graph_.end();
  const double until = static_cast<double>(plain[next] - plain[std::min(event_, next)]) + 1000.0;
  const double distance = root_of(until, options_.distance_quarters);
  double result = cost / (static_cast<double>(bytes_[value]) * distance);
  if (!options_.weights.empty()) {
    result *= static_cast<double>(options_.weights[graph_.first_slot(value) + next_use_[value]]);
  }
  if (soft_[value] > 0) result *= kSoft;
  return static_cast<float>(result);
}

// Times of its own op and, weighted, of what must run again before it, each op once.
double GreedyRun::ancestors_ns(std::uint32_t value) {
  double total = 0;
  int left = options_.walk_limit;
  stack_.clear();
  stack_.push_back(value);
  value_mark_[value] = epoch_;
  const double live_weight = options_.live_weight;
  while (!stack_.empty()) {
    const std::uint32_t at = stack_.back();
    stack_.pop_back();
    const std::uint32_t op = producer_[at];
    if (op == StepGraph::kNone || !mark_op(op)) continue;
    total += (at == value || !has_future(at) ? 1.0 : live_weight) * static_cast<double>(cost_[op]);
    for (const std::uint32_t read : graph_.reads(op)) {
      if ((present_[read] && present_[root_[read]]) || left <= 0 || !mark(read)) continue;
      --left;
      stack_.push_back(read);
    }
  }
  return total;
}

// Times of the ops whose outputs are missing and needed and that come from `value`, each once.
double GreedyRun::descendants_ns(std::uint32_t value) {
  if (needed_readers_[value] == 0) return 0;
  double total = 0;
  int left = options_.walk_limit;
  stack_.clear();
  stack_.push_back(value);
  mark(value);
  while (!stack_.empty()) {
    const std::uint32_t at = stack_.back();
    stack_.pop_back();
    if (needed_readers_[at] == 0) continue;
    for (const std::uint32_t op : graph_.readers(at)) {
      if (needed_outputs_[op] == 0) continue;
      if (mark_op(op)) total += static_cast<double>(cost_[op]);
      for (const std::uint32_t written : graph_.writes(op)) {
        if (!needed_[written] || left <= 0 || !mark(written)) continue;
        --left;
        stack_.push_back(written);
      }
    }
  }
  return total;
}

// Brings `needed` of `first` and of what it is made from up to date.
void GreedyRun::update_needed(std::uint32_t first) {
  const std::size_t base = stack_.size();
  stack_.push_back(first);
  while (stack_.size() > base) {
    const std::uint32_t v = stack_.back();
    stack_.pop_back();
    const bool needed = !present_[v] && (has_future(v) || needed_readers_[v] > 0);
    if (needed == (needed_[v] != 0)) continue;
    needed_[v] = needed;
    const std::uint32_t op = producer_[v];
    if (op == StepGraph::kNone) continue;
    needed_outputs_[op] += needed ? 1 : -1;
    if (needed_outputs_[op] != (needed ? 1u : 0u)) continue;
    const auto touch = [&](std::uint32_t read) {
      needed_readers_[read] += needed ? 1 : -1;
      if (present_[read]) {
        if (needed_readers_[read] == 0 && !has_future(read)) free_.push_back(read);
      } else if (needed_readers_[read] == (needed ? 1u : 0u)) {
        stack_.push_back(read);
      }
    };
    for (const std::uint32_t read : graph_.reads(op)) {
      touch(read);
      if (root_[read] != read) touch(root_[read]);
    }
  }
}

// `value` came back: what is made from it, through dropped ones, costs less again.
void GreedyRun::refresh_around(std::uint32_t value) {
  if (graph_.readers(value).empty()) return;
  int left = kRefreshLimit;
  std::uint32_t found[kRefreshLimit];
  int count = 0;
  start_walk();
  stack_.clear();
  stack_.push_back(value);
  while (!stack_.empty() && left > 0) {
    const std::uint32_t at = stack_.back();
    stack_.pop_back();
    for (const std::uint32_t op : graph_.readers(at)) {
      if (graph_.ops()[op].event >= event_) break;  // not yet run, nor those after it
      for (const std::uint32_t written : graph_.writes(op)) {
        if (left <= 0 || !mark(written)) continue;
        --left;
        if (present_[written]) {
          found[count++] = written;
        } else {
          stack_.push_back(written);
        }
      }
    }
  }
  for (int i = 0; i < count; ++i) offer(found[i]);
}

void GreedyRun::start_walk() {
  if (++epoch_ != 0) return;
  std::fill(value_mark_.begin(), value_mark_.end(), 0);
  std::fill(op_mark_.begin(), op_mark_.end(), 0);
  epoch_ = 1;
}

}  // namespace lowtide
