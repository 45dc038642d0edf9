#pragma once
// What other settings, a smaller card or an empty_cache would have changed, for the page.

#include <vector>

#include "src/allocator/what_if_rows.h"
#include "src/base/json.h"
#include "src/evidence/snapshot_analysis.h"

namespace lowtide {

// [{"change", "peak_reserved", "smallest_capacity", "completes"}], the last two null where they are
// not known.
Json what_if_rows_json(const std::vector<WhatIfRow>& rows);

// {"allocations", "addresses_matched", "layout_identical", "unsupported": [..], "capacity",
// "rows"}. The capacity is what there was for this process at the last request that failed, and
// null when none did.
Json what_if_table(const Snapshot& snapshot, const DeviceAnalysis& analysis);

}  // namespace lowtide
