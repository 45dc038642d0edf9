// Links are counted from 1; link 0 is what the chain starts from. A segment (s, t) is the task:
// link s - 1 is there; links s to t are asked for from t down to s (those that no one asks for are
// passed over); `kept` bytes of links outside of the segment, link s - 1 among them, stay. For each
// k in [s, t]:
//
//   run s..k, nothing between them is kept; then
//     k = t: the use of t, and the rest is the segment (s, t - 1);
//     k < t: keep k; the segment (k + 1, t) with k's bytes more kept; the use of k; (s, k - 1).
//
// The first forward pass is the same recursion with t = the end, where running costs nothing (it is
// done anyway) and other things are live; there it may also keep nothing and run on to the end.
//
// Room. A replay for the use of t happens just before that use: kept bytes, its input and output
// and working bytes beside what else is live then. From the first use of a link to its last it
// counts as one of the other things.
//
// States: segment and kept bytes, in units. Each is looked at once: links^3 / 6 times the units.
//
// Tested by tests/plan/chain_plan_test.cpp against all schedules of small chains.

#include "src/plan/chain_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace lowtide {
namespace {

using Kind = StepGraph::Step::Kind;
constexpr std::uint64_t kNoWay = std::numeric_limits<std::uint64_t>::max();

std::uint64_t plus(std::uint64_t a, std::uint64_t b) {
  return a == kNoWay || b == kNoWay ? kNoWay : a + b;
}

}  // namespace

ChainPlan::ChainPlan(const StepGraph& graph) {
  if (!find_links(graph) || links_.size() > kMost) {
    links_.clear();
    return;
  }
  weigh_others(graph);
}

bool ChainPlan::find_links(const StepGraph& graph) {
  end_ = graph.end();
  std::vector<std::uint32_t> link_of(graph.values().size(), kNever);
  bool is_forward = true;
  const auto is_link = [&](std::uint32_t op) {
    const auto writes = graph.writes(op);
    if (!graph.ops()[op].repeatable || writes.size() != 1 || !graph.consumed(op).empty())
      return false;
    const StepGraph::Value& made = graph.values()[writes[0]];
    if (made.fixed || made.root != writes[0] || !graph.views(writes[0]).empty()) return false;
    const auto reads = graph.reads(op);
    return std::all_of(reads.begin(), reads.end(),
                       [&](std::uint32_t v) {
                         if (graph.values()[v].producer == StepGraph::kNone) return true;
                         return !links_.empty() && v == links_.back().value;
                       }) &&
           (links_.empty() ||
            std::find(reads.begin(), reads.end(), links_.back().value) != reads.end());
  };
  for (std::uint32_t event = 0; event < graph.end(); ++event) {
    const StepGraph::Step& step = graph.steps()[event];
    const auto use = [&](std::uint32_t value) {
      if (link_of[value] == kNever) return;
      Link& link = links_[link_of[value]];
      if (link.first_use == kNever) link.first_use = event;
      link.last_use = event;
    };
    if (step.kind == Kind::kNothing || step.kind == Kind::kSource || step.kind == Kind::kFree)
      continue;
    if (step.kind != Kind::kRun) {
      if (!is_forward) use(step.index);
      continue;
    }
    if (is_forward && is_link(step.index)) {
      const StepGraph::Op& op = graph.ops()[step.index];
      Link link;
      link.value = graph.writes(step.index)[0];
      link.op = step.index;
      link.cost_ns = op.cost_ns;
      link.bytes = graph.values()[link.value].bytes;
      link.working_bytes = op.working_bytes;
      link.event = event;
      link_of[link.value] = static_cast<std::uint32_t>(links_.size());
      links_.push_back(link);
      continue;
    }
    is_forward = false;
    for (const std::uint32_t v : graph.reads(step.index)) use(v);
  }
  for (const Link& link : links_) {
    const auto uses = graph.uses(link.value);
    if (!uses.empty() && uses.back() >= graph.end()) return false;  // kept to the end
  }
  // Asked for from the last to the first.
  std::uint32_t before = 0;
  for (std::size_t i = links_.size(); i-- > 0;) {
    if (links_[i].first_use == kNever) continue;
    if (links_[i].first_use < before) return false;
    before = links_[i].first_use;
  }
  return before > 0;
}

