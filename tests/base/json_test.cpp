#include "src/base/json.h"

#include <doctest/doctest.h>

#include <limits>

#include "lowtide/error.h"

using namespace lowtide;  // the tests of one header

TEST_CASE("a JSON value is written in the order in which it was built") {
  Json report = Json::object();
  report["z"] = 1;
  report["a"].push_back("x\"y");
  report["a"].push_back(true);
  report["n"] = nullptr;
  report["empty"] = Json::array();
  CHECK(to_text(report) == R"({"z":1,"a":["x\"y",true],"n":null,"empty":[]})");
  CHECK(to_text(report["a"], 2) == "[\n  \"x\\\"y\",\n  true\n]");
}

TEST_CASE("numbers keep their value and their kind") {
  const std::string text =
      "[0,-9223372036854775808,18446744073709551615,0.1,1e-300,3.0,123456789.123456789]";
  const Json value = parse_json(text);
  CHECK(value.as_array()[1].as_int64() == std::numeric_limits<std::int64_t>::min());
  CHECK(value.as_array()[2].as_uint64() == std::numeric_limits<std::uint64_t>::max());
  CHECK(value.as_array()[3].as_double() == 0.1);
  CHECK(value.as_array()[0].as_double() == 0.0);
  CHECK(parse_json(to_text(value)).as_array()[6].as_double() == 123456789.123456789);
  CHECK_THROWS_AS(value.as_array()[2].as_int64(), FormatError);
  CHECK_THROWS_AS(value.as_array()[1].as_uint64(), FormatError);
  CHECK_THROWS_AS(value.as_array()[3].as_int64(), FormatError);
}

TEST_CASE("what JSON cannot hold is written as text") {
  CHECK(to_text(Json(std::numeric_limits<double>::quiet_NaN())) == "\"nan\"");
  CHECK(to_text(Json(-std::numeric_limits<double>::infinity())) == "\"-inf\"");
  CHECK(to_text(Json(std::string("a\xff"))) == "\"a\xef\xbf\xbd\"");
}

TEST_CASE("damaged JSON is refused with the place") {
  for (const char* text : {"", "{", "{\"a\":1,\"a\":2}", "[1] 2", "nul", "[1,]", "\"\x01\"",
                           "\"\xff\"", "{\"a\" 1}", "1e999"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_json(text), doctest::Contains("LT0130"), FormatError);
  }
  CHECK_THROWS_WITH_AS(parse_json("[1,"), doctest::Contains("at byte 4"), FormatError);
}

TEST_CASE("nesting is bounded") {
  CHECK_NOTHROW(parse_json(std::string(64, '[') + std::string(64, ']')));
  CHECK_THROWS_WITH_AS(parse_json(std::string(100'000, '[')), doctest::Contains("64 levels"),
                       FormatError);
}

TEST_CASE("a missing key or a wrong kind is named") {
  const Json value = parse_json(R"({"a":"text"})");
  CHECK_THROWS_WITH_AS(value.at("b"), doctest::Contains("no key \"b\""), FormatError);
  CHECK_THROWS_WITH_AS(value.at("a").as_int64(), doctest::Contains("found a string"), FormatError);
  CHECK(value.find("b") == nullptr);
}
