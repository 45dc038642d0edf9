#include "src/report/refusal_record.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "src/diagnose/diagnosis.h"
#include "src/evidence/snapshot_analysis.h"
#include "src/evidence/snapshot_reader.h"
#include "src/report/memory_report_files.h"
#include "src/tape/tape_file.h"

using namespace lowtide;  // the tests of one header

namespace {

const char* const kMessage =
    "budget: cannot allocate 1.00 MiB for aten::mm within the limit of 3.00 MiB: 2.50 MiB are live "
    "(parameters 512 KiB, saved 2.00 MiB) and nothing more can be given back: what is live is in "
    "use, or cannot be made again. The smallest budget for this step is at least 3.50 MiB (3670016 "
    "bytes) [LT0301]";

RefusalRecord record() {
  RefusalRecord record;
  record.message = kMessage;
  record.op = "aten::mm";
  record.request_bytes = 1_MiB;
  record.limit_bytes = 3_MiB;
  record.live_bytes = 2560_KiB;
  record.live = {
      {.op = "aten::addmm", .kind = StorageKind::kSaved, .bytes = 1536_KiB, .tensors = 3},
      {.op = "aten::cat", .line = "job.py:12", .kind = StorageKind::kSaved, .bytes = 256_KiB},
      {.op = "",
       .kind = StorageKind::kParameter,
       .bytes = 512_KiB,
       .tensors = 2,
       .program_held = true}};
  return record;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string line_of(const DeviceAnalysis& device, std::size_t i) {
  return device.user_lines[i].line;
}

}  // namespace

TEST_CASE("a refusal's snapshot has what was live, by op and kind, and the rest by name") {
  const Snapshot snapshot = snapshot_of(record());
  const DeviceAnalysis device = analyse(snapshot).devices[0];
  CHECK(device.live_at_end == 2560_KiB);
  CHECK(device.peak.bytes == 2560_KiB);
  CHECK(device.reserved == 2560_KiB);
  REQUIRE(device.user_lines.size() == 4);
  CHECK(line_of(device, 0) == "aten::addmm");
  CHECK(device.user_lines[0].bytes == 1536_KiB);
  CHECK(device.user_lines[0].allocations == 3);
  CHECK(line_of(device, 1) == "[before the budget]");
  CHECK(line_of(device, 2) == "job.py:12:aten::cat");
  const auto of = [&device](BlockKind kind) {
    return device.kinds[static_cast<std::size_t>(kind)].bytes;
  };
  CHECK(of(BlockKind::kActivations) == 1792_KiB);
  CHECK(of(BlockKind::kParameters) == 512_KiB);
  CHECK(of(BlockKind::kUnattributed) == 256_KiB);  // 2560 less what is named
  REQUIRE(device.out_of_memory.size() == 1);
  CHECK(device.out_of_memory[0].requested == 1_MiB);
  CHECK(device.out_of_memory[0].available() == 3_MiB);
  CHECK(device.out_of_memory[0].line == "aten::mm");
  CHECK(device.notes.empty());
  // Innermost the op, then who holds it, outermost the kind.
  std::string held;
  for (const SnapshotBlock& block : snapshot.blocks) {
    const auto frames = snapshot.frames_of(block.stack);
    if (frames.size() != 3) continue;
    for (const std::uint32_t id : frames) {
      held += std::string(snapshot.texts.view(snapshot.frames[id].function)) + "; ";
    }
  }
  CHECK(held ==
        "[before the budget]; held by the program; parameters; "
        "[before the budget]; held by the program; parameters; ");
}

TEST_CASE("a log of another refusal is said not to fit") {
  const auto conflicts = [](const char* from, const char* to) {
    std::string text = kMessage;
    text.replace(text.find(from), std::strlen(from), to);
    const std::vector<LogEvidence> logs{read_log_text(text, "log")};
    const std::vector<SnapshotFacts> facts{facts_of(snapshot_of(record()), logs)};
    return diagnose(logs, facts, {}).conflicts.size();
  };
  CHECK(conflicts("3.00", "3.00") == 0);
  CHECK(conflicts("limit of 3.00", "limit of 3.50") == 1);
  CHECK(conflicts("allocate 1.00", "allocate 1.25") == 1);
}

TEST_CASE("sizes that are more than what was live are cut off there, and nothing overflows") {
  RefusalRecord wrong = record();
  wrong.live_bytes = 1_MiB;
  wrong.limit_bytes = 512_KiB;
  wrong.live.push_back({.op = "aten::x",
                        .kind = StorageKind::kWorkspace,
                        .bytes = ~Bytes{0},
                        .tensors = ~std::uint64_t{0}});
  const DeviceAnalysis device = analyse(snapshot_of(wrong)).devices[0];
  CHECK(device.live_at_end == 1_MiB);
  CHECK(device.out_of_memory[0].device_free == 0);
  CHECK(analyse(snapshot_of({})).devices[0].live_at_end == 0);
}

TEST_CASE("the step's tape becomes the trace while nothing was dropped") {
  RefusalRecord with_tape = record();
  Tape tape = parse_tape(text_of(LOWTIDE_SOURCE_DIR "/tests/data/tapes/step.tape"));
  // Up to the middle of the forward pass: seven made at the start, and three heads.
  tape.events.resize(18);
  Bytes live = 0;
  const auto lives = lifetimes(tape);
  for (std::size_t i = 0; i < lives.size(); ++i) {
    if (lives[i].made < 18 && lives[i].freed == 18) live += tape.storages[i].bytes;
  }
  with_tape.tape = tape;
  with_tape.live_bytes = live;
  const DeviceAnalysis device = analyse(snapshot_of(with_tape)).devices[0];
  CHECK(device.live_at_start == 0);
  CHECK(device.live_at_end == live);
  CHECK(device.peak.bytes == live);
  CHECK(device.event_count > 10);
  CHECK(device.notes.empty());
  CHECK(device.kinds[static_cast<std::size_t>(BlockKind::kParameters)].bytes == 3_MiB);
  CHECK(line_of(device, 0) == "aten::mm");
  // After a drop the tape has more than is live: then the groups are told.
  with_tape.live_bytes = 2560_KiB;
  const DeviceAnalysis dropped = analyse(snapshot_of(with_tape)).devices[0];
  CHECK(dropped.event_count == 1);
  CHECK(line_of(dropped, 0) == "aten::addmm");
}

TEST_CASE("a freed storage of the tape is freed in the trace") {
  RefusalRecord whole = record();
  whole.tape = parse_tape(text_of(LOWTIDE_SOURCE_DIR "/tests/data/tapes/step.tape"));
  whole.live_bytes = 3_MiB + 1_MiB + 3_MiB + 4;  // parameters, the input, gradients, the loss
  const DeviceAnalysis device = analyse(snapshot_of(whole)).devices[0];
  CHECK(device.live_at_end == whole.live_bytes);
  CHECK(device.peak.bytes == tape_peak(*whole.tape));  // at a moment without working bytes
  CHECK(device.notes.empty());
}

TEST_CASE("a refusal without groups is told by the details of its error") {
  const RefusalRecord from =
      refusal_of(kMessage, {{"request_bytes", std::int64_t{1 << 20}},
                            {"limit_bytes", std::int64_t{3 << 20}},
                            {"live_bytes", std::int64_t{2560 << 10}},
                            {"op", std::string("the program")},
                            {"live_saved_bytes", std::int64_t{2 << 20}},
                            {"live_parameters_bytes", std::int64_t{512 << 10}},
                            {"live_gradients_bytes", std::int64_t{0}},
                            {"live_workspace_bytes", std::int64_t{-5}}});
  CHECK(from.op.empty());
  CHECK(from.request_bytes == 1_MiB);
  CHECK(from.limit_bytes == 3_MiB);
  const DeviceAnalysis device = analyse(snapshot_of(from)).devices[0];
  CHECK(device.kinds[static_cast<std::size_t>(BlockKind::kActivations)].bytes == 2_MiB);
  CHECK(device.kinds[static_cast<std::size_t>(BlockKind::kParameters)].bytes == 512_KiB);
  CHECK(device.out_of_memory[0].line == "the program");
}

TEST_CASE("the report of a refusal is three files, that say the same as explain") {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("lowtide_refusal_" + std::to_string(std::random_device{}()));
  std::filesystem::create_directory(folder);
  RefusalRecord with_tape = record();
  with_tape.tape = parse_tape(text_of(LOWTIDE_SOURCE_DIR "/tests/data/tapes/step.tape"));
  const MemoryReportPaths paths =
      write_memory_report((folder / "oom").string(), evidence_of(with_tape));
  CHECK(paths.snapshot == (folder / "oom.pickle").string());
  const std::string text = text_of(paths.explanation);
  for (const char* part :
       {"memory_fraction_cap (certain)", "this step needs at least 3.50 MiB",
        "the CPU: 2.50 MiB live when event 0 failed", "aten::addmm", "activations",
        "a step of 25 ops", "no budget carries this step in 3.00 MiB"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  // One refusal, told once; and nothing of a card's.
  CHECK(text.find("do not fit together") == std::string::npos);
  CHECK(text.find("expandable_segments") == std::string::npos);
  CHECK(text.find("empty_cache") == std::string::npos);
  CHECK(read_snapshot(paths.snapshot).is_budget);
  CHECK(text_of(paths.page).find("the CPU") != std::string::npos);
  CHECK(parse_tape(text_of(paths.tape)).ops.size() == 25);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a folder that is not there is told") {
  try {
    write_memory_report("/no/such/folder/oom", evidence_of(record()));
    FAIL("written");
  } catch (const IoError& error) {
    CHECK(error.id() == "LT0722");
  }
}
