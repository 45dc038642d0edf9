// Derived in two passes over the items: back, to leave out what no one reads and to find roots
// that must go on through a replay of their op because a view made before is read after; forth, for
// the instances.
//
// Tested by tests/plan/planner_test.cpp and plan_test.cpp: every replay that is left in is needed.

#include "src/plan/schedule.h"

#include <algorithm>
#include <utility>

namespace lowtide {
namespace {

using Kind = StepGraph::Step::Kind;
constexpr std::uint32_t kNone = StepGraph::kNone;

}  // namespace

Schedule::Schedule(const StepGraph& graph, std::vector<Replay> replays)
    : graph_(&graph), replays_(std::move(replays)) {
  derive();
}

void Schedule::derive() {
  list_items();
  drop_useless();
  find_instances();
}

void Schedule::list_items() {
  items_.clear();
  std::size_t next = 0;
  for (std::uint32_t event = 0; event <= graph_->end(); ++event) {
    for (; next < replays_.size() && replays_[next].event == event; ++next) {
      items_.push_back({event, replays_[next].op, kNone, true});
    }
    if (event == graph_->end()) break;
    const StepGraph::Step step = graph_->steps()[event];
    if (step.kind == Kind::kNothing) continue;
    if (step.kind == Kind::kRun) {
      items_.push_back({event, step.index, kNone, false});
    } else {
      items_.push_back({event, kNone, step.index, false});
    }
  }
}

void Schedule::drop_useless() {
  const auto values = graph_->values();
  needed_.assign(values.size(), 0);
  held_.assign(values.size(), 0);
  for (const StepGraph::Step& step : graph_->steps()) {
    if (step.kind == Kind::kHold) ++held_[values[step.index].root];
    if (step.kind == Kind::kUnhold) --held_[values[step.index].root];
  }
  continued_.clear();
  std::size_t kept = items_.size();
  const auto read = [&](std::uint32_t v) { needed_[v] = needed_[values[v].root] = 1; };
  for (std::size_t i = items_.size(); i-- > 0;) {
    const Item item = items_[i];
    if (item.op == kNone) {
      const Kind kind = graph_->steps()[item.event].kind;
      const std::uint32_t root = values[item.value].root;
      if (kind == Kind::kHold) --held_[root];
      if (kind == Kind::kUnhold) ++held_[root];
      read(item.value);
    } else {
      bool useful = !item.is_replay;
      const auto item_at = static_cast<std::uint32_t>(i);
      const std::size_t continued_before = continued_.size();
      for (const std::uint32_t written : graph_->writes(item.op)) {
        if (!needed_[written] && held_[written] == 0) continue;
        const auto views = graph_->views(written);
        if (item.is_replay &&
            (held_[written] > 0 || std::any_of(views.begin(), views.end(),
                                               [&](std::uint32_t v) { return needed_[v] != 0; }))) {
          continued_.emplace_back(item_at, written);
          continue;
        }
        useful = true;
        needed_[written] = 0;
      }
      if (!useful) {
        continued_.resize(continued_before);
        continue;
      }
      for (const std::uint32_t v : graph_->reads(item.op)) read(v);
    }
    items_[--kept] = item;
    // continued_ speaks of places: rewritten once the final ones are known.
    for (std::size_t c = continued_.size(); c-- > 0 && continued_[c].first == i;) {
      continued_[c].first = static_cast<std::uint32_t>(kept);
    }
  }
  for (auto& [at, root] : continued_) at -= static_cast<std::uint32_t>(kept);
  std::reverse(continued_.begin(), continued_.end());
  items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(kept));
  replays_.clear();
  for (const Item& item : items_) {
    if (item.is_replay) replays_.push_back({item.event, item.op});
  }
}

