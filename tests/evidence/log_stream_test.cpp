#include "src/evidence/log_stream.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "src/base/text.h"
#include "src/evidence/log_evidence.h"
#include "tests/evidence/message_printer.h"

using namespace lowtide;

namespace {

LogSource source_of(const std::string& text, std::size_t& at, std::size_t chunk = 1u << 20) {
  return [&text, &at, chunk](char* buffer, std::size_t capacity) {
    const std::size_t take = std::min({capacity, chunk, text.size() - at});
    std::memcpy(buffer, text.data() + at, take);
    at += take;
    return take;
  };
}

// A log of `bytes` of harmless lines, numbered.
std::string filler(std::size_t bytes, std::size_t first = 1) {
  std::string out;
  out.reserve(bytes + 100);
  for (std::size_t i = first; out.size() < bytes; ++i) {
    out += concat("line ", i, ": loss 0.1234 accuracy 0.5 throughput 812.3 images/s\n");
  }
  return out;
}

}  // namespace

TEST_CASE("a short log is handed on whole, whatever the sizes of the pieces") {
  const std::string text = "a\n\nbc\nlast";
  for (const std::size_t chunk : {1u, 2u, 100u}) {
    std::size_t at = 0;
    std::vector<std::string> lines;
    const StreamTotals totals =
        stream_log(source_of(text, at, chunk), {[&](std::string_view line, std::uint64_t number) {
                                                  CHECK(number == lines.size() + 1);
                                                  lines.emplace_back(line);
                                                },
                                                [] { FAIL("nothing is left out"); }});
    CHECK(lines == std::vector<std::string>{"a", "", "bc", "last"});
    CHECK(totals.lines == 4);
    CHECK(totals.bytes == text.size());
  }
}

TEST_CASE(
    "far into a log only the neighbourhood of telling words is handed on, with right numbers") {
  // Past the head that is read whole, before the tail that is.
  std::string text = filler(12u << 20);
  const std::uint64_t line =
      1 + static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  text += "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n";
  text += filler(4u << 20, 500000);
  std::size_t at = 0;
  std::uint64_t handed = 0;
  std::uint64_t found = 0;
  const StreamTotals totals =
      stream_log(source_of(text, at), {[&](std::string_view one, std::uint64_t number) {
                                         handed += one.size() + 1;
                                         if (one.starts_with("RuntimeError")) found = number;
                                       },
                                       [] {}});
  CHECK(found == line);
  CHECK(handed < (10u << 20));
  CHECK(totals.bytes == text.size());
  CHECK(totals.lines == static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n')));
}

TEST_CASE("each form of message is found far into a log") {
  const std::vector<MadeMessage> made = made_messages(1);
  const std::string between = filler(400u << 10, 1'000'000);
  for (std::size_t part = 0; part < 4; ++part) {
    std::string text = filler(8u << 20);
    std::vector<std::size_t> put;
    for (std::size_t i = part; i < made.size(); i += 4) {
      text += between + "RuntimeError: " + made[i].text + "\n";
      put.push_back(i);
    }
    text += between;
    std::size_t at = 0;
    const LogEvidence log = read_log(source_of(text, at), "log");
    REQUIRE(log.sightings.size() == put.size());
    for (std::size_t i = 0; i < put.size(); ++i) {
      INFO(made[put[i]].text);
      CHECK(log.sightings[i].message == made[put[i]].record);
    }
  }
}

TEST_SUITE("slow") {
  TEST_CASE("a message is found wherever it lies between two pieces of the buffer") {
    const std::string message = "E CUDA error: out of memory\n";
    for (std::size_t shift = 0; shift < 40; ++shift) {
      // The buffer's pieces meet at 9 MiB and 10 MiB.
      std::string text = filler((10u << 20) - 400);
      text.resize((10u << 20) - 20 - shift, 'x');
      text += "\n" + message + filler(1u << 20);
      std::size_t at = 0;
      const LogEvidence log = read_log(source_of(text, at), "log");
      REQUIRE(log.sightings.size() == 1);
      CHECK(log.sightings[0].text == "E CUDA error: out of memory");
    }
  }

  TEST_CASE("the same sightings are found whether a log is searched or read whole") {
    std::mt19937 random(11);
    for (int round = 0; round < 6; ++round) {
      std::string text = filler(9u << 20);
      std::vector<std::uint64_t> lines;
      for (int i = 0; i < 12; ++i) {
        text += filler(random() % (700u << 10), 7'000'000);
        lines.push_back(1 + static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n')));
        text +=
            concat("CUDA out of memory. Tried to allocate ", i + 2,
                   ".00 MiB (GPU 0; 8.00 GiB total capacity; 7.00 GiB already allocated; 1.00 MiB "
                   "free; 7.10 GiB reserved in total by PyTorch)\n");
      }
      std::size_t at = 0;
      const LogEvidence log = read_log(source_of(text, at), "log");
      REQUIRE(log.sightings.size() == lines.size());
      for (std::size_t i = 0; i < lines.size(); ++i) CHECK(log.sightings[i].first_line == lines[i]);
    }
  }
}

TEST_CASE("a log that is one endless line stays within its bounds") {
  std::string text(20u << 20, 'x');
  text += "CUDA error: out of memory";
  std::size_t at = 0;
  std::size_t longest = 0;
  stream_log(source_of(text, at), {[&](std::string_view line, std::uint64_t) {
                                     longest = std::max(longest, line.size());
                                   },
                                   [] {}});
  CHECK(longest <= (64u << 10));
  at = 0;
  CHECK(read_log(source_of(text, at), "log").sightings.size() == 1);
}

TEST_CASE("a log full of failures keeps a bounded number of them") {
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += concat("CUDA out of memory. Tried to allocate ", i + 2, ".00 MiB\n");
  }
  std::size_t at = 0;
  const LogEvidence log = read_log(source_of(text, at), "log");
  CHECK(log.sightings.size() == 64);
  CHECK(log.sightings_dropped == 5000 - 64);
}
