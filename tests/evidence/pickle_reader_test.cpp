#include "src/evidence/pickle_reader.h"

#include <doctest/doctest.h>

#include <limits>

#include "lowtide/error.h"
#include "tests/evidence/pickle_writer.h"

using namespace lowtide;  // the tests of one header

namespace {

PickleValue read(std::string_view bytes, PickleHeap& heap) {
  ByteSource source("test", std::as_bytes(std::span(bytes)));
  return read_pickle(source, heap, nullptr);
}

// As Python's repr, near enough to compare.
std::string shown(const PickleHeap& heap, PickleValue value) {
  using Kind = PickleValue::Kind;
  WideInteger integer;
  double number = 0;
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.small_integer() != 0 ? "True" : "False";
    case Kind::kInteger:
    case Kind::kWide:
      CHECK(heap.read_integer(value, integer));
      return integer.negative ? std::to_string(static_cast<std::int64_t>(integer.magnitude))
                              : std::to_string(integer.magnitude);
    case Kind::kFloat:
      CHECK(heap.read_number(value, number));
      return std::to_string(number);
    case Kind::kText:
      return "'" + std::string(heap.texts.view(value.index())) + "'";
    case Kind::kTuple:
    case Kind::kList: {
      std::string out = value.is(Kind::kList) ? "[" : "(";
      for (const PickleValue element : heap.elements(value)) out += shown(heap, element) + ",";
      return out + (value.is(Kind::kList) ? "]" : ")");
    }
    case Kind::kDict: {
      std::string out = "{";
      for (const auto& [key, held] : heap.pairs(value)) {
        out += shown(heap, key) + ":" + shown(heap, held) + ",";
      }
      return out + "}";
    }
    case Kind::kRecord:
      return "record";
  }
  return "";
}

std::string refusal(std::string_view bytes) {
  PickleHeap heap;
  try {
    read(bytes, heap);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "read";
}

Made everything() {
  Made::List numbers;
  for (int i = 0; i < 2500; ++i) numbers.push_back(i % 7 == 0 ? Made(-i) : Made(i * 1000));
  Made shared(Made::List{"a", "b"});
  shared.shared = 1;
  return Made::Dict{
      {"none", nullptr},
      {"flags", Made::Tuple{{true, false}}},
      {"numbers", std::move(numbers)},
      {"largest", std::numeric_limits<std::uint64_t>::max()},
      {"smallest", std::numeric_limits<std::int64_t>::min()},
      {"wide", std::int64_t{1} << 60},
      {"float", 0.25},
      {"shared", Made::List{shared, shared}},
      {"empty", Made::List{}},
      {"nothing", Made::Dict{}},
      {"no elements", Made::Tuple{}},
      {"four", Made::Tuple{{1, 2, 3, 4}}},
      {"long", std::string(700, 'x')},
  };
}

}  // namespace

TEST_CASE("every protocol and both dialects give the same values") {
  PickleHeap expected_heap;
  const std::string expected = shown(
      expected_heap, read(PickleWriter(Dialect::kPython, 4).write(everything()), expected_heap));
  CHECK(expected.find("'largest':18446744073709551615,") != std::string::npos);
  CHECK(expected.find("'smallest':-9223372036854775808,") != std::string::npos);
  CHECK(expected.find("'wide':1152921504606846976,") != std::string::npos);
  CHECK(expected.find("'shared':[['a','b',],['a','b',],],") != std::string::npos);
  CHECK(expected.find("'float':0.250000,") != std::string::npos);
  for (const int protocol : {2, 3, 4, 5}) {
    for (const std::size_t batch : {1000, 1, 3}) {
      CAPTURE(protocol);
      CAPTURE(batch);
      PickleHeap heap;
      CHECK(shown(heap, read(PickleWriter(Dialect::kPython, protocol, batch).write(everything()),
                             heap)) == expected);
    }
  }
  PickleHeap heap;
  CHECK(shown(heap, read(PickleWriter(Dialect::kLibtorch, 2).write(everything()), heap)) ==
        expected);
}

TEST_CASE("a text longer than the buffer is read whole") {
  PickleHeap heap;
  const std::string text(3'000'000, 'y');
  const std::string bytes = PickleWriter(Dialect::kPython, 4).write(Made::List{text, "z"});
  const auto elements = heap.elements(read(bytes, heap));
  REQUIRE(elements.size() == 2);
  CHECK(heap.texts.view(elements[0].index()) == text);
  CHECK(heap.texts.view(elements[1].index()) == "z");
}

TEST_CASE("an instruction that does not build data is refused by name and offset") {
  // os.system("true"), as an attacker would write it.
  const std::string call = std::string("\x80\x04") + "cos\nsystem\n(\x8c\x04trueR.";
  CHECK(refusal(call).find("GLOBAL (0x63) at byte 2") != std::string::npos);
  CHECK(refusal(call).find("[LT0711]") != std::string::npos);
  struct Case {
    const char* bytes;
    const char* name;
  };
  for (const Case& each :
       {Case{"R", "REDUCE"}, Case{"\x93", "STACK_GLOBAL"}, Case{"b", "BUILD"},
        Case{"\x81", "NEWOBJ"}, Case{"i", "INST"}, Case{"o", "OBJ"}, Case{"P", "PERSID"},
        Case{"Q", "BINPERSID"}, Case{"\x82", "EXT1"}, Case{"\x92", "NEWOBJ_EX"},
        Case{"B", "BINBYTES"}, Case{"\x8f", "EMPTY_SET"}, Case{"\x97", "NEXT_BUFFER"},
        Case{"I", "INT"}, Case{"0", "POP"}, Case{"2", "DUP"}}) {
    const std::string text = refusal(std::string("\x80\x04N") + each.bytes + "....");
    CAPTURE(text);
    CHECK(text.find(std::string("instruction ") + each.name + " (") != std::string::npos);
    CHECK(text.find("at byte 3") != std::string::npos);
    CHECK(text.find("[LT0711]") != std::string::npos);
  }
}

