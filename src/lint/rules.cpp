#include "src/lint/rules.h"

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide::lint {

std::string_view Rule::summary() const {
  // After the title and an empty line.
  const std::size_t begin = page.find("\n\n");
  if (begin == std::string_view::npos) return page;
  const std::string_view rest = page.substr(begin + 2);
  return rest.substr(0, rest.find('\n'));
}

const Rule& find_rule(std::string_view name) {
  std::string names;
  for (const Rule& rule : rules()) {
    if (rule.name == name) return rule;
    names += concat(names.empty() ? "" : ", ", rule.name);
  }
  throw UsageError("LT0551",
                   concat("there is no lint rule \"", name, "\". The rules are: ", names));
}

}  // namespace lowtide::lint
