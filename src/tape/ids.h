#pragma once
// Ids of a tape's parts. Each is a type of its own, so that one cannot be taken for another.
//
//   OpId op{3};  op.index();  // 3
//   StorageId none;           // valid() is false
//
// An id is an index into a table of its owner (a Tape, a RecipeGraph) and means nothing elsewhere.

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>

namespace lowtide {

template <typename Tag>
class Id {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  constexpr Id() = default;
  constexpr explicit Id(std::uint32_t index) : index_(index) {}

  constexpr std::uint32_t index() const { return index_; }
  constexpr bool valid() const { return index_ != kNone; }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  std::uint32_t index_ = kNone;
};

using OpId = Id<struct OpTag>;
using StorageId = Id<struct StorageTag>;
using SavedId = Id<struct SavedTag>;

}  // namespace lowtide

template <typename Tag>
struct std::hash<lowtide::Id<Tag>> {
  std::size_t operator()(lowtide::Id<Tag> id) const noexcept { return id.index(); }
};
