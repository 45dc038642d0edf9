#pragma once
// What other settings, a smaller card or an empty_cache would have changed, for the page.

#include <cstdint>

#include "src/base/json.h"
#include "src/evidence/snapshot.h"

namespace lowtide {

// {"exact", "unsupported": [..], "rows": [{"change", "peak_reserved", "smallest_capacity"}]}; the
// first row is the trace as recorded, the last ones empty the cache before `peak_event` (if it is
// not negative) and run the largest sizes first. Smallest capacities take about twenty replays
// each, and are left out of long traces except for the recorded settings.
Json what_if_table(const Snapshot& snapshot, std::int64_t device, std::int64_t peak_event);

}  // namespace lowtide
