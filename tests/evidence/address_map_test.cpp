#include "src/evidence/address_map.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

using namespace lowtide;  // the tests of one header

TEST_CASE("an address map agrees with std::map over random puts and takes") {
  std::mt19937_64 random(1);
  AddressMap map;
  std::map<std::uint64_t, std::uint32_t> twin;
  for (int i = 0; i < 20'000; ++i) {
    // Few addresses, so that they collide and come again.
    const std::uint64_t address = (random() % 700) * 512;
    if (random() % 2 == 0) {
      const auto row = static_cast<std::uint32_t>(random() % 1000);
      map.put(address, row);
      twin[address] = row;
    } else {
      const auto found = twin.find(address);
      const std::uint32_t expected = found == twin.end() ? AddressMap::kAbsent : found->second;
      REQUIRE(map.find(address) == expected);
      REQUIRE(map.take(address) == expected);
      if (found != twin.end()) twin.erase(found);
    }
    REQUIRE(map.size() == twin.size());
  }
}
