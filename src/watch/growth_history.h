#pragma once
// Whether a number that is told once a step keeps growing.
//
//   GrowthHistory history;
//   history.add(step, survivors);
//   if (history.is_growing(step)) ...
//
// Growing means: it rose four times since it last fell, and rises still, at the pace at which it
// did so far. So a list that gets an entry at every tenth step is found after forty, one that gets
// an entry a step after four, and what is filled at once or emptied now and then is not.
//
// The rise in the first step after the beginning is not counted: that is what is there to stay
// (optimizer state, caches).

#include <algorithm>
#include <cstdint>

namespace lowtide {

class GrowthHistory {
 public:
  static constexpr std::uint32_t kEnough = 4;

  void add(std::uint64_t step, std::int64_t value) {
    if (!began_ || value < last_) {
      began_ = true;
      first_step_ = last_rise_ = step;
      first_ = value;
      rises_ = 0;
    } else if (value > last_) {
      ++rises_;
      last_rise_ = step;
    }
    last_ = value;
  }

  bool is_growing(std::uint64_t step, std::uint32_t enough = kEnough) const {
    if (rises_ < enough) return false;
    return step - last_rise_ <= std::max<std::uint64_t>(3, 2 * pace());
  }
  // Steps from one rise to the next; 0 before the first.
  std::uint64_t pace() const {
    return rises_ == 0 ? 0 : (last_rise_ - first_step_ + rises_ - 1) / rises_;
  }
  std::uint32_t rises() const { return rises_; }
  std::int64_t last() const { return last_; }
  // Growth a step since it began to rise.
  double per_step(std::uint64_t step) const {
    return step == first_step_
               ? 0
               : static_cast<double>(last_ - first_) / static_cast<double>(step - first_step_);
  }

 private:
  bool began_ = false;
  std::uint64_t first_step_ = 0;  // when it last fell, or began
  std::uint64_t last_rise_ = 0;
  std::int64_t first_ = 0;
  std::int64_t last_ = 0;
  std::uint32_t rises_ = 0;
};

}  // namespace lowtide
