#pragma once
// Small integers and texts to bytes and back: what the binary files are made of.
//
//   ByteWriter out;                       ByteReader in(bytes, "LT0142", "the tape");
//   out.number(300);                      in.number();      // 300
//   out.text("aten::mm");                 in.text();
//   out.finish();   // a checksum         in.finish();      // nothing follows, the sum is right
//
// A number takes seven bits a byte, low ones first, the top bit set on all but the last. The reader
// trusts nothing: it throws FormatError with its id, naming the byte, on whatever is not so.

#include <cstdint>
#include <string>
#include <string_view>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {

// FNV-1a, 64 bits.
class Fingerprint {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) add_byte(static_cast<unsigned char>(c));
  }
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_byte(static_cast<unsigned char>(number >> shift));
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

class ByteWriter {
 public:
  void raw(std::string_view bytes) { bytes_ += bytes; }
  void byte(std::uint8_t value) { bytes_ += static_cast<char>(value); }
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }
  // Near zero on either side takes few bytes: 0, -1, 1, -2 are 0, 1, 2, 3.
  void difference(std::int64_t value) {
    number((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
  }
  void text(std::string_view value) {
    number(value.size());
    raw(value);
  }
  void fixed64(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<std::uint8_t>(value >> shift));
  }
  // Appends the fingerprint of all before it.
  std::string finish() {
    Fingerprint sum;
    sum.add(bytes_);
    fixed64(sum.value());
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  // `what` is named in errors: "cannot read the tape: byte 17: ...".
  ByteReader(std::string_view bytes, const char* error_id, const char* what)
      : bytes_(bytes), error_id_(error_id), what_(what) {}

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FormatError(error_id_, concat("cannot read ", what_, ": byte ", at_, ": ", parts...),
                      {{"byte", static_cast<std::int64_t>(at_)}});
  }

  std::string_view raw(std::size_t count) {
    if (count > bytes_.size() - at_) fail("it ends before ", count, " more bytes");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(raw(1)[0]); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint64_t part = byte();
      if (shift == 63 && part > 1) break;
      value |= (part & 0x7f) << shift;
      if (part < 0x80) return value;
    }
    fail("a number is longer than 64 bits");
  }
  std::uint64_t number_below(std::uint64_t limit, std::string_view name) {
    const std::uint64_t value = number();
    if (value >= limit) fail(name, " is ", value, " where it must be below ", limit);
    return value;
  }
  std::int64_t difference() {
    const std::uint64_t value = number();
    return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  // How many items follow, each of at least `item_bytes`: so a count cannot ask for more memory
  // than the file could fill.
  std::size_t count(std::size_t item_bytes, std::string_view name) {
    const std::uint64_t value = number();
    if (value > (bytes_.size() - at_) / item_bytes) {
      fail("there cannot be ", value, " ", name, " in what is left");
    }
    return static_cast<std::size_t>(value);
  }
  std::string_view text() { return raw(count(1, "characters")); }
  void finish() {
    Fingerprint sum;
    sum.add(bytes_.substr(0, at_));
    std::uint64_t stored = 0;
    for (int shift = 0; shift < 64; shift += 8) stored |= std::uint64_t{byte()} << shift;
    if (at_ != bytes_.size()) fail(bytes_.size() - at_, " bytes follow the end");
    if (stored != sum.value()) fail("the checksum does not fit: the file is damaged");
  }
  // The first bytes: the kind of file and its version.
  void header(std::string_view magic, std::uint64_t version) {
    if (bytes_.substr(0, magic.size()) != magic) {
      fail("it does not begin with \"", magic.substr(0, magic.size() - 1), '"');
    }
    raw(magic.size());
    const std::uint64_t found = number();
    if (found != version) fail("it has version ", found, "; this program reads ", version);
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0;
  const char* error_id_;
  const char* what_;
};

}  // namespace lowtide
