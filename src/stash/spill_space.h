#pragma once
// Which parts of a file are in use: what SpillFile hands out. Knows no file.
//
// Ranges [offset, offset + bytes) of whole 4 KiB blocks, from 0 to end(), each used or free; free
// neighbours are always joined. Not safe for threads.

#include <cstdint>
#include <map>
#include <optional>

#include "lowtide/bytes.h"

namespace lowtide {

class SpillSpace {
 public:
  static constexpr Bytes kBlock = 4096;
  static constexpr Bytes rounded(Bytes bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

  // First fit: the lowest free range of `bytes`, a multiple of kBlock over 0. Nothing when there is
  // none; grow() then. Linear in the number of free ranges.
  std::optional<std::uint64_t> take(Bytes bytes);
  // Gives back what take() gave; false when `offset` is not the begin of a used range.
  bool give_back(std::uint64_t offset) noexcept;
  // Appends `bytes`, a multiple of kBlock over 0, free.
  void grow(Bytes bytes);

  std::uint64_t end() const { return end_; }
  Bytes used() const { return used_bytes_; }
  Bytes free_at_end() const;
  Bytes largest_free() const;

 private:
  using Ranges = std::map<std::uint64_t, Bytes>;  // offset -> bytes

  // Nodes move between the two, so that giving back allocates nothing.
  Ranges used_;
  Ranges free_;
  Bytes used_bytes_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace lowtide
