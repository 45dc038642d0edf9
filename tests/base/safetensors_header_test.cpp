#include "src/base/safetensors_header.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "lowtide/error.h"

namespace {

using lowtide::FormatError;
using lowtide::parse_safetensors_header;
using lowtide::SafetensorsHeader;

std::string with_length(const std::string& json) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>((json.size() >> (8 * i)) & 0xff);
  }
  return bytes + json;
}

SafetensorsHeader parse(const std::string& json, std::uint64_t data_bytes) {
  const std::string bytes = with_length(json);
  return parse_safetensors_header(bytes, bytes.size() + data_bytes, "x.safetensors");
}

// Runs `work` and checks that it is refused with `id` and a message that has `part`.
void check_refused(const std::function<void()>& work, const std::string& id,
                   const std::string& part) {
  try {
    work();
    FAIL("not refused: ", part);
  } catch (const FormatError& error) {
    const std::string message = error.what();
    CHECK(error.id() == id);
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
    CHECK(std::string(error.what()).find("cannot read x.safetensors: ") == 0);
  }
}

void check_json_refused(const std::string& json, std::uint64_t data_bytes, const std::string& id,
                        const std::string& part) {
  check_refused([&] { parse(json, data_bytes); }, id, part);
}

}  // namespace

TEST_CASE("tensors come out in the order of their bytes, with metadata") {
  const SafetensorsHeader header =
      parse(R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
            R"("__metadata__":{"format":"pt"},)"
            R"("a":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})",
            32);
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].name == "a");
  CHECK(header.tensors[0].shape.empty());
  CHECK(header.tensors[1].name == "b");
  CHECK(header.tensors[1].dtype == "F32");
  CHECK(header.tensors[1].shape == std::vector<std::int64_t>{2, 3});
  CHECK(header.tensors[1].begin_bytes == 8);
  CHECK(header.tensors[1].end_bytes == 32);
  CHECK(header.metadata == std::map<std::string, std::string>{{"format", "pt"}});
}

TEST_CASE("tensors without elements and files without tensors are fine") {
  CHECK(parse("{}", 0).tensors.empty());
  CHECK(parse("{}      ", 0).data_begin_bytes == 16);
  const auto header = parse(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                            R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[2,2]},)"
                            R"("f":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]}})",
                            2);
  CHECK(header.tensors.size() == 3);
}

TEST_CASE("a length that cannot be is refused with both numbers") {
  check_refused([] { parse_safetensors_header("1234567", 7, "x.safetensors"); }, "LT0110",
                "it has 7 bytes, too few for the header length in the first 8");
  check_refused([] { parse_safetensors_header("", 0, "x.safetensors"); }, "LT0110",
                "it has 0 bytes");
  check_refused(
      [] { parse_safetensors_header(with_length("{}").substr(0, 9), 9, "x.safetensors"); },
      "LT0110", "a header of 2 bytes, but only 1 bytes follow");
  check_refused([] { parse_safetensors_header(std::string(8, '\xff'), 1000, "x.safetensors"); },
                "LT0110", "a header of 18446744073709551615 bytes, but only 992 bytes follow");
  check_refused(
      [] {
        parse_safetensors_header(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), 1'000'000'000,
                                 "x.safetensors");
      },
      "LT0110", "its header has 100000001 bytes, over the limit of 100000000");
  check_refused(
      [] { parse_safetensors_header(with_length("{}").substr(0, 9), 10, "x.safetensors"); },
      "LT0110", "only 1 of the header's 2 bytes could be read");
}

TEST_CASE("a header that is not the format's JSON is refused") {
  check_json_refused("", 0, "LT0111", "does not begin with '{'");
  check_json_refused(" {}", 0, "LT0111", "does not begin with '{'");
  check_json_refused("[]", 0, "LT0111", "does not begin with '{'");
  check_json_refused("{", 0, "LT0111", "not valid");
  check_json_refused("{}x", 0, "LT0111", "not valid");
  check_json_refused("{\"\xff\":1}", 0, "LT0111", "not valid");
  check_json_refused(R"({"a":1,"a":1})", 0, "LT0111", "not valid");
  std::string deep = R"({"a":)";
  deep.append(100000, '[').append(100000, ']');
  check_json_refused(deep + "}", 0, "LT0111", "nested deeper");
  check_json_refused(R"({"__metadata__":[]})", 0, "LT0111", "'__metadata__' is not a JSON object");
  check_json_refused(R"({"__metadata__":{"k":1}})", 0, "LT0111",
                     "the metadata value 'k' is not a string");
}

