#include "src/evidence/log_line.h"

#include <doctest/doctest.h>

#include <string>

using namespace lowtide;

namespace {

LogLine only(std::string_view raw) {
  std::vector<LogLine> lines;
  tidy_line(raw, 5, lines);
  REQUIRE(lines.size() == 1);
  return lines[0];
}

}  // namespace

TEST_CASE("prefixes of ranks, launchers and containers become the lane") {
  CHECK(only("[rank3]: loss 0.5").lane == "rank3");
  CHECK(only("[rank3]: loss 0.5").text == "loss 0.5");
  CHECK(only("3: loss 0.5").lane == "3");
  CHECK(only("[1,7]<stderr>:loss 0.5").lane == "1,7");
  CHECK(only("(RayTrainWorker pid=123, ip=10.0.0.1) loss 0.5").text == "loss 0.5");
  CHECK(only("trainer_0/1 | loss 0.5").lane == "trainer_0/1");
  CHECK(only("0: [rank0]: loss").lane == "rank0");
}

TEST_CASE("time stamps and levels go, numbers stay") {
  CHECK(only("2024-05-02 10:11:12,123 - ERROR - step 4").text == "step 4");
  CHECK(only("[2024-05-02 10:11:12] step 4").text == "step 4");
  CHECK(only("ERROR 04-30 16:21:27 [engine.py:160] step 4").text == "step 4");
  for (const char* logger :
       {"2024-05-02 10:11:12,123 - train.loop - ERROR - ",
        "2024/05/02 10:11:12 - mmengine - INFO - ",
        "2024-05-02 10:11:12.123 | ERROR    | train.loop:run:12 - ",
        "[2024-05-02 10:11:12,123][train.loop][ERROR] - ",
        "2024-05-02 10:11:12,123 ERROR: ", "ERROR:root:", "WARNING:train.loop:"}) {
    INFO(logger);
    CHECK(only(std::string(logger) + "RuntimeError: CUDA error").text ==
          "RuntimeError: CUDA error");
  }
  CHECK(only("2024-05-02 10:11:12 CUDA ERROR: 2").text == "CUDA ERROR: 2");
  CHECK(only("ERROR:RuntimeError: x").text == "RuntimeError: x");
  CHECK(only("[12345.678901] Out of memory").text == "Out of memory");
  CHECK(only("123456 items").text == "123456 items");
  CHECK(only("10.76 GiB total capacity").text == "10.76 GiB total capacity");
  CHECK(only("file.py:12: in f").text == "file.py:12: in f");
}

TEST_CASE("a progress bar's carriage returns and a JSON log's \\n separate lines") {
  std::vector<LogLine> lines;
  tidy_line("10%|#\r20%|##\rTraceback (most recent call last):", 9, lines);
  REQUIRE(lines.size() == 3);
  CHECK(lines[2].text == "Traceback (most recent call last):");
  CHECK(lines[2].number == 9);
  lines.clear();
  tidy_line("{\"m\": \"Traceback (most recent call last):\\n  File \\\"a.py\\\", line 3, in f\"}",
            1, lines);
  CHECK(lines.size() == 2);
  lines.clear();
  tidy_line("C:\\new\\file.py", 1, lines);
  CHECK(lines.size() == 1);
}

TEST_CASE("escape sequences, entities and boxes leave the text") {
  CHECK(only("\x1b[1;31mError\x1b[0m: a &gt;&gt; b").text == "Error: a >> b");
  CHECK(only("\u2502 Error: x        \u2502").text == "Error: x");
  CHECK(only("\x1b]0;title\x07text").text == "text");
  CHECK(only("cut \x1b[").text == "cut");
  CHECK(only("it\u2019s").text == "it's");
}
