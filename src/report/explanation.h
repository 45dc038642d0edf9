#pragma once
// A diagnosis as text for people and as JSON.

#include <string>

#include "src/base/json.h"
#include "src/diagnose/diagnosis.h"
#include "src/diagnose/snapshot_facts.h"
#include "src/diagnose/tape_facts.h"

namespace lowtide {

// What a diagnosis was made from.
struct Evidence {
  std::vector<LogEvidence> logs;
  std::vector<SnapshotFacts> snapshots;
  std::vector<TapeFacts> tapes;
  std::vector<std::string> unreadable;  // why files that were given could not be read
};

// {"findings":[{"cause","confidence","why","evidence":[..],"fixes":[..],"record"}],"facts":{..}}:
// findings ranked and never empty; integers are bytes. "record" is an id of the error catalogue or
// null. "facts" holds what was read: the sources, the messages with their numbers, the arithmetic,
// the phase and the frame; of snapshots what was live, what lay free and the replays; of tapes the
// peak by kind and what the step can run in; conflicts between them.
Json explanation_json(const Diagnosis& diagnosis, const Evidence& evidence);

// At most 100 columns; ends by naming the next useful command.
std::string explanation_text(const Diagnosis& diagnosis, const Evidence& evidence);

}  // namespace lowtide
