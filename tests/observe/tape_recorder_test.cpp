#include "src/observe/tape_recorder.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "lowtide/memory_meter.h"

using namespace lowtide;  // the tests of one header

namespace {

// Lives for ever, as a listener must.
TapeRecorder& recorder() {
  static auto* const one = new TapeRecorder;
  return *one;
}

struct Recording {
  explicit Recording(Bytes live_bytes) {
    recorder().begin(live_bytes);
    hook::cpu_memory().set_block_listener(&recorder());
  }
  ~Recording() { hook::cpu_memory().set_block_listener(nullptr); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  Tape end() {
    Tape tape = recorder().end();
    const auto problem = find_problem(tape);
    CHECK((problem.has_value() ? problem->what : "") == "");
    return tape;
  }
};

at::Tensor bytes(std::int64_t count) { return at::empty({count}, at::kByte); }

hook::MemoryBlock* block_of(const at::Tensor& tensor) {
  return hook::cpu_memory().find_block(tensor.storage().data_ptr());
}

using Blocks = std::vector<hook::MemoryBlock*>;

// The events alone, one letter each.
std::string letters(const Tape& tape) {
  std::string text;
  for (const TapeEvent& event : tape.events) {
    text += "MRFPUGHLK"[static_cast<std::size_t>(event.kind)];  // forGet, Hold, Let go, marK
  }
  return text;
}

}  // namespace

TEST_CASE("what lived before is one storage, less what is read of it") {
  const at::Tensor weight = bytes(1000), other = bytes(50);
  Recording recording(1050);
  const Blocks reads{block_of(weight)};
  recorder().op_begins(reads, {});
  const at::Tensor y = bytes(300);
  const Blocks results{block_of(y)};
  recorder().op_ended("relu", "", 7, 0, results);
  const Tape tape = recording.end();
  REQUIRE(tape.storages.size() == 3);
  CHECK(tape.storages[0].bytes == 50);
  CHECK(tape.storages[1].bytes == 1000);
  CHECK(tape.storages[2].bytes == 300);
  CHECK(letters(tape) == "MMRH");
  REQUIRE(tape.ops.size() == 1);
  CHECK(tape.names[tape.ops[0].name] == "relu");
  CHECK(tape.ops[0].cost_ns == 7);
  CHECK(tape.reads(OpId{0})[0] == StorageId{1});
  CHECK(tape.writes(OpId{0})[0] == StorageId{2});
}

TEST_CASE("blocks that an op makes and frees are its working bytes") {
  Recording recording(0);
  recorder().op_begins({}, {});
  at::Tensor first = bytes(100), second = bytes(40);
  first = at::Tensor();
  at::Tensor third = bytes(80);
  second = at::Tensor();
  const Blocks results{block_of(third)};
  recorder().op_ended("mm", "", 1, 0, results);
  third = at::Tensor();
  const Tape tape = recording.end();
  REQUIRE(tape.ops.size() == 1);
  CHECK(tape.ops[0].working_bytes == 60);  // 100 + 40 at the most, beyond the 80 that stay
  CHECK(tape_peak(tape) == 140);
  CHECK(letters(tape) == "MRHLF");
}

TEST_CASE("a copy that is left behind and not returned is a source") {
  Recording recording(0);
  at::Tensor kept;
  recorder().op_begins({}, {});
  kept = bytes(30);
  const at::Tensor y = bytes(20);
  const Blocks results{block_of(y)};
  recorder().op_ended("custom", "", 1, 0, results);
  const Tape tape = recording.end();
  CHECK(letters(tape) == "MMRH");
  CHECK(tape.writes(OpId{0}).size() == 1);
}

TEST_CASE("what is saved before its op has ended is packed after it") {
  Recording recording(0);
  recorder().op_begins({}, {});
  at::Tensor y = bytes(64);
  const std::uint64_t saved = recorder().packed(*block_of(y));
  const Blocks results{block_of(y)};
  recorder().op_ended("exp", "", 1, 0, results);
  const std::uint64_t tag = block_of(y)->tag;
  recorder().let_go(tag);
  recorder().unpacked(saved);
  recorder().forgotten(saved);
  y = at::Tensor();
  const Tape tape = recording.end();
  CHECK(letters(tape) == "MRHPLUHGLF");
  CHECK(tape.storages[1].kind == StorageKind::kSaved);
}

TEST_CASE("dropping, and bringing back under a pause, are not on the tape") {
  Recording recording(0);
  recorder().op_begins({}, {});
  at::Tensor y = bytes(64);
  const Blocks results{block_of(y)};
  recorder().op_ended("exp", "", 1, 0, results);
  const std::uint64_t saved = recorder().packed(*block_of(y));
  const std::uint64_t tag = block_of(y)->tag;
  recorder().set_aside(*block_of(y));
  at::Tensor again;
  {
    const TapeRecorder::Pause pause;
    y = at::Tensor();
    again = bytes(64);
  }
  recorder().resume(*block_of(again), tag);
  recorder().unpacked(saved);
  recorder().forgotten(saved);
  again = at::Tensor();
  const Tape tape = recording.end();
  CHECK(tape.storages.size() == 2);
  CHECK(letters(tape) == "MRHPLUHGLF");
}

TEST_CASE("what was dropped and never comes back is freed") {
  Recording recording(0);
  at::Tensor y = bytes(64);
  const std::uint64_t tag = block_of(y)->tag;
  recorder().set_aside(*block_of(y));
  {
    const TapeRecorder::Pause pause;
    y = at::Tensor();
  }
  recorder().gone(tag);
  CHECK(letters(recording.end()) == "MMF");
}

TEST_CASE("a step may begin inside an op, which then is its first") {
  Recording recording(0);
  recorder().end();
  recorder().arm();
  const at::Tensor before = bytes(10);
  recorder().op_begins({}, {});
  at::Tensor work = bytes(500);
  const at::Tensor y = bytes(64);
  recorder().begin(10 + 500 + 64);  // all that is live
  work = at::Tensor();
  const Blocks results{block_of(y)};
  recorder().op_ended("mm", "", 1, 0, results);
  const Tape tape = recording.end();
  REQUIRE(tape.ops.size() == 1);
  CHECK(tape.storages[0].bytes == 10);
  CHECK(tape.ops[0].working_bytes == 500);
  CHECK(tape_peak(tape) == 574);
}

TEST_CASE("tags of an earlier tape mean nothing on a later one") {
  at::Tensor y;
  std::uint64_t saved = 0;
  {
    Recording first(0);
    y = bytes(64);
    saved = recorder().packed(*block_of(y));
    first.end();
  }
  Recording second(64);
  recorder().unpacked(saved);
  recorder().let_go(block_of(y)->tag);
  y = at::Tensor();
  const Tape tape = second.end();
  CHECK(letters(tape) == "MMF");
  CHECK(tape_peak(tape) == 64);
}

TEST_CASE("the tape's peak is the counted one, whatever is made and freed, in ops and between") {
  std::mt19937 random(3);
  const auto draw = [&](std::uint32_t count) { return random() % count; };
  for (int round = 0; round < 200; ++round) {
    std::vector<at::Tensor> alive;
    for (std::uint32_t i = draw(5); i > 0; --i) alive.push_back(bytes(1 + draw(1000)));
    const Bytes outside = MemoryMeter().live_bytes();
    Recording recording(outside);
    MemoryMeter meter;
    const auto make_or_free = [&] {
      if (draw(2) == 0 || alive.empty()) {
        alive.push_back(bytes(1 + draw(1000)));
      } else {
        alive.erase(alive.begin() + draw(static_cast<std::uint32_t>(alive.size())));
      }
    };
    for (int step = 0; step < 30; ++step) {
      if (draw(2) == 0) {
        make_or_free();
        continue;
      }
      Blocks reads;
      for (const at::Tensor& tensor : alive) {
        if (draw(3) == 0) reads.push_back(block_of(tensor));
      }
      const std::vector<at::Tensor> inputs = alive;  // an op's arguments outlive it
      recorder().op_begins(reads, {});
      std::vector<at::Tensor> made;
      for (std::uint32_t i = draw(6); i > 0; --i) {
        made.push_back(bytes(1 + draw(1000)));
        if (draw(2) == 0) made.erase(made.begin() + draw(static_cast<std::uint32_t>(made.size())));
      }
      Blocks results;
      for (const at::Tensor& tensor : made) results.push_back(block_of(tensor));
      recorder().op_ended("any", "", 1, 0, results);
      alive.insert(alive.end(), made.begin(), made.end());
    }
    CHECK(tape_peak(recording.end()) == meter.peak_bytes());
  }
}
