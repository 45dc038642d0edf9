#include "src/stash/packing.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "lowtide/error.h"
#include "tests/stash/made_bytes.h"

namespace lowtide {
namespace {

using testing::Buffer;
using testing::random_bytes;

const unsigned kSizes[] = {1, 2, 4, 8};

// Both forms of the loops; the second one only where the processor has AVX2.
std::vector<const PackingKernels*> all_kernels() {
  std::vector<const PackingKernels*> kernels{&plain_packing_kernels()};
  if (avx2_packing_kernels() != nullptr) {
    kernels.push_back(avx2_packing_kernels());
  } else {
    MESSAGE("skipped: the AVX2 kernels, on this processor");
  }
  return kernels;
}

enum class Shape { kDense, kTwoValues, kZeroAndOne, kConstant, kSomeZeros, kMostlyZeros, kZeros };

// `bytes` bytes, the last of which may be no whole element.
Buffer made(Shape shape, Bytes bytes, unsigned size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Buffer data = random_bytes(bytes, seed + 1);
  const std::uint64_t mask = size == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * size)) - 1;
  const std::uint64_t a = random() & mask;
  const std::uint64_t b = (a ^ (std::uint64_t{1} << (random() % (8 * size)))) & mask;
  for (Bytes i = 0; i < bytes / size; ++i) {
    std::uint64_t value = random();
    if ((value & mask) == 0) value = 1;
    switch (shape) {
      case Shape::kDense:
        break;
      case Shape::kTwoValues:
        value = random() % 2 == 0 ? a : b;
        break;
      case Shape::kZeroAndOne:
        value = random() % 2;
        break;
      case Shape::kConstant:
        value = a;
        break;
      case Shape::kSomeZeros:
        if (random() % 2 == 0) value = 0;
        break;
      case Shape::kMostlyZeros:
        if (random() % 50 != 0) value = 0;
        break;
      case Shape::kZeros:
        value = 0;
        break;
    }
    std::memcpy(data.data() + i * size, &value, size);
  }
  return data;
}

// Memory of exactly `bytes` bytes at an odd address, with guards around.
class Guarded {
 public:
  explicit Guarded(Bytes bytes) : memory_(bytes + 2 * kGuard, 0xa5), bytes_(bytes) {}
  unsigned char* data() { return memory_.data() + kGuard; }
  bool is_intact() const {
    for (Bytes i = 0; i < kGuard; ++i) {
      if (memory_[i] != 0xa5 || memory_[kGuard + bytes_ + i] != 0xa5) return false;
    }
    return true;
  }

 private:
  static constexpr Bytes kGuard = 129;
  Buffer memory_;
  Bytes bytes_;
};

// The packed size as it is defined, value by value; the whole size when packing does not pay.
Bytes slow_packed_bytes(const Buffer& data, unsigned size) {
  const Bytes elements = data.size() / size;
  const Buffer zero(size, 0);
  std::vector<const unsigned char*> values;
  Bytes nonzero = 0;
  for (Bytes i = 0; i < elements; ++i) {
    const unsigned char* const value = data.data() + i * size;
    if (std::memcmp(value, zero.data(), size) != 0) ++nonzero;
    bool is_known = values.size() > 2;
    for (const unsigned char* one : values) is_known |= std::memcmp(one, value, size) == 0;
    if (!is_known) values.push_back(value);
  }
  const Bytes bitmap = (elements + 7) / 8;
  const Bytes packed = bitmap + (values.size() <= 2 ? 0 : nonzero * size) + data.size() % size;
  return elements > 0 && packed <= data.size() - data.size() / 8 ? packed : data.size();
}

// Packs, compares and unpacks; the packed size, or the whole one when nothing was found.
Bytes check_exact(const Buffer& data, unsigned size, const PackingKernels& kernels) {
  Guarded from(data.size());
  std::memcpy(from.data(), data.data(), data.size());
  const auto packing = find_packing(from.data(), data.size(), size, kernels);
  if (!packing) return data.size();
  REQUIRE(packing->bytes == data.size());
  Guarded packed(packing->packed_bytes);
  REQUIRE(pack(*packing, from.data(), packed.data(), kernels));
  REQUIRE(packed.is_intact());
  Guarded to(data.size());
  unpack(*packing, packed.data(), to.data(), kernels);
  REQUIRE(to.is_intact());
  REQUIRE(std::memcmp(to.data(), data.data(), data.size()) == 0);
  // The plain form reads what any other wrote.
  Guarded twin(packing->packed_bytes);
  REQUIRE(pack(*packing, from.data(), twin.data(), plain_packing_kernels()));
  REQUIRE(std::memcmp(twin.data(), packed.data(), packing->packed_bytes) == 0);
  return packing->packed_bytes;
}

TEST_CASE("arrays of every shape, element size and length come back bit for bit") {
  for (const PackingKernels* kernels : all_kernels()) {
    for (const unsigned size : kSizes) {
      for (const Shape shape :
           {Shape::kDense, Shape::kTwoValues, Shape::kZeroAndOne, Shape::kConstant,
            Shape::kSomeZeros, Shape::kMostlyZeros, Shape::kZeros}) {
        CAPTURE(size);
        CAPTURE(static_cast<int>(shape));
        std::mt19937_64 random(size);
        for (int i = 0; i < 48; ++i) {
          const Bytes bytes = i < 40 ? static_cast<Bytes>(i) * 7 : random() % 20'000;
          const Buffer data = made(shape, bytes, size, random());
          REQUIRE(check_exact(data, size, *kernels) == slow_packed_bytes(data, size));
        }
      }
    }
  }
}

