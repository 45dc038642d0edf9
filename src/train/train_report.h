#pragma once
// What a training run found out, as values, and its forms: JSON, text, a curve.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/budget.h"
#include "lowtide/memory_meter.h"
#include "src/base/json.h"
#include "src/train/average_precision.h"
#include "src/train/train_options.h"

namespace lowtide {

struct StepRecord {
  std::int64_t step = 0;  // from 0
  double loss = 0;        // the three terms added up
  double classification = 0;
  double l1 = 0;
  double giou = 0;
  double gradient_norm = 0;  // before clipping
  double seconds = 0;        // with drawing the crops
  Bytes peak_bytes = 0;
};

struct TrainReport {
  TrainSettings settings;
  std::int64_t num_cp = 0;
  int threads = 0;
  std::size_t photographs = 0;
  std::size_t boxes = 0;
  std::vector<StepRecord> steps;  // from step 0, also those before a resume
  bool interrupted = false;
  AveragePrecision precision;          // on the training photographs, at overlap 0.5
  MemoryByKind peak;                   // of the steps of this process, at the moment of their peak
  std::optional<BudgetReport> budget;  // of the steps of this process, when one was in force
  std::string checkpoint;              // file
  std::string boxes_picture;           // file
  std::string loss_picture;            // file

  double first_loss() const;  // mean of the first ten steps
  double last_loss() const;   // mean of the last ten
  double median_step_seconds() const;
};

Json to_json(const TrainReport& report);

// Some fifteen lines for people; ends with the files and the next useful command.
std::string to_text(const TrainReport& report);

// The loss of each step and its running mean, as an SVG picture.
std::string loss_curve_svg(const std::vector<StepRecord>& steps);

// What `--compare` found: the same step plain, and with checkpointing or a budget.
struct CompareReport {
  std::int64_t layers = 0;
  std::int64_t num_cp = 0;             // of the reduced step; the plain one has 0
  std::optional<BudgetReport> budget;  // of one reduced step; its limit is over what the step holds
  MemoryByKind plain_peak, reduced_peak;
  double plain_seconds = 0, reduced_seconds = 0;  // medians of `rounds`
  int rounds = 0;
  double loss_difference = 0;
  double largest_gradient_difference = 0;  // NaN counts as infinity
  std::string largest_at;                  // the parameter; empty when all are equal
  std::size_t parameters = 0;

  bool equal() const { return loss_difference == 0 && largest_gradient_difference == 0; }
};

Json to_json(const CompareReport& report);
std::string to_text(const CompareReport& report);

}  // namespace lowtide
