#include "src/stash/byte_rate.h"

#include <cmath>

// Tested by spill_file_test.cpp.

namespace lowtide {
namespace {

constexpr double kHalfLifeBytes = 256.0 * (1 << 20);

}  // namespace

void ByteRate::add(Bytes bytes, std::uint64_t ns) {
  const double before = std::exp2(-static_cast<double>(bytes) / kHalfLifeBytes);
  bytes_ = bytes_ * before + static_cast<double>(bytes);
  ns_ = ns_ * before + static_cast<double>(ns);
}

std::uint64_t ByteRate::expected_ns(Bytes bytes) const {
  const double ns_per_byte = bytes_ > 0 ? ns_ / bytes_ : prior_ns_per_byte_;
  return static_cast<std::uint64_t>(ns_per_byte * static_cast<double>(bytes));
}

}  // namespace lowtide
