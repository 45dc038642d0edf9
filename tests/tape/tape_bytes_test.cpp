#include "src/tape/tape_bytes.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <random>
#include <string>

#include "lowtide/error.h"
#include "src/base/byte_codec.h"
#include "src/tape/tape_text.h"

namespace lowtide {
namespace {

const char* const kExample =
    "lowtide-tape 1\n"
    "batch 8\n"
    "make s0 4096 parameter\n"
    "make s1 512 input\n"
    "mark forward\n"
    "run aten::mm 1200 work=64 in=s0,s1 out=s2:8192:saved module=a.b source=x%20y.py:3\n"
    "pack t0 s2\n"
    "hold s2\n"
    "run aten::dropout_ 300 in=s2 out=s2,s3:2048:program flags=random module=a.b\n"
    "run other 0 flags=not_repeatable,view source=z.py:1\n"
    "unhold s2\n"
    "mark backward\n"
    "unpack t0\n"
    "forget t0\n"
    "free s2\n"
    "mark end\n";

TEST_CASE("text to binary to text is the same text") {
  const Tape tape = parse_tape_text(kExample);
  CHECK(tape.batch_size == 8);
  CHECK(tape.names[tape.ops[0].source] == "x y.py:3");
  CHECK(to_tape_text(tape) == kExample);
  CHECK(to_tape_text(parse_tape_bytes(to_tape_bytes(tape))) == kExample);
}

TEST_CASE("binary to binary is the same bytes") {
  const std::string bytes = to_tape_bytes(parse_tape_text(kExample));
  CHECK(to_tape_bytes(parse_tape_bytes(bytes)) == bytes);
}

TEST_CASE("the bytes are those of the format's document") {
  Tape tape;
  const StorageId w = tape.make(300, StorageKind::kParameter);
  const StorageId y = tape.add_storage(7, StorageKind::kSaved);
  tape.run("f", 1000, {{w}}, {{y}});
  const std::string bytes = to_tape_bytes(tape);
  std::string hex;
  for (const unsigned char c : bytes.substr(0, bytes.size() - 8)) {
    hex += "0123456789abcdef"[c / 16];
    hex += "0123456789abcdef"[c % 16];
  }
  CHECK(hex ==
        "6c742d746170650a"  // lt-tape, LF
        "0100"              // version 1, no batch size
        "010166"            // one name, "f"
        "0201ac02"
        "0507"  // two storages: parameter of 300, saved of 7
        "00"    // no saved tensors
        "01"
        "00"
        "00"
        "e807"
        "00"
        "00"
        "00"
        "0100"
        "0102"  // f: 1000 ns, reads 0, writes 1
        "02"
        "0000"
        "0100");  // make 0, run 0
}

TEST_CASE("a tape of a long step takes under 200 bytes an op") {
  Tape tape;
  std::mt19937 random(3);
  std::vector<StorageId> there{tape.make(1 << 20, StorageKind::kParameter)};
  for (int i = 0; i < 5000; ++i) {
    const StorageId made = tape.add_storage(random(), StorageKind::kSaved);
    tape.run("aten::op" + std::to_string(i % 40), random() % 5'000'000,
             {{there[random() % there.size()], there[random() % there.size()], there.back()}},
             {{made}}, random() % 100'000);
    tape.ops.back().module = tape.name_index("encoder.layers." + std::to_string(i % 300));
    tape.ops.back().source = tape.name_index("model.py:" + std::to_string(i % 500));
    there.push_back(made);
    tape.hold(made);
    tape.pack(made);
    tape.unhold(made);
  }
  const double bytes = static_cast<double>(to_tape_bytes(tape).size()) / 5000;
  MESSAGE(bytes, " bytes an op");
  CHECK(bytes < 200);
}

void check_refused(std::string bytes, const char* part, bool with_sum = true) {
  if (with_sum) {
    ByteWriter writer;
    writer.raw(bytes);
    bytes = writer.finish();
  }
  try {
    parse_tape_bytes(bytes);
    FAIL("was read: ", part);
  } catch (const FormatError& error) {
    CHECK(error.id() == "LT0142");
    CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
  }
}

TEST_CASE("bytes that cannot be are refused where they stand") {
  const std::string head = std::string("lt-tape\n") + '\x01' + '\0';
  check_refused("lt-plan\n", "byte 0: it does not begin with \"lt-tape\"");
  check_refused("", "does not begin with", false);
  check_refused(std::string("lt-tape\n") + '\x02', "it has version 2; this program reads 1");
  check_refused(head + "\xff\xff\xff\x7f", "there cannot be 268435455 names in what is left");
  check_refused(head + '\0' + '\x01' + '\x07' + '\x01', "there is no storage kind 7");
  check_refused(head + '\0' + '\0' + '\x01' + '\0',
                "a saved storage is 0 where it must be below 0");
  check_refused(std::string("lt-tape\n") + '\x01' + std::string(10, '\xff'),
                "a number is longer than 64 bits");
  const std::string good = to_tape_bytes(parse_tape_text(kExample));
  check_refused(good + "x", "bytes follow the end", false);
  std::string other_sum = good;
  other_sum.back() ^= 1;
  check_refused(other_sum, "the checksum does not fit", false);
}

TEST_CASE("a tape that reads but makes no sense is refused as a whole") {
  Tape tape = parse_tape_text(kExample);
  tape.free(StorageId{3});
  tape.free(StorageId{3});
  try {
    parse_tape_bytes(to_tape_bytes(tape));
    FAIL("was read");
  } catch (const FormatError& error) {
    CHECK(error.id() == "LT0141");
  }
}

TEST_CASE("a damaged file is refused, whichever byte is hit, and whatever its sum says") {
  const std::string good = to_tape_bytes(parse_tape_text(kExample));
  std::mt19937 random(4);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 + random() % 255));
    CHECK_THROWS_AS(parse_tape_bytes(bytes), FormatError);
    CHECK_THROWS_AS(parse_tape_bytes(good.substr(0, at)), FormatError);
    if (at + 8 >= good.size()) continue;
    ByteWriter writer;
    writer.raw(bytes.substr(0, bytes.size() - 8));
    try {
      const Tape tape = parse_tape_bytes(writer.finish());
      CHECK_FALSE(find_problem(tape).has_value());
    } catch (const FormatError&) {
    }
  }
}

TEST_CASE("a file is read in either form") {
  const auto folder = std::filesystem::temp_directory_path() / "lowtide_tape_bytes_test";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "step.tape").string();
  const Tape tape = parse_tape_text(kExample);
  write_tape(path, tape);
  CHECK(to_tape_text(read_tape(path)) == kExample);
  const std::string data = std::string(LOWTIDE_SOURCE_DIR) + "/tests/tape/data/mlp8.tape";
  CHECK(read_tape(data).batch_size == 8);
  std::filesystem::remove_all(folder);
  CHECK_THROWS_AS(read_tape(path), IoError);
  CHECK_THROWS_AS(write_tape(path, tape), IoError);
}

}  // namespace
}  // namespace lowtide
