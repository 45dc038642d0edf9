#include "src/plan/trace.h"

#include <doctest/doctest.h>

#include "lowtide/error.h"
#include "src/plan/online_policy.h"
#include "src/plan/simulator.h"
#include "src/tape/tape_text.h"

namespace lowtide {
namespace {

Trace two_ops() {
  Trace trace;
  const StorageId w = trace.add_source(100);
  const StorageId a = trace.add_storage(40);
  const StorageId b = trace.add_storage(30);
  trace.run(5, {{w}}, {{a}}, 7);
  trace.run(6, {{a}}, {{b}});
  trace.release(a);
  trace.pin(b);
  return trace;
}

TEST_CASE("the natural peak lets released storages go at once") {
  CHECK(natural_peak(two_ops()) == 170);
  CHECK(plain_ns(two_ops()) == 11);
}

TEST_CASE("the floor is what is fixed and the op that needs most, and names that op") {
  const Floor floor = lowest_budget(two_ops());
  CHECK(floor.bytes == 170);
  CHECK(floor.limiting_op == OpId{1});
}

TEST_CASE("what must be there at the end may set the floor") {
  Trace trace;
  const StorageId w = trace.add_source(1);
  for (int i = 0; i < 4; ++i) trace.run(1, {{w}}, {{trace.add_storage(10)}});
  for (std::uint32_t i = 1; i <= 4; ++i) trace.pin(StorageId{i});
  CHECK(lowest_budget(trace).bytes == 41);
  CHECK_FALSE(lowest_budget(trace).limiting_op.valid());
}

TEST_CASE("a view takes no bytes and keeps its base") {
  Trace trace;
  const StorageId w = trace.add_source(1);
  const StorageId a = trace.add_storage(50);
  const StorageId view = trace.add_storage(0, a);
  const StorageId b = trace.add_storage(5);
  trace.run(1, {{w}}, {{a}});
  trace.run(1, {{a}}, {{view}});
  trace.release(a);
  trace.run(1, {{view}}, {{b}});
  trace.release(view);
  CHECK(natural_peak(trace) == 56);
  CHECK(lowest_budget(trace).bytes == 56);
}

TEST_CASE("a tape runs in the simulator: held storages stay, unpacked ones come back") {
  const Tape tape = parse_tape_text(
      "lowtide-tape 1\n"
      "make s0 10 parameter\n"
      "run a 1000 in=s0 out=s1:100:saved\n"
      "hold s1\n"
      "pack t0 s1\n"
      "run b 1000 in=s1 out=s2:100:saved\n"
      "pack t1 s2\n"
      "unhold s1\n"
      "run c 1000 in=s2 out=s3:100:saved\n"
      "run d 1000 in=s3 out=s4:100:program\n"
      "unpack t1\n"
      "forget t1\n"
      "free s2\n"
      "unpack t0\n"
      "forget t0\n"
      "free s1\n");
  const Trace trace = trace_of(tape);
  CHECK(natural_peak(trace) == tape_peak(tape));
  SimulationOptions options;
  options.budget_bytes = 210;
  const SimulationResult result = simulate(trace, options, std::make_unique<OnlinePolicy>());
  REQUIRE(result.done());
  CHECK(result.peak_bytes == 210);
  CHECK(result.replays > 0);
  options.budget_bytes = 209;
  CHECK(simulate(trace, options, std::make_unique<OnlinePolicy>()).outcome ==
        SimulationResult::Outcome::kNoRoom);
}

TEST_CASE("what an op that cannot be repeated made is never dropped") {
  const Tape tape = parse_tape_text(
      "lowtide-tape 1\n"
      "make s0 10 parameter\n"
      "run once 1000 in=s0 out=s1:100:saved flags=not_repeatable\n"
      "pack t0 s1\n"
      "run b 1000 in=s0 out=s2:100:saved\n"
      "run c 1000 in=s0 out=s3:100:saved\n"
      "unpack t0\n");
  SimulationOptions options;
  options.budget_bytes = 210;
  bool dropped = false;
  options.on_event = [&](const SimulatedEvent& event) {
    dropped |= event.kind == SimulatedEvent::Kind::kDrop && event.index == 1;
  };
  CHECK(simulate(trace_of(tape), options, std::make_unique<OnlinePolicy>()).done());
  CHECK_FALSE(dropped);
}

}  // namespace
}  // namespace lowtide
