#ifdef __x86_64__

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "src/stash/packing_kernels.h"

// Compiled for AVX2, so nothing inline from the standard library: the linker could choose this
// file's copy for the whole program.
//
// 32 elements at a time, which are one word of the bitmap and `Size` registers. Leaving out zeros
// is a shuffle by a table for every 8 elements (4 of 8 bytes); where the shuffles of a word go is
// known from its bits at once, so that they do not wait for each other. A shuffle writes or reads a
// whole register, so the last words are left to the plain kernels.
//
// Compress by table: Daniel Lemire, "Removing chosen bytes fast" (2017, simdprune).

namespace lowtide {
namespace {

constexpr unsigned kGroup = 32;
constexpr unsigned kRegister = 32;     // bytes
constexpr unsigned char kNone = 0x80;  // pshufb makes it zero

struct Tables {
  // For 8 bits: the places of the set ones in order; the rank of each set one.
  alignas(32) unsigned char places1[256][8];
  alignas(32) unsigned char ranks1[256][8];
  // The same for elements of 2 bytes.
  alignas(32) unsigned char places2[256][16];
  alignas(32) unsigned char ranks2[256][16];
  // For 4 bits: the same for elements of 8 bytes, in units of 4.
  alignas(32) unsigned char places8[16][8];
  alignas(32) unsigned char ranks8[16][8];
};

constexpr Tables make_tables() {
  Tables tables{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    for (unsigned i = 0; i < 8; ++i) {
      tables.places1[bits][i] = tables.ranks1[bits][i] = kNone;
      for (unsigned half = 0; half < 2; ++half) {
        tables.places2[bits][2 * i + half] = tables.ranks2[bits][2 * i + half] = kNone;
      }
    }
    unsigned rank = 0;
    for (unsigned i = 0; i < 8; ++i) {
      if ((bits >> i & 1) == 0) continue;
      tables.places1[bits][rank] = static_cast<unsigned char>(i);
      tables.ranks1[bits][i] = static_cast<unsigned char>(rank);
      for (unsigned half = 0; half < 2; ++half) {
        tables.places2[bits][2 * rank + half] = static_cast<unsigned char>(2 * i + half);
        tables.ranks2[bits][2 * i + half] = static_cast<unsigned char>(2 * rank + half);
        if (bits < 16) {
          tables.places8[bits][2 * rank + half] = static_cast<unsigned char>(2 * i + half);
          tables.ranks8[bits][2 * i + half] = static_cast<unsigned char>(2 * rank + half);
        }
      }
      ++rank;
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

__m256i load(const unsigned char* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
void store(__m256i value, unsigned char* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

template <unsigned Size>
__m256i all(std::uint64_t value) {
  if constexpr (Size == 1) return _mm256_set1_epi8(static_cast<char>(value));
  if constexpr (Size == 2) return _mm256_set1_epi16(static_cast<short>(value));
  if constexpr (Size == 4) return _mm256_set1_epi32(static_cast<int>(value));
  if constexpr (Size == 8) return _mm256_set1_epi64x(static_cast<long long>(value));
}

template <unsigned Size>
__m256i equal(__m256i a, __m256i b) {
  if constexpr (Size == 1) return _mm256_cmpeq_epi8(a, b);
  if constexpr (Size == 2) return _mm256_cmpeq_epi16(a, b);
  if constexpr (Size == 4) return _mm256_cmpeq_epi32(a, b);
  if constexpr (Size == 8) return _mm256_cmpeq_epi64(a, b);
}

// One bit for each of 32 elements whose comparisons, all ones or zeros, lie in `Size` registers.
template <unsigned Size>
std::uint32_t bits_of(const __m256i* compared) {
  if constexpr (Size == 1) {
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(compared[0]));
  } else if constexpr (Size == 2) {
    const __m256i bytes = _mm256_packs_epi16(compared[0], compared[1]);
    return static_cast<std::uint32_t>(
        _mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0b11'01'10'00)));
  } else if constexpr (Size == 4) {
    std::uint32_t bits = 0;
    for (unsigned k = 0; k < 4; ++k) {
      bits |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(compared[k])))
              << (8 * k);
    }
    return bits;
  } else {
    std::uint32_t bits = 0;
    for (unsigned k = 0; k < 8; ++k) {
      bits |= static_cast<std::uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(compared[k])))
              << (4 * k);
    }
    return bits;
  }
}

template <unsigned Size>
std::uint32_t zero_bits(const unsigned char* from) {
  __m256i compared[Size];
  for (unsigned k = 0; k < Size; ++k) {
    compared[k] = equal<Size>(load(from + kRegister * k), _mm256_setzero_si256());
  }
  return bits_of<Size>(compared);
}

unsigned count(std::uint32_t bits) { return static_cast<unsigned>(_mm_popcnt_u32(bits)); }

// All ones in the elements of register `k` whose bits are set.
template <unsigned Size>
__m256i elements_of(std::uint32_t bits, unsigned k) {
  if constexpr (Size == 1) {
    const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                             2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte_of);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
  } else if constexpr (Size == 2) {
    const __m256i bit_of =
        _mm256_setr_epi16(1, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8, 1 << 9,
                          1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, static_cast<short>(1 << 15));
    const __m256i half = _mm256_set1_epi16(static_cast<short>(bits >> (16 * k)));
    return _mm256_cmpeq_epi16(_mm256_and_si256(half, bit_of), bit_of);
  } else if constexpr (Size == 4) {
    const __m256i bit_of = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i byte = _mm256_set1_epi32(static_cast<int>(bits >> (8 * k)));
    return _mm256_cmpeq_epi32(_mm256_and_si256(byte, bit_of), bit_of);
  } else {
    const __m256i bit_of = _mm256_setr_epi64x(1, 2, 4, 8);
    const __m256i nibble = _mm256_set1_epi64x(static_cast<long long>(bits >> (4 * k)));
    return _mm256_cmpeq_epi64(_mm256_and_si256(nibble, bit_of), bit_of);
  }
}

__m256i eight_indices(const unsigned char* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}

// The elements of 32 at `from` whose bits are set, in order, at `to`; up to 32 bytes beyond them
// are written.
template <unsigned Size>
void compress(const unsigned char* from, std::uint32_t bits, unsigned char* to) {
  if constexpr (Size == 8) {
    for (unsigned k = 0; k < 8; ++k) {
      const std::uint32_t before = bits & ((1u << (4 * k)) - 1);
      const __m256i places = eight_indices(kTables.places8[bits >> (4 * k) & 15]);
      store(_mm256_permutevar8x32_epi32(load(from + kRegister * k), places),
            to + Size * count(before));
    }
  } else {
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint32_t before = bits & ((1u << (8 * k)) - 1);
      const std::uint32_t byte = bits >> (8 * k) & 255;
      unsigned char* const place = to + Size * count(before);
      if constexpr (Size == 4) {
        const __m256i places = eight_indices(kTables.places1[byte]);
        store(_mm256_permutevar8x32_epi32(load(from + kRegister * k), places), place);
      } else if constexpr (Size == 2) {
        const __m128i places =
            _mm_load_si128(reinterpret_cast<const __m128i*>(kTables.places2[byte]));
        const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * k));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(place), _mm_shuffle_epi8(values, places));
      } else {
        const __m128i places =
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kTables.places1[byte]));
        const __m128i values = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 8 * k));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(place), _mm_shuffle_epi8(values, places));
      }
    }
  }
}

