// Tested by tests/plan/plan_test.cpp: every problem, and every step of a sound plan left out.

#include "src/plan/plan.h"

#include <algorithm>
#include <utility>

#include "src/base/text.h"

namespace lowtide {
namespace {

class Follower {
 public:
  Follower(const Trace& trace, const Plan& plan)
      : trace_(trace),
        plan_(plan),
        storages_(trace.storages.size()),
        views_of_(trace.storages.size()),
        reads_(trace.ops.size()),
        writes_(trace.ops.size()),
        ran_(trace.ops.size(), false) {
    for (std::uint32_t s = 0; s < trace.storages.size(); ++s) {
      const StorageId root = trace.root(StorageId{s});
      if (root.index() != s) views_of_[root.index()].push_back(s);
    }
  }

  std::optional<PlanProblem> follow() {
    for (std::uint32_t event = 0; problem_.empty() && event <= trace_.events.size(); ++event) {
      while (problem_.empty() && at_ < plan_.steps.size() && plan_.steps[at_].event == event) {
        take(plan_.steps[at_]);
        if (problem_.empty()) ++at_;
      }
      if (problem_.empty() && at_ < plan_.steps.size() && plan_.steps[at_].event < event) {
        fail("it stands after a step of a later event");
      }
      if (problem_.empty() && event < trace_.events.size()) happen(trace_.events[event]);
    }
    if (problem_.empty() && at_ < plan_.steps.size()) fail("there is no event so late");
    if (problem_.empty()) check_end();
    if (problem_.empty()) return std::nullopt;
    return PlanProblem{at_, problem_};
  }

 private:
  // By version: whether its contents are there.
  struct Storage {
    std::vector<bool> there;
    bool made = false;
    bool held = false;
    bool pinned = false;
    std::uint32_t latest() const { return static_cast<std::uint32_t>(there.size() - 1); }
  };
  using Version = std::pair<std::uint32_t, std::uint32_t>;  // storage, version

  template <typename... Parts>
  void fail(const Parts&... parts) {
    if (problem_.empty()) problem_ = concat(parts...);
  }

  Bytes bytes(std::uint32_t s) const { return trace_.storages[s].bytes; }
  bool is_there(Version v) const {
    const Storage& storage = storages_[v.first];
    return v.second < storage.there.size() && storage.there[v.second];
  }
  void appear(Version v) {
    if (is_there(v)) return;
    storages_[v.first].there.at(v.second) = true;
    live_ += bytes(v.first);
  }
  void vanish(Version v) {
    if (!is_there(v)) return;
    storages_[v.first].there[v.second] = false;
    live_ -= bytes(v.first);
    for (const std::uint32_t view : views_of_[v.first]) {
      for (std::uint32_t k = 0; k < storages_[view].there.size(); ++k) vanish({view, k});
    }
  }
  void reach(Bytes bytes) {
    peak_ = std::max(peak_, bytes);
    if (bytes > plan_.budget_bytes) {
      fail(bytes, " bytes are there at once, ", bytes - plan_.budget_bytes, " over the budget");
    }
  }

  // Whether all of it can be read now; `who` reads it.
  template <typename... Who>
  bool readable(Version v, const Who&... who) {
    const std::uint32_t root = trace_.root(StorageId{v.first}).index();
    if (is_there(v) && (root == v.first || is_there({root, storages_[root].latest()}))) return true;
    fail(who..., " but storage ", v.first, " is not there");
    return false;
  }

  void take(const PlanStep& step) {
    if (step.kind == PlanStep::Kind::kReplay) {
      if (step.index >= ran_.size() || !ran_[step.index]) {
        fail("op ", step.index, " runs again before it has run");
        return;
      }
      execute(step.index);
      return;
    }
    const std::uint32_t s = step.index;
    if (s >= storages_.size() || !is_there({s, step.version})) {
      fail("storage ", s, " is dropped but is not there");
      return;
    }
    const Storage& storage = storages_[s];
    if (trace_.storages[s].source) {
      fail("storage ", s, " is dropped but nothing makes it again");
    } else if ((storage.held || storage.pinned) && step.version == storage.latest()) {
      fail("storage ", s, " is dropped while the program holds it");
    }
    vanish({s, step.version});
  }

