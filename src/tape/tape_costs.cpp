// Tested by tests/tape/tape_costs_test.cpp.

#include "src/tape/tape_costs.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace lowtide {

void level_costs(Tape& tape) {
  std::map<std::vector<std::uint64_t>, std::vector<std::uint32_t>> alike;
  for (std::uint32_t i = 0; i < tape.ops.size(); ++i) {
    const TapeOp& op = tape.ops[i];
    std::vector<std::uint64_t> key{op.name, op.working_bytes, op.read_count};
    for (const StorageId id : tape.reads(OpId{i})) key.push_back(tape.storages[id.index()].bytes);
    for (const StorageId id : tape.writes(OpId{i})) key.push_back(tape.storages[id.index()].bytes);
    alike[key].push_back(i);
  }
  std::vector<std::uint64_t> costs;
  for (const auto& [key, ops] : alike) {
    costs.clear();
    for (const std::uint32_t op : ops) costs.push_back(tape.ops[op].cost_ns);
    const auto middle = costs.begin() + static_cast<std::ptrdiff_t>(costs.size() / 2);
    std::nth_element(costs.begin(), middle, costs.end());
    for (const std::uint32_t op : ops) tape.ops[op].cost_ns = *middle;
  }
}

}  // namespace lowtide
