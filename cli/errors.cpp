// lowtide errors: the catalogue of known errors.

#include <cstdio>

#include "cli/verbs.h"
#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/diagnose/error_catalogue.h"

namespace lowtide {
namespace {

int run(const Arguments& arguments) {
  if (!arguments.words().empty()) {
    const std::string& name = arguments.words()[0];
    const ErrorRecord* record = find_record(name);
    if (record == nullptr) {
      throw UsageError("LT0612",
                       concat("no error record is called \"", name, "\" among ",
                              error_catalogue().size(), ". lowtide errors lists ids and names"));
    }
    std::fputs(arguments.has("json") ? (to_text(record->json, 2) + "\n").c_str()
                                     : record_text(*record).c_str(),
               stdout);
    return kDone;
  }
  if (arguments.has("markdown")) {
    std::fputs(catalogue_page().c_str(), stdout);
    return kDone;
  }
  if (arguments.has("json")) {
    Json all = Json::array();
    for (const ErrorRecord& record : error_catalogue()) all.push_back(record.json);
    std::puts(to_text(all, 2).c_str());
    return kDone;
  }
  for (const ErrorRecord& record : error_catalogue()) {
    // The first line of the message that says something.
    std::string message = record.message.substr(0, record.message.find('\n'));
    message.erase(0, message.find_first_not_of(' '));
    std::printf("%s  %-40s %.50s\n", record.id.c_str(), record.slug.c_str(), message.c_str());
  }
  std::printf("%zu records. Next: lowtide errors ID\n", error_catalogue().size());
  return kDone;
}

}  // namespace

Verb errors_verb() {
  return {.name = "errors",
          .summary = "list known errors, or explain one",
          .words = {{"ID", "a record's id, its first digits, or its name", false}},
          .flags = {{"json", "", "print records as JSON", ""},
                    {"markdown", "", "print all as a page, docs/error_catalogue.md", ""}},
          .examples = {"lowtide errors", "lowtide errors checkpointing-unavailable"},
          .run = run};
}

}  // namespace lowtide
