#include "src/stash/spill_space.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

namespace lowtide {
namespace {

constexpr Bytes kBlock = SpillSpace::kBlock;

// The same, block by block.
class SlowSpace {
 public:
  std::optional<std::uint64_t> take(Bytes bytes) {
    const std::size_t count = bytes / kBlock;
    for (std::size_t begin = 0; begin + count <= used_.size(); ++begin) {
      std::size_t free = 0;
      while (free < count && !used_[begin + free]) ++free;
      if (free < count) continue;
      for (std::size_t i = 0; i < count; ++i) used_[begin + i] = true;
      return begin * kBlock;
    }
    return std::nullopt;
  }
  void give_back(std::uint64_t offset, Bytes bytes) {
    for (std::size_t i = 0; i < bytes / kBlock; ++i) {
      REQUIRE(used_[offset / kBlock + i]);  // nobody else's
      used_[offset / kBlock + i] = false;
    }
  }
  void grow(Bytes bytes) { used_.resize(used_.size() + bytes / kBlock); }
  Bytes used() const {
    Bytes bytes = 0;
    for (const bool one : used_) bytes += one ? kBlock : 0;
    return bytes;
  }
  Bytes end() const { return used_.size() * kBlock; }
  Bytes largest_free() const {
    Bytes largest = 0;
    Bytes run = 0;
    for (const bool one : used_) largest = std::max(largest, run = one ? 0 : run + kBlock);
    return largest;
  }
  Bytes free_at_end() const {
    Bytes run = 0;
    for (const bool one : used_) run = one ? 0 : run + kBlock;
    return run;
  }

 private:
  std::vector<bool> used_;
};

TEST_CASE("places are the lowest free ones, never overlap, and neighbours are joined") {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    SpillSpace space;
    SlowSpace twin;
    std::map<std::uint64_t, Bytes> taken;
    const std::uint64_t largest = 1 + seed % 7;
    for (int i = 0; i < 400; ++i) {
      if (random() % 20 == 0) {
        const Bytes more = (1 + random() % 9) * kBlock;
        space.grow(more);
        twin.grow(more);
      } else if (taken.empty() || random() % 2 == 0) {
        const Bytes bytes = (1 + random() % largest) * kBlock;
        const std::optional<std::uint64_t> offset = space.take(bytes);
        REQUIRE(offset == twin.take(bytes));
        if (offset) taken[*offset] = bytes;
      } else {
        const auto one = std::next(taken.begin(), static_cast<long>(random() % taken.size()));
        REQUIRE(space.give_back(one->first));
        twin.give_back(one->first, one->second);
        taken.erase(one);
      }
      REQUIRE(space.used() == twin.used());
      REQUIRE(space.end() == twin.end());
      REQUIRE(space.largest_free() == twin.largest_free());
      REQUIRE(space.free_at_end() == twin.free_at_end());
    }
  }
}

TEST_CASE("a place is given back once, by its begin") {
  SpillSpace space;
  space.grow(4 * kBlock);
  REQUIRE(space.take(2 * kBlock) == 0u);
  CHECK_FALSE(space.give_back(kBlock));
  CHECK(space.give_back(0));
  CHECK_FALSE(space.give_back(0));
  CHECK(space.used() == 0);
}

}  // namespace
}  // namespace lowtide
