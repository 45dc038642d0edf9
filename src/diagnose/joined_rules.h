#pragma once
// Rules about snapshots and tapes, and about what they and logs say together.

#include <string>
#include <vector>

#include "src/diagnose/findings.h"
#include "src/diagnose/snapshot_facts.h"
#include "src/diagnose/tape_facts.h"
#include "src/evidence/log_evidence.h"

namespace lowtide {

// `has_failed`: something in the evidence ran out of memory.
void weigh_snapshot(const SnapshotFacts& snapshot, bool has_failed, Findings& all);
void weigh_tape(const TapeFacts& tape, const std::vector<LogEvidence>& logs,
                const std::vector<SnapshotFacts>& snapshots, bool has_failed, Findings& all);

// What cannot be of one run, or of one moment: a sentence each.
std::vector<std::string> find_conflicts(const std::vector<LogEvidence>& logs,
                                        const std::vector<SnapshotFacts>& snapshots,
                                        const std::vector<TapeFacts>& tapes);

// One line each, for evidence.
std::string summary_of(const SnapshotFacts& snapshot, const DeviceFacts& device);
std::string summary_of(const TapeFacts& tape);

}  // namespace lowtide
