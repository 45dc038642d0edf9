#pragma once

namespace lowtide {

// The page's markup and code, src/report/snapshot_page.html; the data go in place of its one mark.
extern const char* const kSnapshotPageHtml;

}  // namespace lowtide
