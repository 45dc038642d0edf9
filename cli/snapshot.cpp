// lowtide snapshot: what a memory snapshot says.

#include <cstdio>

#include "cli/verbs.h"
#include "src/evidence/snapshot_analysis.h"
#include "src/evidence/snapshot_reader.h"
#include "src/report/redaction.h"
#include "src/report/snapshot_report.h"

namespace lowtide {
namespace {

Snapshot read(const std::string& path, const Arguments& arguments) {
  Snapshot snapshot = read_snapshot(path);
  if (arguments.has("redact")) redact(snapshot);
  return snapshot;
}

int run(const Arguments& arguments) {
  const Snapshot snapshot = read(arguments.words()[0], arguments);
  const SnapshotAnalysis analysis = analyse(snapshot);
  if (arguments.has("diff")) {
    const SnapshotAnalysis other = analyse(read(arguments.text("diff"), arguments));
    if (arguments.has("json")) {
      std::puts(to_text(difference_json(analysis, other), 2).c_str());
    } else {
      std::fputs(difference_text(analysis, other).c_str(), stdout);
    }
    return kDone;
  }
  if (arguments.has("json")) {
    std::puts(to_text(snapshot_json(snapshot, analysis), 2).c_str());
  } else {
    std::fputs(snapshot_text(snapshot, analysis).c_str(), stdout);
  }
  return kDone;
}

}  // namespace

Verb snapshot_verb() {
  return {.name = "snapshot",
          .summary =
              "read a CUDA memory snapshot: the peak, what lived at it, what grows, what is free",
          .words = {{"FILE", "a snapshot, as torch.cuda.memory._dump_snapshot writes it"}},
          .flags = {{"json", "", "print the result as JSON", ""},
                    {"diff", "OTHER", "compare with a later snapshot", ""},
                    {"redact", "", "leave folders and user names out", ""}},
          .examples = {"lowtide snapshot snapshot.pickle",
                       "lowtide snapshot step10.pickle --diff step50.pickle --json"},
          .run = run};
}

}  // namespace lowtide
