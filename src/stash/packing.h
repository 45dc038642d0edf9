#pragma once
// Smaller forms of an array that give back every bit of it. Elements are bit patterns of 1, 2, 4 or
// 8 bytes: -0.0 is not 0.0, and one NaN is not another.
//
//   if (const auto packing = find_packing(data, bytes, element_size)) {
//     std::vector<unsigned char> packed(packing->packed_bytes);
//     if (pack(*packing, data, packed.data())) {
//       unpack(*packing, packed.data(), data);
//     }
//   }
//
// Two values: masks of bools or of 0 and 1, dropout's of 0 and 1 / (1 - p). One bit an element.
// Zeros left out: results of relu and dropout. One bit an element, and the elements that are not 0.
// Bytes after the last whole element are kept as they are. Addresses need no alignment.
//
// docs/design/spill.md has the speeds. Functions without state, safe for threads.

#include <cstdint>
#include <optional>

#include "lowtide/bytes.h"
#include "src/stash/packing_kernels.h"

namespace lowtide {

// What unpack() must know beside the packed bytes. Plain data.
struct Packing {
  enum class Kind : std::uint8_t { kTwoValues, kZerosLeftOut };
  Kind kind = Kind::kTwoValues;
  unsigned element_size = 1;
  Bytes bytes = 0;
  Bytes packed_bytes = 0;
  // kTwoValues: the elements of a clear and of a set bit.
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

// Looks at four pairs of cache lines: what part of `bytes` the packed form may take, or nothing
// when packing looks hopeless. Wrong for an array that is not much the same all over. For any size
// some 0.1 us, and 0.4 us when those lines are in no cache.
std::optional<double> probe_packing(const void* data, Bytes bytes, unsigned element_size) noexcept;

// The smaller of the two forms, with its exact size; nothing when neither saves an eighth, or after
// an eighth of the array when it has too few zeros so far. Reads the array once.
std::optional<Packing> find_packing(const void* data, Bytes bytes, unsigned element_size,
                                    const PackingKernels& kernels = best_packing_kernels());

// Writes packing.packed_bytes to `to`. False when the array is not the one that find_packing() saw;
// `to` is then not to be used.
[[nodiscard]] bool pack(const Packing& packing, const void* from, void* to,
                        const PackingKernels& kernels = best_packing_kernels());

// Writes packing.bytes to `to`. `packed` must be what pack() wrote.
void unpack(const Packing& packing, const void* packed, void* to,
            const PackingKernels& kernels = best_packing_kernels());

}  // namespace lowtide
