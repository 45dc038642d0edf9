#include "src/stash/spill_space.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lowtide {

std::optional<std::uint64_t> SpillSpace::take(Bytes bytes) {
  const auto range = std::find_if(free_.begin(), free_.end(),
                                  [bytes](const auto& one) { return one.second >= bytes; });
  if (range == free_.end()) return std::nullopt;
  const std::uint64_t offset = range->first;
  if (range->second > bytes) {
    used_.emplace(offset, bytes);  // throws before anything has changed
    auto rest = free_.extract(range);
    rest.key() += bytes;
    rest.mapped() -= bytes;
    free_.insert(std::move(rest));
  } else {
    used_.insert(free_.extract(range));
  }
  used_bytes_ += bytes;
  return offset;
}

bool SpillSpace::give_back(std::uint64_t offset) noexcept {
  auto node = used_.extract(offset);
  if (node.empty()) return false;
  used_bytes_ -= node.mapped();
  const auto range = free_.insert(std::move(node)).position;
  if (const auto next = std::next(range);
      next != free_.end() && range->first + range->second == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto before = std::prev(range);
    if (before->first + before->second == range->first) {
      before->second += range->second;
      free_.erase(range);
    }
  }
  return true;
}

void SpillSpace::grow(Bytes bytes) {
  if (free_at_end() > 0) {
    std::prev(free_.end())->second += bytes;
  } else {
    free_.emplace_hint(free_.end(), end_, bytes);
  }
  end_ += bytes;
}

Bytes SpillSpace::free_at_end() const {
  if (free_.empty()) return 0;
  const auto& [offset, bytes] = *free_.rbegin();
  return offset + bytes == end_ ? bytes : 0;
}

Bytes SpillSpace::largest_free() const {
  Bytes largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace lowtide
