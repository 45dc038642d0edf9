#include "src/diagnose/joined_rules.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "src/base/text.h"
#include "src/evidence/snapshot_reader.h"
#include "src/tape/tape_file.h"

using namespace lowtide;  // the tests of one header

namespace {

const std::string kData = LOWTIDE_SOURCE_DIR "/tests/data/";

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

LogEvidence log_of(const std::string& text, const std::string& name = "train.log") {
  return read_log_text(text, name);
}

Snapshot snapshot(const char* name) { return read_snapshot(kData + "snapshots/" + name); }

TapeFacts step_tape() {
  return facts_of(parse_tape(text_of(kData + "tapes/step.tape")), "step.tape");
}

std::string slug(const Diagnosis& diagnosis) {
  return std::string(cause_info(diagnosis.findings.front().cause).slug);
}

const Finding* find(const Diagnosis& diagnosis, Cause cause) {
  for (const Finding& finding : diagnosis.findings) {
    if (finding.cause == cause) return &finding;
  }
  return nullptr;
}

bool says(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(), [&part](const std::string& text) {
    return text.find(part) != std::string::npos;
  });
}

// A message of 2.2 and later.
std::string message(const char* asked, const char* free, int gpu = 1,
                    const char* capacity = "512.00 MiB", const char* allocated = "140.00 MiB",
                    const char* unused = "60.00 MiB") {
  return concat("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ", asked, ". GPU ",
                gpu, " has a total capacity of ", capacity, " of which ", free,
                " is free. Of the allocated memory ", allocated, " is allocated by PyTorch, and ",
                unused, " is reserved by PyTorch but unallocated.\n");
}

}  // namespace

TEST_CASE("a message and a failure are one when device, request and free memory agree") {
  const Snapshot holes = snapshot("holes.pickle");
  const auto matches = [&holes](const std::string& text) {
    const std::vector<LogEvidence> logs{log_of(text)};
    return facts_of(holes, logs, false).devices[0].message != nullptr;
  };
  CHECK(matches(message("40.00 MiB", "10.00 MiB")));
  CHECK(!matches(message("42.00 MiB", "10.00 MiB")));
  CHECK(!matches(message("40.00 MiB", "10.02 MiB")));
  CHECK(!matches(message("40.00 MiB", "10.00 MiB", 0)));
  // Without a matching one the trace's own failure is told.
  CHECK(facts_of(holes, {}, false).devices[0].failure->event.event == 30);
}

TEST_CASE("what fits but for holes is fragmentation, with the setting that helps") {
  for (const bool with_log : {false, true}) {
    CAPTURE(with_log);
    std::vector<LogEvidence> logs;
    if (with_log) logs.push_back(log_of(text_of(kData + "logs/holes.log")));
    const std::vector<SnapshotFacts> facts{facts_of(snapshot("holes.pickle"), logs)};
    const Diagnosis diagnosis = diagnose(logs, facts, {});
    const Finding& first = diagnosis.findings.front();
    CHECK(slug(diagnosis) == "fragmentation");
    CHECK(first.confidence == Confidence::kCertain);
    CHECK(first.fixes.front() ==
          "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, with which the replay completes");
    CHECK(first.why.find("60.0 MiB lay free for such a request, the largest piece 6.00 MiB") !=
          std::string::npos);
    CHECK(says(first.evidence, "model.py:41:forward 56.0 MiB (40%)"));
    CHECK(says(first.evidence, "x = self.wide(x)") == with_log);
    CHECK(diagnosis.conflicts.empty());
  }
}

TEST_CASE("more than there was is no fragmentation, however much lay free") {
  Snapshot holes = snapshot("holes.pickle");
  for (std::size_t i = 0; i < holes.events.count(); ++i) {
    // 140 in use and 80 asked for, of 210 MiB.
    if (holes.events.action[i] == EventAction::kOom) holes.events.size[i] = 80_MiB;
  }
  const std::vector<SnapshotFacts> facts{facts_of(holes, {})};
  const Diagnosis diagnosis = diagnose({}, facts, {});
  CHECK(slug(diagnosis) == "batch_or_input_too_large");
  CHECK(diagnosis.findings.front().why.find("no setting and no empty_cache() helps") !=
        std::string::npos);
  CHECK(diagnosis.findings.front().why.find("it completes from 220 MiB") == std::string::npos);
  const Finding* holes_finding = find(diagnosis, Cause::kFragmentation);
  if (holes_finding != nullptr) CHECK(holes_finding->confidence == Confidence::kPossible);
  for (const WhatIfRow& row : facts[0].devices[0].rows) CHECK(row.completes == false);
}