TEST_CASE("a few values at any place among zeros come back") {
  for (const PackingKernels* kernels : all_kernels()) {
    for (const unsigned size : kSizes) {
      for (Bytes first = 0; first < 70; ++first) {
        Buffer data(80 * size, 0);
        for (const Bytes at : {first, first + 1, first * 7 % 80}) {
          data[at * size + at % size] = static_cast<unsigned char>(1 + at);
        }
        check_exact(data, size, *kernels);
      }
    }
  }
}

TEST_CASE("elements are bit patterns, not numbers") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const PackingKernels* kernels : all_kernels()) {
    std::vector<float> values(1000, 0.0f);
    for (std::size_t i = 0; i < values.size(); i += 5) values[i] = -0.0f;
    values[7] = nan;
    values[8] = -nan;
    Buffer data(values.size() * sizeof(float));
    std::memcpy(data.data(), values.data(), data.size());
    CHECK(check_exact(data, 4, *kernels) == 125 + 202 * 4);
  }
}

TEST_CASE("an array that changed since it was looked at is not packed") {
  for (const PackingKernels* kernels : all_kernels()) {
    for (const unsigned size : kSizes) {
      for (const Shape shape : {Shape::kZeroAndOne, Shape::kSomeZeros}) {
        Buffer data = made(shape, 3'001, size, 1);
        const auto packing = find_packing(data.data(), data.size(), size, *kernels);
        REQUIRE(packing.has_value());
        Guarded packed(packing->packed_bytes);
        std::mt19937_64 random(1);
        for (int i = 0; i < 100; ++i) {
          unsigned char* const element = &data[random() % (data.size() / size) * size];
          const Buffer before(element, element + size);
          const bool was_zero = before == Buffer(size, 0);
          std::memset(element, shape == Shape::kZeroAndOne || was_zero ? 7 : 0, size);
          CHECK_FALSE(pack(*packing, data.data(), packed.data(), *kernels));
          CHECK(packed.is_intact());
          std::memcpy(element, before.data(), size);
        }
        CHECK(pack(*packing, data.data(), packed.data(), *kernels));
        // So much more of it that room ends long before the last elements.
        const Buffer dense = made(Shape::kDense, 3'001, size, 2);
        CHECK_FALSE(pack(*packing, dense.data(), packed.data(), *kernels));
        CHECK(packed.is_intact());
      }
    }
  }
}

TEST_CASE("a bitmap that does not fit the values is a bug, and nothing is read beyond") {
  for (const PackingKernels* kernels : all_kernels()) {
    const Buffer data = made(Shape::kSomeZeros, 4'000, 4, 1);
    const auto packing = find_packing(data.data(), data.size(), 4, *kernels);
    REQUIRE(packing.has_value());
    Buffer packed(packing->packed_bytes);
    REQUIRE(pack(*packing, data.data(), packed.data(), *kernels));
    packed[60] ^= 1;
    Buffer to(data.size());
    CHECK_THROWS_AS(unpack(*packing, packed.data(), to.data(), *kernels), InternalError);
  }
}

TEST_CASE("hopeless arrays are given up early, and foreign element sizes") {
  Buffer data = random_bytes(1 << 20, 1);
  std::memset(data.data() + (1 << 18), 0, 3 << 18);  // zeros, but only after a quarter
  for (const PackingKernels* kernels : all_kernels()) {
    CHECK_FALSE(find_packing(data.data(), data.size(), 4, *kernels).has_value());
  }
  const Buffer zeros(4'800, 0);
  for (const unsigned size : {0u, 3u, 12u, 16u}) {
    CHECK_FALSE(find_packing(zeros.data(), zeros.size(), size).has_value());
    CHECK_FALSE(probe_packing(zeros.data(), zeros.size(), size).has_value());
  }
}

TEST_CASE("a probe foretells the packed size, and is right about what is hopeless") {
  for (const unsigned size : kSizes) {
    CAPTURE(size);
    for (const Bytes bytes : {1'000u, 30'000u, 300'017u}) {
      const Buffer dense = made(Shape::kDense, bytes, size, 1);
      CHECK_FALSE(probe_packing(dense.data(), bytes, size).has_value());
      for (const Shape shape : {Shape::kTwoValues, Shape::kZeroAndOne, Shape::kConstant}) {
        const Buffer two = made(shape, bytes, size, 1);
        CHECK(probe_packing(two.data(), bytes, size) == 1.0 / (8.0 * size));
      }
      const Buffer half = made(Shape::kSomeZeros, bytes, size, 1);
      const auto ratio = probe_packing(half.data(), bytes, size);
      REQUIRE(ratio.has_value());
      CHECK(std::abs(*ratio - (0.5 + 1.0 / (8.0 * size))) < 0.2);
    }
    // Every length, for what it reads.
    for (Bytes bytes = 0; bytes < 700; ++bytes) {
      const std::vector<unsigned char> exact(bytes, 0);
      CHECK(probe_packing(exact.data(), bytes, size).has_value() == (bytes >= size));
    }
  }
}

}  // namespace
}  // namespace lowtide