// The other way; up to 32 bytes beyond the elements at `from` are read.
template <unsigned Size>
void expand(const unsigned char* from, std::uint32_t bits, unsigned char* to) {
  if constexpr (Size == 8) {
    for (unsigned k = 0; k < 8; ++k) {
      const std::uint32_t before = bits & ((1u << (4 * k)) - 1);
      const __m256i ranks = eight_indices(kTables.ranks8[bits >> (4 * k) & 15]);
      const __m256i values = _mm256_permutevar8x32_epi32(load(from + Size * count(before)), ranks);
      store(_mm256_and_si256(values, elements_of<Size>(bits, k)), to + kRegister * k);
    }
  } else {
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint32_t before = bits & ((1u << (8 * k)) - 1);
      const std::uint32_t byte = bits >> (8 * k) & 255;
      const unsigned char* const place = from + Size * count(before);
      if constexpr (Size == 4) {
        const __m256i ranks = eight_indices(kTables.ranks1[byte]);
        const __m256i values = _mm256_permutevar8x32_epi32(load(place), ranks);
        store(_mm256_and_si256(values, elements_of<Size>(bits, k)), to + kRegister * k);
      } else if constexpr (Size == 2) {
        const __m128i ranks =
            _mm_load_si128(reinterpret_cast<const __m128i*>(kTables.ranks2[byte]));
        const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(place));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * k), _mm_shuffle_epi8(values, ranks));
      } else {
        const __m128i ranks =
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kTables.ranks1[byte]));
        const __m128i values = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(place));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 8 * k), _mm_shuffle_epi8(values, ranks));
      }
    }
  }
}

