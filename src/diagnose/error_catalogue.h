#pragma once
// The catalogue of known errors: data/errors/*.json, built into the program.
//
//   for (const ErrorRecord& record : error_catalogue()) ...
//   const ErrorRecord* record = find_record("shm-exhausted");
//
// A record's fields are those of docs/formats/error_record.md.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/json.h"
#include "src/diagnose/cause.h"

namespace lowtide {

struct ErrorRecord {
  std::string id;    // 16 hexadecimal digits; see record_id()
  std::string slug;  // "shm-exhausted"
  std::string error_class;
  std::string message;
  std::string pattern;  // ECMAScript regular expression
  std::vector<std::string> tags;
  Json json;  // all fields, in the file's order
};

// In the order of their file names. Read once; throws FormatError (LT0610), naming file and field,
// when a record does not follow the schema, which the tests rule out.
const std::vector<ErrorRecord>& error_catalogue();

// Reads one record; `file` names it in messages. Throws FormatError (LT0610).
ErrorRecord read_record(std::string_view text, std::string_view file);

// The record with that id, or an unambiguous beginning of it of at least 4 digits, or that slug.
// Null when there is none.
const ErrorRecord* find_record(std::string_view id_or_slug);

// The record that fits a cause and the message that showed it: the cause's own when its pattern
// finds `text`, else the first with the cause's slug as a tag whose pattern does, else the cause's
// own. Null for kUnknown.
const ErrorRecord* record_for(Cause cause, const std::string& text);

// FNV-1a, 64 bits, over "repo\nmessagePattern": stable as long as the error is.
std::string record_id(std::string_view repo, std::string_view pattern);

// The page docs/error_catalogue.md.
std::string catalogue_page();

// One record for people.
std::string record_text(const ErrorRecord& record);

}  // namespace lowtide
