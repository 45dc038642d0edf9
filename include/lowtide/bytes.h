#pragma once
// Byte counts: a type, literals, and the two directions between numbers and text.
//
//   using namespace lowtide::literals;
//   Bytes limit = 6_GiB;
//   format_bytes(limit);      // "6.00 GiB"
//   parse_bytes("512MiB");    // 536870912
//
// Counts are unsigned; differences between counts are std::int64_t.

#include <cstdint>
#include <string>
#include <string_view>

#include "lowtide/export.h"

namespace lowtide {

using Bytes = std::uint64_t;

inline namespace literals {
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes{n} << 10; }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes{n} << 20; }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes{n} << 30; }
}  // namespace literals

// Returns `count` for people: three significant digits and a binary unit ("1.50 MiB"), and whole
// bytes below 1 KiB ("17 B"). Reports meant for machines carry exact counts instead.
LOWTIDE_API std::string format_bytes(Bytes count);

// Reads a byte count: digits, an optional fraction, an optional unit. KiB, MiB, GiB and TiB are
// powers of 1024; kB, KB, MB, GB and TB are powers of 1000; no unit or B means bytes. A fraction of
// a byte is rounded down. Spaces between number and unit are allowed.
// Throws UsageError (LT0101) on anything else, and on counts that do not fit 64 bits.
LOWTIDE_API Bytes parse_bytes(std::string_view text);

}  // namespace lowtide
