#include "src/diagnose/error_catalogue.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "lowtide/error.h"

using namespace lowtide;

TEST_CASE(
    "the catalogue holds at least 40 records of the schema, each with an id and a name of its "
    "own") {
  const auto& records = error_catalogue();
  CHECK(records.size() >= 40);
  std::set<std::string> ids;
  std::set<std::string> slugs;
  for (const ErrorRecord& record : records) {
    INFO(record.slug);
    CHECK(record.id.size() == 16);
    CHECK(ids.insert(record.id).second);
    CHECK(slugs.insert(record.slug).second);
    CHECK(record.json.at("solutions").as_array().size() >= 2);
    // Other projects' code is not copied.
    CHECK(record.json.at("sourceCode").is_null());
  }
}

TEST_CASE("a record's pattern finds its message") {
  for (const ErrorRecord& record : error_catalogue()) {
    INFO(record.slug);
    CHECK(std::regex_search(record.message, std::regex(record.pattern)));
  }
}

TEST_CASE("every cause but unknown has a record, and is a tag of it") {
  for (const CauseInfo& info : all_causes()) {
    if (info.cause == Cause::kUnknown) {
      CHECK(record_for(info.cause, "") == nullptr);
      continue;
    }
    INFO(info.slug);
    const ErrorRecord* record = record_for(info.cause, "");
    REQUIRE(record != nullptr);
    CHECK(record->slug == info.record);
    CHECK(std::find(record->tags.begin(), record->tags.end(), info.slug) != record->tags.end());
  }
}

TEST_CASE("the message chooses among the records of a cause") {
  CHECK(
      record_for(Cause::kNoHeadroomForLibraries, "NCCL WARN Cuda failure 'out of memory'")->slug ==
      "nccl-out-of-memory");
  CHECK(record_for(Cause::kNoHeadroomForLibraries, "CUBLAS_STATUS_ALLOC_FAILED")->slug ==
        "no-headroom-for-libraries");
}

TEST_CASE("records are found by id, by its beginning and by name") {
  const ErrorRecord& record = error_catalogue().front();
  CHECK(find_record(record.id) == &record);
  CHECK(find_record(record.id.substr(0, 10)) == &record);
  CHECK(find_record(record.slug) == &record);
  CHECK(find_record("no such") == nullptr);
  CHECK(find_record("") == nullptr);
}

TEST_CASE("an id is FNV-1a over repository and pattern") {
  // Of one line feed, as the function is defined; computed by hand.
  CHECK(record_id("", "") == "af63c74c8601c8dd");
  CHECK(record_id("a/b", "x") != record_id("a/b", "y"));
}

TEST_CASE("a record that breaks the schema is refused with file and field") {
  const std::string good = to_text(error_catalogue().front().json);
  CHECK_NOTHROW(read_record(good, "good.json"));
  const auto refused = [](const std::string& text, const std::string& words) {
    try {
      read_record(text, "bad.json");
      FAIL("accepted");
    } catch (const FormatError& error) {
      const std::string what = error.what();
      INFO(what);
      CHECK(error.id() == "LT0610");
      CHECK(what.find("bad.json") != std::string::npos);
      CHECK(what.find(words) != std::string::npos);
    }
  };
  refused("[]", "not an object");
  refused("{}", "the field id is missing");
  refused(std::regex_replace(good, std::regex("\"severity\":\"[a-z]+\""), "\"severity\":\"bad\""),
          "severity is bad");
  refused(std::regex_replace(good, std::regex("\"schemaVersion\":2"), "\"schemaVersion\":1"),
          "schemaVersion");
  refused(
      std::regex_replace(good, std::regex("\"id\":\"[0-9a-f]+\""), "\"id\":\"0000000000000000\""),
      "should be");
  refused(std::regex_replace(good, std::regex("\"tags\":\\["), "\"tags\":[1,"), "tags");
  refused("{\"extra\":1," + good.substr(1), "extra is unknown");
}

TEST_CASE("docs/error_catalogue.md is what the catalogue says") {
  std::ifstream in(std::string(LOWTIDE_SOURCE_DIR) + "/docs/error_catalogue.md");
  std::ostringstream page;
  page << in.rdbuf();
  // When this fails: lowtide errors --markdown > docs/error_catalogue.md
  CHECK(page.str() == catalogue_page());
}
