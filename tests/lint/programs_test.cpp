// Programs after public reports. A line with `# expect: RULE [COST]` must be reported so, and
// nothing else; programs without such a line look like mistakes and are right. `# missed: RULE`
// marks a mistake that is known not to be found: whoever finds it takes the mark away.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "src/base/text.h"
#include "src/lint/lint.h"
#include "src/lint/report.h"
#include "src/lint/rules.h"

namespace lowtide::lint {
namespace {

namespace fs = std::filesystem;

struct Tally {
  int right = 0, missed = 0, false_alarms = 0, wrong_cost = 0, programs = 0, look_alikes = 0,
      known_misses = 0;
  std::set<std::string> rules;
};

Tally judge_folder(const fs::path& folder) {
  Tally tally;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".py") continue;
    std::ifstream in(entry.path());
    std::stringstream text;
    text << in.rdbuf();
    std::set<std::pair<std::uint32_t, std::string>> expected;
    std::map<std::pair<std::uint32_t, std::string>, std::string> costs;
    std::istringstream lines(text.str());
    std::uint32_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.find("# missed: ") != std::string::npos) ++tally.known_misses;
      const std::size_t at = line.find("# expect: ");
      if (at == std::string::npos) continue;
      std::istringstream words(line.substr(at + 10));
      std::string rule, cost;
      words >> rule >> cost;
      expected.emplace(number, rule);
      tally.rules.insert(rule);
      if (!cost.empty()) costs[{number, rule}] = cost;
    }
    ++tally.programs;
    if (expected.empty()) ++tally.look_alikes;
    for (const Finding& finding :
         lint_source(text.str(), entry.path().filename().string(), false)) {
      const std::pair<std::uint32_t, std::string> key{finding.line, finding.rule};
      INFO(finding.file, ":", finding.line, " ", finding.rule);
      if (expected.erase(key) == 0) {
        ++tally.false_alarms;
        MESSAGE("false alarm: ", finding.file, ":", finding.line, " ", finding.rule);
        continue;
      }
      ++tally.right;
      if (costs.count(key) != 0 && costs[key] != word_for(finding.cost)) {
        ++tally.wrong_cost;
        MESSAGE("wrong cost: ", finding.file, ":", finding.line, " ", word_for(finding.cost));
      }
    }
    for (const auto& [line, rule] : expected) {
      ++tally.missed;
      MESSAGE("missed: ", entry.path().filename().string(), ":", line, " ", rule);
    }
  }
  return tally;
}

const fs::path kHere = fs::path(LOWTIDE_SOURCE_DIR) / "tests/lint";

TEST_CASE("at least 60 programs after reports, two in five of them right, are judged as marked") {
  const Tally tally = judge_folder(kHere / "programs");
  CHECK(tally.programs >= 60);
  CHECK(tally.look_alikes * 10 >= tally.programs * 4);
  CHECK(tally.missed == 0);
  CHECK(tally.false_alarms == 0);
  CHECK(tally.wrong_cost == 0);
  // Every rule that is documented has a program, but for the one about syntax.
  CHECK(tally.rules.size() + 1 == rules().size());
}

TEST_CASE("programs written after the rules were are judged as marked") {
  const Tally tally = judge_folder(kHere / "more_programs");
  CHECK(tally.programs >= 370);
  CHECK(tally.look_alikes * 10 >= tally.programs * 4);
  CHECK(tally.missed == 0);
  CHECK(tally.false_alarms == 0);
  CHECK(tally.wrong_cost == 0);
  CHECK(tally.known_misses == 2);
  CHECK(tally.rules.size() + 1 == rules().size());
}

}  // namespace
}  // namespace lowtide::lint
