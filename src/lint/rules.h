#pragma once
// The rules by name, with the page that `lowtide lint --explain RULE` prints (docs/lint/RULE.md).

#include <string>
#include <string_view>
#include <vector>

namespace lowtide::lint {

struct Rule {
  std::string_view name;
  std::string_view page;  // Markdown
  // The page's first sentence.
  std::string_view summary() const;
};

const std::vector<Rule>& rules();

// Throws UsageError (LT0551) with all names when there is none called so.
const Rule& find_rule(std::string_view name);

}  // namespace lowtide::lint
