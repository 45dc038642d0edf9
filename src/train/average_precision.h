#pragma once
// How good detections are: average precision at one overlap, and the pruning of double detections.
//
//   AveragePrecision ap = average_precision(detections, truth, 0.5f);
//   ap.value;    // area under precision over recall, all points, in [0, 1]
//
// One class. Each list has one entry an image.

#include <cstdint>
#include <vector>

#include "src/train/geometry.h"

namespace lowtide {

struct AveragePrecision {
  double value = 0;       // 0 when there is no true box
  double recall = 0;      // share of the true boxes that some detection found
  double best_f1 = 0;     // largest harmonic mean of precision and recall over all thresholds
  double best_score = 1;  // the least score of a detection counted there
  std::int64_t true_boxes = 0;
  std::int64_t detections = 0;
};

// Which detections of one image are right, and which of its true boxes they find. Detections are
// taken by falling score (equal ones in order). One is right when its largest overlap with a true
// box is at least `least_overlap` and that box was not found before.
struct Matching {
  std::vector<char> right;  // a detection
  std::vector<char> found;  // a true box
};
Matching match_detections(const std::vector<ScoredBox>& detections, const std::vector<Box>& truth,
                          float least_overlap);

// Detections of all images are taken by falling score (equal scores: by image, then by order) and
// are right or wrong as match_detections says; a second detection of the same box is wrong.
// Precision is made non-increasing from the right and integrated over recall (PASCAL VOC 2010).
AveragePrecision average_precision(const std::vector<std::vector<ScoredBox>>& detections,
                                   const std::vector<std::vector<Box>>& truth, float least_overlap);

// Non-maximum suppression: by falling score, drops each box that overlaps a kept one by more than
// `most_overlap`. The result is sorted by falling score.
std::vector<ScoredBox> prune_overlapping(std::vector<ScoredBox> boxes, float most_overlap);

}  // namespace lowtide
