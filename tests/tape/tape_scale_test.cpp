#include "src/tape/tape_scale.h"

#include <doctest/doctest.h>

#include <string>

#include "lowtide/error.h"
#include "src/tape/tape_bytes.h"
#include "src/tape/tape_text.h"

namespace lowtide {
namespace {

Tape mlp(int batch) {
  return read_tape(std::string(LOWTIDE_SOURCE_DIR) + "/tests/tape/data/mlp" +
                   std::to_string(batch) + ".tape");
}

TEST_CASE("two batch sizes foretell a third, above, below and between, to the byte") {
  CHECK(to_tape_text(tape_at_batch(mlp(4), mlp(8), 16)) == to_tape_text(mlp(16)));
  CHECK(to_tape_text(tape_at_batch(mlp(8), mlp(16), 4)) == to_tape_text(mlp(4)));
  CHECK(to_tape_text(tape_at_batch(mlp(16), mlp(4), 8)) == to_tape_text(mlp(8)));
}

TEST_CASE("what is no whole number is rounded up, what falls below nothing is nothing") {
  const auto tape = [](int batch, int bytes) {
    return parse_tape_text("lowtide-tape 1\nbatch " + std::to_string(batch) + "\nmake s0 " +
                           std::to_string(bytes) + " input\n");
  };
  CHECK(tape_at_batch(tape(2, 10), tape(5, 11), 3).storages[0].bytes == 11);
  CHECK(tape_at_batch(tape(2, 10), tape(5, 11), 8).storages[0].bytes == 12);
  CHECK(tape_at_batch(tape(2, 10), tape(3, 100), 1).storages[0].bytes == 0);
  CHECK(
      tape_at_batch(tape(1, 0), tape(2, 2'000'000'000), 1'000'000'000'000'000).storages[0].bytes ==
      9'000'000'000'000'000'000u);
}

TEST_CASE("tapes of different steps are refused with the first op that differs") {
  const auto check = [](const Tape& first, const Tape& second, const char* part) {
    try {
      tape_at_batch(first, second, 3);
      FAIL("nothing was thrown");
    } catch (const FormatError& error) {
      CHECK(error.id() == "LT0157");
      CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
    }
  };
  const auto tape = [](int batch, const std::string& rest) {
    return parse_tape_text("lowtide-tape 1\nbatch " + std::to_string(batch) +
                           "\nmake s0 1 input\nmake s1 1 input\n" + rest);
  };
  check(tape(1, "run f 1 in=s0\n"), tape(2, "run g 1 in=s0\n"), "op 0 is f on one tape and g");
  check(tape(1, "run f 1 in=s0\n"), tape(2, "run f 1 in=s1\n"), "op 0 (f) has other inputs");
  check(tape(1, "run f 1 in=s0\n"), tape(2, "run f 1 in=s0\nrun f 1 in=s0\n"),
        "one tape has 1 ops and the other 2");
  check(tape(1, "free s0\n"), tape(2, "free s1\n"), "part at event 2");
  check(tape(1, "free s0\n"), tape(2, ""), "goes on where the other ends");
}

TEST_CASE("tapes without different batch sizes are refused") {
  CHECK_THROWS_AS(tape_at_batch(mlp(4), mlp(4), 8), UsageError);
  Tape unknown = mlp(8);
  unknown.batch_size = 0;
  CHECK_THROWS_AS(tape_at_batch(mlp(4), unknown, 8), UsageError);
}

}  // namespace
}  // namespace lowtide
