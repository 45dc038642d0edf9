#pragma once
// What `lowtide plan` prints: curves of time against budget, as text, JSON and a picture.

#include <optional>
#include <string>
#include <vector>

#include "src/base/json.h"
#include "src/plan/num_cp.h"
#include "src/plan/plan_curve.h"
#include "src/plan/plan_summary.h"
#include "src/tape/tape.h"

namespace lowtide {

// Of an operator log, at tenths of its peak.
struct LogCurve {
  std::string name;
  Bytes peak_bytes = 0;
  Bytes floor_bytes = 0;
  std::uint64_t plain_ns = 0;
  std::vector<double> ratios;  // of the points, to the peak
  std::vector<CurvePoint> points;
};
Json log_curve_json(const LogCurve& curve);
std::string log_curve_text(const LogCurve& curve);

// Of a tape, from its floor to its natural peak, with one plan or none.
struct TapeCurve {
  std::string name;
  std::uint64_t plain_ns = 0;
  Bytes floor_bytes = 0;
  OpId floor_op;
  PeakSummary peak;
  std::vector<CurvePoint> points;  // ascending budgets
  std::optional<Plan> plan;
  std::vector<PlaceSummary> places;  // of the plan
};
Json tape_curve_json(const Tape& tape, const TapeCurve& curve);
std::string tape_curve_text(const Tape& tape, const TapeCurve& curve);

// The curve as a picture: online and planned overhead against the budget, and what cannot be
// beaten. `peak_bytes` is the right end.
std::string curve_svg(const std::string& title, Bytes peak_bytes, Bytes floor_bytes,
                      std::uint64_t plain_ns, const std::vector<CurvePoint>& points);

struct LargestBatch {
  Bytes budget_bytes = 0;
  std::uint64_t plain = 0;         // without a plan; 0: not even one sample
  std::uint64_t planned = 0;       // with one
  std::optional<double> overhead;  // of the plan at that batch
  Bytes plain_peak_bytes = 0;      // at `plain`
  std::uint64_t checked_at = 0;    // batch of the third tape; 0: there was none
  Bytes predicted_bytes = 0;
  Bytes measured_bytes = 0;
};
Json largest_batch_json(const LargestBatch& answer);
std::string largest_batch_text(const LargestBatch& answer);

// The peak for each number of checkpointed layers; `budget_bytes` 0: none was given.
Json num_cp_json(const LayerPeaks& layers, Bytes budget_bytes, std::uint64_t plain_ns);
std::string num_cp_text(const LayerPeaks& layers, Bytes budget_bytes, std::uint64_t plain_ns);

}  // namespace lowtide
