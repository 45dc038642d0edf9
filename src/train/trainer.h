#pragma once
// The main job: trains the detector on photographs with boxes, and says what it took.
//
//   TrainOptions options;
//   options.steps = 40;
//   TrainReport report = train(options, {.note = [](const std::string& line) { log(line); }});
//   to_text(report);
//
// Runs repeat: equal settings, data and thread count give the same losses and weights bit for bit,
// whatever num_cp is, and whether or not the run was interrupted and resumed in between.

#include <functional>
#include <string>

#include "src/train/train_options.h"
#include "src/train/train_report.h"

namespace lowtide {

// A step as it happens.
struct StepProgress {
  StepRecord record;
  std::int64_t steps = 0;       // in all
  std::int64_t batch = 0;       // crops a step
  double steps_per_second = 0;  // over the last ten
  Bytes live_bytes = 0;         // after the step
};

// What the run tells and asks while it goes on; each may be empty. Called on the calling thread.
struct TrainListener {
  std::function<void(const std::string&)> note;       // a line for people
  std::function<void(const StepProgress&)> progress;  // after each step
  std::function<bool()> stop;                         // true: save a checkpoint and return
};

// Trains, evaluates and writes checkpoint.safetensors, boxes.png, loss.svg and report.json into
// options.out. Seeds libtorch's default generator, and sets its thread count when options.threads
// is given. options.budget holds during the steps; a number of bytes during the evaluation too.
// When `stop` says so the checkpoint is written, evaluation is left out, and the report says
// `interrupted`. Throws UsageError LT0520 and LT0523 for options, LT0521 when no num_cp fits the
// budget, LT0522 for `auto` without a budget in bytes, BudgetError when a step cannot be carried
// out within it (the state before that step is saved), Error (LT0524) when loss or gradients are no
// numbers any more (the state before that step is saved), and what loading and saving throw.
TrainReport train(const TrainOptions& options, const TrainListener& listener);

// One step with num_cp 0, and one within options.budget, or without a budget one with
// options.num_cp (all layers when that is 0), from the same state: a new run's or that of
// options.resume. Peaks, times (medians of three after a warm-up), differences. Writes nothing.
CompareReport compare_steps(const TrainOptions& options, const TrainListener& listener);

}  // namespace lowtide
