#include "src/report/snapshot_redaction.h"

#include <doctest/doctest.h>

#include "src/base/json.h"
#include "src/evidence/snapshot_analysis.h"
#include "src/report/snapshot_page.h"
#include "src/report/snapshot_report.h"
#include "tests/evidence/made_snapshots.h"

using namespace lowtide;  // the tests of one header

TEST_CASE("a path keeps its file, and its place in an installed package") {
  CHECK(redacted_path("/home/ann/job/model.py") == ".../model.py");
  CHECK(redacted_path("C:\\Users\\ann\\job\\model.py") == ".../model.py");
  CHECK(redacted_path("/home/ann/.venv/lib/python3.12/site-packages/torch/nn/functional.py") ==
        ".../site-packages/torch/nn/functional.py");
  CHECK(redacted_path("/tmp/torchinductor_ann/ab/cab.py") == ".../torchinductor/ab/cab.py");
  CHECK(redacted_path("/tmp/torchinductor_ann") == ".../torchinductor_ann");
  CHECK(redacted_path("??") == "??");
  CHECK(redacted_path("Optimizer.step#SGD.step") == "Optimizer.step#SGD.step");
}

TEST_CASE("a redacted snapshot says nothing of its folders, and the same numbers") {
  Snapshot snapshot = read_made(small_snapshot().pickle(Dialect::kPython, 4, {}));
  snapshot.name = "/home/ann/dumps/made.pickle";
  const SnapshotAnalysis before = analyse(snapshot);
  CHECK(to_text(snapshot_json(snapshot, before)).find("/ann/") != std::string::npos);
  CHECK(snapshot_page(snapshot).find("/ann/") != std::string::npos);
  redact(snapshot);
  const SnapshotAnalysis after = analyse(snapshot);
  const std::string json = to_text(snapshot_json(snapshot, after));
  CHECK(json.find("/ann/") == std::string::npos);
  CHECK(snapshot_page(snapshot).find("/ann/") == std::string::npos);
  CHECK(after.devices[0].peak.bytes == before.devices[0].peak.bytes);
  REQUIRE(after.devices[0].user_lines.size() == before.devices[0].user_lines.size());
  CHECK(after.devices[0].user_lines[0].line == before.devices[0].user_lines[0].line);
}
