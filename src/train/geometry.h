#pragma once
// Boxes in pixels, and how much two of them overlap.

#include <algorithm>
#include <vector>

namespace lowtide {

// Half open: covers [x1, x2) x [y1, y2), in pixels from the upper left corner.
struct Box {
  float x1 = 0;
  float y1 = 0;
  float x2 = 0;
  float y2 = 0;

  float area() const { return std::max(0.0f, x2 - x1) * std::max(0.0f, y2 - y1); }
  bool operator==(const Box&) const = default;
};

struct ScoredBox {
  Box box;
  float score = 0;  // in [0, 1]
};

inline float intersection_area(const Box& a, const Box& b) {
  return Box{std::max(a.x1, b.x1), std::max(a.y1, b.y1), std::min(a.x2, b.x2), std::min(a.y2, b.y2)}
      .area();
}

// Intersection over union, 0 for two empty boxes.
inline float overlap(const Box& a, const Box& b) {
  const float common = intersection_area(a, b);
  const float either = a.area() + b.area() - common;
  return either > 0 ? common / either : 0;
}

}  // namespace lowtide
