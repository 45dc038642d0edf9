#include "src/stash/packed_array.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace lowtide {
namespace {

// Parts of each sort one after the other: masks, half zeros, and what cannot be packed.
std::vector<float> mixed(std::size_t elements, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    const auto draw = static_cast<float>(random()) / 4e9F;
    switch (i / 300'000 % 3) {
      case 0:
        values[i] = draw < 0.5F ? 0.0F : 2.0F;
        break;
      case 1:
        values[i] = draw < 0.6F ? 0.0F : draw;
        break;
      default:
        values[i] = draw;
    }
  }
  return values;
}

TEST_CASE("every array comes back bit for bit from its own place") {
  for (const std::size_t elements : {5'000u, 262'144u, 262'145u, 1'000'003u, 2'000'000u}) {
    CAPTURE(elements);
    const std::vector<float> values = mixed(elements, 3);
    std::vector<float> place = values;
    const auto array = PackedArray::find(place.data(), elements * 4, 4, 0.95);
    REQUIRE(array.has_value());
    CHECK(array->bytes() == elements * 4);
    CHECK(array->packed_bytes() < elements * 4);
    array->pack_in_place(place.data());
    place.resize((array->packed_bytes() + 3) / 4);
    std::vector<float> back(elements);
    array->unpack(place.data(), back.data());
    CHECK(back == values);
  }
}

TEST_CASE("an array that packs worse than asked is left alone") {
  const std::vector<float> values = mixed(900'000, 5);
  const auto array = PackedArray::find(values.data(), values.size() * 4, 4, 0.95);
  REQUIRE(array.has_value());
  const double ratio =
      static_cast<double>(array->packed_bytes()) / static_cast<double>(array->bytes());
  CHECK(ratio > 0.4);
  CHECK(ratio < 0.6);
  CHECK(!PackedArray::find(values.data(), values.size() * 4, 4, ratio - 0.01).has_value());
  CHECK(PackedArray::find(values.data(), values.size() * 4, 4, ratio + 0.01).has_value());
}

}  // namespace
}  // namespace lowtide
