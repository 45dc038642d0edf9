// Tested by tests/stash/packed_array_test.cpp.

#include "src/stash/packed_array.h"

#include <algorithm>
#include <cstring>

#include "src/base/assert.h"

namespace lowtide {
namespace {

constexpr Bytes kPart = Bytes{1} << 20;

}  // namespace

std::optional<PackedArray> PackedArray::find(const void* data, Bytes bytes, unsigned element_size,
                                             double worst_ratio) {
  PackedArray array;
  array.bytes_ = bytes;
  const auto most = static_cast<Bytes>(worst_ratio * static_cast<double>(bytes));
  const auto* from = static_cast<const unsigned char*>(data);
  for (Bytes done = 0; done < bytes;) {
    const Bytes size = std::min(kPart, bytes - done);
    const Part part{find_packing(from + done, size, element_size), size};
    array.packed_bytes_ += part.packed_bytes();
    if (array.packed_bytes_ > most) return std::nullopt;
    array.parts_.push_back(part);
    done += size;
  }
  return array;
}

void PackedArray::pack_in_place(void* data) const {
  std::vector<unsigned char> packed(std::min(kPart, bytes_));
  auto* from = static_cast<unsigned char*>(data);
  unsigned char* to = from;
  for (const Part& part : parts_) {
    if (part.packing.has_value()) {
      const bool as_found = pack(*part.packing, from, packed.data());
      LOWTIDE_ASSERT(as_found);
      std::memcpy(to, packed.data(), part.packed_bytes());
    } else if (to != from) {
      std::memmove(to, from, part.bytes);
    }
    from += part.bytes;
    to += part.packed_bytes();
  }
}

void PackedArray::unpack(const void* packed, void* to) const {
  const auto* from = static_cast<const unsigned char*>(packed);
  auto* out = static_cast<unsigned char*>(to);
  for (const Part& part : parts_) {
    if (part.packing.has_value()) {
      lowtide::unpack(*part.packing, from, out);
    } else {
      std::memcpy(out, from, part.bytes);
    }
    from += part.packed_bytes();
    out += part.bytes;
  }
}

}  // namespace lowtide