void Schedule::find_instances() {
  const auto values = graph_->values();
  instances_.clear();
  instance_of_.assign(values.size(), kNone);
  held_.assign(values.size(), 0);
  change_.assign(items_.size() + 1, 0);
  live_bytes_.assign(items_.size(), 0);
  total_ns_ = 0;
  sound_ = true;
  const auto make = [&](std::uint32_t v, std::uint32_t at) {
    for (const std::uint32_t view : graph_->views(v)) instance_of_[view] = kNone;
    instance_of_[v] = static_cast<std::uint32_t>(instances_.size());
    instances_.push_back({v, at, at, false});
  };
  const auto read = [&](std::uint32_t v, std::uint32_t at) {
    const std::uint32_t root = values[v].root;
    if (instance_of_[v] == kNone || instance_of_[root] == kNone) {
      sound_ = false;
      return;
    }
    instances_[instance_of_[v]].last = instances_[instance_of_[root]].last = at;
  };
  std::size_t next_continued = 0;
  for (std::uint32_t at = 0; at < items_.size(); ++at) {
    const Item item = items_[at];
    if (item.op == kNone) {
      const std::uint32_t root = values[item.value].root;
      switch (graph_->steps()[item.event].kind) {
        case Kind::kSource:
          make(item.value, at);
          ++held_[item.value];
          break;
        case Kind::kFree:
          if (instance_of_[item.value] != kNone) {
            instances_[instance_of_[item.value]].last = at;
            instances_[instance_of_[item.value]].consumed = true;  // gone at this very item
            instance_of_[item.value] = kNone;
          }
          held_[item.value] = 0;
          break;
        case Kind::kHold:
          read(item.value, at);
          ++held_[root];
          break;
        case Kind::kUnhold:
          read(item.value, at);
          --held_[root];
          break;
        default:
          read(item.value, at);
      }
      continue;
    }
    const StepGraph::Op& op = graph_->ops()[item.op];
    total_ns_ += op.cost_ns;
    live_bytes_[at] += op.working_bytes;
    for (const std::uint32_t v : graph_->reads(item.op)) read(v, at);
    for (const std::uint32_t old : graph_->consumed(item.op)) {
      if (instance_of_[old] == kNone) continue;
      instances_[instance_of_[old]].consumed = true;
      instance_of_[old] = kNone;
      if (item.is_replay) continue;
      for (const std::uint32_t written : graph_->writes(item.op)) {
        if (values[written].storage == values[old].storage) {
          held_[written] = std::exchange(held_[old], std::uint16_t{0});
        }
      }
    }
    for (const std::uint32_t written : graph_->writes(item.op)) {
      const bool continues =
          next_continued < continued_.size() && item.is_replay &&
          std::find(continued_.begin() + static_cast<std::ptrdiff_t>(next_continued),
                    continued_.end(), std::pair(at, written)) != continued_.end();
      if (continues) {
        live_bytes_[at] += values[written].bytes;
      } else {
        make(written, at);
      }
    }
    while (next_continued < continued_.size() && continued_[next_continued].first <= at) {
      ++next_continued;
    }
  }
  const auto last = static_cast<std::uint32_t>(items_.size() - 1);
  for (std::uint32_t v = 0; v < values.size(); ++v) {
    if (held_[v] > 0 && instance_of_[v] != kNone) instances_[instance_of_[v]].last = last;
  }
  for (const Instance& instance : instances_) {
    const auto bytes = static_cast<std::int64_t>(values[instance.value].bytes);
    change_[instance.first] += bytes;
    change_[instance.last + (instance.consumed ? 0 : 1)] -= bytes;
  }
  std::int64_t live = 0;
  peak_bytes_ = 0;
  for (std::size_t at = 0; at < items_.size(); ++at) {
    live += change_[at];
    live_bytes_[at] += static_cast<Bytes>(live);
    peak_bytes_ = std::max(peak_bytes_, live_bytes_[at]);
  }
}

Plan Schedule::to_plan() const {
  const auto values = graph_->values();
  std::vector<std::vector<std::uint32_t>> ends(items_.size());
  for (std::uint32_t i = 0; i < instances_.size(); ++i) {
    const Instance& instance = instances_[i];
    const StepGraph::Value& value = values[instance.value];
    // A view goes with its root; a source stays.
    if (instance.consumed || value.root != instance.value || value.producer == kNone) continue;
    if (held_[instance.value] > 0 && i == instance_of_[instance.value]) continue;
    ends[instance.last].push_back(instance.value);
  }
  Plan plan;
  plan.peak_bytes = peak_bytes_;
  plan.plain_ns = graph_->plain_ns();
  plan.total_ns = total_ns_;
  for (std::size_t at = 0; at < items_.size(); ++at) {
    const Item& item = items_[at];
    if (item.is_replay) plan.steps.push_back({item.event, PlanStep::Kind::kReplay, item.op, 0});
    const std::uint32_t after = item.event + (item.is_replay ? 0 : 1);
    for (const std::uint32_t v : ends[at]) {
      plan.steps.push_back(
          {after, PlanStep::Kind::kDrop, values[v].storage.index(), values[v].version});
    }
  }
  return plan;
}

