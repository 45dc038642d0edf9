// Rules that what stands in the source decides.

#include "src/lint/judge.h"

namespace lowtide::lint {

std::vector<RawFinding> judge_source(const SyntaxTree&, Names&, Vocabulary&) { return {}; }

}  // namespace lowtide::lint