void ChainPlan::weigh_others(const StepGraph& graph) {
  std::vector<bool> is_link(graph.values().size());
  for (const Link& link : links_) is_link[link.value] = true;
  const Schedule plain(graph, {});
  const auto items = plain.items();
  std::vector<std::int64_t> at(items.size() + 1);
  std::vector<std::int64_t> before(items.size() + 1);
  for (const Schedule::Instance& instance : plain.instances()) {
    if (is_link[instance.value]) continue;
    const auto bytes = static_cast<std::int64_t>(graph.values()[instance.value].bytes);
    at[instance.first] += bytes;
    at[instance.last + (instance.consumed ? 0 : 1)] -= bytes;
    before[instance.first + 1] += bytes;
    if (instance.last + 1 < before.size()) before[instance.last + 1] -= bytes;
  }
  others_at_.assign(end_ + 1, 0);
  others_before_.assign(end_ + 1, 0);
  std::int64_t live_at = 0;
  std::int64_t live_before = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    live_at += at[i];
    live_before += before[i];
    const Bytes working =
        items[i].op == StepGraph::kNone ? 0 : graph.ops()[items[i].op].working_bytes;
    others_at_[items[i].event] = static_cast<Bytes>(live_at) + working;
    others_before_[items[i].event] = static_cast<Bytes>(live_before);
  }
}

class ChainPlan::Search {
 public:
  Search(const ChainPlan& chain, Bytes budget, std::uint64_t most_work)
      : links_(chain.links_), count_(links_.size()) {
    choose_unit(budget, most_work);
    if (units_ == 0) return;
    room(chain, budget);
    // Below the diagonal nothing is to be done.
    cells_ = count_ * count_;
    cost_.assign(cells_ * units_, kUnknown);
    choice_.assign(cells_ * units_, 0);
    forward_cost_.assign((count_ + 2) * units_, kUnknown);
    forward_choice_.assign((count_ + 2) * units_, 0);
  }

  std::optional<std::vector<Replay>> run() {
    if (units_ == 0 || forward(1, 0) == kNoWay) return std::nullopt;
    follow_forward(1, 0);
    return std::move(replays_);
  }

 private:
  static constexpr std::uint64_t kUnknown = kNoWay - 1;
  using Units = std::uint32_t;

  const Link& link(std::size_t i) const { return links_[i - 1]; }
  Units size(std::size_t i) const { return sizes_[i - 1]; }
  bool is_asked_for(std::size_t i) const { return link(i).first_use != kNever; }
  std::size_t last_asked_for(std::size_t i) const {
    while (i > 0 && !is_asked_for(i)) --i;
    return i;
  }

  void choose_unit(Bytes budget, std::uint64_t most_work) {
    Bytes divisor = 0;
    for (const Link& one : links_) divisor = std::gcd(divisor, one.bytes);
    if (divisor == 0) return;
    const std::uint64_t steps = static_cast<std::uint64_t>(count_) * count_ * count_ / 6 + 1;
    const std::uint64_t most = std::clamp<std::uint64_t>(most_work / steps, 32, 2000);
    unit_ = divisor;
    if (budget / unit_ + 1 > most) {
      unit_ = budget / most + 1;
      unit_ = (unit_ + divisor - 1) / divisor * divisor;
    }
    units_ = static_cast<std::size_t>(budget / unit_) + 1;
    for (const Link& one : links_) {
      sizes_.push_back(
          static_cast<Units>(std::min<Bytes>(units_, (one.bytes + unit_ - 1) / unit_)));
    }
  }

  // Whole units that are free beside `taken`; -1: not even none.
  std::int64_t free_units(Bytes budget, Bytes taken) const {
    return taken > budget ? -1 : static_cast<std::int64_t>((budget - taken) / unit_);
  }

  void room(const ChainPlan& chain, Bytes budget) {
    const auto others = [&](std::uint32_t event, std::size_t but_below, bool is_before) {
      Bytes taken = is_before ? chain.others_before_[event] : chain.others_at_[event];
      for (std::size_t i = but_below; i <= count_; ++i) {
        if (link(i).first_use <= event && event <= link(i).last_use && is_asked_for(i)) {
          taken += link(i).bytes;
        }
      }
      return taken;
    };
    for (std::size_t i = 1; i <= count_; ++i) {
      // In the forward pass: beside the link, its input and what is kept.
      forward_room_.push_back(free_units(budget, chain.others_at_[link(i).event]));
      if (!is_asked_for(i)) {
        replay_room_.push_back(-1);
        use_room_.push_back(0);
        continue;
      }
      replay_room_.push_back(free_units(budget, others(link(i).first_use, i + 1, true)));
      const std::size_t below = last_asked_for(i - 1);
      const std::uint32_t until = below == 0 ? chain.end_ : link(below).first_use;
      std::int64_t room = free_units(budget, others(link(i).first_use, i, false));
      for (std::uint32_t event = link(i).first_use + 1; event < until; ++event) {
        room = std::min(room, free_units(budget, others(event, i, false)));
      }
      use_room_.push_back(room);
    }
    for (std::size_t i = 1; i <= count_; ++i) {
      working_.push_back(static_cast<std::int64_t>((link(i).working_bytes + unit_ - 1) / unit_));
    }
  }

