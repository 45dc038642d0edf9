#include "src/plan/num_cp.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

namespace lowtide {
namespace {

struct LayerShape {
  std::vector<Bytes> saved;  // one op each
  Bytes passing;             // made and freed inside
  Bytes working;             // of its last op
  Bytes result;
};

// A step over layers, the first `checkpointed` of them checkpointed as torch.utils.checkpoint does.
// Slow twin of checkpoint_layers: it makes the tape of the checkpointed step itself.
Tape step_of(const std::vector<LayerShape>& layers, std::size_t checkpointed) {
  Tape tape;
  const StorageId weight = tape.make(100, StorageKind::kParameter);
  const auto run = [&](const std::string& module, StorageId read, Bytes bytes, Bytes working = 0) {
    const StorageId out = tape.add_storage(bytes, StorageKind::kProgram);
    const std::vector<StorageId> reads{read};
    const std::vector<StorageId> writes{out};
    const OpId op = tape.run("aten::op", 1000, reads, writes, working);
    tape.ops[op.index()].module = tape.name_index(module);
    return out;
  };
  struct Inside {
    std::vector<StorageId> saved;
    std::vector<SavedId> packs;
    StorageId result;
  };
  const auto forward = [&](std::size_t i, StorageId x, bool keeps) {
    const std::string module = "net.encoder.layers." + std::to_string(i) + ".linear";
    Inside inside;
    StorageId last = x;
    for (const Bytes bytes : layers[i].saved) {
      last = run(module, last, bytes);
      inside.saved.push_back(last);
      if (keeps) inside.packs.push_back(tape.pack(last));
    }
    const StorageId passing = run(module, last, layers[i].passing);
    inside.result = run(module, passing, layers[i].result, layers[i].working);
    tape.free(passing);
    return inside;
  };
  std::vector<StorageId> inputs{weight};
  std::vector<Inside> all;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    all.push_back(forward(i, inputs.back(), i >= checkpointed));
    if (i < checkpointed) {
      for (const StorageId id : all.back().saved) tape.free(id);
    }
    inputs.push_back(all.back().result);
  }
  const StorageId head = run("net.head", inputs.back(), 700);
  const SavedId saved_head = tape.pack(head);
  tape.unpack(saved_head);
  StorageId gradient = run("net.head", head, 50);
  tape.forget(saved_head);
  tape.free(head);
  for (std::size_t i = layers.size(); i-- > 0;) {
    const std::string module = "net.encoder.layers." + std::to_string(i) + ".linear";
    if (i < checkpointed) {
      all[i] = forward(i, inputs[i], true);
      tape.free(all[i].result);  // the second one; the first goes below
    }
    for (std::size_t k = all[i].saved.size(); k-- > 0;) {
      tape.unpack(all[i].packs[k]);
      const StorageId next = run(module, all[i].saved[k], 60);
      tape.free(gradient);
      gradient = next;
      tape.forget(all[i].packs[k]);
      tape.free(all[i].saved[k]);
    }
    tape.free(inputs[i + 1]);
  }
  return tape;
}

TEST_CASE("peaks are those of the steps made checkpointed") {
  std::mt19937 random(9);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    std::vector<LayerShape> layers(1 + below(5));
    for (LayerShape& layer : layers) {
      for (std::uint64_t i = 1 + below(4); i > 0; --i) layer.saved.push_back(1 + below(1000));
      layer.passing = 1 + below(1500);
      layer.working = below(500);
      layer.result = 1 + below(400);
    }
    const Tape plain = step_of(layers, 0);
    check_tape(plain);
    const auto answer = checkpoint_layers(plain);
    REQUIRE(answer.has_value());
    CHECK(answer->layers == "net.encoder.layers");
    REQUIRE(answer->peaks.size() == layers.size() + 1);
    for (std::size_t count = 0; count <= layers.size(); ++count) {
      CAPTURE(count);
      CHECK(answer->peaks[count] == tape_peak(step_of(layers, count)));
    }
  }
}

TEST_CASE("the smallest num_cp that fits") {
  const std::vector<LayerShape> layers(4, LayerShape{{500, 500}, 10, 0, 20});
  const auto answer = checkpoint_layers(step_of(layers, 0));
  REQUIRE(answer.has_value());
  CHECK(smallest_num_cp(*answer, answer->peaks[0]) == 0);
  CHECK(smallest_num_cp(*answer, answer->peaks[2]) == 2);
  CHECK_FALSE(smallest_num_cp(*answer, 100).has_value());
  CHECK(answer->extra_ns[3] == 3 * 4 * 1000);
}

TEST_CASE("a tape without modules has no layers") {
  Tape tape;
  tape.make(10, StorageKind::kParameter);
  CHECK_FALSE(checkpoint_layers(tape).has_value());
  CHECK_FALSE(checkpoint_layers(step_of({{{1}, 1, 0, 1}}, 0), "decoder.layers").has_value());
}

}  // namespace
}  // namespace lowtide
