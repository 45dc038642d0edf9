#pragma once
// Boxes drawn on photographs.

#include <array>
#include <cstdint>
#include <vector>

#include "src/train/geometry.h"
#include "src/train/image.h"

namespace lowtide {

using Color = std::array<std::uint8_t, 3>;

// Draws the outline of `box`, `thickness` pixels wide and centred on its edge, over a dark rim of
// one pixel that keeps it visible on light ground. Parts outside the image are left out.
void draw_box(Image& image, const Box& box, const Color& color, int thickness);

// Detections that find a true box in green, others in orange, true boxes that none found in thin
// white. Pairs are made as average_precision makes them, at overlap 0.5.
Image draw_detections(const Image& photograph, const std::vector<ScoredBox>& detections,
                      const std::vector<Box>& truth);

}  // namespace lowtide
