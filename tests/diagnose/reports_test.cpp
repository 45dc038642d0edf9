// Public reports whose cause the thread told, and traps: logs that look like one cause and are
// another. Each file in reports/ and traps/ has a head (cause: what may come first; never: what
// must not be likely or certain; source; says: the thread in our words), a line of dashes, the log.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "src/base/text.h"
#include "src/diagnose/diagnosis.h"

using namespace lowtide;

namespace {

struct Report {
  std::string name;
  std::map<std::string, std::string> head;
  std::string log;
};

std::vector<Report> reports(const std::string& folder) {
  std::vector<Report> all;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(LOWTIDE_SOURCE_DIR) +
                                                               "/tests/diagnose/" + folder)) {
    if (entry.path().extension() != ".txt") continue;
    std::ifstream in(entry.path());
    Report report;
    report.name = entry.path().stem().string();
    std::string line;
    while (std::getline(in, line) && line != "---") {
      const std::size_t colon = line.find(':');
      REQUIRE(colon != std::string::npos);
      report.head[line.substr(0, colon)] = colon + 2 < line.size() ? line.substr(colon + 2) : "";
    }
    std::ostringstream rest;
    rest << in.rdbuf();
    report.log = rest.str();
    all.push_back(std::move(report));
  }
  std::sort(all.begin(), all.end(),
            [](const Report& a, const Report& b) { return a.name < b.name; });
  return all;
}

bool lists(const std::string& list, std::string_view slug) {
  std::istringstream in(list);
  for (std::string one; std::getline(in, one, ',');) {
    one.erase(0, one.find_first_not_of(' '));
    if (one == slug) return true;
  }
  return false;
}

std::vector<LogEvidence> read(const Report& report) {
  std::size_t at = 0;
  std::vector<LogEvidence> logs;
  logs.push_back(read_log(
      [&](char* buffer, std::size_t capacity) {
        const std::size_t take = std::min(capacity, report.log.size() - at);
        std::memcpy(buffer, report.log.data() + at, take);
        at += take;
        return take;
      },
      report.name));
  return logs;
}

std::string told(const Diagnosis& diagnosis) {
  std::string out;
  for (const Finding& finding : diagnosis.findings) {
    out += concat(cause_info(finding.cause).slug, " ", finding.weight, ": ", finding.why, "\n");
  }
  return out;
}

}  // namespace

TEST_CASE(
    "of at least 40 public reports nine in ten are right first, and none is certainly wrong") {
  std::size_t right = 0;
  std::size_t all = 0;
  std::string missed;
  for (const Report& report : reports("reports")) {
    ++all;
    const auto logs = read(report);
    const Diagnosis diagnosis = diagnose(logs);
    const Finding& first = diagnosis.findings.front();
    const bool is_right = lists(report.head.at("cause"), cause_info(first.cause).slug);
    INFO(report.name, ", wanted ", report.head.at("cause"), ", got\n", told(diagnosis));
    CHECK((is_right || first.confidence != Confidence::kCertain));
    if (is_right) {
      ++right;
    } else {
      missed += report.name + " ";
    }
  }
  MESSAGE(right, " of ", all, " right first; missed: ", missed);
  CHECK(all >= 40);
  CHECK(right * 10 >= all * 9);
}

TEST_CASE("what a logger or a launcher sets before each line changes no cause") {
  for (const Report& report : reports("reports")) {
    const auto plain = read(report);
    const Cause cause = diagnose(plain).findings.front().cause;
    for (const char* prefix :
         {"> ", "\t", "2024-05-06T07:08:09.1234567Z ", "2024-05-06T07:08:09.123456789Z stderr F ",
          "May 06 07:08:09 node1 python[1234]: ", "trainer-1  | ",
          "ERROR:root:", "2024-05-06 07:08:09,123 - trainer - ERROR - ",
          "2024-05-06 07:08:09.123 | ERROR    | train.loop:run:12 - ",
          "[2024-05-06 07:08:09,123][trainer][ERROR] - "}) {
      Report logged = report;
      logged.log.clear();
      std::istringstream lines(report.log);
      for (std::string line; std::getline(lines, line);) logged.log += prefix + line + "\n";
      const auto read_again = read(logged);
      const Diagnosis diagnosis = diagnose(read_again);
      INFO(report.name, " after '", prefix, "': ", told(diagnosis));
      CHECK(cause_info(diagnosis.findings.front().cause).slug == cause_info(cause).slug);
    }
  }
}

TEST_CASE("no trap is fallen into") {
  std::size_t all = 0;
  for (const Report& report : reports("traps")) {
    ++all;
    const auto logs = read(report);
    const Diagnosis diagnosis = diagnose(logs);
    INFO(report.name, ": ", report.head.at("says"), "\n", told(diagnosis));
    CHECK(lists(report.head.at("cause"), cause_info(diagnosis.findings.front().cause).slug));
    for (const Finding& finding : diagnosis.findings) {
      const bool confident =
          finding.confidence == Confidence::kCertain || finding.confidence == Confidence::kLikely;
      CHECK_FALSE((confident && lists(report.head.at("never"), cause_info(finding.cause).slug)));
    }
  }
  CHECK(all >= 20);
}
