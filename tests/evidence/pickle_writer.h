#pragma once
// Writes pickles for tests: as Python does, as libtorch does, or one instruction at a time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lowtide {

// What a test puts into a pickle. `shared` names a list, dict or text that is written once and
// fetched from the memo after.
struct Made {
  enum class Kind { kNone, kBool, kInteger, kUnsigned, kFloat, kText, kList, kDict, kTuple };
  using List = std::vector<Made>;
  using Dict = std::vector<std::pair<Made, Made>>;
  struct Tuple {
    List elements;
  };

  Made() = default;
  Made(std::nullptr_t) {}
  Made(bool made) : kind(Kind::kBool), integer(made) {}
  Made(int made) : kind(Kind::kInteger), integer(static_cast<std::uint64_t>(made)) {}
  Made(std::int64_t made) : kind(Kind::kInteger), integer(static_cast<std::uint64_t>(made)) {}
  Made(std::uint64_t made) : kind(Kind::kUnsigned), integer(made) {}
  Made(double made) : kind(Kind::kFloat), number(made) {}
  Made(const char* made) : kind(Kind::kText), text(made) {}
  Made(std::string made) : kind(Kind::kText), text(std::move(made)) {}
  Made(List made) : kind(Kind::kList), elements(std::move(made)) {}
  Made(Dict made) : kind(Kind::kDict), items(std::move(made)) {}
  Made(Tuple made) : kind(Kind::kTuple), elements(std::move(made.elements)) {}

  Kind kind = Kind::kNone;
  int shared = 0;
  std::uint64_t integer = 0;
  double number = 0;
  std::string text;
  List elements;
  Dict items;
};

enum class Dialect { kPython, kLibtorch };

// Python: containers enter the memo before they are filled, and are filled by up to 1000 elements
// at once. libtorch (protocol 2): after, and all at once.
class PickleWriter {
 public:
  PickleWriter(Dialect dialect, int protocol, std::size_t batch = 1000)
      : dialect_(dialect), protocol_(protocol), batch_(batch) {}

  std::string write(const Made& root) {
    out_.clear();
    put(0x80);
    put(static_cast<std::uint8_t>(protocol_));
    value(root);
    put('.');
    return out_;
  }

 private:
  void put(std::uint8_t byte) { out_ += static_cast<char>(byte); }
  template <typename Number>
  void number(Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i) {
      put(static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }

  void memoize() {
    if (protocol_ >= 4) {
      put(0x94);
    } else if (memo_ < 256) {
      put('q');
      put(static_cast<std::uint8_t>(memo_));
    } else {
      put('r');
      number(static_cast<std::uint32_t>(memo_));
    }
    ++memo_;
  }

  void fetch(std::size_t slot) {
    if (slot < 256) {
      put('h');
      put(static_cast<std::uint8_t>(slot));
    } else {
      put('j');
      number(static_cast<std::uint32_t>(slot));
    }
  }

  void integer(std::int64_t value) {
    if (value >= 0 && value < 256) {
      put('K');
      put(static_cast<std::uint8_t>(value));
    } else if (value >= 0 && value < 65536) {
      put('M');
      number(static_cast<std::uint16_t>(value));
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      put('J');
      number(static_cast<std::int32_t>(value));
    } else {
      put(0x8a);
      put(8);
      number(value);
    }
  }

  void text(const std::string& text) {
    const auto known = texts_.find(text);
    if (known != texts_.end()) return fetch(known->second);
    if (protocol_ >= 4 && text.size() < 256) {
      put(0x8c);
      put(static_cast<std::uint8_t>(text.size()));
    } else {
      put('X');
      number(static_cast<std::uint32_t>(text.size()));
    }
    out_ += text;
    texts_[text] = memo_;
    memoize();
  }

  void list(const Made::List& elements) {
    put(']');
    if (dialect_ == Dialect::kPython) memoize();
    for (std::size_t first = 0; first < elements.size() || (first == 0 && is_libtorch());) {
      const std::size_t count =
          is_libtorch() ? elements.size() : std::min(batch_, elements.size() - first);
      const bool one = count == 1 && !is_libtorch();
      if (!one) put('(');
      for (std::size_t i = 0; i < count; ++i) value(elements[first + i]);
      put(one ? 'a' : 'e');
      first += std::max<std::size_t>(count, 1);
    }
  }

  void dict(const Made::Dict& items) {
    put('}');
    if (dialect_ == Dialect::kPython) memoize();
    for (std::size_t first = 0; first < items.size();) {
      const std::size_t count =
          is_libtorch() ? items.size() : std::min(batch_, items.size() - first);
      const bool one = count == 1 && !is_libtorch();
      if (!one) put('(');
      for (std::size_t i = 0; i < count; ++i) {
        value(items[first + i].first);
        value(items[first + i].second);
      }
      put(one ? 's' : 'u');
      first += count;
    }
  }

  void tuple(const Made::List& elements) {
    if (elements.size() > 3) put('(');
    for (const Made& element : elements) value(element);
    put(elements.empty()       ? ')'
        : elements.size() <= 3 ? static_cast<std::uint8_t>(0x84 + elements.size())
                               : 't');
    if (!elements.empty()) memoize();
  }

  void value(const Made& made) {
    if (made.shared != 0) {
      const auto known = shared_.find(made.shared);
      if (known != shared_.end()) return fetch(known->second);
      if (dialect_ == Dialect::kPython) shared_[made.shared] = memo_;
    }
    switch (made.kind) {
      case Made::Kind::kNone:
        return put('N');
      case Made::Kind::kBool:
        return put(made.integer != 0 ? 0x88 : 0x89);
      case Made::Kind::kInteger:
        return integer(static_cast<std::int64_t>(made.integer));
      case Made::Kind::kUnsigned:
        put(0x8a);
        put(9);
        number(made.integer);
        return put(0);
      case Made::Kind::kFloat: {
        std::uint64_t bits;
        __builtin_memcpy(&bits, &made.number, sizeof bits);
        put('G');
        return number(__builtin_bswap64(bits));
      }
      case Made::Kind::kText:
        return text(made.text);
      case Made::Kind::kList:
        list(made.elements);
        break;
      case Made::Kind::kDict:
        dict(made.items);
        break;
      case Made::Kind::kTuple:
        return tuple(made.elements);
    }
    if (is_libtorch()) remember_after(made);
  }

  void remember_after(const Made& made) {
    if (made.shared != 0) shared_[made.shared] = memo_;
    memoize();
  }

  bool is_libtorch() const { return dialect_ == Dialect::kLibtorch; }

  Dialect dialect_;
  int protocol_;
  std::size_t batch_;
  std::string out_;
  std::size_t memo_ = 0;
  std::map<std::string, std::size_t> texts_;
  std::map<int, std::size_t> shared_;
};

}  // namespace lowtide
