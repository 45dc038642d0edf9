#pragma once
// Findings while rules are weighing them: one a cause, the heaviest reason told.

#include <string>
#include <utility>
#include <vector>

#include "src/diagnose/diagnosis.h"

namespace lowtide {

// Weights from which a finding is certain, likely or possible; below the last it is not told.
constexpr int kCertainFrom = 90;
constexpr int kLikelyFrom = 60;
constexpr int kPossibleFrom = 25;

class Findings {
 public:
  // Raises the cause's weight to `weight`; the heaviest reason is the one that is told. The
  // reference is good until the next call.
  Finding& add(Cause cause, int weight, std::string why) {
    for (Finding& known : list_) {
      if (known.cause != cause) continue;
      if (weight > known.weight) {
        known.weight = weight;
        known.why = std::move(why);
      }
      return known;
    }
    Finding finding;
    finding.cause = cause;
    finding.weight = weight;
    finding.why = std::move(why);
    list_.push_back(std::move(finding));
    return list_.back();
  }
  Finding* find(Cause cause) {
    for (Finding& known : list_) {
      if (known.cause == cause) return &known;
    }
    return nullptr;
  }
  std::vector<Finding>& list() { return list_; }

 private:
  std::vector<Finding> list_;
};

}  // namespace lowtide
