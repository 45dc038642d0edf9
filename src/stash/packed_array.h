#pragma once
// An array packed where it lies, so that packing takes no memory to speak of.
//
//   if (auto array = PackedArray::find(data, bytes, element_size, 0.85)) {
//     array->pack_in_place(data);          // the first array->packed_bytes() of it
//     ...                                  // the rest may be given back
//     array->unpack(data, elsewhere);
//   }
//
// Works on parts of 1 MiB one after the other, each in the form that suits it (packing.h), or as it
// is: what is written never passes what is still to be read. Functions are safe for threads.

#include <optional>
#include <vector>

#include "lowtide/bytes.h"
#include "src/stash/packing.h"

namespace lowtide {

class PackedArray {
 public:
  // The best form of every part; nothing when all together take more than `worst_ratio` of the
  // bytes. Reads the array once, at most.
  static std::optional<PackedArray> find(const void* data, Bytes bytes, unsigned element_size,
                                         double worst_ratio);

  Bytes bytes() const { return bytes_; }
  Bytes packed_bytes() const { return packed_bytes_; }

  // The array must be the one that find() saw.
  void pack_in_place(void* data) const;
  // Writes bytes() to `to`, which does not overlap `packed`.
  void unpack(const void* packed, void* to) const;

 private:
  struct Part {
    std::optional<Packing> packing;  // none: as it is
    Bytes bytes = 0;

    Bytes packed_bytes() const { return packing.has_value() ? packing->packed_bytes : bytes; }
  };

  std::vector<Part> parts_;
  Bytes bytes_ = 0;
  Bytes packed_bytes_ = 0;
};

}  // namespace lowtide
