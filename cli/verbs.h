#pragma once
// The tables of all verbs; each is defined in its own file.

#include "cli/verb.h"

namespace lowtide {

Verb train_verb();
Verb verify_verb();
Verb explain_verb();
Verb errors_verb();
Verb doctor_verb();
Verb lint_verb();
Verb snapshot_verb();
Verb replay_verb();
Verb report_verb();
Verb run_verb();
Verb record_verb();
Verb predict_verb();
Verb plan_verb();

}  // namespace lowtide
