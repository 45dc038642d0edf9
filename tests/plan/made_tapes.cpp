#include "tests/plan/made_tapes.h"

#include <random>
#include <vector>

namespace lowtide {

Tape made_chain_tape(int links, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low + 1);
  };
  Tape tape;
  const StorageId batch = tape.make(4096, StorageKind::kInput);
  std::vector<StorageId> outputs;
  std::vector<SavedId> saved;
  StorageId last = batch;
  for (int i = 0; i < links; ++i) {
    const StorageId weight = tape.make(2048, StorageKind::kParameter);
    const StorageId output = tape.add_storage(1024 * between(2, 8), StorageKind::kSaved);
    const std::vector<StorageId> reads{last, weight};
    tape.run("forward", 1000 * between(1, 9), reads, std::vector<StorageId>{output},
             512 * between(0, 2), static_cast<std::uint8_t>(0));
    tape.hold(output);
    if (i > 0) tape.unhold(last);
    saved.push_back(tape.pack(output));
    outputs.push_back(output);
    last = output;
  }
  tape.unhold(last);
  StorageId gradient = tape.make(1024, StorageKind::kGradient);
  for (int i = links - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    tape.unpack(saved[at]);
    tape.hold(outputs[at]);
    const StorageId next = tape.add_storage(1024 * between(1, 4), StorageKind::kGradient);
    const std::vector<StorageId> reads{gradient, outputs[at]};
    tape.run("backward", 1000 * between(2, 12), reads, std::vector<StorageId>{next}, 0,
             static_cast<std::uint8_t>(OpFlag::kNotRepeatable));
    tape.hold(next);
    tape.unhold(outputs[at]);
    tape.forget(saved[at]);
    tape.free(outputs[at]);
    if (i < links - 1) tape.unhold(gradient);
    tape.free(gradient);
    gradient = next;
  }
  return tape;
}

}  // namespace lowtide
