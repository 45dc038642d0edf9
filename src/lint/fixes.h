#pragma once
// The edits that mend a finding, where there is one way to mend it.

#include <optional>
#include <string>
#include <vector>

#include "src/lint/finding.h"
#include "src/lint/judge.h"

namespace lowtide::lint {

std::optional<Fix> fix_for(const RawFinding& finding, const SyntaxTree& tree, Names& names,
                           Vocabulary& words);

// Applies the edits that do not overlap an earlier one; `applied` tells which fixes were.
std::string apply_fixes(const std::string& source, const std::vector<const Fix*>& fixes,
                        std::vector<bool>& applied);

// What changed, as `diff -u` would print it, without a line when nothing did.
std::string unified_diff(const std::string& path, const std::string& before,
                         const std::string& after);

}  // namespace lowtide::lint