  // Runs an op at the versions that it read and wrote when it ran first.
  void execute(std::uint32_t op) {
    for (const Version& v : reads_[op]) {
      if (!readable(v, "op ", op, " runs")) return;
    }
    Bytes made = trace_.ops[op].working_bytes;
    for (const Version& v : writes_[op]) {
      if (v.second == 0) made += bytes(v.first);
    }
    reach(live_ + made);
    clock_ += trace_.ops[op].cost_ns;
    for (const Version& v : writes_[op]) {
      if (v.second > 0) vanish({v.first, v.second - 1});
    }
    for (const Version& v : writes_[op]) appear(v);
  }
  void happen(const TraceEvent& event) {
    const std::uint32_t s = event.index;
    switch (event.kind) {
      case TraceEvent::Kind::kSource:
        storages_[s].there.assign(1, false);
        storages_[s].made = true;
        appear({s, 0});
        reach(live_);
        return;
      case TraceEvent::Kind::kFree:
        for (std::uint32_t k = 0; k < storages_[s].there.size(); ++k) vanish({s, k});
        return;
      case TraceEvent::Kind::kRun:
        run(event.index);
        return;
      case TraceEvent::Kind::kNeed:
        readable({s, storages_[s].latest()}, "the program needs");
        return;
      case TraceEvent::Kind::kHold:
      case TraceEvent::Kind::kUnhold:
      case TraceEvent::Kind::kPin: {
        const std::uint32_t root = trace_.root(StorageId{s}).index();
        if (event.kind == TraceEvent::Kind::kPin) {
          readable({s, storages_[s].latest()}, "the program holds to the end");
          storages_[root].pinned = true;
          storages_[s].pinned = true;
        } else {
          readable({root, storages_[root].latest()}, "the program holds");
          storages_[root].held = event.kind == TraceEvent::Kind::kHold;
        }
        return;
      }
      case TraceEvent::Kind::kRelease:
        storages_[s].held = false;
        return;
    }
  }

  void run(std::uint32_t op) {
    const auto add = [](std::vector<Version>& list, Version v) {
      if (std::find(list.begin(), list.end(), v) == list.end()) list.push_back(v);
    };
    const TraceOp& traced = trace_.ops[op];
    for (const StorageId id : traced.reads)
      add(reads_[op], {id.index(), storages_[id.index()].latest()});
    for (const StorageId id : traced.writes) {
      Storage& storage = storages_[id.index()];
      if (storage.made) add(reads_[op], {id.index(), storage.latest()});
    }
    std::vector<std::uint32_t> written;
    for (const StorageId id : traced.writes) {
      if (std::find(written.begin(), written.end(), id.index()) != written.end()) continue;
      written.push_back(id.index());
      Storage& storage = storages_[id.index()];
      storage.there.push_back(false);
      storage.made = true;
      writes_[op].push_back({id.index(), storage.latest()});
    }
    execute(op);
    ran_[op] = true;
  }

  void check_end() {
    for (std::uint32_t s = 0; s < storages_.size(); ++s) {
      if (storages_[s].pinned && !is_there({s, storages_[s].latest()})) {
        fail("storage ", s, " must be there at the end and is not");
      }
    }
    if (clock_ != plan_.total_ns) {
      fail("it takes ", clock_, " ns, not ", plan_.total_ns, " as it claims");
    }
    if (peak_ != plan_.peak_bytes) {
      fail("its peak is ", peak_, " bytes, not ", plan_.peak_bytes, " as it claims");
    }
  }

  const Trace& trace_;
  const Plan& plan_;
  std::vector<Storage> storages_;
  std::vector<std::vector<std::uint32_t>> views_of_;
  std::vector<std::vector<Version>> reads_;  // by op
  std::vector<std::vector<Version>> writes_;
  std::vector<bool> ran_;
  std::size_t at_ = 0;
  Bytes live_ = 0;
  Bytes peak_ = 0;
  std::uint64_t clock_ = 0;
  std::string problem_;
};

}  // namespace

std::optional<PlanProblem> find_problem(const Trace& trace, const Plan& plan) {
  return Follower(trace, plan).follow();
}

}  // namespace lowtide
