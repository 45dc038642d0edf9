// Every input that the fuzzer kept, and cut and changed copies of them, through the same entry
// point.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "fuzz/message_reader_target.h"

using namespace lowtide;

namespace {

std::vector<std::string> corpus() {
  std::vector<std::string> inputs;
  const std::filesystem::path folder =
      std::string(LOWTIDE_SOURCE_DIR) + "/fuzz/corpus/message_reader";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    inputs.push_back(out.str());
  }
  return inputs;
}

}  // namespace

TEST_CASE("the fuzzer's corpus is read without harm") {
  const std::vector<std::string> inputs = corpus();
  REQUIRE(inputs.size() >= 50);
  for (const std::string& input : inputs) {
    CHECK(run_message_reader(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()));
  }
}

TEST_SUITE("slow") {
  TEST_CASE("20,000 cut and changed copies of the corpus are read without harm") {
    const std::vector<std::string> inputs = corpus();
    REQUIRE_FALSE(inputs.empty());
    std::mt19937 random(5);
    for (int round = 0; round < 20000; ++round) {
      std::string input = inputs[random() % inputs.size()];
      if (input.empty()) continue;
      for (unsigned change = random() % 8; change > 0 && !input.empty(); --change) {
        const std::size_t at = random() % input.size();
        switch (random() % 4) {
          case 0:
            input[at] = static_cast<char>(random());
            break;
          case 1:
            input.resize(at);
            break;
          case 2:
            input.insert(at, input.substr(random() % input.size(), random() % 40));
            break;
          default:
            input.erase(at, random() % 20);
        }
      }
      REQUIRE(
          run_message_reader(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()));
    }
  }
}
