// Tested by tests/train/average_precision_test.cpp.
#include "src/train/average_precision.h"

#include <algorithm>
#include <numeric>

#include "src/base/assert.h"

namespace lowtide {

Matching match_detections(const std::vector<ScoredBox>& detections, const std::vector<Box>& truth,
                          float least_overlap) {
  std::vector<std::size_t> order(detections.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return detections[a].score > detections[b].score;
  });
  Matching matching{std::vector<char>(detections.size(), 0), std::vector<char>(truth.size(), 0)};
  for (const std::size_t i : order) {
    std::size_t best = 0;
    float best_overlap = -1;
    for (std::size_t j = 0; j < truth.size(); ++j) {
      const float shared = overlap(detections[i].box, truth[j]);
      if (shared > best_overlap) {
        best_overlap = shared;
        best = j;
      }
    }
    if (best_overlap >= least_overlap && matching.found[best] == 0) {
      matching.found[best] = 1;
      matching.right[i] = 1;
    }
  }
  return matching;
}

AveragePrecision average_precision(const std::vector<std::vector<ScoredBox>>& detections,
                                   const std::vector<std::vector<Box>>& truth,
                                   float least_overlap) {
  LOWTIDE_ASSERT(detections.size() == truth.size());
  struct Verdict {
    float score;
    bool right;
  };
  std::vector<Verdict> ranked;
  AveragePrecision result;
  for (std::size_t image = 0; image < truth.size(); ++image) {
    result.true_boxes += static_cast<std::int64_t>(truth[image].size());
    const Matching matching = match_detections(detections[image], truth[image], least_overlap);
    for (std::size_t i = 0; i < detections[image].size(); ++i) {
      ranked.push_back({detections[image][i].score, matching.right[i] != 0});
    }
  }
  result.detections = static_cast<std::int64_t>(ranked.size());
  if (result.true_boxes == 0) return result;
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Verdict& a, const Verdict& b) { return a.score > b.score; });

  std::vector<double> precision;
  std::vector<double> recall;
  std::int64_t right = 0;
  for (const Verdict& verdict : ranked) {
    if (verdict.right) ++right;
    precision.push_back(double(right) / double(precision.size() + 1));
    recall.push_back(double(right) / double(result.true_boxes));
    if (right == 0) continue;
    const double f1 = 2 * precision.back() * recall.back() / (precision.back() + recall.back());
    if (f1 > result.best_f1) {
      result.best_f1 = f1;
      result.best_score = verdict.score;
    }
  }
  for (std::size_t i = precision.size(); i-- > 1;) {
    precision[i - 1] = std::max(precision[i - 1], precision[i]);
  }
  double before = 0;
  for (std::size_t i = 0; i < precision.size(); ++i) {
    result.value += (recall[i] - before) * precision[i];
    before = recall[i];
  }
  result.recall = before;
  return result;
}

std::vector<ScoredBox> prune_overlapping(std::vector<ScoredBox> boxes, float most_overlap) {
  std::stable_sort(boxes.begin(), boxes.end(),
                   [](const ScoredBox& a, const ScoredBox& b) { return a.score > b.score; });
  std::vector<ScoredBox> kept;
  for (const ScoredBox& candidate : boxes) {
    const bool hidden = std::any_of(kept.begin(), kept.end(), [&](const ScoredBox& stronger) {
      return overlap(candidate.box, stronger.box) > most_overlap;
    });
    if (!hidden) kept.push_back(candidate);
  }
  return kept;
}

}  // namespace lowtide