TEST_CASE("a refusal with room on the device is a limit, and no fragmentation") {
  Snapshot holes = snapshot("holes.pickle");
  for (std::size_t i = 0; i < holes.events.count(); ++i) {
    if (holes.events.action[i] == EventAction::kOom) holes.events.address[i] = 300_MiB;
  }
  const std::vector<SnapshotFacts> alone{facts_of(holes, {}, false)};
  CHECK(slug(diagnose({}, alone, {})) == "memory_fraction_cap");
  // The message says how much was allowed: then that is what there was, 160 MiB for 140 and 40.
  const std::vector<LogEvidence> logs{
      log_of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 40.00 MiB. GPU 1 has a "
             "total capacity of 512.00 MiB of which 300.00 MiB is free. 160.00 MiB allowed; Of the "
             "allocated memory 140.00 MiB is allocated by PyTorch, and 60.00 MiB is reserved by "
             "PyTorch but unallocated.\n")};
  const std::vector<SnapshotFacts> facts{facts_of(holes, logs, false)};
  REQUIRE(facts[0].devices[0].message != nullptr);
  CHECK(*facts[0].devices[0].available == 160_MiB);
  const Diagnosis joined = diagnose(logs, facts, {});
  CHECK(slug(joined) == "memory_fraction_cap");
  CHECK(joined.findings.front().confidence == Confidence::kCertain);
}

TEST_CASE("what was live is told of the failure, not of the peak") {
  const std::vector<SnapshotFacts> facts{facts_of(snapshot("step.pickle"), {}, false)};
  const DeviceFacts& device = facts[0].devices[0];
  CHECK(device.analysis.peak.bytes > device.moment.live);
  CHECK(device.moment.live == device.failure->event.live);
  const Diagnosis diagnosis = diagnose({}, facts, {});
  CHECK(slug(diagnosis) == "batch_or_input_too_large");
  CHECK(says(diagnosis.findings.front().evidence, "33.0 MiB live when event 43 failed"));
  REQUIRE(diagnosis.sighting != nullptr);
  CHECK(diagnosis.sighting->message.family == MessageFamily::kSnapshotFailure);
}

TEST_CASE("the capacity of the replays is the log's where the trace has no failure") {
  Snapshot holes = snapshot("holes.pickle");
  for (std::size_t i = 0; i < holes.events.count(); ++i) {
    if (holes.events.action[i] == EventAction::kOom) holes.events.action[i] = EventAction::kOther;
  }
  const std::vector<LogEvidence> logs{log_of(message("40.00 MiB", "10.00 MiB"))};
  const SnapshotFacts with_log = facts_of(holes, logs, false);
  REQUIRE(with_log.devices[0].available.has_value());
  CHECK(*with_log.devices[0].available == 210_MiB);
  CHECK(with_log.devices[0].rows[0].completes == true);
  CHECK(!facts_of(holes, {}, false).devices[0].available);
}

TEST_CASE("a line that grows is history when something failed, and worth a word when nothing did") {
  Snapshot later = snapshot("later.pickle");
  const std::vector<SnapshotFacts> facts{facts_of(later, {}, false)};
  const Diagnosis diagnosis = diagnose({}, facts, {});
  const Finding* history = find(diagnosis, Cause::kHistoryAccumulation);
  REQUIRE(history != nullptr);
  CHECK(history->confidence == Confidence::kPossible);
  CHECK(history->why.find("train.py:52:log") != std::string::npos);
}

TEST_CASE("a snapshot in which nothing failed is unknown, and says what it holds") {
  const std::vector<SnapshotFacts> facts{facts_of(snapshot("libtorch.pickle"), {}, false)};
  const Diagnosis diagnosis = diagnose({}, facts, {});
  CHECK(slug(diagnosis) == "unknown");
  CHECK(says(diagnosis.findings.front().evidence, " live "));
  CHECK(!says(diagnosis.findings.front().fixes, "_record_memory_history"));
}