template <unsigned Size>
Bytes count_zeros_of(const unsigned char* from, Bytes elements) {
  Bytes zeros = 0;
  Bytes i = 0;
  for (; i + kGroup <= elements; i += kGroup) zeros += count(zero_bits<Size>(from + Size * i));
  return zeros + plain_packing_kernels().count_zeros(from + Size * i, elements - i, Size);
}

template <unsigned Size>
bool only_two_of(const unsigned char* from, Bytes elements, std::uint64_t a, std::uint64_t b) {
  const __m256i all_a = all<Size>(a);
  const __m256i all_b = all<Size>(b);
  __m256i only = _mm256_set1_epi8(-1);
  constexpr Bytes kIn = kRegister / Size;
  Bytes i = 0;
  for (; i + kIn <= elements; i += kIn) {
    const __m256i values = load(from + Size * i);
    only = _mm256_and_si256(
        only, _mm256_or_si256(equal<Size>(values, all_a), equal<Size>(values, all_b)));
  }
  return _mm256_movemask_epi8(only) == -1 &&
         plain_packing_kernels().only_two(from + Size * i, elements - i, Size, a, b);
}

template <unsigned Size>
bool pack_two_of(const unsigned char* from, Bytes elements, std::uint64_t a, std::uint64_t b,
                 unsigned char* bits) {
  const __m256i all_a = all<Size>(a);
  const __m256i all_b = all<Size>(b);
  __m256i only = _mm256_set1_epi8(-1);
  Bytes i = 0;
  for (; i + kGroup <= elements; i += kGroup) {
    __m256i compared[Size];
    for (unsigned k = 0; k < Size; ++k) {
      const __m256i values = load(from + Size * i + kRegister * k);
      compared[k] = equal<Size>(values, all_b);
      only = _mm256_and_si256(only, _mm256_or_si256(equal<Size>(values, all_a), compared[k]));
    }
    const std::uint32_t word = bits_of<Size>(compared);
    std::memcpy(bits + i / 8, &word, sizeof word);
  }
  const bool rest =
      plain_packing_kernels().pack_two(from + Size * i, elements - i, Size, a, b, bits + i / 8);
  return rest && _mm256_movemask_epi8(only) == -1;
}

template <unsigned Size>
void unpack_two_of(const unsigned char* bits, Bytes elements, std::uint64_t a, std::uint64_t b,
                   unsigned char* to) {
  const __m256i all_a = all<Size>(a);
  const __m256i all_b = all<Size>(b);
  Bytes i = 0;
  for (; i + kGroup <= elements; i += kGroup) {
    std::uint32_t word;
    std::memcpy(&word, bits + i / 8, sizeof word);
    for (unsigned k = 0; k < Size; ++k) {
      store(_mm256_blendv_epi8(all_a, all_b, elements_of<Size>(word, k)),
            to + Size * i + kRegister * k);
    }
  }
  plain_packing_kernels().unpack_two(bits + i / 8, elements - i, Size, a, b, to + Size * i);
}

template <unsigned Size>
bool pack_nonzero_of(const unsigned char* from, Bytes elements, unsigned char* bits,
                     unsigned char* values, unsigned char* end) {
  Bytes i = 0;
  for (; i + kGroup <= elements; i += kGroup) {
    const unsigned char* const group = from + Size * i;
    const std::uint32_t word = ~zero_bits<Size>(group);
    const unsigned bytes = Size * count(word);
    const auto room = static_cast<Bytes>(end - values);
    if (bytes > room) return false;
    std::memcpy(bits + i / 8, &word, sizeof word);
    if (bytes + kRegister <= room) {
      compress<Size>(group, word, values);
    } else if (bytes > 0) {
      plain_packing_kernels().pack_nonzero(group, kGroup, Size, bits + i / 8, values,
                                           values + bytes);
    }
    values += bytes;
  }
  return plain_packing_kernels().pack_nonzero(from + Size * i, elements - i, Size, bits + i / 8,
                                              values, end);
}