TEST_CASE("a damaged pickle says what is wrong and where") {
  struct Case {
    std::string body;
    const char* says;
  };
  const std::string far_get("j\xff\xff\xff\x00.", 6);
  for (const Case& each :
       {Case{"\xfe.", "byte 0xfe is no pickle instruction, at byte 2"},
        Case{"h\x05.", "names value 5, which it has not given yet"},
        Case{far_get, "names value 16777215"}, Case{"u.", "a container ends that was not begun"},
        Case{"}(Nu.", "a dict has a key without a value"},
        Case{"](Nu.", "items are put into what is no dict"},
        Case{"}(Ne.", "elements are appended to what is no list"},
        Case{"Na.", "an element is appended to nothing"},
        Case{"NNs.", "an item is put into nothing"}, Case{"N\x86.", "a tuple needs more values"},
        Case{"(N.", "it stops with 1 values"}, Case{".", "it stops with 0 values"},
        Case{"NN.", "it stops with 2 values"}, Case{"(\x94.", "nothing is there to be kept"}}) {
    CAPTURE(each.says);
    const std::string text = refusal("\x80\x04" + each.body);
    CAPTURE(text);
    CHECK(text.find(each.says) != std::string::npos);
    CHECK(text.find("[LT0712]") != std::string::npos);
  }
  // EMPTY_LIST MEMOIZE, itself appended to itself, and then more.
  const std::string cyclic(
      "\x80\x04]\x94h\x00"
      "ah\x00Na.",
      11);
  CHECK(refusal(cyclic).find("a container changes after it was put into another") !=
        std::string::npos);
}

TEST_CASE("a pickle that is cut off anywhere says how far it is good") {
  const std::string whole = PickleWriter(Dialect::kPython, 4)
                                .write(Made::Dict{{"a", Made::List{1, 2, 70000, "text"}},
                                                  {"b", Made::Tuple{{0.5, true}}}});
  PickleHeap heap;
  CHECK_NOTHROW(read(whole, heap));
  for (std::size_t length = 2; length < whole.size(); ++length) {
    const std::string text = refusal(whole.substr(0, length));
    CAPTURE(length);
    CAPTURE(text);
    CHECK(text.find("it is cut off after " + std::to_string(length) + " bytes; good until byte ") !=
          std::string::npos);
  }
}

TEST_CASE("what is no pickle is refused with a way out") {
  CHECK(refusal("").find("it is empty") != std::string::npos);
  CHECK(refusal(std::string("PK\x03\x04", 4)).find("unzip -p FILE") != std::string::npos);
  CHECK(refusal("\x1f\x8b\x08").find("gunzip") != std::string::npos);
  CHECK(refusal("{\"segments\": []}").find("looks like JSON") != std::string::npos);
  CHECK(refusal("(dp0\n.").find("has 0x80") != std::string::npos);
  CHECK(refusal("\x80\x06N.").find("protocol 6") != std::string::npos);
  CHECK(refusal("\x80\x01N.").find("protocol 1") != std::string::npos);
  CHECK(refusal("\x80\x06N.").find("[LT0713]") != std::string::npos);
}

TEST_CASE("lengths and depths beyond the limits are refused before memory is taken") {
  // A text of 2^40 bytes and one of 2^31, of which nothing follows.
  CHECK(refusal(std::string("\x80\x04\x8d\0\0\0\0\0\1\0\0", 11)).find("[LT0714]") !=
        std::string::npos);
  CHECK(refusal(std::string("\x80\x04X\0\0\0\x7f", 7)).find("cut off") != std::string::npos);
  CHECK(refusal("\x80\x04" + std::string(1001, '(')).find("nested more than 1000 deep") !=
        std::string::npos);
  CHECK(refusal(std::string("\x80\x04\x8a\x0a") + std::string(10, '\x01') + ".")
            .find("an integer of 10 bytes") != std::string::npos);
  CHECK(refusal(std::string("\x80\x04\x8a\x09") + std::string(9, '\x01') + ".")
            .find("an integer of 9 bytes") != std::string::npos);
}

TEST_CASE("values that no container takes do not pile up") {
  const std::string text = refusal("\x80\x04(" + std::string(100'000, 'N'));
  CHECK(text.find("values wait for a container") != std::string::npos);
  CHECK(text.find("[LT0714]") != std::string::npos);
}

TEST_CASE("a memo place far from the others is kept") {
  PickleHeap heap;
  const std::string bytes =
      std::string("\x80\x02](K\x07r\xff\xff\xff\x7fj\xff\xff\xff\x7f", 16) + "e.";
  CHECK(shown(heap, read(bytes, heap)) == "[7,7,]");
}

TEST_CASE("a file that is not there is said so") {
  try {
    ByteSource source("no/such/file.pickle");
    FAIL("opened");
  } catch (const IoError& error) {
    CHECK(std::string(error.what()).find("No such file") != std::string::npos);
    CHECK(error.id() == "LT0710");
  }
}
