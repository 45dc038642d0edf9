#include "src/tape/tape.h"

#include <doctest/doctest.h>

#include "lowtide/error.h"

namespace lowtide {
namespace {

// w, x -> h -> y; h saved and unpacked.
struct Step {
  Tape tape;
  StorageId w = tape.make(100, StorageKind::kParameter);
  StorageId h = tape.add_storage(40, StorageKind::kSaved);
  StorageId y = tape.add_storage(8, StorageKind::kProgram);
  SavedId saved;

  Step() {
    tape.mark(StepMark::kForward);
    tape.run("aten::mm", 700, {{w}}, {{h}}, 16);
    saved = tape.pack(h);
    tape.run("aten::sum", 30, {{h}}, {{y}});
    tape.mark(StepMark::kBackward);
    tape.unpack(saved);
    tape.forget(saved);
    tape.free(h);
    tape.mark(StepMark::kEnd);
  }
};

std::string problem_of(const Tape& tape) {
  const auto problem = find_problem(tape);
  return problem ? problem->what : "";
}

TEST_CASE("a step in order has no problem") { CHECK(problem_of(Step().tape) == ""); }

TEST_CASE("the peak counts an op's working bytes together with what is there") {
  CHECK(tape_peak(Step().tape) == 156);  // 100 + 40 + 16, above 100 + 40 + 8 later on
}

TEST_CASE("a storage lives from the event that makes it to the one that frees it") {
  const Step step;
  const auto lives = lifetimes(step.tape);
  CHECK(lives[step.w.index()].made == 0);
  CHECK(lives[step.w.index()].freed == step.tape.events.size());
  CHECK(lives[step.h.index()].made == 2);
  CHECK(lives[step.h.index()].freed == 8);
}

TEST_CASE("equal names of ops are stored once") {
  Tape tape;
  for (int i = 0; i < 3; ++i)
    tape.run("aten::rand", 1, {}, {{tape.add_storage(1, StorageKind::kProgram)}});
  CHECK(tape.names.size() == 1);
}

TEST_CASE("a use before creation is found") {
  Tape tape;
  const StorageId never = tape.add_storage(1, StorageKind::kProgram);
  const StorageId out = tape.add_storage(1, StorageKind::kProgram);
  tape.run("aten::neg", 1, {{never}}, {{out}});
  CHECK(problem_of(tape) == "storage 0 is read by op 0 (aten::neg) before it is made");
  CHECK(find_problem(tape)->event == 0);
}

TEST_CASE("every other thing that cannot have happened is found, with its event") {
  const auto after = [](auto&& change) {
    Step step;
    change(step);
    const auto problem = find_problem(step.tape);
    REQUIRE(problem);
    CHECK_THROWS_AS(check_tape(step.tape), FormatError);
    return problem->what;
  };
  CHECK(after([](Step& s) { s.tape.free(s.h); }) == "storage 1 is freed after it was freed");
  CHECK(after([](Step& s) { s.tape.run("aten::neg", 1, {{s.h}}, {}); }) ==
        "storage 1 is read by op 2 (aten::neg) after it was freed");
  CHECK(after([](Step& s) { s.tape.run("aten::neg", 1, {}, {{s.h}}); }) ==
        "storage 1 is written after it was freed");
  CHECK(after([](Step& s) { s.tape.add(TapeEvent::Kind::kMake, s.w.index()); }) ==
        "storage 0 is made twice");
  CHECK(after([](Step& s) { s.tape.pack(s.y), s.tape.free(s.y); }) ==
        "storage 2 is freed while it is saved");
  CHECK(after([](Step& s) { s.tape.hold(s.y), s.tape.free(s.y); }) ==
        "storage 2 is freed while the program holds it");
  CHECK(after([](Step& s) { s.tape.unhold(s.y); }) == "storage 2 is let go but was not held");
  CHECK(after([](Step& s) { s.tape.unpack(s.saved); }) ==
        "saved tensor 0 is unpacked when it is not packed");
  CHECK(after([](Step& s) { s.tape.forget(s.saved); }) ==
        "saved tensor 0 is forgotten when it is not packed");
  CHECK(after([](Step& s) { s.tape.add(TapeEvent::Kind::kPack, 0); }) ==
        "saved tensor 0 is packed twice");
  CHECK(after([](Step& s) { s.tape.add(TapeEvent::Kind::kRun, 0); }) ==
        "op 0 runs where op 2 should");
  CHECK(after([](Step& s) { s.tape.free(StorageId{7}); }) == "there is no storage 7");
  CHECK(after([](Step& s) { s.tape.unpack(SavedId{7}); }) == "there is no saved tensor 7");
  CHECK(after([](Step& s) { s.tape.add(TapeEvent::Kind::kMark, 9); }) == "there is no step mark 9");
  CHECK(after([](Step& s) { s.tape.ops[1].read_count = 99; }) ==
        "op 1 names inputs or outputs outside of the tables");
  CHECK(after([](Step& s) { s.tape.ops[1].name = 9; }) == "op 1 has no name");
  CHECK(after([](Step& s) { s.tape.storages[0].bytes = Bytes{1} << 63; }) ==
        "the storages' bytes add up to more than 2^63");
  CHECK(after([](Step& s) { s.tape.ops[0].cost_ns = ~0ull; }) ==
        "the ops' times add up to more than 2^63 ns");
}

TEST_CASE("the error of a bad tape carries its id and the event") {
  Step step;
  step.tape.free(step.h);
  try {
    check_tape(step.tape);
    FAIL("nothing was thrown");
  } catch (const FormatError& error) {
    CHECK(error.id() == "LT0141");
    CHECK(std::get<std::int64_t>(error.details().at("event")) == 10);
  }
}

}  // namespace
}  // namespace lowtide
