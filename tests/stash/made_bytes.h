#pragma once
// Bytes that tests write and compare.

#include <cstring>
#include <random>
#include <vector>

namespace lowtide::testing {

using Buffer = std::vector<unsigned char>;

inline Buffer random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Buffer data(bytes + 8);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(data.data() + i, &word, 8);
  }
  data.resize(bytes);
  return data;
}

}  // namespace lowtide::testing
