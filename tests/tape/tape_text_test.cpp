#include "src/tape/tape_text.h"

#include <doctest/doctest.h>

#include <random>
#include <string>

#include "lowtide/error.h"

namespace lowtide {
namespace {

const char* const kExample =
    "lowtide-tape 1\n"
    "make s0 4096 parameter\n"
    "make s1 512 input\n"
    "mark forward\n"
    "run aten::mm 1200 work=64 in=s0,s1 out=s2:8192:saved\n"
    "pack t0 s2\n"
    "hold s2\n"
    "run aten::dropout_ 300 in=s2 out=s2,s3:2048:program flags=random\n"
    "run odd%20name%25 0 flags=not_repeatable,view\n"
    "unhold s2\n"
    "mark backward\n"
    "unpack t0\n"
    "forget t0\n"
    "free s2\n"
    "mark end\n";

void check_refused(const std::string& lines, const std::string& part) {
  CAPTURE(lines);
  try {
    parse_tape_text("lowtide-tape 1\n" + lines);
    FAIL("nothing was thrown");
  } catch (const FormatError& error) {
    CHECK(error.id() == "LT0140");
    CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
  }
}

TEST_CASE("a tape written as text reads back to the same text") {
  CHECK(to_tape_text(parse_tape_text(kExample)) == kExample);
}

TEST_CASE("the text says what was recorded") {
  const Tape tape = parse_tape_text(kExample);
  REQUIRE(tape.ops.size() == 3);
  CHECK(tape.names[tape.ops[2].name] == "odd name%");
  CHECK(tape.ops[0].cost_ns == 1200);
  CHECK(tape.ops[0].working_bytes == 64);
  CHECK(tape.reads(OpId{0})[1] == StorageId{1});
  CHECK(tape.writes(OpId{1})[0] == StorageId{2});
  CHECK(tape.ops[1].has(OpFlag::kRandom));
  CHECK_FALSE(tape.ops[1].has(OpFlag::kView));
  CHECK(tape.storages[3].bytes == 2048);
  CHECK(tape.storages[2].kind == StorageKind::kSaved);
  CHECK(tape.events.size() == 14);
}

TEST_CASE("comments, blank lines and line ends of either kind are read over") {
  const Tape tape = parse_tape_text("lowtide-tape 1\r\n\r\n  make  s0\t8 program # w\r\n# end");
  CHECK(tape.storages.size() == 1);
}

TEST_CASE("a line that does not read is refused with its number") {
  check_refused("make s0 1 program\nmake s0 1 program\n", "line 3: the next storage must be s1");
  check_refused("make s1 1 program\n", "the next storage must be s0, not 's1'");
  check_refused("make s0 -1 program\n", "expected bytes as a whole number");
  check_refused("make s0 18446744073709551616 program\n", "below 2^64");
  check_refused("make s0 12x program\n", "got '12x'");
  check_refused("make s0 1 cheese\n", "unknown kind 'cheese'");
  check_refused("make s0 1\n", "expected a kind before the end of the line");
  check_refused("make s0 1 program more\n", "nothing may follow, but 'more' does");
  check_refused("make s99999999999 1 program\n", "too large");
  check_refused("free s0\n", "storage 's0' has not been made");
  check_refused("free t0\n", "expected an id like s0");
  check_refused("unpack t0\n", "has not been packed");
  check_refused("make s0 1 program\npack t1 s0\n", "the next saved tensor must be t0");
  check_refused("run f 1 in=s0\n", "has not been made");
  check_refused("run f 1 in=\n", "expected an id");
  check_refused("run f 1 out=s0:4\n", "unknown kind ''");
  check_refused("run f 1 work=1 work=2\n", "stands twice or out of order");
  check_refused("run f 1 flags=odd\n", "unknown flag 'odd'");
  check_refused("run f 1 colour=red\n", "unknown key 'colour'");
  check_refused("run f 1 red\n", "expected key=value");
  check_refused("run f%2 1\n", "bad escape");
  check_refused("run f%zz 1\n", "bad escape");
  check_refused("run f\n", "expected a time in ns");
  check_refused("mark lunch\n", "unknown mark 'lunch'");
  check_refused("jump\n", "unknown event 'jump'");
  check_refused(std::string("\x01\x02\xff\n"), "unknown event '?");
}

TEST_CASE("a text without its first line is refused") {
  CHECK_THROWS_AS(parse_tape_text(""), FormatError);
  CHECK_THROWS_AS(parse_tape_text("lowtide-tape 2\n"), FormatError);
}

TEST_CASE("a text whose lines read but whose order cannot be is refused as a tape") {
  try {
    parse_tape_text("lowtide-tape 1\nmake s0 1 program\nfree s0\nfree s0\n");
    FAIL("nothing was thrown");
  } catch (const FormatError& error) {
    CHECK(error.id() == "LT0141");
  }
}

TEST_CASE("no damage to a text does more than an error") {
  std::mt19937 random(7);
  const std::string whole = kExample;
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text = whole;
    for (int n = 0; n < 1 + i % 3; ++n) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 9);
          break;
        case 2:
          text.insert(at, whole.substr(random() % whole.size(), random() % 9));
          break;
        default:
          text.resize(at + 1);
      }
    }
    try {
      const Tape tape = parse_tape_text(text);
      const std::string written = to_tape_text(tape);
      CHECK(to_tape_text(parse_tape_text(written)) == written);
    } catch (const FormatError&) {
      ++refused;
    }
  }
  CHECK(refused > 2000);
}

}  // namespace
}  // namespace lowtide
