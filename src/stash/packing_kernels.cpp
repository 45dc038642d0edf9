#include "src/stash/packing_kernels.h"

#include <cstring>

namespace lowtide {
namespace {

template <typename T>
T load(const unsigned char* from, Bytes i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(T value, unsigned char* to, Bytes i) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

// Calls `body` with a zero of the unsigned type of that many bytes.
template <typename Body>
auto with_type(unsigned size, Body&& body) {
  switch (size) {
    case 1:
      return body(std::uint8_t{0});
    case 2:
      return body(std::uint16_t{0});
    case 4:
      return body(std::uint32_t{0});
    default:
      return body(std::uint64_t{0});
  }
}

Bytes count_zeros(const unsigned char* from, Bytes elements, unsigned size) {
  return with_type(size, [&](auto zero) {
    using T = decltype(zero);
    Bytes count = 0;
    for (Bytes i = 0; i < elements; ++i) count += load<T>(from, i) == zero ? 1 : 0;
    return count;
  });
}

bool only_two(const unsigned char* from, Bytes elements, unsigned size, std::uint64_t a,
              std::uint64_t b) {
  return with_type(size, [&](auto zero) {
    using T = decltype(zero);
    bool only = true;
    for (Bytes i = 0; i < elements; ++i) {
      const T value = load<T>(from, i);
      only &= (value == static_cast<T>(a)) | (value == static_cast<T>(b));
    }
    return only;
  });
}

bool pack_two(const unsigned char* from, Bytes elements, unsigned size, std::uint64_t a,
              std::uint64_t b, unsigned char* bits) {
  return with_type(size, [&](auto zero) {
    using T = decltype(zero);
    bool only = true;
    for (Bytes i = 0; i < elements; i += 8) {
      unsigned byte = 0;
      for (Bytes j = 0; j < 8 && i + j < elements; ++j) {
        const T value = load<T>(from, i + j);
        const bool is_b = value == static_cast<T>(b);
        only &= is_b | (value == static_cast<T>(a));
        byte |= static_cast<unsigned>(is_b) << j;
      }
      bits[i / 8] = static_cast<unsigned char>(byte);
    }
    return only;
  });
}

void unpack_two(const unsigned char* bits, Bytes elements, unsigned size, std::uint64_t a,
                std::uint64_t b, unsigned char* to) {
  with_type(size, [&](auto zero) {
    using T = decltype(zero);
    for (Bytes i = 0; i < elements; ++i) {
      store(static_cast<T>((bits[i / 8] >> (i % 8) & 1) != 0 ? b : a), to, i);
    }
  });
}

bool pack_nonzero(const unsigned char* from, Bytes elements, unsigned size, unsigned char* bits,
                  unsigned char* values, unsigned char* end) {
  return with_type(size, [&](auto zero) {
    using T = decltype(zero);
    for (Bytes i = 0; i < elements; i += 8) {
      unsigned byte = 0;
      for (Bytes j = 0; j < 8 && i + j < elements; ++j) {
        const T value = load<T>(from, i + j);
        if (value == zero) continue;
        if (static_cast<Bytes>(end - values) < sizeof(T)) return false;
        byte |= 1u << j;
        store(value, values, 0);
        values += sizeof(T);
      }
      bits[i / 8] = static_cast<unsigned char>(byte);
    }
    return values == end;
  });
}

bool unpack_nonzero(const unsigned char* bits, Bytes elements, unsigned size,
                    const unsigned char* values, const unsigned char* end, unsigned char* to) {
  return with_type(size, [&](auto zero) {
    using T = decltype(zero);
    for (Bytes i = 0; i < elements; ++i) {
      T value = 0;
      if ((bits[i / 8] >> (i % 8) & 1) != 0) {
        if (static_cast<Bytes>(end - values) < sizeof(T)) return false;
        value = load<T>(values, 0);
        values += sizeof(T);
      }
      store(value, to, i);
    }
    return values == end;
  });
}

}  // namespace

const PackingKernels& plain_packing_kernels() noexcept {
  static constexpr PackingKernels kKernels{count_zeros, only_two,     pack_two,
                                           unpack_two,  pack_nonzero, unpack_nonzero};
  return kKernels;
}

#ifndef __x86_64__
const PackingKernels* avx2_packing_kernels() noexcept { return nullptr; }
#endif

const PackingKernels& best_packing_kernels() noexcept {
  static const PackingKernels* const avx2 = avx2_packing_kernels();
  return avx2 != nullptr ? *avx2 : plain_packing_kernels();
}

}  // namespace lowtide
