// Tested by tests/train/train_report_test.cpp.
#include "src/train/drawing.h"

#include <cmath>

#include "src/train/average_precision.h"

namespace lowtide {
namespace {

constexpr Color kRim{20, 24, 20};
constexpr Color kFound{90, 255, 90};
constexpr Color kWrong{255, 130, 20};
constexpr Color kMissed{255, 255, 255};

void fill(Image& image, int x1, int y1, int x2, int y2, const Color& color) {
  for (int y = std::max(0, y1); y < std::min(image.height, y2); ++y) {
    for (int x = std::max(0, x1); x < std::min(image.width, x2); ++x) {
      std::copy(color.begin(), color.end(), image.at(x, y));
    }
  }
}

// The outline as four bars that reach `before` pixels out of the edge and `after` into it.
void outline(Image& image, const Box& box, int before, int after, const Color& color) {
  const int x1 = int(std::lround(box.x1));
  const int y1 = int(std::lround(box.y1));
  const int x2 = int(std::lround(box.x2));
  const int y2 = int(std::lround(box.y2));
  fill(image, x1 - before, y1 - before, x2 + before, y1 + after, color);
  fill(image, x1 - before, y2 - after, x2 + before, y2 + before, color);
  fill(image, x1 - before, y1 - before, x1 + after, y2 + before, color);
  fill(image, x2 - after, y1 - before, x2 + before, y2 + before, color);
}

}  // namespace

void draw_box(Image& image, const Box& box, const Color& color, int thickness) {
  const int before = thickness / 2;
  const int after = thickness - before;
  outline(image, box, before + 1, after + 1, kRim);
  outline(image, box, before, after, color);
}

Image draw_detections(const Image& photograph, const std::vector<ScoredBox>& detections,
                      const std::vector<Box>& truth) {
  Image picture = photograph;
  const Matching matching = match_detections(detections, truth, 0.5f);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    if (matching.found[i] == 0) draw_box(picture, truth[i], kMissed, 1);
  }
  for (const bool right : {false, true}) {
    for (std::size_t i = 0; i < detections.size(); ++i) {
      if ((matching.right[i] != 0) != right) continue;
      draw_box(picture, detections[i].box, right ? kFound : kWrong, 2);
    }
  }
  return picture;
}

}  // namespace lowtide
