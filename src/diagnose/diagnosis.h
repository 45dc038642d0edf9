#pragma once
// From what logs, snapshots and tapes say to why the memory ran out.
//
//   Diagnosis diagnosis = diagnose({read_log(source, "train.log")});
//   diagnosis.findings.front().cause;   // the likeliest
//
// Findings are ranked and never empty: where nothing can be said there is one, kUnknown, whose
// fixes say what to collect. `certain` is kept for what a message states or arithmetic proves.
// The rules are in diagnosis.cpp (messages) and joined_rules.cpp (snapshots and tapes, and what
// they say together with messages), each beside its reason. Pure: no clock, no files.

#include <optional>
#include <string>
#include <vector>

#include "src/diagnose/cause.h"
#include "src/diagnose/snapshot_facts.h"
#include "src/diagnose/tape_facts.h"
#include "src/evidence/log_evidence.h"

namespace lowtide {

enum class Confidence { kCertain, kLikely, kPossible, kUnknown };

const char* confidence_name(Confidence confidence);

struct Finding {
  Cause cause = Cause::kUnknown;
  Confidence confidence = Confidence::kUnknown;
  int weight = 0;  // 0 to 100: what findings are ranked by
  std::string why;
  std::vector<std::string> evidence;  // places and numbers, most telling first
  std::vector<std::string> fixes;
  bool has_own_fixes = false;  // the cause's usual ones do not fit this one
};

// A size as a product of lengths and the bytes of an element.
struct Factors {
  std::vector<Bytes> lengths;  // "30688 x 151936"
  Bytes element_bytes = 0;
  std::string words;  // "17.37 GiB = 30688 tokens x 151936 vocabulary x 4 bytes"
};

struct Diagnosis {
  std::vector<Finding> findings;
  // What of the evidence cannot be of one run, a sentence each.
  std::vector<std::string> conflicts;
  // The message that the first finding is about, or a snapshot's failed request; null when there
  // is none.
  const Sighting* sighting = nullptr;
  const LogEvidence* log = nullptr;
};

// What is given must outlive the result. Facts of snapshots are made with the same `logs`.
Diagnosis diagnose(const std::vector<LogEvidence>& logs);
Diagnosis diagnose(const std::vector<LogEvidence>& logs,
                   const std::vector<SnapshotFacts>& snapshots,
                   const std::vector<TapeFacts>& tapes);

// Looks for tokens x vocabulary x bytes within what `size` was rounded from. `numbers` are whole
// numbers that stand in the log near the message; a pair of them is taken before any other. With
// none, a known vocabulary and a number of tokens that is a multiple of 64 is taken, but only when
// there is no second such pair.
std::optional<Factors> factor_logits(const PrintedBytes& size, const std::vector<Bytes>& numbers);

}  // namespace lowtide
