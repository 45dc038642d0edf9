#include "src/diagnose/error_catalogue.h"

#include <algorithm>
#include <array>
#include <regex>

#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/diagnose/embedded_errors.h"

namespace lowtide {
namespace {

enum class Kind { kText, kTextOrNull, kNumberOrNull, kList, kNumber };

struct Field {
  std::string_view name;
  Kind kind;
};

constexpr std::array<Field, 31> kFields{{{"id", Kind::kText},
                                         {"repo", Kind::kText},
                                         {"slug", Kind::kText},
                                         {"errorCode", Kind::kTextOrNull},
                                         {"httpStatus", Kind::kNumberOrNull},
                                         {"errorMessage", Kind::kText},
                                         {"messagePattern", Kind::kText},
                                         {"errorType", Kind::kText},
                                         {"errorClass", Kind::kTextOrNull},
                                         {"severity", Kind::kText},
                                         {"filePath", Kind::kTextOrNull},
                                         {"lineNumber", Kind::kNumberOrNull},
                                         {"sourceCode", Kind::kTextOrNull},
                                         {"sourceCodeStart", Kind::kNumberOrNull},
                                         {"sourceCodeEnd", Kind::kNumberOrNull},
                                         {"githubUrl", Kind::kTextOrNull},
                                         {"documentation", Kind::kText},
                                         {"triggerScenarios", Kind::kText},
                                         {"commonSituations", Kind::kText},
                                         {"solutions", Kind::kList},
                                         {"exampleFix", Kind::kTextOrNull},
                                         {"handlingStrategy", Kind::kTextOrNull},
                                         {"validationCode", Kind::kTextOrNull},
                                         {"typeGuard", Kind::kTextOrNull},
                                         {"tryCatchPattern", Kind::kTextOrNull},
                                         {"preventionTips", Kind::kList},
                                         {"tags", Kind::kList},
                                         {"backgroundTag", Kind::kText},
                                         {"analyzedSha", Kind::kTextOrNull},
                                         {"analyzedAt", Kind::kText},
                                         {"schemaVersion", Kind::kNumber}}};

[[noreturn]] void refuse(std::string_view file, const std::string& problem) {
  throw FormatError("LT0610", concat("cannot read the error record ", file, ": ", problem,
                                     ". docs/formats/error_record.md lists the fields"));
}

std::vector<std::string> texts(const Json& list) {
  std::vector<std::string> out;
  for (const Json& one : list.as_array()) out.push_back(one.as_string());
  return out;
}

std::string text_of(const ErrorRecord& record, std::string_view field) {
  const Json* value = record.json.find(field);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string record_id(std::string_view repo, std::string_view pattern) {
  std::uint64_t hash = 14695981039346656037u;
  const auto take = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  };
  take(repo);
  take("\n");
  take(pattern);
  std::string out(16, '0');
  for (std::size_t i = 0; i < 16; ++i) {
    out[15 - i] = "0123456789abcdef"[(hash >> (4 * i)) & 15];
  }
  return out;
}

ErrorRecord read_record(std::string_view text, std::string_view file) {
  ErrorRecord record;
  record.json = parse_json(text);
  if (!record.json.is_object()) refuse(file, "it is not an object");
  for (const Field& field : kFields) {
    const Json* value = record.json.find(field.name);
    if (value == nullptr) refuse(file, concat("the field ", field.name, " is missing"));
    bool good = false;
    switch (field.kind) {
      case Kind::kText:
        good = value->is_string() && !value->as_string().empty();
        break;
      case Kind::kTextOrNull:
        good = value->is_null() || value->is_string();
        break;
      case Kind::kNumberOrNull:
        good = value->is_null() || value->is_integer();
        break;
      case Kind::kNumber:
        good = value->is_integer();
        break;
      case Kind::kList:
        good = value->is_array() && !value->as_array().empty() &&
               std::all_of(value->as_array().begin(), value->as_array().end(),
                           [](const Json& one) { return one.is_string(); });
        break;
    }
    if (!good) refuse(file, concat("the field ", field.name, " is not what the schema asks for"));
  }
  for (const auto& [name, value] : record.json.as_object()) {
    if (std::none_of(kFields.begin(), kFields.end(),
                     [&](const Field& field) { return field.name == name; })) {
      refuse(file, concat("the field ", name, " is unknown"));
    }
  }
  record.id = text_of(record, "id");
  record.slug = text_of(record, "slug");
  record.error_class = text_of(record, "errorClass");
  record.message = text_of(record, "errorMessage");
  record.pattern = text_of(record, "messagePattern");
  record.tags = texts(record.json.at("tags"));
  const std::string expected = record_id(text_of(record, "repo"), record.pattern);
  if (record.id != expected)
    refuse(file, concat("its id is ", record.id, " and should be ", expected));
  const std::string severity = text_of(record, "severity");
  if (severity != "error" && severity != "warning" && severity != "info") {
    refuse(file, concat("severity is ", severity, ", not error, warning or info"));
  }
  if (record.json.at("schemaVersion").as_int64() != 2) refuse(file, "schemaVersion is not 2");
  try {
    const std::regex check(record.pattern);
  } catch (const std::regex_error& problem) {
    refuse(file, concat("messagePattern is no regular expression: ", problem.what()));
  }
  return record;
}

const std::vector<ErrorRecord>& error_catalogue() {
  static const std::vector<ErrorRecord> records = [] {
    std::vector<ErrorRecord> all;
    for (const EmbeddedError& embedded : embedded_errors()) {
      all.push_back(read_record(embedded.text, embedded.file));
    }
    return all;
  }();
  return records;
}

const ErrorRecord* find_record(std::string_view name) {
  const ErrorRecord* found = nullptr;
  for (const ErrorRecord& record : error_catalogue()) {
    if (record.id == name || record.slug == name) return &record;
    if (name.size() >= 4 && record.id.starts_with(name)) {
      if (found != nullptr) return nullptr;
      found = &record;
    }
  }
  return found;
}

const ErrorRecord* record_for(Cause cause, const std::string& text) {
  const CauseInfo& info = cause_info(cause);
  if (info.record.empty()) return nullptr;
  const ErrorRecord* own = find_record(info.record);
  if (own != nullptr && std::regex_search(text, std::regex(own->pattern))) return own;
  for (const ErrorRecord& record : error_catalogue()) {
    if (std::find(record.tags.begin(), record.tags.end(), info.slug) == record.tags.end()) continue;
    if (record.slug == info.record) continue;
    if (std::regex_search(text, std::regex(record.pattern))) return &record;
  }
  return own;
}

std::string record_text(const ErrorRecord& record) {
  std::string out = concat(record.slug, "  ", record.id, "\n\n");
  const auto paragraph = [&](const char* title, const std::string& text) {
    if (!text.empty()) out += concat(title, "\n  ", text, "\n\n");
  };
  paragraph("Message", record.message);
  if (!record.error_class.empty()) paragraph("Class", record.error_class);
  std::string where = text_of(record, "repo");
  if (const std::string file = text_of(record, "filePath"); !file.empty()) {
    where += ", " + file;
    const Json& line = record.json.at("lineNumber");
    if (line.is_integer()) where += concat(":", line.as_int64());
  }
  paragraph("Raised by", where);
  paragraph("What it means", text_of(record, "documentation"));
  paragraph("What sets it off", text_of(record, "triggerScenarios"));
  paragraph("How people come to it", text_of(record, "commonSituations"));
  out += "What to do\n";
  std::size_t number = 0;
  for (const std::string& solution : texts(record.json.at("solutions"))) {
    out += concat("  ", ++number, ". ", solution, "\n");
  }
  out += "\n";
  paragraph("Example", text_of(record, "exampleFix"));
  paragraph("To check for it", text_of(record, "validationCode"));
  paragraph("To handle it", text_of(record, "tryCatchPattern"));
  return out;
}

std::string catalogue_page() {
  std::string out =
      "# Error catalogue\n\n"
      "Errors that people meet when memory runs out, or seems to, and what to do about each. Made "
      "by\n"
      "`lowtide errors --markdown` from `data/errors/`; `lowtide errors ID` shows one.\n\n";
  for (const ErrorRecord& record : error_catalogue()) {
    out += concat("## ", record.slug, "\n\n`", record.id, "`, ", text_of(record, "repo"),
                  record.error_class.empty() ? "" : ", `" + record.error_class + "`", "\n\n    ",
                  one_line(record.message), "\n\n", text_of(record, "documentation"), "\n\n");
    out += concat("Set off by: ", text_of(record, "triggerScenarios"), "\n\n");
    for (const std::string& solution : texts(record.json.at("solutions"))) {
      out += concat("- ", solution, "\n");
    }
    const std::string url = text_of(record, "githubUrl");
    if (!url.empty()) out += concat("\n[where it is raised](", url, ")\n");
    out += "\n";
  }
  out.pop_back();
  return out;
}

}  // namespace lowtide
