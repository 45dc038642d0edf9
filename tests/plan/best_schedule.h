#pragma once
// The planner's slow twin: the least time of all schedules of a tiny step, by Dijkstra's algorithm
// over what has happened and what is there.

#include <cstdint>
#include <optional>

#include "src/plan/trace.h"

namespace lowtide::testing {

// At most 20 values (a storage, and each write in place of it, count one each); sources are not
// counted. Traces without views and holds. nullopt: no schedule fits the budget.
std::optional<std::uint64_t> best_schedule_ns(const Trace& trace, Bytes budget);

// How many values best_schedule_ns would count.
int value_count(const Trace& trace);

}  // namespace lowtide::testing
