#pragma once
// A snapshot as one HTML page: the time line with zoom, what is live at a click, lines as a flame
// view, the segments' map, and a table of what-ifs. The data are in the page, packed.

#include <string>

#include "src/evidence/snapshot.h"

namespace lowtide {

std::string snapshot_page(const Snapshot& snapshot);

}  // namespace lowtide
