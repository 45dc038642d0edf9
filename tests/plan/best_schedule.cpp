#include "tests/plan/best_schedule.h"

#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>
#include <vector>

namespace lowtide::testing {
namespace {

// Contents of storages as bits; those of sources are bits too, but are never dropped.
struct Contents {
  Bytes bytes;
  bool source;
};
struct Op {
  std::uint64_t cost_ns = 0;
  Bytes working_bytes = 0;
  std::uint32_t reads = 0;
  std::uint32_t writes = 0;
  std::uint32_t overwrites = 0;
};
struct Moment {
  enum class Kind { kAppear, kRun, kNeed, kPin, kGone } kind;
  std::uint32_t bits;
  int op;
};
struct Model {
  std::vector<Contents> contents;
  std::vector<Op> ops;
  std::vector<Moment> moments;
};

Model model_of(const Trace& trace) {
  Model model;
  std::map<std::uint32_t, std::uint32_t> latest;  // bit of a storage's contents now
  const auto add = [&](StorageId id) {
    const bool source = trace.storages[id.index()].source;
    const std::uint32_t bit = 1u << model.contents.size();
    model.contents.push_back({trace.storages[id.index()].bytes, source});
    latest[id.index()] = bit;
    return bit;
  };
  model.ops.resize(trace.ops.size());
  for (const TraceEvent& event : trace.events) {
    const StorageId id{event.index};
    using Kind = TraceEvent::Kind;
    if (event.kind == Kind::kSource) {
      model.moments.push_back({Moment::Kind::kAppear, add(id), -1});
    } else if (event.kind == Kind::kRun) {
      const TraceOp& traced = trace.ops[event.index];
      Op& op = model.ops[event.index];
      op.cost_ns = traced.cost_ns;
      op.working_bytes = traced.working_bytes;
      for (const StorageId read : traced.reads) op.reads |= latest.at(read.index());
      for (const StorageId written : traced.writes) {
        const auto old = latest.find(written.index());
        if (old == latest.end()) {
          op.writes |= add(written);
        } else if ((op.writes & old->second) == 0) {
          op.overwrites |= old->second;
          op.reads |= old->second;
          op.writes |= add(written);
        }
      }
      model.moments.push_back({Moment::Kind::kRun, 0, static_cast<int>(event.index)});
    } else if (event.kind == Kind::kNeed) {
      model.moments.push_back({Moment::Kind::kNeed, latest.at(event.index), -1});
    } else if (event.kind == Kind::kPin) {
      model.moments.push_back({Moment::Kind::kPin, latest.at(event.index), -1});
    } else if (event.kind == Kind::kFree) {
      model.moments.push_back({Moment::Kind::kGone, latest.at(event.index), -1});
    }
  }
  return model;
}

}  // namespace

int value_count(const Trace& trace) {
  int count = 0;
  for (const Contents& contents : model_of(trace).contents) count += !contents.source;
  return count;
}

std::optional<std::uint64_t> best_schedule_ns(const Trace& trace, Bytes budget) {
  const Model model = model_of(trace);
  std::uint32_t sources = 0;
  for (std::size_t i = 0; i < model.contents.size(); ++i) {
    if (model.contents[i].source) sources |= 1u << i;
  }
  const auto bytes_of = [&](std::uint32_t set) {
    Bytes total = 0;
    for (; set != 0; set &= set - 1) {
      total += model.contents[static_cast<std::size_t>(__builtin_ctz(set))].bytes;
    }
    return total;
  };
  std::vector<std::uint32_t> pinned_by(model.moments.size() + 1, 0);
  std::vector<std::uint32_t> ran_by(model.moments.size() + 1, 0);  // ops run before
  for (std::size_t i = 0; i < model.moments.size(); ++i) {
    const Moment& moment = model.moments[i];
    pinned_by[i + 1] = pinned_by[i] | (moment.kind == Moment::Kind::kPin ? moment.bits : 0);
    ran_by[i + 1] = ran_by[i] + (moment.kind == Moment::Kind::kRun);
  }
  struct State {
    std::uint64_t cost;
    std::uint32_t at;
    std::uint32_t set;
    bool operator>(const State& other) const { return cost > other.cost; }
  };
  std::priority_queue<State, std::vector<State>, std::greater<>> open;
  std::unordered_map<std::uint64_t, std::uint64_t> best;
  const auto reach = [&](std::uint64_t cost, std::uint32_t at, std::uint32_t set) {
    const std::uint64_t key = std::uint64_t{at} << 32 | set;
    const auto [found, is_new] = best.try_emplace(key, cost);
    if (!is_new && found->second <= cost) return;
    found->second = cost;
    open.push({cost, at, set});
  };
  // What an op leaves, or nothing when it cannot run in `set`.
  const auto after = [&](const Op& op, std::uint32_t set) -> std::optional<std::uint32_t> {
    if ((set & op.reads) != op.reads) return std::nullopt;
    const Bytes made = bytes_of(op.writes) - bytes_of(op.overwrites);
    if (bytes_of(set) + made + op.working_bytes > budget) return std::nullopt;
    return (set & ~op.overwrites) | op.writes;
  };
  reach(0, 0, 0);
  while (!open.empty()) {
    const State state = open.top();
    open.pop();
    if (best.at(std::uint64_t{state.at} << 32 | state.set) < state.cost) continue;
    if (state.at == model.moments.size()) {
      if ((state.set & pinned_by[state.at]) == pinned_by[state.at]) return state.cost;
    } else {
      const Moment& moment = model.moments[state.at];
      switch (moment.kind) {
        case Moment::Kind::kAppear:
          if (bytes_of(state.set | moment.bits) <= budget) {
            reach(state.cost, state.at + 1, state.set | moment.bits);
          }
          break;
        case Moment::Kind::kRun: {
          const Op& op = model.ops[static_cast<std::size_t>(moment.op)];
          if (const auto left = after(op, state.set)) {
            reach(state.cost + op.cost_ns, state.at + 1, *left);
          }
          break;
        }
        case Moment::Kind::kNeed:
        case Moment::Kind::kPin:
          if ((state.set & moment.bits) != 0) reach(state.cost, state.at + 1, state.set);
          break;
        case Moment::Kind::kGone:
          reach(state.cost, state.at + 1, state.set & ~moment.bits);
          break;
      }
    }
    for (std::uint32_t i = 0; i < ran_by[state.at]; ++i) {
      if (const auto left = after(model.ops[i], state.set)) {
        reach(state.cost + model.ops[i].cost_ns, state.at, *left);
      }
    }
    for (std::uint32_t rest = state.set & ~sources & ~pinned_by[state.at]; rest != 0;
         rest &= rest - 1) {
      reach(state.cost, state.at, state.set & ~(rest & (~rest + 1)));
    }
  }
  return std::nullopt;
}

}  // namespace lowtide::testing
