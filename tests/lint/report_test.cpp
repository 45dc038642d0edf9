#include "src/lint/report.h"

#include <doctest/doctest.h>

#include "src/base/json.h"
#include "src/lint/rules.h"

namespace lowtide::lint {
namespace {

Report one_finding() {
  Report report;
  report.findings.push_back({"a.py", 3, 5, "history-accumulated", "kept \xFF", Cost::kCreep,
                             Fix{"detach", true, {{10, 10, ".detach()"}}}, ""});
  return report;
}

TEST_CASE("JSON has the promised keys, and no finding is an empty array") {
  const Json rows = parse_json(to_json(one_finding()));
  const Json& row = rows.as_array().at(0);
  CHECK(row.at("file").as_string() == "a.py");
  CHECK(row.at("line").as_int64() == 3);
  CHECK(row.at("column").as_int64() == 5);
  CHECK(row.at("rule").as_string() == "history-accumulated");
  CHECK(row.at("cost").as_string() == "creep");
  CHECK(row.at("message").as_string() == "kept \xEF\xBF\xBD");
  CHECK(row.at("fix").at("safe").as_bool());
  CHECK(row.at("fix").at("edits").as_array().size() == 1);
  CHECK(to_json(Report{}) == "[]\n");
}

TEST_CASE("SARIF names its version, every rule, and the place of a finding") {
  const Json log = parse_json(to_sarif(one_finding()));
  CHECK(log.at("version").as_string() == "2.1.0");
  const Json& run = log.at("runs").as_array().at(0);
  CHECK(run.at("tool").at("driver").at("rules").as_array().size() == rules().size());
  const Json& result = run.at("results").as_array().at(0);
  CHECK(result.at("ruleId").as_string() == "history-accumulated");
  CHECK(result.at("level").as_string() == "warning");
  CHECK(result.at("locations")
            .as_array()
            .at(0)
            .at("physicalLocation")
            .at("region")
            .at("startLine")
            .as_int64() == 3);
}

TEST_CASE("text lines are what editors jump to") {
  CHECK(to_lines(one_finding()).rfind("a.py:3:5: creep: ", 0) == 0);
}

TEST_CASE("a note is in the lines and in SARIF, and is no finding in JSON") {
  Report report;
  report.notes.push_back(
      {"a.py", 7, 1, "huge-linear", "as large as its vocabulary", Cost::kPeak, std::nullopt, ""});
  CHECK(to_lines(report) == "a.py:7:1: note: as large as its vocabulary [huge-linear]\n");
  CHECK(to_json(report) == "[]\n");
  const Json log = parse_json(to_sarif(report));
  const Json& result = log.at("runs").as_array().at(0).at("results").as_array().at(0);
  CHECK(result.at("kind").as_string() == "informational");
  CHECK(result.at("level").as_string() == "none");
}

TEST_CASE("every rule's page has a reason, an example before and after, and what is right") {
  CHECK(rules().size() == 19);
  for (const Rule& rule : rules()) {
    CAPTURE(rule.name);
    CHECK(rule.page.substr(0, rule.name.size() + 3) == "# " + std::string(rule.name) + "\n");
    CHECK(rule.summary().size() > 20);
    for (const char* part : {"\nBefore:\n", "\nAfter:\n", "\nNot flagged:\n"}) {
      CHECK(rule.page.find(part) != std::string_view::npos);
    }
  }
}

}  // namespace
}  // namespace lowtide::lint
