#pragma once
// A report as text for people and editors, as JSON, and as SARIF 2.1.0.

#include <string>

#include "src/lint/lint.h"

namespace lowtide::lint {

std::string_view word_for(Cost cost);
std::string to_lines(const Report& report);  // file:line:column: cost: message [rule]
std::string to_json(const Report& report);
std::string to_sarif(const Report& report);

}  // namespace lowtide::lint
