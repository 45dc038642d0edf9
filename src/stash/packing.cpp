#include "src/stash/packing.h"

#include <algorithm>
#include <cstring>

#include "src/base/assert.h"

// Packed: the bitmap, (for zeros left out) the other elements in order, the bytes after the last
// whole element.
//
// Tested by packing_test.cpp, where the plain kernels are the twin of the others.

namespace lowtide {
namespace {

constexpr Bytes kBlockBytes = 16 << 10;  // read twice while it is in the first cache

bool is_element_size(unsigned size) { return size == 1 || size == 2 || size == 4 || size == 8; }

template <typename T>
std::uint64_t load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::uint64_t element(const unsigned char* data, Bytes i, unsigned size) {
  switch (size) {
    case 1:
      return data[i];
    case 2:
      return load<std::uint16_t>(data + 2 * i);
    case 4:
      return load<std::uint32_t>(data + 4 * i);
    default:
      return load<std::uint64_t>(data + 8 * i);
  }
}

// The first element that is not `value`, or `value` when all are.
std::uint64_t first_other(const unsigned char* data, Bytes elements, unsigned size,
                          std::uint64_t value, const PackingKernels& kernels) {
  constexpr Bytes kStep = 64;
  for (Bytes begin = 0; begin < elements; begin += kStep) {
    const Bytes end = std::min(begin + kStep, elements);
    if (kernels.only_two(data + begin * size, end - begin, size, value, value)) continue;
    for (Bytes i = begin; i < end; ++i) {
      if (const std::uint64_t other = element(data, i, size); other != value) return other;
    }
  }
  return value;
}

Bytes bitmap_bytes(Bytes elements) { return elements / 8 + (elements % 8 != 0 ? 1 : 0); }

bool is_worth_it(Bytes packed, Bytes bytes) { return packed <= bytes - bytes / 8; }

}  // namespace

std::optional<double> probe_packing(const void* data, Bytes bytes, unsigned size) noexcept {
  constexpr Bytes kLine = 64;
  constexpr unsigned kLines = 8;
  if (!is_element_size(size) || bytes < size) return std::nullopt;
  const auto* const from = static_cast<const unsigned char*>(data);
  const Bytes lines = bytes / kLine;
  const unsigned samples = static_cast<unsigned>(std::clamp<Bytes>(lines, 1, kLines));
  const Bytes elements = std::min(bytes, kLine) / size;
  const unsigned char* sample[kLines];
  for (unsigned k = 0; k < samples; ++k) {
    // Pairs, as each new page costs most; at multiples of the golden ratio, so that no two are near
    // each other and no period of rows or channels is met.
    const auto turn = static_cast<std::uint32_t>(0x9e3779b9u * (k / 2 + 1));
    const Bytes pairs = lines / 2;
    const Bytes pair = (pairs >> 32) * turn + ((pairs & 0xffffffffu) * turn >> 32);
    sample[k] = from + (lines > kLines ? 2 * pair + k % 2 : k) * kLine;
    __builtin_prefetch(sample[k]);  // so that the lines come at once
  }
  alignas(kLine) unsigned char seen[kLines * kLine];
  const Bytes count = samples * elements;
  if (lines == 0) {
    std::memcpy(seen, from, elements * size);
  } else {
    for (unsigned k = 0; k < samples; ++k) std::memcpy(seen + k * kLine, sample[k], kLine);
  }
  const PackingKernels& kernels = best_packing_kernels();
  const std::uint64_t low = element(seen, 0, size);
  const bool is_two =
      kernels.only_two(seen, count, size, low, first_other(seen, count, size, low, kernels));
  const Bytes zeros = kernels.count_zeros(seen, count, size);
  const double bitmap = 1.0 / (8.0 * size);
  if (is_two) return bitmap;
  const double ratio = bitmap + 1.0 - static_cast<double>(zeros) / static_cast<double>(count);
  return ratio <= 0.875 ? std::optional(ratio) : std::nullopt;
}

std::optional<Packing> find_packing(const void* data, Bytes bytes, unsigned size,
                                    const PackingKernels& kernels) {
  if (!is_element_size(size) || bytes < size) return std::nullopt;
  const auto* const from = static_cast<const unsigned char*>(data);
  const Bytes elements = bytes / size;
  const Bytes rest = bytes % size;
  const Bytes block = kBlockBytes / size;
  Packing packing{Packing::Kind::kTwoValues, size, bytes, bitmap_bytes(elements) + rest, 0, 0};
  packing.low = packing.high = element(from, 0, size);
  bool is_two = is_worth_it(packing.packed_bytes, bytes);
  Bytes zeros = 0;
  for (Bytes begin = 0; begin < elements; begin += block) {
    const unsigned char* const here = from + begin * size;
    const Bytes count = std::min(block, elements - begin);
    if (is_two && packing.low == packing.high) {
      packing.high = first_other(here, count, size, packing.low, kernels);
    }
    is_two = is_two && kernels.only_two(here, count, size, packing.low, packing.high);
    zeros += kernels.count_zeros(here, count, size);
    if (is_two) continue;
    // Needed is a share of zeros of 1/8 + bitmap; under half of it, so far, is given up.
    const Bytes seen = begin + count;
    if (seen >= elements / 8 && zeros * 16 * size < seen * (size + 1)) return std::nullopt;
  }
  if (is_two) return packing;
  packing = {Packing::Kind::kZerosLeftOut,
             size,
             bytes,
             bitmap_bytes(elements) + (elements - zeros) * size + rest,
             0,
             0};
  return is_worth_it(packing.packed_bytes, bytes) ? std::optional(packing) : std::nullopt;
}

bool pack(const Packing& packing, const void* from, void* to, const PackingKernels& kernels) {
  const auto* const data = static_cast<const unsigned char*>(from);
  auto* const packed = static_cast<unsigned char*>(to);
  const unsigned size = packing.element_size;
  const Bytes elements = packing.bytes / size;
  const Bytes rest = packing.bytes % size;
  unsigned char* const end = packed + packing.packed_bytes - rest;
  const bool is_same =
      packing.kind == Packing::Kind::kTwoValues
          ? kernels.pack_two(data, elements, size, packing.low, packing.high, packed)
          : kernels.pack_nonzero(data, elements, size, packed, packed + bitmap_bytes(elements),
                                 end);
  std::memcpy(end, data + elements * size, rest);
  return is_same;
}

void unpack(const Packing& packing, const void* packed, void* to, const PackingKernels& kernels) {
  const auto* const from = static_cast<const unsigned char*>(packed);
  auto* const data = static_cast<unsigned char*>(to);
  const unsigned size = packing.element_size;
  const Bytes elements = packing.bytes / size;
  const Bytes rest = packing.bytes % size;
  const unsigned char* const end = from + packing.packed_bytes - rest;
  if (packing.kind == Packing::Kind::kTwoValues) {
    kernels.unpack_two(from, elements, size, packing.low, packing.high, data);
  } else {
    const bool is_whole =
        kernels.unpack_nonzero(from, elements, size, from + bitmap_bytes(elements), end, data);
    LOWTIDE_ASSERT(is_whole);
  }
  std::memcpy(data + elements * size, end, rest);
}

}  // namespace lowtide
