#include "src/lint/report.h"

#include "lowtide/version.h"
#include "src/base/json.h"
#include "src/base/text.h"
#include "src/lint/rules.h"

namespace lowtide::lint {
namespace {

// Names of a file that is not UTF-8 would make JSON that nobody can read.
std::string valid_utf8(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const std::size_t length = c < 0x80         ? 1
                               : (c >> 5) == 6  ? 2
                               : (c >> 4) == 14 ? 3
                               : (c >> 3) == 30 ? 4
                                                : 0;
    bool good = length != 0 && i + length <= text.size();
    for (std::size_t k = 1; good && k < length; ++k) {
      good = (static_cast<unsigned char>(text[i + k]) & 0xC0) == 0x80;
    }
    if (good) {
      out.append(text, i, length);
      i += length;
    } else {
      out += "\xEF\xBF\xBD";
      ++i;
    }
  }
  return out;
}

}  // namespace

std::string_view word_for(Cost cost) {
  switch (cost) {
    case Cost::kLeak:
      return "leak";
    case Cost::kCreep:
      return "creep";
    case Cost::kPeak:
      return "peak";
  }
  return "";
}

std::string to_lines(const Report& report) {
  std::string out;
  for (const Finding& finding : report.findings) {
    out += concat(finding.file, ":", finding.line, ":", finding.column, ": ",
                  word_for(finding.cost), ": ", finding.message, " [", finding.rule, "]\n");
  }
  for (const Finding& note : report.notes) {
    out += concat(note.file, ":", note.line, ":", note.column, ": note: ", note.message, " [",
                  note.rule, "]\n");
  }
  return out;
}

std::string to_json(const Report& report) {
  Json rows = Json::array();
  for (const Finding& finding : report.findings) {
    Json row = Json::object();
    row["file"] = valid_utf8(finding.file);
    row["line"] = finding.line;
    row["column"] = finding.column;
    row["rule"] = finding.rule;
    row["message"] = valid_utf8(finding.message);
    row["cost"] = word_for(finding.cost);
    if (finding.fix) {
      Json fix = Json::object();
      fix["description"] = valid_utf8(finding.fix->description);
      fix["safe"] = finding.fix->safe;
      fix["edits"] = Json::array();
      for (const Edit& edit : finding.fix->edits) {
        Json one = Json::object();
        one["begin"] = edit.begin;
        one["end"] = edit.end;
        one["text"] = valid_utf8(edit.text);
        fix["edits"].push_back(std::move(one));
      }
      row["fix"] = std::move(fix);
    } else {
      row["fix"] = nullptr;
    }
    rows.push_back(std::move(row));
  }
  return to_text(rows, 2) + "\n";
}

std::string to_sarif(const Report& report) {
  Json run = Json::object();
  Json driver = Json::object();
  driver["name"] = "lowtide lint";
  driver["version"] = LOWTIDE_VERSION_STRING;
  driver["rules"] = Json::array();
  for (const Rule& rule : rules()) {
    Json row = Json::object();
    row["id"] = rule.name;
    Json description = Json::object();
    description["text"] = rule.summary();
    row["shortDescription"] = std::move(description);
    Json help = Json::object();
    help["text"] = rule.page;
    help["markdown"] = rule.page;
    row["help"] = std::move(help);
    driver["rules"].push_back(std::move(row));
  }
  run["tool"] = Json::object();
  run["tool"]["driver"] = std::move(driver);
  run["columnKind"] = "unicodeCodePoints";
  run["results"] = Json::array();
  const auto add = [&](const Finding& finding, bool note) {
    Json row = Json::object();
    row["ruleId"] = finding.rule;
    if (note) row["kind"] = "informational";
    row["level"] = note                           ? "none"
                   : finding.cost == Cost::kLeak  ? "error"
                   : finding.cost == Cost::kCreep ? "warning"
                                                  : "note";
    Json message = Json::object();
    message["text"] = valid_utf8(finding.message);
    row["message"] = std::move(message);
    Json region = Json::object();
    region["startLine"] = finding.line;
    region["startColumn"] = finding.column;
    Json artifact = Json::object();
    artifact["uri"] = valid_utf8(finding.file);
    Json physical = Json::object();
    physical["artifactLocation"] = artifact;
    physical["region"] = std::move(region);
    Json location = Json::object();
    location["physicalLocation"] = std::move(physical);
    row["locations"] = Json::array();
    row["locations"].push_back(std::move(location));
    Json properties = Json::object();
    properties["cost"] = word_for(finding.cost);
    row["properties"] = std::move(properties);
    if (finding.fix) {
      Json replacements = Json::array();
      for (const Edit& edit : finding.fix->edits) {
        Json deleted = Json::object();
        deleted["byteOffset"] = edit.begin;
        deleted["byteLength"] = edit.end - edit.begin;
        Json inserted = Json::object();
        inserted["text"] = valid_utf8(edit.text);
        Json replacement = Json::object();
        replacement["deletedRegion"] = std::move(deleted);
        replacement["insertedContent"] = std::move(inserted);
        replacements.push_back(std::move(replacement));
      }
      Json change = Json::object();
      change["artifactLocation"] = artifact;
      change["replacements"] = std::move(replacements);
      Json fix = Json::object();
      Json description = Json::object();
      description["text"] = valid_utf8(finding.fix->description);
      fix["description"] = std::move(description);
      fix["artifactChanges"] = Json::array();
      fix["artifactChanges"].push_back(std::move(change));
      row["fixes"] = Json::array();
      row["fixes"].push_back(std::move(fix));
    }
    run["results"].push_back(std::move(row));
  };
  for (const Finding& finding : report.findings) add(finding, false);
  for (const Finding& note : report.notes) add(note, true);
  Json log = Json::object();
  log["version"] = "2.1.0";
  log["$schema"] = "https://json.schemastore.org/sarif-2.1.0.json";
  log["runs"] = Json::array();
  log["runs"].push_back(std::move(run));
  return to_text(log, 2) + "\n";
}

}  // namespace lowtide::lint
