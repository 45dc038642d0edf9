#include "src/evidence/message_reader.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <sstream>

#include "src/base/text.h"
#include "src/evidence/log_evidence.h"
#include "tests/evidence/message_printer.h"

using namespace lowtide;

namespace {

LogEvidence read_text(const std::string& text) { return read_log_text(text, "log"); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Breaks every line at `width` columns: in the middle of words and numbers, as terminals do.
std::string broken_hard(const std::string& text, std::size_t width) {
  std::string out;
  for (const std::string& line : lines_of(text)) {
    for (std::size_t at = 0; at < line.size(); at += width) out += line.substr(at, width) + "\n";
  }
  return out;
}

// Breaks lines at blanks and indents what follows, as loggers and boxes do.
std::string broken_softly(const std::string& text, std::size_t width, const std::string& indent) {
  std::string out;
  for (const std::string& line : lines_of(text)) {
    std::istringstream words(line);
    std::string row;
    for (std::string word; words >> word;) {
      if (!row.empty() && row.size() + 1 + word.size() > width) {
        out += row + "\n";
        row = indent;
      }
      if (!row.empty() && row != indent) row += ' ';
      row += word;
    }
    out += row + "\n";
  }
  return out;
}

std::string each_line(const std::string& text, const std::string& before,
                      const std::string& after = "") {
  std::string out;
  for (const std::string& line : lines_of(text)) out += before + line + after + "\n";
  return out;
}

std::string coloured(const std::string& text, std::mt19937& random) {
  std::string out = "\x1b[1;31m";
  for (const char c : text) {
    if (random() % 9 == 0) out += random() % 2 == 0 ? "\x1b[0m" : "\x1b[38;5;196m";
    out += c;
  }
  return out + "\x1b[0m\n";
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '>':
        out += "&gt;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out + "\n";
}

std::string boxed(const std::string& text) {
  std::string out = "\u256d\u2500\u2500 Traceback \u2500\u2500\u256e\n";
  for (std::string line : lines_of(broken_hard(text, 60))) {
    line.resize(60, ' ');
    out += "\u2502 " + line + " \u2502\n";
  }
  return out + "\u2570\u2500\u2500\u256f\n";
}

// Reads `text` and wants exactly the record of `made`, once.
void check_read(const MadeMessage& made, const std::string& way, const std::string& text) {
  const LogEvidence log = read_text(text);
  INFO("form: ", made.form, ", ", way, "\n", text);
  REQUIRE(log.sightings.size() == 1);
  CHECK(log.sightings[0].message == made.record);
}

// Prints, breaks and reads back all forms with the sizes of one seed.
void check_all_ways(unsigned seed) {
  std::mt19937 random(seed);
  {
    for (const MadeMessage& made : made_messages(seed)) {
      const std::string raised = "RuntimeError: " + made.text;
      check_read(made, "plain", raised + "\n");
      check_read(made, "without an end of line", raised);
      check_read(made, "carriage returns", each_line(raised, "", "\r"));
      // A shell's or a launcher's short words are not broken by anybody.
      const bool exit_code = made.form == "exit code";
      if (!exit_code) {
        for (const std::size_t width : {20u, 41u, 80u, 120u}) {
          check_read(made, concat("broken at column ", width), broken_hard(raised, width));
        }
        check_read(made, "boxed", boxed(raised));
      }
      check_read(made, "broken at blanks", broken_softly(raised, 72, "    "));
      check_read(made, "coloured", coloured(raised, random));
      check_read(made, "HTML", escaped(raised));
      for (const char* prefix :
           {"[rank3]: ", "[default3]:", "3: ", "(RayTrainWorker pid=123, ip=10.0.0.1) ",
            "worker-1 | ", "2024-05-02 10:11:12,123 - ERROR - ", "[2024-05-02 10:11:12] ",
            "2024-05-02T10:11:12.123456789Z stderr F ", "> ", "E       ",
            "[1,3]<stderr>:", "0: [rank0]: ", "May  2 10:11:12 node1 python[77]: "}) {
        check_read(made, concat("prefixed with ", prefix), each_line(raised, prefix));
        if (!exit_code) {
          check_read(made, concat("broken, then prefixed with ", prefix),
                     each_line(broken_hard(raised, 60), prefix));
        }
        check_read(made, concat("prefixed and broken at blanks with ", prefix),
                   each_line(broken_softly(raised, 60, "  "), prefix));
      }
    }
  }
}

}  // namespace

TEST_CASE("every form is read back to the record that it was printed from, however it is broken") {
  check_all_ways(0);
  check_all_ways(1);
}

TEST_SUITE("slow") {
  TEST_CASE("and with many sizes") {
    for (unsigned seed = 2; seed < 40; ++seed) check_all_ways(seed);
  }
}

TEST_CASE("messages of ranks that write between each other's lines are told apart") {
  const std::vector<MadeMessage> made = made_messages(3);
  for (std::size_t i = 0; i + 1 < made.size(); i += 2) {
    if (made[i].form == "exit code" || made[i + 1].form == "exit code") continue;
    const std::vector<std::string> a =
        lines_of(each_line(broken_softly(made[i].text, 40, ""), "[rank0]: "));
    const std::vector<std::string> b =
        lines_of(each_line(broken_softly(made[i + 1].text, 40, ""), "[rank1]: "));
    std::string text;
    for (std::size_t line = 0; line < std::max(a.size(), b.size()); ++line) {
      if (line < a.size()) text += a[line] + "\n";
      if (line < b.size()) text += b[line] + "\n";
    }
    const LogEvidence log = read_text(text);
    INFO(text);
    REQUIRE(log.sightings.size() == 2);
    const bool in_order = log.sightings[0].lane == "rank0";
    CHECK(log.sightings[in_order ? 0 : 1].message == made[i].record);
    CHECK(log.sightings[in_order ? 1 : 0].message == made[i + 1].record);
  }
}

TEST_CASE("a rank's message goes on where the terminal broke it without a prefix") {
  const std::string head =
      "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.36 GiB. GPU 1 has "
      "a "
      "total capacity of 47.50 GiB of which 1.52 GiB is free. Including non-PyTorch memory, this "
      "process has 45.97 GiB memory in use. Of the allocated memory 4\n";
  const std::string tail =
      "0.30 GiB is allocated by PyTorch, and 4.91 GiB is reserved by PyTorch but unallocated.\n";
  const LogEvidence log = read_text(head + tail);
  REQUIRE(log.sightings.size() == 1);
  CHECK(log.sightings[0].lane == "rank1");
  REQUIRE(log.sightings[0].message.allocated.has_value());
  CHECK(format_bytes(log.sightings[0].message.allocated->bytes) == "40.3 GiB");
  // Another rank's line ends it, and so does a traceback of no rank.
  for (const char* between : {"[rank2]: step 3\n", "Traceback (most recent call last):\n"}) {
    const LogEvidence apart = read_text(head + between + tail);
    REQUIRE(!apart.sightings.empty());
    CHECK_FALSE(apart.sightings[0].message.reserved_unallocated.has_value());
  }
}

TEST_CASE("bold type of a copied report does no harm") {
  const LogEvidence log = read_text(
      "torch.cuda.OutOfMemoryError: **CUDA out of memory**. Tried to allocate 50.10 GiB. GPU 0 has "
      "a total capacity of 79.15 GiB of which 29.90 GiB is free.\n");
  REQUIRE(log.sightings.size() == 1);
  CHECK(format_bytes(log.sightings[0].message.requested->bytes) == "50.1 GiB");
}

TEST_CASE("a message that is cut off gives what is there") {
  const LogEvidence log = read_text(
      "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 11.17 GiB total\n");
  REQUIRE(log.sightings.size() == 1);
  const MemoryMessage& m = log.sightings[0].message;
  CHECK(m.family == MessageFamily::kShortened);
  CHECK(m.requested->bytes == 20u << 20);
  CHECK(m.device == 0);
  CHECK_FALSE(m.capacity.has_value());
}

TEST_CASE("the missing device number and the trailing NUL of some 2.2 builds do no harm") {
  std::string text =
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU  has a "
      "total "
      "capacity of 23.65 GiB of which 1.00 GiB is free.";
  const LogEvidence log = read_text(text);
  REQUIRE(log.sightings.size() == 1);
  CHECK_FALSE(log.sightings[0].message.device.has_value());
  CHECK(log.sightings[0].message.free->bytes == 1u << 30);
  text = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU ";
  text += '\0';
  const LogEvidence cut = read_text(text + "\n");
  REQUIRE(cut.sightings.size() == 1);
  CHECK(cut.sightings[0].message.requested->bytes == 3ull << 29);
}

TEST_CASE("2^64 bytes, as WSL prints, do not overflow") {
  const LogEvidence log = read_text(
      "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 8.00 GiB of "
      "which 0 bytes is free. Including non-PyTorch memory, this process has 17179869184.00 GiB "
      "memory in use. Of the allocated memory 7.02 GiB is allocated by PyTorch, and 120.00 MiB is "
      "reserved by PyTorch but unallocated.\n");
  REQUIRE(log.sightings.size() == 1);
  CHECK(log.sightings[0].message.this_process->bytes == ~0ull);
  CHECK(log.sightings[0].message.allocated.has_value());
}

TEST_CASE("a number at the end of a line does not run into the next line") {
  const LogEvidence log = read_text("exit code 137\n2024 was a good year\n");
  REQUIRE(log.sightings.size() == 1);
  CHECK(log.sightings[0].message.exit_code == 137);
  CHECK(read_text("exit code 1\n37 files\n").sightings.empty());
}

TEST_CASE("a shell's word for a killed program is read, the word in a sentence is not") {
  CHECK(read_text("Killed\n").sightings.size() == 1);
  CHECK(read_text("run.sh: line 3: 24181 Killed                  python train.py\n")
            .sightings.size() == 1);
  CHECK(read_text("Killed the old server, starting a new one\n").sightings.empty());
}

TEST_CASE("Python's MemoryError is read where it is the whole line") {
  const LogEvidence log = read_text(
      "Traceback (most recent call last):\n  File \"load.py\", line 3, in <module>\n"
      "    rows = [0] * (1 << 40)\nMemoryError\n");
  REQUIRE(log.sightings.size() == 1);
  CHECK(log.sightings[0].message.family == MessageFamily::kArrayTooLarge);
  CHECK(read_text("MemoryError: \n").sightings.size() == 1);
  CHECK(read_text("    except MemoryError:\nsee OutOfMemoryError\n").sightings.empty());
}

TEST_CASE("talk about memory is no message") {
  for (const char* text :
       {"If out-of-memory error occurs during capture, decrease gpu_memory_utilization\n",
        "we ran out of memory last week\n", "OutOfMemoryError is raised when ...\n",
        "exit code 0\n", "memory: 4321\n", "saved to /data/out of memory/x\n"}) {
    INFO(text);
    CHECK(read_text(text).sightings.empty());
  }
}

TEST_CASE("the arithmetic uses each version's meaning of its words") {
  MemoryMessage m;
  m.capacity = PrintedBytes{1000, 0};
  m.free = PrintedBytes{100, 0};
  m.allocated = PrintedBytes{500, 0};
  CHECK_FALSE(outside_pytorch(m).has_value());
  m.reserved_total = PrintedBytes{600, 0};
  CHECK(unused_reserved(m)->bytes == 100);
  CHECK(outside_pytorch(m) == 300);
  m.reserved_total.reset();
  m.reserved_unallocated = PrintedBytes{100, 0};
  CHECK(outside_pytorch(m) == 300);
  m.free = PrintedBytes{900, 0};
  CHECK(outside_pytorch(m) == 0);
}
