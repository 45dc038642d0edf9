#include "lowtide/bytes.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

struct Unit {
  std::string_view name;
  Bytes factor;
};

constexpr std::array<Unit, 12> kUnits{{{"", 1},
                                       {"B", 1},
                                       {"KiB", Bytes{1} << 10},
                                       {"MiB", Bytes{1} << 20},
                                       {"GiB", Bytes{1} << 30},
                                       {"TiB", Bytes{1} << 40},
                                       {"kB", 1'000},
                                       {"KB", 1'000},
                                       {"MB", 1'000'000},
                                       {"GB", 1'000'000'000},
                                       {"TB", 1'000'000'000'000},
                                       {"bytes", 1}}};

[[noreturn]] void refuse(std::string_view text) {
  throw UsageError("LT0101", concat("cannot read \"", text,
                                    "\" as a number of bytes: write digits and a unit, such as "
                                    "6GiB, 512MiB, 1.5GB or 4096"));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string format_bytes(Bytes count) {
  constexpr std::array<const char*, 6> kNames{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (count < 1024) return concat(count, " B");
  double value = static_cast<double>(count) / 1024;
  std::size_t unit = 0;
  // 1023.5 would print as "1024 KiB": step up before rounding does.
  while (value >= 1023.5 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, kNames[unit]);
  return text;
}

Bytes parse_bytes(std::string_view text) {
  std::size_t at = 0;
  Bytes whole = 0;
  const std::size_t first_digit = at;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    const auto digit = static_cast<Bytes>(text[at] - '0');
    if (whole > (std::numeric_limits<Bytes>::max() - digit) / 10) refuse(text);
    whole = whole * 10 + digit;
  }
  if (at == first_digit) refuse(text);
  long double fraction = 0;
  if (at < text.size() && text[at] == '.') {
    ++at;
    const std::size_t first_decimal = at;
    long double place = 0.1L;
    for (; at < text.size() && is_digit(text[at]); ++at, place /= 10) {
      fraction += place * static_cast<long double>(text[at] - '0');
    }
    if (at == first_decimal) refuse(text);
  }
  while (at < text.size() && text[at] == ' ') ++at;
  const std::string_view name = text.substr(at);
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    if (whole > std::numeric_limits<Bytes>::max() / unit.factor) refuse(text);
    const Bytes product = whole * unit.factor;
    const auto rest =
        static_cast<Bytes>(std::floor(fraction * static_cast<long double>(unit.factor)));
    if (product > std::numeric_limits<Bytes>::max() - rest) refuse(text);
    return product + rest;
  }
  refuse(text);
}

}  // namespace lowtide
