#include "src/base/checksum.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace lowtide {
namespace {

TEST_CASE("a checksum is XXH3's, whatever the processor") {
  CHECK(checksum(nullptr, 0) == 0x2d06800538d394c2u);  // xxhash's own test vectors
  const std::vector<unsigned char> zeros(1 << 20, 0);
  CHECK(checksum(zeros.data(), 1) == 0xc44bdff4074eecdbu);
}

TEST_CASE("a changed bit changes it, at any place and size") {
  std::mt19937_64 random(1);
  for (const std::size_t bytes : {1, 4, 17, 240, 241, 1024, 4096, 100'003}) {
    std::vector<unsigned char> data(bytes);
    for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
    const std::uint64_t before = checksum(data.data(), bytes);
    for (int i = 0; i < 200; ++i) {
      unsigned char& byte = data[random() % bytes];
      const auto bit = static_cast<unsigned char>(1u << (random() % 8));
      byte ^= bit;
      REQUIRE(checksum(data.data(), bytes) != before);
      byte ^= bit;
    }
    CHECK(checksum(data.data(), bytes) == before);
  }
}

}  // namespace
}  // namespace lowtide