TEST_CASE("an entry that is not a tensor's is refused, naming the tensor") {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  check_json_refused(R"({"w":3})", 0, "LT0112", "the entry of tensor 'w' is not a JSON object");
  check_json_refused(R"({"w":{"shape":[],"data_offsets":[0,0]}})", 0, "LT0112", "has no 'dtype'");
  check_json_refused(R"({"w":{"dtype":"F32","data_offsets":[0,0]}})", 0, "LT0112",
                     "has no 'shape'");
  check_json_refused(R"({"w":{"dtype":"F32","shape":[]}})", 0, "LT0112", "has no 'data_offsets'");
  check_json_refused(R"({"w":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1}})", 4, "LT0112",
                     "the unknown key 'x'");
  check_json_refused(entry("7", "[1]", "[0,4]"), 4, "LT0112",
                     "dtype of tensor 'w' is not a string");
  check_json_refused(entry(R"("F33")", "[1]", "[0,4]"), 4, "LT0112", "the unknown dtype 'F33'");
  check_json_refused(entry(R"("F32")", "1", "[0,4]"), 4, "LT0112", "is not a list");
  check_json_refused(entry(R"("F32")", "[-1]", "[0,4]"), 4, "LT0112", "a dimension that is not");
  check_json_refused(entry(R"("F32")", "[1.0]", "[0,4]"), 4, "LT0112", "a dimension that is not");
  check_json_refused(entry(R"("F32")", "[9223372036854775808]", "[0,4]"), 4, "LT0112",
                     "which is over 2^63-1");
  check_json_refused(entry(R"("F32")", "[99999999999999999999]", "[0,4]"), 4, "LT0112",
                     "a dimension that is not");
  check_json_refused(entry(R"("F32")", "[4294967296,4294967296]", "[0,4]"), 4, "LT0112",
                     "too large");
  check_json_refused(entry(R"("F32")", "[0,4294967296,4294967296]", "[0,0]"), 0, "LT0112",
                     "too large");
  check_json_refused(entry(R"("F32")", "[1]", "[0]"), 4, "LT0112", "are not two numbers");
  check_json_refused(entry(R"("F32")", "[1]", "[0,4,8]"), 4, "LT0112", "are not two numbers");
  check_json_refused(entry(R"("F32")", "[1]", "[-4,0]"), 4, "LT0112", "a data offset that is not");
  check_json_refused(entry(R"("F4")", "[3]", "[0,1]"), 1, "LT0112", "does not end on a whole byte");
}

TEST_CASE("byte ranges that do not cover the data exactly are refused") {
  const auto one = [](const std::string& offsets) {
    return R"({"w":{"dtype":"F32","shape":[1],"data_offsets":)" + offsets + "}}";
  };
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + first +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + second + "}}";
  };
  check_json_refused(one("[4,0]"), 4, "LT0113", "ends at data byte 0, before it begins at 4");
  check_json_refused(one("[0,4]"), 3, "LT0113",
                     "ends at data byte 4, but the file has 3 bytes of data");
  check_json_refused(one("[0,18446744073709551615]"), 4, "LT0113", "18446744073709551615");
  check_json_refused(one("[0,3]"), 3, "LT0113", "has 3 bytes, but its dtype and shape need 4");
  check_json_refused(one("[0,4]"), 5, "LT0113", "the tensors end at data byte 4");
  check_json_refused(one("[4,8]"), 8, "LT0113", "data bytes 0 to 4 belong to no tensor");
  check_json_refused(two("[0,4]", "[2,6]"), 6, "LT0113", "inside the tensor before it");
  check_json_refused(two("[0,4]", "[0,4]"), 4, "LT0113", "inside the tensor before it");
  check_json_refused(two("[0,4]", "[8,12]"), 12, "LT0113", "data bytes 4 to 8");
  check_json_refused("{}", 1, "LT0113", "the tensors end at data byte 0");
}

TEST_CASE("a name from the file is shown short and without control characters") {
  const std::string long_name(5000, 'n');
  try {
    parse("{\"" + long_name + "\":1}", 0);
    FAIL("not refused");
  } catch (const FormatError& error) {
    CHECK(std::string(error.what()).size() < 400);
  }
  check_json_refused(R"({"a\nb":1})", 0, "LT0112", "'a?b'");
}

TEST_CASE("every cut and every flipped bit ends in a header or a FormatError") {
  const std::string whole =
      lowtide::format_safetensors_header({{"a", "F32", {2, 3}, 0, 24}, {"b", "BOOL", {5}, 24, 29}},
                                         {{"k", "v"}}) +
      std::string(29, '\1');
  const auto survives = [](const std::string& bytes) {
    try {
      parse_safetensors_header(bytes, bytes.size(), "x.safetensors");
      return true;
    } catch (const FormatError&) {
      return false;
    }
  };
  REQUIRE(survives(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CHECK_FALSE(survives(whole.substr(0, size)));
  }
  int accepted = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      accepted += survives(damaged) ? 1 : 0;
    }
  }
  // The data itself, names, metadata and blanks may change freely; the rest may not.
  CHECK(accepted >= 29 * 8);
  CHECK(accepted < static_cast<int>(whole.size()) * 4);
}

TEST_CASE("a written header begins the data at a multiple of 8 and reads back") {
  const std::vector<lowtide::SafetensorsEntry> tensors = {{"x.y", "F64", {1, 0, 2}, 0, 0},
                                                          {"z", "BF16", {3}, 0, 6}};
  const std::map<std::string, std::string> metadata = {{"case", "{\"d\": 32}"}};
  const std::string bytes = lowtide::format_safetensors_header(tensors, metadata);
  CHECK(bytes.size() % 8 == 0);
  const auto header = parse_safetensors_header(bytes, bytes.size() + 6, "x.safetensors");
  CHECK(header.data_begin_bytes == bytes.size());
  CHECK(header.metadata == metadata);
  REQUIRE(header.tensors.size() == 2);
  CHECK(header.tensors[0].name == "x.y");
  CHECK(header.tensors[0].shape == tensors[0].shape);
  CHECK(header.tensors[1].dtype == "BF16");
}
