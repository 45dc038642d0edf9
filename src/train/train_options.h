#pragma once
// What a training run is told, and what follows from it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lowtide/budget.h"
#include "lowtide/bytes.h"
#include "src/base/json.h"

namespace lowtide {

// What decides the numbers of a run: two runs with equal settings, data and thread count give the
// same losses bit for bit. Stored in every checkpoint.
struct TrainSettings {
  std::int64_t steps = 700;     // optimizer steps in all; the learning rate falls to 0 over them
  std::int64_t batch = 2;       // crops a step
  std::uint64_t seed = 0;       // of weights, crops and dropout
  std::int64_t crop = 160;      // side of a crop in pixels, after shrinking
  std::int64_t shrink = 2;      // photographs are reduced by this factor in each direction
  std::int64_t layers = 2;      // encoder layers; more is better and slower
  std::int64_t width = 128;     // channels of a token
  double learning_rate = 5e-4;  // at its highest
  double dropout = 0;           // of the encoder

  bool operator==(const TrainSettings&) const = default;
};

// What the user gave. Empty fields take the value of the resumed run, or else the default above.
struct TrainOptions {
  std::optional<std::int64_t> steps, batch, seed, crop, shrink, layers, width;
  std::optional<double> learning_rate, dropout;

  std::filesystem::path data;               // empty: find_default_data()
  std::filesystem::path out = "out/train";  // made when it is missing
  std::filesystem::path resume;             // a checkpoint; empty: from the start
  std::int64_t num_cp = 0;                  // encoder layers to checkpoint; never changes results
  bool num_cp_auto = false;                 // choose the smallest that fits `budget`
  std::optional<BudgetLimit> budget;        // what the steps may take; enforced
  std::string spill_directory;              // "": nothing is spilled
  std::string plan_path;                    // a plan for the step, from `lowtide plan`; "": none
  std::int64_t save_every = 100;            // steps between checkpoints; 0: only at the end
  int threads = 0;                          // 0: libtorch's own choice
};

// Settings of a new run. Throws UsageError (LT0520), naming the flag, the value and the range.
TrainSettings settings_for(const TrainOptions& options);

// Settings of a run that goes on from one with `stored` settings. Steps and learning rate may be
// changed. Throws UsageError (LT0523) for another option that was given and differs.
TrainSettings settings_for_resuming(const TrainOptions& options, const TrainSettings& stored);

// Factor on the learning rate in step `step` (from 0): a linear rise over the first 20 steps, then
// half a cosine down to 0 at `steps`.
double rate_factor(std::int64_t step, std::int64_t steps);

Json to_json(const TrainSettings& settings);
// Throws FormatError (LT0131) when a setting is missing or of another kind.
TrainSettings settings_from_json(const Json& json);

}  // namespace lowtide
