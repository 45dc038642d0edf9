#pragma once
// A diagnosis as text for people and as JSON.

#include <string>

#include "src/base/json.h"
#include "src/diagnose/diagnosis.h"

namespace lowtide {

// {"findings":[{"cause","confidence","why","evidence":[..],"fixes":[..],"record"}],"facts":{..}}:
// findings ranked and never empty; integers are bytes. "record" is an id of the error catalogue or
// null. "facts" holds what was read: the sources, the messages with their numbers, the arithmetic,
// the phase and the frame.
Json explanation_json(const Diagnosis& diagnosis, const std::vector<LogEvidence>& logs);

// At most 100 columns; ends by naming the next useful command.
std::string explanation_text(const Diagnosis& diagnosis, const std::vector<LogEvidence>& logs);

}  // namespace lowtide