TEST_CASE("files of different runs are said not to fit") {
  const Snapshot holes = snapshot("holes.pickle");
  const auto conflicts = [&holes](const std::string& text) {
    const std::vector<LogEvidence> logs{log_of(text)};
    const std::vector<SnapshotFacts> facts{facts_of(holes, logs, false)};
    return diagnose(logs, facts, {}).conflicts;
  };
  CHECK(conflicts(message("40.00 MiB", "10.00 MiB")).empty());
  CHECK(says(conflicts(message("44.00 MiB", "10.00 MiB")), "another run, or another failure"));
  CHECK(says(conflicts(message("40.00 MiB", "10.00 MiB", 3)), "about GPU 3"));
  CHECK(says(conflicts(message("40.00 MiB", "9.00 MiB", 1, "128.00 MiB")), "another machine's"));
  CHECK(conflicts("all is well\n").empty());
  CHECK(conflicts("RuntimeError: CUDA error: out of memory\n").empty());

  // Eight ranks in one log, one rank's snapshot: the others' messages are no conflict. Without its
  // own among them, one sentence.
  std::string ranks;
  for (const int gpu : {0, 1, 2, 3}) ranks += message("40.00 MiB", "10.00 MiB", gpu);
  CHECK(conflicts(ranks).empty());
  CHECK(conflicts(message("40.00 MiB", "10.00 MiB", 3) + message("40.00 MiB", "10.00 MiB", 4))
            .size() == 1);

  // Without a failure in the trace: more in the snapshot than the message says that there was.
  Snapshot later = snapshot("later.pickle");
  const auto of_later = [&later](const char* allocated, const char* unused) {
    const std::vector<LogEvidence> logs{
        log_of(message("40.00 MiB", "10.00 MiB", 0, "8.00 GiB", allocated, unused))};
    const std::vector<SnapshotFacts> facts{facts_of(later, logs, false)};
    return diagnose(logs, facts, {}).conflicts;
  };
  CHECK(of_later("60.00 MiB", "20.00 MiB").empty());
  CHECK(says(of_later("10.00 MiB", "2.00 MiB"), "another run, or another moment"));
}

TEST_CASE("a tape's peak by kind adds up to the peak, and the floor is not above what carries it") {
  const Tape tape = parse_tape(text_of(kData + "tapes/step.tape"));
  const TapeFacts facts = step_tape();
  CHECK(facts.peak == tape_peak(tape));
  Bytes sum = facts.working_at_peak;
  for (const Bytes bytes : facts.at_peak) sum += bytes;
  CHECK(sum == facts.peak);
  CHECK(facts.at_peak[static_cast<std::size_t>(StorageKind::kSaved)] == 12_MiB);
  CHECK(facts.at_peak[static_cast<std::size_t>(StorageKind::kParameter)] == 3_MiB);
  REQUIRE(facts.smallest.has_value());
  CHECK(facts.floor <= *facts.smallest);
  CHECK(*facts.smallest < facts.peak);
}

TEST_CASE("of a tape that ends early only the lower bound is told") {
  Tape tape = parse_tape(text_of(kData + "tapes/step.tape"));
  tape.events.resize(20);
  const TapeFacts facts = facts_of(tape, "part.tape");
  CHECK(!facts.is_whole);
  CHECK(!facts.smallest.has_value());
  CHECK(facts.floor > 0);
  CHECK(summary_of(facts).find("the begin of a step") != std::string::npos);
  CHECK(step_tape().is_whole);
}

TEST_CASE("a budget's refusal is a cap, and the tape says what would carry the step") {
  const std::vector<LogEvidence> logs{log_of(text_of(kData + "logs/budget.log"))};
  const std::vector<TapeFacts> tapes{step_tape()};
  const Diagnosis alone = diagnose(logs);
  CHECK(slug(alone) == "memory_fraction_cap");
  CHECK(alone.findings.front().confidence == Confidence::kCertain);
  CHECK(says(alone.findings.front().fixes, "a budget of at least 3670016 bytes"));
  CHECK(!says(alone.findings.front().fixes, "MPS"));
  const Diagnosis joined = diagnose(logs, {}, tapes);
  CHECK(slug(joined) == "memory_fraction_cap");
  // 3 MiB were allowed; the tape's floor is above.
  CHECK(tapes[0].floor > 3_MiB);
  CHECK(says(joined.findings.front().fixes, "no budget carries this step in 3.00 MiB"));
  CHECK(joined.conflicts.empty());
}

TEST_CASE("a tape of a step that fits is not the step that was refused") {
  std::string text = text_of(kData + "logs/budget.log");
  const std::size_t at = text.find("limit of 3.00 MiB");
  text.replace(at, 17, "limit of 3.00 GiB");
  const std::vector<LogEvidence> logs{log_of(text)};
  const std::vector<TapeFacts> tapes{step_tape()};
  CHECK(says(diagnose(logs, {}, tapes).conflicts, "another step"));
}

TEST_CASE("findings of logs alone are as they were") {
  for (const char* name : {"cross_entropy.log", "ranks.log", "killed.log", "holes.log"}) {
    CAPTURE(name);
    const std::vector<LogEvidence> logs{log_of(text_of(kData + "logs/" + name))};
    const Diagnosis one = diagnose(logs);
    const Diagnosis other = diagnose(logs, {}, {});
    REQUIRE(one.findings.size() == other.findings.size());
    for (std::size_t i = 0; i < one.findings.size(); ++i) {
      CHECK(one.findings[i].why == other.findings[i].why);
      CHECK(one.findings[i].weight == other.findings[i].weight);
    }
  }
}
