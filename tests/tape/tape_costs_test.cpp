#include "src/tape/tape_costs.h"

#include <doctest/doctest.h>

#include <vector>

using namespace lowtide;  // the tests of one header

TEST_CASE("ops of one name and the same bytes get the median of their times, others keep theirs") {
  Tape tape;
  const StorageId small = tape.make(10, StorageKind::kProgram);
  const StorageId large = tape.make(20, StorageKind::kProgram);
  const auto run = [&](const char* name, std::uint64_t cost_ns, StorageId read) {
    const StorageId written = tape.add_storage(10, StorageKind::kProgram);
    tape.run(name, cost_ns, std::vector<StorageId>{read}, std::vector<StorageId>{written});
  };
  run("mm", 900, small);
  run("mm", 100, small);
  run("mm", 110, small);
  run("mm", 500, large);
  run("add", 7, small);
  level_costs(tape);
  std::vector<std::uint64_t> costs;
  for (const TapeOp& op : tape.ops) costs.push_back(op.cost_ns);
  CHECK(costs == std::vector<std::uint64_t>{110, 110, 110, 500, 7});
}
