#pragma once
// The trained detector at work on whole photographs.

#include <vector>

#include "src/train/average_precision.h"
#include "src/train/dataset.h"
#include "src/train/detector.h"

namespace lowtide {

// The boxes found on each photograph, in its pixels, by falling score. A photograph is covered with
// tiles of `tile` pixels that overlap by a quarter; of a tile, the detections count whose centre is
// not in the margin that a neighbour sees better, the hundred with the highest scores at most; of
// two that overlap by more than half the stronger stays.
// Leaves the detector in training mode. Draws nothing from the generator.
std::vector<std::vector<ScoredBox>> detect_all(Detector& detector, const Dataset& data, int tile);

// The true boxes of each photograph.
std::vector<std::vector<Box>> truth_of(const Dataset& data);

// Those with at least that score.
std::vector<ScoredBox> above_score(const std::vector<ScoredBox>& boxes, float least_score);

}  // namespace lowtide