  // What running link i takes beside what is kept, after a start at link s - 1, which is kept.
  std::int64_t taken_by(std::size_t i, std::size_t s) const {
    return static_cast<std::int64_t>(size(i)) +
           (i > s ? static_cast<std::int64_t>(size(i - 1)) : 0);
  }
  bool can_use(std::size_t i, Units kept) const {
    return !is_asked_for(i) || static_cast<std::int64_t>(kept) <= use_room_[i - 1];
  }

  std::size_t cell(std::size_t s, std::size_t t, Units kept) const {
    return ((s - 1) * count_ + (t - 1)) * units_ + kept;
  }

  // Least time of replays for the segment.
  std::uint64_t segment(std::size_t s, std::size_t t, Units kept) {
    t = last_asked_for(t);
    if (t < s) return 0;
    if (kept >= units_) return kNoWay;
    std::uint64_t& known = cost_[cell(s, t, kept)];
    if (known != kUnknown) return known;
    std::uint64_t best = kNoWay;
    std::uint16_t choice = 0;
    std::uint64_t swept = 0;
    const std::int64_t room = replay_room_[t - 1] - static_cast<std::int64_t>(kept);
    for (std::size_t k = s; k <= t; ++k) {
      if (taken_by(k, s) + working_[k - 1] > room) break;
      swept += link(k).cost_ns;
      if (swept >= best) break;
      if (!can_use(k, kept)) continue;
      std::uint64_t total = swept;
      if (k < t) total = plus(total, segment(k + 1, t, kept + size(k)));
      if (total >= best) continue;
      total = plus(total, segment(s, k - 1, kept));
      if (total < best) {
        best = total;
        choice = static_cast<std::uint16_t>(k);
      }
    }
    choice_[cell(s, t, kept)] = choice;
    return cost_[cell(s, t, kept)] = best;
  }

  // The same for the first pass from link s on; choice count_ + 1: nothing more is kept.
  std::uint64_t forward(std::size_t s, Units kept) {
    if (s > count_) return 0;
    if (kept >= units_) return kNoWay;
    const std::size_t at = s * units_ + kept;
    if (forward_cost_[at] != kUnknown) return forward_cost_[at];
    std::uint64_t best = kNoWay;
    std::uint16_t choice = 0;
    std::size_t k = s;
    for (; k <= count_; ++k) {
      if (taken_by(k, s) + static_cast<std::int64_t>(kept) > forward_room_[k - 1]) break;
      if (!can_use(k, kept)) continue;
      std::uint64_t total = forward(k + 1, kept + size(k));
      if (total >= best) continue;
      total = plus(total, segment(s, k - 1, kept));
      if (total < best) {
        best = total;
        choice = static_cast<std::uint16_t>(k);
      }
    }
    if (k > count_) {
      const std::uint64_t total = segment(s, count_, kept);
      if (total < best) {
        best = total;
        choice = static_cast<std::uint16_t>(count_ + 1);
      }
    }
    forward_choice_[at] = choice;
    return forward_cost_[at] = best;
  }

  void follow_forward(std::size_t s, Units kept) {
    if (s > count_) return;
    const std::size_t k = forward_choice_[s * units_ + kept];
    if (k > count_) {
      follow(s, count_, kept);
      return;
    }
    follow_forward(k + 1, kept + size(k));
    follow(s, k - 1, kept);
  }

  void follow(std::size_t s, std::size_t t, Units kept) {
    t = last_asked_for(t);
    if (t < s) return;
    const std::size_t k = choice_[cell(s, t, kept)];
    for (std::size_t i = s; i <= k; ++i) replays_.push_back({link(t).first_use, link(i).op});
    if (k < t) follow(k + 1, t, kept + size(k));
    follow(s, k - 1, kept);
  }

  const std::vector<Link>& links_;
  std::size_t count_;
  Bytes unit_ = 1;
  std::size_t units_ = 0;
  std::size_t cells_ = 0;
  std::vector<Units> sizes_;
  std::vector<std::int64_t> working_;
  std::vector<std::int64_t> forward_room_;
  std::vector<std::int64_t> replay_room_;
  std::vector<std::int64_t> use_room_;
  std::vector<std::uint64_t> cost_;
  std::vector<std::uint16_t> choice_;
  std::vector<std::uint64_t> forward_cost_;
  std::vector<std::uint16_t> forward_choice_;
  std::vector<Replay> replays_;
};

std::optional<std::vector<Replay>> ChainPlan::operator()(Bytes budget,
                                                         std::uint64_t most_work) const {
  if (!possible()) return std::nullopt;
  return Search(*this, budget, most_work).run();
}

}  // namespace lowtide
