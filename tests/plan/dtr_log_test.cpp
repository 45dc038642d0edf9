#include "src/plan/dtr_log.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "lowtide/error.h"
#include "tests/plan/made_logs.h"
#include "tests/plan/made_traces.h"

namespace lowtide {
namespace {

const char* const kSmall = R"({"INSTRUCTION":"ANNOTATE","ANNOTATION":"START"}
{"INSTRUCTION":"CONSTANT","NAME":"w"}
{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"100"}
{"INSTRUCTION":"CALL","NAME":"f","ARGS":["w"],"RESULT":["a","v"],"TIME":"10"}
{"INSTRUCTION":"MEMORY","NAME":"a","MEMORY":"40"}
{"INSTRUCTION":"ALIAS","NAME":"a","ALIAS":"-1"}
{"INSTRUCTION":"MEMORY","NAME":"v","MEMORY":"40"}
{"INSTRUCTION":"ALIAS","NAME":"v","ALIAS":"0"}
{"INSTRUCTION":"COPY","DST":"b","SRC":"a"}
{"INSTRUCTION":"RELEASE","NAME":"a"}
{"INSTRUCTION":"MUTATE","NAME":"relu_","ARGS":["b"],"MUTATE":[0],"TIME":"5"}
{"INSTRUCTION":"RELEASE","NAME":"v"}
)";

TEST_CASE("constants, calls, views, in-place ops and copies are read") {
  const DtrLog log = parse_dtr_log(kSmall);
  const Trace& trace = log.trace;
  REQUIRE(trace.storages.size() == 4);
  CHECK(trace.storages[0].source);
  CHECK(trace.storages[2].base == StorageId{0});
  CHECK(trace.storages[3].bytes == 40);
  CHECK(plain_ns(trace) == 15);
  // a goes when the in-place op has replaced it under its last name; b is pinned.
  CHECK(trace.events.back().kind == TraceEvent::Kind::kPin);
  CHECK(trace.events.back().index == 3);
  CHECK(log.peak_bytes == 180);
}

TEST_CASE("a released constant stays, but does not count for the peak") {
  const DtrLog log = parse_dtr_log(R"({"INSTRUCTION":"CONSTANT","NAME":"x"}
{"INSTRUCTION":"MEMORY","NAME":"x","MEMORY":"100"}
{"INSTRUCTION":"RELEASE","NAME":"x"}
{"INSTRUCTION":"CALL","NAME":"f","ARGS":[],"RESULT":["a"],"TIME":"10"}
{"INSTRUCTION":"MEMORY","NAME":"a","MEMORY":"40"}
{"INSTRUCTION":"ALIAS","NAME":"a","ALIAS":"-1"}
)");
  CHECK(log.peak_bytes == 100);
  CHECK(natural_peak(log.trace) == 140);
}

TEST_CASE("what is written as a log reads back as the same trace") {
  for (const Trace& trace :
       {testing::unit_chain(20), testing::u_net(3), testing::tree_net(3), testing::recurrent_net(4),
        testing::residual_net(3), testing::dense_net(3)}) {
    const DtrLog log = parse_dtr_log(testing::to_dtr_log(trace));
    CHECK(log.peak_bytes == natural_peak(trace));
    CHECK(natural_peak(log.trace) == natural_peak(trace));
    CHECK(plain_ns(log.trace) == plain_ns(trace));
    CHECK(lowest_budget(log.trace).bytes == lowest_budget(trace).bytes);
    REQUIRE(log.trace.ops.size() == trace.ops.size());
    for (std::size_t i = 0; i < trace.ops.size(); ++i) {
      CHECK(log.trace.ops[i].reads.size() == trace.ops[i].reads.size());
      CHECK(log.trace.ops[i].writes.size() == trace.ops[i].writes.size());
    }
  }
}

TEST_CASE("each line that cannot be is refused with its number and the reason") {
  const std::string constant = R"({"INSTRUCTION":"CONSTANT","NAME":"w"}
{"INSTRUCTION":"MEMORY","NAME":"w","MEMORY":"100"}
)";
  const std::string call =
      constant +
      R"({"INSTRUCTION":"CALL","NAME":"f","ARGS":["w"],"RESULT":["a"],"TIME":"1"}
)";
  const std::pair<std::string, const char*> kBad[] = {
      {"{\"INSTRUCTION\":", "line 1: it is no such JSON object"},
      {"[]", "line 1: it is no such JSON object"},
      {"{}", "line 1: it is no such JSON object"},
      {R"({"INSTRUCTION":"JUMP"})", "line 1: unknown instruction 'JUMP'"},
      {constant, "the log has no op"},
      {call, "line 3: the log ends before all results"},
      {call + R"({"INSTRUCTION":"RELEASE","NAME":"w"})",
       "line 4: RELEASE stands where a result of the op before should"},
      {call + R"({"INSTRUCTION":"ALIAS","NAME":"a","ALIAS":"-1"})",
       "line 4: ALIAS belongs to no result"},
      {call + R"({"INSTRUCTION":"MEMORY","NAME":"a","MEMORY":"1e9"})",
       "line 4: '1e9' is no whole number"},
      {call + R"({"INSTRUCTION":"MEMORY","NAME":"a","MEMORY":"9223372036854775807"})",
       "is too large"},
      {call + "{\"INSTRUCTION\":\"MEMORY\",\"NAME\":\"a\",\"MEMORY\":\"1152921504606846975\"}\n"
              R"({"INSTRUCTION":"ALIAS","NAME":"a","ALIAS":"-1"})",
       "add up to more than 2^60"},
      {call + "{\"INSTRUCTION\":\"MEMORY\",\"NAME\":\"a\",\"MEMORY\":\"8\"}\n"
              R"({"INSTRUCTION":"ALIAS","NAME":"a","ALIAS":"1"})",
       "line 5: the op has no argument 1"},
      {R"({"INSTRUCTION":"CALL","NAME":"f","ARGS":["x"],"RESULT":[],"TIME":"1"})",
       "line 1: there is no tensor 'x' now"},
      {R"({"INSTRUCTION":"MEMORY","NAME":"x","MEMORY":"1"})", "MEMORY belongs to no constant"},
      {constant + R"({"INSTRUCTION":"MUTATE","NAME":"f","ARGS":["w"],"MUTATE":[1],"TIME":"1"})",
       "line 3: the op has no argument 1"},
      {constant + "{\"INSTRUCTION\":\"RELEASE\",\"NAME\":\"w\"}\n"
                  R"({"INSTRUCTION":"COPY","DST":"v","SRC":"w"})",
       "line 4: there is no tensor 'w' now"},
  };
  for (const auto& [text, message] : kBad) {
    CAPTURE(text);
    try {
      parse_dtr_log(text);
      FAIL("was read");
    } catch (const FormatError& error) {
      CHECK(error.id() == "LT0150");
      CHECK(std::string(error.what()).find(message) != std::string::npos);
      CAPTURE(error.what());
    }
  }
}

TEST_CASE("a damaged log is read or refused, never more") {
  const std::string good = kSmall;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const char c : {'\0', '9', '"', 'x'}) {
      std::string text = good;
      text[at] = c;
      try {
        const DtrLog log = parse_dtr_log(text);
        CHECK(natural_peak(log.trace) >= log.peak_bytes);
      } catch (const FormatError&) {
      }
    }
  }
}

TEST_CASE("a log that is not there is refused with its path") {
  CHECK_THROWS_WITH_AS(read_dtr_log("no/such.log"),
                       "cannot read no/such.log: No such file or directory. Check the path and its "
                       "rights [LT0102]",
                       IoError);
}

}  // namespace
}  // namespace lowtide
