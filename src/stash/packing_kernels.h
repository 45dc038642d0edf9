#pragma once
// The loops of packing.cpp, in two forms that do the same: plain, and for AVX2.
//
// `elements` of `size` bytes (1, 2, 4 or 8) each, at any address. Values are bit patterns in the
// low bytes of 64 bits. Bit i of a bitmap is bit i % 8 of byte i / 8; bits after the last are zero.

#include <cstdint>

#include "lowtide/bytes.h"

namespace lowtide {

struct PackingKernels {
  Bytes (*count_zeros)(const unsigned char* from, Bytes elements, unsigned size);
  // Whether each element is `a` or `b`.
  bool (*only_two)(const unsigned char* from, Bytes elements, unsigned size, std::uint64_t a,
                   std::uint64_t b);
  // A bit for each element that is `b`. False when one is neither.
  bool (*pack_two)(const unsigned char* from, Bytes elements, unsigned size, std::uint64_t a,
                   std::uint64_t b, unsigned char* bits);
  void (*unpack_two)(const unsigned char* bits, Bytes elements, unsigned size, std::uint64_t a,
                     std::uint64_t b, unsigned char* to);
  // A bit for each element that is not zero, and those in order at `values`. False when they do not
  // fill [values, end) exactly; nothing is written beyond.
  bool (*pack_nonzero)(const unsigned char* from, Bytes elements, unsigned size,
                       unsigned char* bits, unsigned char* values, unsigned char* end);
  // False when the bitmap does not stand for [values, end) exactly; nothing is read beyond.
  bool (*unpack_nonzero)(const unsigned char* bits, Bytes elements, unsigned size,
                         const unsigned char* values, const unsigned char* end, unsigned char* to);
};

const PackingKernels& plain_packing_kernels() noexcept;
// Null where the processor, or the program, has no AVX2.
const PackingKernels* avx2_packing_kernels() noexcept;
const PackingKernels& best_packing_kernels() noexcept;

}  // namespace lowtide
