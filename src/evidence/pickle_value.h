#pragma once
// The values that a pickle is made of, as handles of eight bytes into a `PickleHeap`.
//
// Made for pickles of hundreds of megabytes in which the same few texts and lists come up again and
// again: texts are interned, small integers stand in the handle itself, and a container that the
// caller has folded into a table of its own (`PickleFolder`) is a record: a tag and a row.

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace lowtide {

class PickleValue {
 public:
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInteger,  // fits 60 bits
    kWide,     // an integer that does not
    kFloat,
    kText,
    kTuple,
    kList,
    kDict,
    kRecord,  // what a folder made of a list or dict
  };

  constexpr PickleValue() = default;
  constexpr PickleValue(Kind kind, std::uint64_t payload)
      : bits_((static_cast<std::uint64_t>(kind) << kPayloadBits) | (payload & kPayloadMask)) {}
  static constexpr PickleValue record(std::uint8_t tag, std::uint32_t row) {
    return {Kind::kRecord, (std::uint64_t{tag} << 32) | row};
  }

  constexpr Kind kind() const { return static_cast<Kind>(bits_ >> kPayloadBits); }
  constexpr bool is(Kind kind) const { return this->kind() == kind; }
  constexpr bool is_record(std::uint8_t tag) const {
    return is(Kind::kRecord) && this->tag() == tag;
  }
  // Of kText, kTuple, kList, kDict, kWide and kFloat: where in the heap. Of a record: its row.
  constexpr std::uint32_t index() const { return static_cast<std::uint32_t>(bits_); }
  constexpr std::uint8_t tag() const { return static_cast<std::uint8_t>(bits_ >> 32); }
  constexpr std::int64_t small_integer() const {
    return static_cast<std::int64_t>(bits_ << (64 - kPayloadBits)) >> (64 - kPayloadBits);
  }
  constexpr bool operator==(const PickleValue&) const = default;

 private:
  static constexpr int kPayloadBits = 60;
  static constexpr std::uint64_t kPayloadMask = (std::uint64_t{1} << kPayloadBits) - 1;

  std::uint64_t bits_ = 0;
};

// An integer of a pickle: 64 bits, signed or not.
struct WideInteger {
  std::uint64_t magnitude = 0;  // of a negative one: two's complement
  bool negative = false;
};

// Texts, each kept once. The id of a text is the number of different ones before it.
class TextPool {
 public:
  std::uint32_t intern(std::string_view text);
  std::string_view view(std::uint32_t id) const {
    return {characters_.data() + ends_[id].first, ends_[id].second};
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(ends_.size()); }

 private:
  void grow();

  std::vector<char> characters_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ends_;  // where a text begins; its length
  std::vector<std::uint32_t> slots_;                           // open addressing; id + 1
};

// Everything that handles point to. Grows only; lives as long as its handles are used.
class PickleHeap {
 public:
  using Pair = std::pair<PickleValue, PickleValue>;

  PickleValue integer(std::int64_t value);
  PickleValue unsigned_integer(std::uint64_t value);
  PickleValue number(double value);
  PickleValue text(std::string_view text) { return {PickleValue::Kind::kText, texts.intern(text)}; }
  PickleValue tuple(std::span<const PickleValue> elements);
  PickleValue make_list();
  PickleValue make_dict();

  // The elements of a list or tuple, the pairs of a dict; none for other kinds. A container that
  // was folded has none either: see folded().
  std::vector<PickleValue> elements(PickleValue value) const;
  const std::vector<Pair>& pairs(PickleValue dict) const;
  // The record that a list or dict has become; otherwise the value itself.
  PickleValue folded(PickleValue value) const;
  // The value of the last pair with this key; kNone when there is none.
  PickleValue find(PickleValue dict, std::string_view key) const;

  // An integer of any width, a bool included; nothing for other kinds.
  bool read_integer(PickleValue value, WideInteger& out) const;
  // A float or an integer.
  bool read_number(PickleValue value, double& out) const;

  TextPool texts;

 private:
  friend class PickleMachine;

  // A list is kept as runs: rows of records that follow each other take no room.
  struct Run {
    PickleValue first;
    std::uint32_t count = 0;
  };
  enum class Form : std::uint8_t { kEmpty, kPlain, kFolded };
  struct Cell {
    std::uint32_t index = 0;  // into lists_ or dicts_ when plain; the record's row when folded
    std::uint8_t tag = 0;
    Form form = Form::kEmpty;
    bool stored = false;  // inside another container: it must not change any more
  };

  std::vector<Cell> list_cells_;
  std::vector<Cell> dict_cells_;
  std::vector<std::vector<Run>> lists_;
  std::vector<std::vector<Pair>> dicts_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> tuples_;  // first, count
  std::vector<PickleValue> tuple_elements_;
  std::vector<WideInteger> wide_;
  std::vector<double> floats_;
};

}  // namespace lowtide
