#include "src/report/snapshot_page.h"

#include "src/report/snapshot_page_html.h"

namespace lowtide {
std::string snapshot_page(const Snapshot&) { return kSnapshotPageHtml; }
}  // namespace lowtide
