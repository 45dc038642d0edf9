#include "src/plan/plan_summary.h"

#include <doctest/doctest.h>

#include "src/plan/planner.h"
#include "src/tape/tape_text.h"

namespace lowtide {
namespace {

const char* const kStep =
    "lowtide-tape 1\n"
    "make s0 100 parameter\n"
    "run a 1000 in=s0 out=s1:50:saved module=m source=t.py:1\n"
    "pack t0 s1\n"
    "run b 1000 work=30 in=s1 out=s2:40:saved module=m source=t.py:2\n"
    "pack t1 s2\n"
    "run c 1000 work=35 in=s2 out=s3:1:program\n"
    "unpack t1\n"
    "unpack t0\n"
    "run d 1000 in=s1,s2 out=s4:5:gradient\n"
    "hold s4\n";

TEST_CASE("the peak is the fullest instant, working bytes and all, and its rows add up") {
  const PeakSummary peak = summarize_peak(parse_tape_text(kStep));
  CHECK(peak.bytes == 100 + 50 + 40 + 1 + 35);
  CHECK(peak.bytes == tape_peak(parse_tape_text(kStep)));
  CHECK(peak.op == OpId{2});
  for (const auto* rows : {&peak.by_kind, &peak.by_module}) {
    Bytes total = 0;
    for (const BytesOf& row : *rows) total += row.bytes;
    CHECK(total == peak.bytes);
  }
  REQUIRE(peak.by_module.size() == 4);
  CHECK(peak.by_module[0].name == "[parameters]");
  CHECK(peak.by_module[1].name == "m");
  CHECK(peak.by_module[1].bytes == 90);
  CHECK(peak.by_module[2].name == "[inside the op]");
  CHECK(peak.by_module[3].name == "c");
}

TEST_CASE("what is kept and what runs again stands with the module and the line") {
  const Tape tape = parse_tape_text(kStep);
  PlannerOptions options;
  options.budget_bytes = 220;
  const auto plan = Planner(trace_of(tape)).plan(options).plan;
  REQUIRE(plan.has_value());
  const auto places = summarize_plan(tape, *plan);
  REQUIRE(places.size() == 2);
  CHECK(places[0].source == "t.py:1");
  CHECK(places[0].module == "m");
  CHECK(places[0].name.empty());
  CHECK(places[0].recomputed_bytes == 50);
  CHECK(places[0].replays == 1);
  CHECK(places[0].extra_ns == 1000);
  CHECK(places[1].source == "t.py:2");
  CHECK(places[1].kept_bytes == 40);
  CHECK(places[1].replays == 0);
}

}  // namespace
}  // namespace lowtide
