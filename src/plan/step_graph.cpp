// One pass over the events for the values and their uses, one back over the ops for last_need, and
// one forward for what is fixed. last_need is taken as if every op could run again, which errs on
// the side of keeping.
//
// Tested by tests/plan/planner_test.cpp, through the plans made from it.

#include "src/plan/step_graph.h"

#include <algorithm>
#include <utility>

#include "src/base/assert.h"

namespace lowtide {

void StepGraph::Rows::build(std::uint32_t rows,
                            const std::vector<std::pair<std::uint32_t, std::uint32_t>>& pairs) {
  first_.assign(rows + std::size_t{1}, 0);
  for (const auto& [row, item] : pairs) ++first_[row + std::size_t{1}];
  for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  items_.resize(pairs.size());
  std::vector<std::uint32_t> next(first_.begin(), first_.end() - 1);
  for (const auto& [row, item] : pairs) items_[next[row]++] = item;
}

StepGraph::StepGraph(const Trace& trace) {
  using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  Pairs reads, writes, consumed, readers, views, uses;
  const auto events = static_cast<std::uint32_t>(trace.events.size());
  std::vector<std::uint32_t> current(trace.storages.size(), kNone);
  std::vector<std::uint32_t> seen_in(trace.storages.size(), kNone);
  std::vector<std::uint8_t> held(trace.storages.size(), 0);
  ops_.resize(trace.ops.size());
  steps_.resize(events);
  plain_ns_before_.reserve(events + std::size_t{1});
  std::uint64_t clock = 0;

  const auto add_value = [&](StorageId id, std::uint32_t producer, std::uint32_t event) {
    const auto value = static_cast<std::uint32_t>(values_.size());
    const StorageId base = trace.root(id);
    Value made;
    made.bytes = trace.storages[id.index()].bytes;
    made.producer = producer;
    made.born = made.last_need = event;
    made.storage = id;
    if (current[id.index()] != kNone) made.version = values_[current[id.index()]].version + 1;
    made.root = base == id ? value : current[base.index()];
    LOWTIDE_ASSERT(made.root != kNone);
    if (made.root != value) views.emplace_back(made.root, value);
    values_.push_back(made);
    current[id.index()] = value;
    return value;
  };
  const auto use = [&](StorageId id, std::uint32_t event) {
    const std::uint32_t value = current[id.index()];
    LOWTIDE_ASSERT(value != kNone);
    uses.emplace_back(value, event);
    if (values_[value].root != value) uses.emplace_back(values_[value].root, event);
    return value;
  };

  for (std::uint32_t event = 0; event < events; ++event) {
    plain_ns_before_.push_back(clock);
    const StorageId id{trace.events[event].index};
    Step& step = steps_[event];
    switch (trace.events[event].kind) {
      case TraceEvent::Kind::kSource:
        step = {Step::Kind::kSource, add_value(id, kNone, event)};
        break;
      case TraceEvent::Kind::kRun: {
        const std::uint32_t op = id.index();
        const TraceOp& traced = trace.ops[op];
        step = {Step::Kind::kRun, op};
        ops_[op] = {traced.cost_ns, traced.working_bytes, event, true};
        clock += traced.cost_ns;
        const auto read = [&](StorageId read_id) {
          if (std::exchange(seen_in[read_id.index()], event) == event) return;
          const std::uint32_t value = use(read_id, event);
          reads.emplace_back(op, value);
          readers.emplace_back(value, op);
        };
        for (const StorageId read_id : traced.reads) read(read_id);
        for (const StorageId written : traced.writes) {
          if (current[written.index()] != kNone) read(written);
        }
        for (const StorageId written : traced.writes) {
          const std::uint32_t old = current[written.index()];
          if (old != kNone && values_[old].born == event && values_[old].producer == op) continue;
          if (old != kNone) {
            consumed.emplace_back(op, old);
            values_[old].gone_at = event;
          }
          writes.emplace_back(op, add_value(written, op, event));
        }
        break;
      }
      case TraceEvent::Kind::kNeed:
        step = {Step::Kind::kUse, use(id, event)};
        break;
      case TraceEvent::Kind::kHold:
        held[trace.root(id).index()] = 1;
        step = {Step::Kind::kHold, use(trace.root(id), event)};
        break;
      case TraceEvent::Kind::kUnhold:
        held[trace.root(id).index()] = 0;
        step = {Step::Kind::kUnhold, use(trace.root(id), event)};
        break;
      case TraceEvent::Kind::kPin:
        use(id, events);
        step = {Step::Kind::kHold, use(id, event)};
        break;
      case TraceEvent::Kind::kRelease:
        // Who holds it no longer asks for it.
        if (id == trace.root(id) && std::exchange(held[id.index()], std::uint8_t{0}) != 0) {
          step = {Step::Kind::kUnhold, use(id, event)};
        }
        break;
      case TraceEvent::Kind::kFree:
        step = {Step::Kind::kFree, current[id.index()]};
        LOWTIDE_ASSERT(step.index != kNone);
        values_[step.index].gone_at = event;
        break;
    }
  }
  plain_ns_before_.push_back(clock);

  // A view's use is its root's too, and both may stand in one op's arguments.
  std::sort(uses.begin(), uses.end());
  uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
  const auto value_count = static_cast<std::uint32_t>(values_.size());
  const auto op_count = static_cast<std::uint32_t>(ops_.size());
  reads_.build(op_count, reads);
  writes_.build(op_count, writes);
  consumed_.build(op_count, consumed);
  readers_.build(value_count, readers);
  views_.build(value_count, views);
  uses_.build(value_count, uses);
  find_fixed();
}

void StepGraph::find_fixed() {
  for (std::uint32_t v = 0; v < values_.size(); ++v) {
    if (!uses(v).empty()) values_[v].last_need = std::max(values_[v].last_need, uses(v).back());
    values_[v].fixed = values_[v].producer == kNone;
  }
  const auto need_of = [&](std::uint32_t op) {
    std::uint32_t need = ops_[op].event;
    for (const std::uint32_t written : writes(op))
      need = std::max(need, values_[written].last_need);
    return need;
  };
  for (auto op = static_cast<std::uint32_t>(ops_.size()); op-- > 0;) {
    const std::uint32_t need = need_of(op);
    for (const std::uint32_t read : reads(op)) {
      values_[read].last_need = std::max(values_[read].last_need, need);
      const std::uint32_t root = values_[read].root;
      values_[root].last_need = std::max(values_[root].last_need, need);
    }
  }
  for (std::uint32_t op = 0; op < ops_.size(); ++op) {
    const std::uint32_t need = need_of(op);
    for (const std::uint32_t read : reads(op)) {
      if (values_[read].fixed && values_[read].gone_at < need) ops_[op].repeatable = false;
    }
    for (const std::uint32_t read : consumed(op)) {
      if (values_[read].fixed) ops_[op].repeatable = false;
    }
    if (ops_[op].repeatable) continue;
    for (const std::uint32_t written : writes(op)) values_[written].fixed = true;
  }
}

}  // namespace lowtide
