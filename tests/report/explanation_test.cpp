#include "src/report/explanation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "src/diagnose/error_catalogue.h"

using namespace lowtide;

namespace {

Evidence evidence_of(const std::string& text) {
  Evidence evidence;
  evidence.logs.push_back(read_log_text(text, "train.log"));
  return evidence;
}

const char* const kLog =
    "Traceback (most recent call last):\n  File \"train.py\", line 5, in step\n    y = model(x)\n"
    "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 0; 8.00 GiB total capacity; "
    "6.50 GiB already allocated; 256.00 MiB free; 6.75 GiB reserved in total by PyTorch)\n";

}  // namespace

TEST_CASE("the JSON has the members of the contract, and exact bytes") {
  const Evidence evidence = evidence_of(kLog);
  const Json json = explanation_json(diagnose(evidence.logs), evidence);
  REQUIRE_FALSE(json.at("findings").as_array().empty());
  for (const Json& finding : json.at("findings").as_array()) {
    const std::vector<std::string> keys{"cause",    "confidence", "why",
                                        "evidence", "fixes",      "record"};
    REQUIRE(finding.as_object().size() == keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) CHECK(finding.as_object()[i].first == keys[i]);
    CHECK(find_record(finding.at("record").as_string()) != nullptr);
    const std::string confidence = finding.at("confidence").as_string();
    CHECK((confidence == "certain" || confidence == "likely" || confidence == "possible"));
  }
  const Json& message = json.at("facts").at("message");
  CHECK(message.at("requested").as_uint64() == 1u << 30);
  CHECK(message.at("capacity").as_uint64() == 8ull << 30);
  CHECK(message.at("reserved_unused").as_uint64() == 1u << 28);
  CHECK(message.at("outside_pytorch").as_uint64() == 1ull << 30);
  CHECK(json.at("facts").at("frame").at("line").as_uint64() == 5);
  // Reads back as JSON.
  CHECK_NOTHROW(parse_json(to_text(json)));
}

TEST_CASE("the table of the text adds up to the capacity") {
  const Evidence evidence = evidence_of(kLog);
  const std::string text = explanation_text(diagnose(evidence.logs), evidence);
  CHECK(text.find("allocated by PyTorch        6.50 GiB") != std::string::npos);
  CHECK(text.find("reserved, not used           256 MiB") != std::string::npos);
  CHECK(text.find("free                         256 MiB") != std::string::npos);
  CHECK(text.find("[outside PyTorch]           1.00 GiB") != std::string::npos);
  CHECK(text.find("capacity                    8.00 GiB") != std::string::npos);
}

TEST_CASE("lines are at most 100 columns and the last names a command") {
  const Evidence evidence = evidence_of(kLog);
  const std::string text = explanation_text(diagnose(evidence.logs), evidence);
  std::istringstream in(text);
  std::string line;
  std::string last;
  while (std::getline(in, line)) {
    CHECK(line.size() <= 100);
    if (!line.empty()) last = line;
  }
  CHECK(last.starts_with("Next: lowtide "));
}

TEST_CASE("a log without a message is unknown, without a record, with what to collect") {
  const Evidence evidence = evidence_of("all is well\n");
  const Json json = explanation_json(diagnose(evidence.logs), evidence);
  CHECK(json.at("findings").as_array()[0].at("cause").as_string() == "unknown");
  CHECK(json.at("findings").as_array()[0].at("confidence").as_string() == "unknown");
  CHECK(json.at("findings").as_array()[0].at("record").is_null());
  CHECK(json.at("facts").at("message").is_null());
  CHECK(explanation_text(diagnose(evidence.logs), evidence).find("dmesg -T > kernel.log") !=
        std::string::npos);
}