template <unsigned Size>
bool unpack_nonzero_of(const unsigned char* bits, Bytes elements, const unsigned char* values,
                       const unsigned char* end, unsigned char* to) {
  Bytes i = 0;
  for (; i + kGroup <= elements; i += kGroup) {
    std::uint32_t word;
    std::memcpy(&word, bits + i / 8, sizeof word);
    const unsigned bytes = Size * count(word);
    const auto room = static_cast<Bytes>(end - values);
    if (bytes > room) return false;
    unsigned char* const group = to + Size * i;
    if (bytes + kRegister <= room) {
      expand<Size>(values, word, group);
    } else if (bytes > 0) {
      plain_packing_kernels().unpack_nonzero(bits + i / 8, kGroup, Size, values, values + bytes,
                                             group);
    } else {
      for (unsigned k = 0; k < Size; ++k) store(_mm256_setzero_si256(), group + kRegister * k);
    }
    values += bytes;
  }
  return plain_packing_kernels().unpack_nonzero(bits + i / 8, elements - i, Size, values, end,
                                                to + Size * i);
}

Bytes count_zeros(const unsigned char* from, Bytes elements, unsigned size) {
  switch (size) {
    case 1:
      return count_zeros_of<1>(from, elements);
    case 2:
      return count_zeros_of<2>(from, elements);
    case 4:
      return count_zeros_of<4>(from, elements);
    default:
      return count_zeros_of<8>(from, elements);
  }
}

bool only_two(const unsigned char* from, Bytes elements, unsigned size, std::uint64_t a,
              std::uint64_t b) {
  switch (size) {
    case 1:
      return only_two_of<1>(from, elements, a, b);
    case 2:
      return only_two_of<2>(from, elements, a, b);
    case 4:
      return only_two_of<4>(from, elements, a, b);
    default:
      return only_two_of<8>(from, elements, a, b);
  }
}

bool pack_two(const unsigned char* from, Bytes elements, unsigned size, std::uint64_t a,
              std::uint64_t b, unsigned char* bits) {
  switch (size) {
    case 1:
      return pack_two_of<1>(from, elements, a, b, bits);
    case 2:
      return pack_two_of<2>(from, elements, a, b, bits);
    case 4:
      return pack_two_of<4>(from, elements, a, b, bits);
    default:
      return pack_two_of<8>(from, elements, a, b, bits);
  }
}

void unpack_two(const unsigned char* bits, Bytes elements, unsigned size, std::uint64_t a,
                std::uint64_t b, unsigned char* to) {
  switch (size) {
    case 1:
      return unpack_two_of<1>(bits, elements, a, b, to);
    case 2:
      return unpack_two_of<2>(bits, elements, a, b, to);
    case 4:
      return unpack_two_of<4>(bits, elements, a, b, to);
    default:
      return unpack_two_of<8>(bits, elements, a, b, to);
  }
}

bool pack_nonzero(const unsigned char* from, Bytes elements, unsigned size, unsigned char* bits,
                  unsigned char* values, unsigned char* end) {
  switch (size) {
    case 1:
      return pack_nonzero_of<1>(from, elements, bits, values, end);
    case 2:
      return pack_nonzero_of<2>(from, elements, bits, values, end);
    case 4:
      return pack_nonzero_of<4>(from, elements, bits, values, end);
    default:
      return pack_nonzero_of<8>(from, elements, bits, values, end);
  }
}

bool unpack_nonzero(const unsigned char* bits, Bytes elements, unsigned size,
                    const unsigned char* values, const unsigned char* end, unsigned char* to) {
  switch (size) {
    case 1:
      return unpack_nonzero_of<1>(bits, elements, values, end, to);
    case 2:
      return unpack_nonzero_of<2>(bits, elements, values, end, to);
    case 4:
      return unpack_nonzero_of<4>(bits, elements, values, end, to);
    default:
      return unpack_nonzero_of<8>(bits, elements, values, end, to);
  }
}

}  // namespace

const PackingKernels* avx2_packing_kernels() noexcept {
  static constexpr PackingKernels kKernels{count_zeros, only_two,     pack_two,
                                           unpack_two,  pack_nonzero, unpack_nonzero};
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("popcnt") != 0 ? &kKernels
                                                                                      : nullptr;
}

}  // namespace lowtide

#endif
