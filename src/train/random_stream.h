#pragma once
// Random numbers that are a function of a key: the n-th draw of RandomStream(a, b, c) is the same
// on every machine and needs no state to be kept between steps.

#include <cstdint>

namespace lowtide {

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
class RandomStream {
 public:
  RandomStream(std::uint64_t a, std::uint64_t b, std::uint64_t c)
      : state_(mix(mix(mix(a + kStride) + b + kStride) + c + kStride)) {}

  std::uint64_t next() { return mix(state_ += kStride); }
  // In [0, 1), in steps of 2^-53.
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // In [0, limit), for limit < 2^32; off even by at most limit / 2^64.
  std::uint64_t below(std::uint64_t limit) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{next()} * limit) >> 64);
  }

 private:
  static constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15ULL;
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

}  // namespace lowtide
