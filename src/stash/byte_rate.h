#pragma once
// What a pass over bytes takes, by what was measured: a mean of nanoseconds a byte, weighted by
// bytes; the last 256 MiB weigh as much as all before.
//
//   ByteRate rate(1.0);              // 1 ns a byte until something was measured
//   rate.add(bytes, ns);
//   rate.expected_ns(other_bytes);
//
// Not safe for threads.

#include <cstdint>

#include "lowtide/bytes.h"

namespace lowtide {

class ByteRate {
 public:
  explicit ByteRate(double prior_ns_per_byte) : prior_ns_per_byte_(prior_ns_per_byte) {}

  void add(Bytes bytes, std::uint64_t ns);
  std::uint64_t expected_ns(Bytes bytes) const;

 private:
  double prior_ns_per_byte_;
  double bytes_ = 0;
  double ns_ = 0;
};

}  // namespace lowtide
