#include "src/watch/step_curve.h"

#include <algorithm>

namespace lowtide {

void StepCurve::begin(Bytes live_bytes) {
  begin_ = live_bytes;
  peak_ = 0;
  has_burst_ = false;
  events_.clear();
  groups_.clear();
}

void StepCurve::made(Bytes bytes) {
  if (events_.size() < kMostEvents) events_.push_back({static_cast<std::int64_t>(bytes), kNotHeld});
}

void StepCurve::gone(Bytes bytes, std::uint32_t origin, std::uint64_t burst) {
  if (events_.size() >= kMostEvents) return;
  std::uint32_t group = kNotHeld;
  if (origin != kNotHeld) {
    if (!has_burst_ || burst != burst_) {
      has_burst_ = true;
      burst_ = burst;
      groups_.emplace_back();
    }
    group = static_cast<std::uint32_t>(groups_.size() - 1);
    groups_.back().origin = origin;
    groups_.back().bytes += bytes;
  }
  events_.push_back({-static_cast<std::int64_t>(bytes), group});
}

std::vector<StepCurve::Group> StepCurve::end() {
  if (events_.size() >= kMostEvents) return {};
  // The highest that the curve is before each group begins to go, and after it has gone.
  struct Span {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool is_set = false;
  };
  std::vector<Span> spans(groups_.size());
  std::vector<std::int64_t> highest_until(events_.size() + 1);
  std::int64_t live = static_cast<std::int64_t>(begin_);
  highest_until[0] = live;
  std::vector<std::int64_t> live_after(events_.size() + 1);
  live_after[0] = live;
  for (std::size_t i = 0; i < events_.size(); ++i) {
    live += events_[i].delta;
    live_after[i + 1] = live;
    highest_until[i + 1] = std::max(highest_until[i], live);
    if (events_[i].group == kNotHeld) continue;
    Span& span = spans[events_[i].group];
    if (!span.is_set) span = {i, i, true};
    span.end = i + 1;
  }
  const std::int64_t peak = highest_until.back();
  peak_ = static_cast<Bytes>(std::max<std::int64_t>(peak, 0));
  std::vector<std::int64_t> highest_from(live_after);
  for (std::size_t i = events_.size(); i-- > 0;) {
    highest_from[i] = std::max(highest_from[i], highest_from[i + 1]);
  }
  std::vector<Group> falls;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int64_t before =
        highest_until[spans[g].begin] - static_cast<std::int64_t>(groups_[g].bytes);
    const std::int64_t other = std::max(before, highest_from[spans[g].end]);
    if (other >= peak) continue;
    groups_[g].fall_bytes = static_cast<Bytes>(peak - other);
    falls.push_back(groups_[g]);
  }
  std::stable_sort(falls.begin(), falls.end(),
                   [](const Group& a, const Group& b) { return a.fall_bytes > b.fall_bytes; });
  return falls;
}

}  // namespace lowtide