void Schedule::fill(Bytes budget) {
  while (fill_once(budget) > 0) {
  }
}

std::size_t Schedule::fill_once(Bytes budget) {
  const auto values = graph_->values();
  struct Chance {
    double worth;
    std::uint32_t item;
  };
  // The instances of each value, in order.
  std::vector<std::uint32_t> previous(instances_.size(), kNone);
  std::vector<std::uint32_t> made_by_first(items_.size(), kNone);  // the first of an item's
  std::vector<std::uint32_t> latest(values.size(), kNone);
  for (std::uint32_t i = 0; i < instances_.size(); ++i) {
    const Instance& instance = instances_[i];
    previous[i] = std::exchange(latest[instance.value], i);
    if (made_by_first[instance.first] == kNone) made_by_first[instance.first] = i;
  }
  const auto made_by = [&](std::uint32_t item) {
    const std::uint32_t begin = made_by_first[item];
    if (begin == kNone) return std::span<const Instance>{};
    std::uint32_t end = begin;
    while (end < instances_.size() && instances_[end].first == item) ++end;
    return std::span<const Instance>(instances_.data() + begin, end - begin);
  };
  const auto index_of = [&](const Instance& instance) {
    return static_cast<std::uint32_t>(&instance - instances_.data());
  };
  std::vector<Chance> chances;
  for (std::uint32_t at = 0; at < items_.size(); ++at) {
    if (!items_[at].is_replay) continue;
    double weight = 1;
    bool possible = true;
    for (const Instance& instance : made_by(at)) {
      if (instance.last == at) continue;
      const std::uint32_t before = previous[index_of(instance)];
      if (before == kNone || instances_[before].consumed) {
        possible = false;
        break;
      }
      const StepGraph::Value& value = values[instance.value];
      weight += static_cast<double>(value.bytes) * (at - instances_[before].last);
    }
    if (!possible) continue;
    chances.push_back({static_cast<double>(graph_->ops()[items_[at].op].cost_ns) / weight, at});
  }
  std::sort(chances.begin(), chances.end(),
            [](const Chance& a, const Chance& b) { return a.worth > b.worth; });

  std::vector<std::uint8_t> touched(graph_->ops().size(), 0);
  std::vector<std::uint8_t> removed(items_.size(), 0);
  std::size_t count = 0;
  const auto root_instance_at = [&](std::uint32_t root, std::uint32_t at) {
    std::uint32_t i = latest[root];
    while (i != kNone && instances_[i].first > at) i = previous[i];
    return i;
  };
  for (const Chance& chance : chances) {
    const std::uint32_t op = items_[chance.item].op;
    if (touched[op]) continue;
    bool fits = true;
    const auto made = made_by(chance.item);
    for (const Instance& instance : made) {
      if (instance.last == chance.item) continue;
      const StepGraph::Value& value = values[instance.value];
      const Instance& before = instances_[previous[index_of(instance)]];
      if (value.root != instance.value) {
        // Kept as long as its root is the same block.
        fits &=
            (values[value.root].producer == kNone || !touched[values[value.root].producer]) &&
            root_instance_at(value.root, before.first) == root_instance_at(value.root, chance.item);
        continue;
      }
      for (std::uint32_t at = before.last + 1; fits && at < chance.item; ++at) {
        fits = live_bytes_[at] + value.bytes <= budget;
      }
      if (!fits) break;
    }
    if (!fits) continue;
    // Several outputs together.
    const auto change = [&](bool add) {
      for (const Instance& instance : made) {
        if (instance.last == chance.item || values[instance.value].root != instance.value) continue;
        const Bytes bytes = values[instance.value].bytes;
        for (std::uint32_t at = instances_[previous[index_of(instance)]].last + 1; at < chance.item;
             ++at) {
          live_bytes_[at] += add ? bytes : Bytes{0} - bytes;
          fits &= live_bytes_[at] <= budget;
        }
      }
    };
    change(true);
    if (!fits) {
      change(false);
      continue;
    }
    touched[op] = 1;
    removed[chance.item] = 1;
    ++count;
  }
  if (count == 0) return 0;
  replays_.clear();
  for (std::uint32_t at = 0; at < items_.size(); ++at) {
    if (items_[at].is_replay && !removed[at]) replays_.push_back({items_[at].event, items_[at].op});
  }
  derive();
  return count;
}

}  // namespace lowtide
