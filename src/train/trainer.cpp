// A step: draw crops (a function of seed and step), forward, loss, backward, clip, update. All
// state that outlives a step is in RunState, and save_run writes all of it; nothing else is carried
// over.
//
// What is counted as what: parameters, and the optimizer's averages, from when they are made; what
// the forward pass makes counts as saved; what the backward pass makes counts as gradients, those
// of activations included, and with num_cp also what it computes again.
//
// Tested by tests/train/trainer_test.cpp.
#include "src/train/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <system_error>

#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/train/dataset.h"
#include "src/train/detector.h"
#include "src/train/drawing.h"
#include "src/train/evaluation.h"
#include "src/train/run_file.h"

namespace lowtide {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kLargestGradientNorm = 0.1;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

at::Tensor generator_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

void set_generator_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state);
}

struct RunState {
  RunState(const TrainSettings& run_settings, std::int64_t num_cp) : settings(run_settings) {
    at::manual_seed(settings.seed);
    {
      const KindScope scope(MemoryKind::kParameters);
      detector = std::make_unique<Detector>(DetectorOptions{.width = settings.width,
                                                            .encoder_layers = settings.layers,
                                                            .dropout = settings.dropout,
                                                            .num_cp = num_cp});
    }
    detector->set_training(true);
    const KindScope scope(MemoryKind::kOptimizerState);
    optimizer = std::make_unique<AdamW>(detector->parameters(),
                                        AdamWOptions{.learning_rate = settings.learning_rate});
  }

  std::map<std::string, at::Tensor> model() const {
    std::map<std::string, at::Tensor> tensors;
    for (const TrainedTensor& parameter : detector->parameters()) {
      tensors.emplace(parameter.name, parameter.tensor.detach());
    }
    return tensors;
  }

  TrainSettings settings;
  std::unique_ptr<Detector> detector;
  std::unique_ptr<AdamW> optimizer;
  std::vector<StepRecord> records;
};

// Forward and backward of step `step`; gradients are left in the parameters.
StepRecord compute_gradients(RunState& state, const Dataset& data, std::int64_t step) {
  const TrainSettings& settings = state.settings;
  const ImageBatch batch = make_batch(draw_crops(data, {.seed = settings.seed,
                                                        .step = step,
                                                        .count = static_cast<int>(settings.batch),
                                                        .size = static_cast<int>(settings.crop)}));
  DetectionLoss loss;
  {
    const KindScope scope(MemoryKind::kSaved);
    loss = detection_loss(state.detector->forward(batch), batch.targets);
  }
  StepRecord record;
  record.step = step;
  record.loss = loss.total.item<double>();
  record.classification = loss.classification;
  record.l1 = loss.l1;
  record.giou = loss.giou;
  if (std::isfinite(record.loss)) {
    const KindScope scope(MemoryKind::kGradients);
    loss.total.backward();
  }
  return record;
}

void save(const RunState& state, const Dataset& data, const fs::path& file) {
  save_run(file, {.settings = state.settings,
                  .data_fingerprint = data.fingerprint,
                  .records = state.records,
                  .generator = generator_state(),
                  .model = state.model(),
                  .optimizer = state.optimizer->state()});
}

// The state of a new run, or of the checkpoint that options.resume names.
std::unique_ptr<RunState> start(const TrainOptions& options, const Dataset& data,
                                const std::optional<SavedRun>& saved) {
  if (!saved) return std::make_unique<RunState>(settings_for(options), 0);
  if (saved->data_fingerprint != data.fingerprint) {
    throw UsageError("LT0523", concat("cannot resume from ", options.resume,
                                      ": the photographs or boxes are not those that it was "
                                      "trained on. Give the same folder with --data, or start a "
                                      "new run"));
  }
  auto state = std::make_unique<RunState>(settings_for_resuming(options, saved->settings), 0);
  restore_tensors(saved->model, state->model(), "parameter");
  restore_tensors(saved->optimizer, state->optimizer->state(), "optimizer state");
  state->records = saved->records;
  set_generator_state(saved->generator);
  return state;
}

BudgetOptions budget_options(const TrainOptions& options) {
  BudgetOptions chosen;
  chosen.spill_directory = options.spill_directory;
  chosen.plan_path = options.plan_path;
  return chosen;
}

// Peak of the forward and backward pass of the next step; leaves the state as it was.
MemoryByKind measure_step(RunState& state, const Dataset& data, std::int64_t num_cp) {
  const at::Tensor generator = generator_state();
  state.detector->set_num_cp(num_cp);
  MemoryMeter meter;
  compute_gradients(state, data, std::ssize(state.records));
  const MemoryByKind peak = meter.peak_by_kind();
  state.optimizer->drop_gradients();
  set_generator_state(generator);
  return peak;
}

std::int64_t choose_num_cp(RunState& state, const Dataset& data, Bytes budget,
                           const std::function<void(const std::string&)>& note) {
  Bytes least = std::numeric_limits<Bytes>::max();
  for (std::int64_t n = 0; n <= state.settings.layers; ++n) {
    const Bytes peak = measure_step(state, data, n).total();
    note(concat("num_cp ", n, " takes ", format_bytes(peak), " in the first step"));
    if (peak <= budget) return n;
    least = std::min(least, peak);
  }
  throw UsageError("LT0521",
                   concat("cannot train within --budget ", format_bytes(budget),
                          ": with any num_cp "
                          "from 0 to ",
                          state.settings.layers, " a step takes at least ", format_bytes(least),
                          ". Raise --budget, or lower --batch or --crop"));
}

// As the files have them.
Dataset load(const TrainOptions& options, const std::function<void(const std::string&)>& note) {
  const fs::path folder = options.data.empty() ? find_default_data() : options.data;
  Dataset data = load_dataset(folder);
  for (const std::string& line : data.notes) note(line);
  note(concat(data.photographs.size(), " photographs with ", data.box_count(), " boxes from ",
              folder.string()));
  return data;
}

std::function<void(const std::string&)> note_of(const TrainListener& listener) {
  return listener.note ? listener.note : [](const std::string&) {};
}

void make_folder(const fs::path& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) {
    throw IoError("LT0505", concat("cannot make folder ", folder, ": ", problem.message(),
                                   ". Choose another place with --out"));
  }
}

// The photograph that the boxes are drawn on: of those up to two million pixels that with the most
// boxes, and when all are larger the same among all.
std::size_t showpiece(const Dataset& data) {
  const auto rank = [](const Photograph& photograph) {
    const bool handy = std::int64_t{photograph.image.width} * photograph.image.height <= 2'000'000;
    return std::pair(handy, photograph.boxes.size());
  };
  const auto best =
      std::max_element(data.photographs.begin(), data.photographs.end(),
                       [&](const Photograph& a, const Photograph& b) { return rank(a) < rank(b); });
  return static_cast<std::size_t>(best - data.photographs.begin());
}

std::vector<ScoredBox> scaled(std::vector<ScoredBox> boxes, std::int64_t by) {
  const auto factor = static_cast<float>(by);
  for (auto& [box, score] : boxes) {
    box = {box.x1 * factor, box.y1 * factor, box.x2 * factor, box.y2 * factor};
  }
  return boxes;
}

// max |a - b|; infinity when they differ in a NaN.
double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return std::numeric_limits<double>::infinity();
  if (!a.defined() || at::equal(a, b)) return 0;
  const double difference = a.sub(b).abs().max().item<double>();
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes sum = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) sum += tensor.storage().nbytes();
  }
  return sum;
}

// A share as bytes for one step from here, whose plain peak is known. What stays is what is there
// now and the gradients, one for each parameter.
Bytes limit_of_step(const BudgetLimit& limit, const RunState& state, Bytes plain_peak) {
  if (!limit.is_share()) return limit.bytes();
  std::vector<at::Tensor> parameters;
  for (const TrainedTensor& parameter : state.detector->parameters()) {
    parameters.push_back(parameter.tensor);
  }
  const Bytes fixed = std::min(plain_peak, MemoryMeter().live_bytes() + bytes_of(parameters));
  return fixed + static_cast<Bytes>(limit.share() * static_cast<double>(plain_peak - fixed));
}

}  // namespace

TrainReport train(const TrainOptions& options, const TrainListener& listener) {
  const auto note = note_of(listener);
  if (options.threads > 0) at::set_num_threads(options.threads);
  std::optional<SavedRun> saved;
  if (!options.resume.empty()) saved = load_run(options.resume);
  const TrainSettings settings =
      saved ? settings_for_resuming(options, saved->settings) : settings_for(options);
  if (!options.spill_directory.empty() && !options.budget) {
    throw UsageError("LT0522",
                     "--spill needs --budget: without a limit nothing has to leave memory");
  }
  if (!options.plan_path.empty() && !options.budget) {
    throw UsageError("LT0522", "--plan needs --budget: without a limit nothing is dropped");
  }
  if (options.num_cp_auto && (!options.budget || options.budget->is_share())) {
    throw UsageError("LT0522",
                     "cannot choose num_cp by itself: --num-cp auto needs the bytes that "
                     "a step may take. Add --budget in bytes, for example --budget 1GiB");
  }
  make_folder(options.out);
  const Dataset originals = load(options, note);
  const Dataset data = shrunk(originals, static_cast<int>(settings.shrink));
  const std::unique_ptr<RunState> state = start(options, data, saved);
  saved.reset();

  std::int64_t num_cp = options.num_cp;
  if (options.num_cp_auto) {
    num_cp = choose_num_cp(*state, data, options.budget->bytes(), note);
  }
  state->detector->set_num_cp(num_cp);

  const fs::path checkpoint = options.out / "checkpoint.safetensors";
  TrainReport report;
  report.settings = settings;
  report.num_cp = num_cp;
  report.threads = at::get_num_threads();
  report.photographs = data.photographs.size();
  report.boxes = data.box_count();
  report.checkpoint = checkpoint.string();

  std::optional<MemoryBudget> budget;
  if (options.budget) budget.emplace(*options.budget, budget_options(options));
  MemoryMeter run_meter;
  MemoryMeter step_meter;
  while (std::ssize(state->records) < settings.steps) {
    if (listener.stop && listener.stop()) {
      report.interrupted = true;
      break;
    }
    const Clock::time_point began = Clock::now();
    step_meter.reset_peak();
    const auto step = std::ssize(state->records);
    const at::Tensor generator = generator_state();
    StepRecord record;
    try {
      record = compute_gradients(*state, data, step);
    } catch (const BudgetError&) {
      budget.reset();
      state->optimizer->drop_gradients();
      set_generator_state(generator);
      save(*state, data, checkpoint);
      throw;
    }
    record.gradient_norm = clip_gradients(state->detector->parameters(), kLargestGradientNorm);
    if (!std::isfinite(record.loss) || !std::isfinite(record.gradient_norm)) {
      set_generator_state(generator);
      save(*state, data, checkpoint);
      throw Error("LT0524", concat("cannot go on training at step ", step, ": the loss is ",
                                   record.loss, " and the norm of the gradients ",
                                   record.gradient_norm, ". The state before this step is kept in ",
                                   checkpoint, "; resume from it with a lower rate: --resume ",
                                   checkpoint, " --lr ", settings.learning_rate / 4));
    }
    state->optimizer->step(rate_factor(step, settings.steps));
    state->optimizer->drop_gradients();
    if (budget) budget->mark_step();
    record.peak_bytes = step_meter.peak_bytes();
    record.seconds = seconds_since(began);
    state->records.push_back(record);
    if (listener.progress) {
      const auto window = std::min<std::ptrdiff_t>(10, step + 1);
      double seconds = 0;
      for (auto i = step + 1 - window; i <= step; ++i) {
        seconds += state->records[std::size_t(i)].seconds;
      }
      listener.progress({record, settings.steps, settings.batch, double(window) / seconds,
                         step_meter.live_bytes()});
    }
    const auto done = step + 1;
    if (options.save_every > 0 && done % options.save_every == 0 && done < settings.steps) {
      save(*state, data, checkpoint);
    }
  }
  report.peak = run_meter.peak_by_kind();
  if (budget) report.budget = budget->report();
  // A share is one of what a step takes; other work has other needs.
  if (budget && options.budget->is_share()) budget.reset();
  report.steps = state->records;
  save(*state, data, checkpoint);

  const fs::path curve = options.out / "loss.svg";
  write_whole_file(curve, loss_curve_svg(report.steps));
  report.loss_picture = curve.string();
  if (!report.interrupted) {
    note("looking for boxes on all photographs");
    const auto detections = detect_all(*state->detector, data, static_cast<int>(settings.crop));
    report.precision = average_precision(detections, truth_of(data), 0.5f);
    const fs::path picture = options.out / "boxes.png";
    const std::size_t shown = showpiece(originals);
    const auto drawn =
        scaled(above_score(detections[shown], float(report.precision.best_score)), settings.shrink);
    write_png(picture, draw_detections(originals.photographs[shown].image, drawn,
                                       originals.photographs[shown].boxes));
    report.boxes_picture = picture.string();
  }
  write_whole_file(options.out / "report.json", to_text(to_json(report), 2) + "\n");
  return report;
}

CompareReport compare_steps(const TrainOptions& options, const TrainListener& listener) {
  const auto note = note_of(listener);
  if (options.threads > 0) at::set_num_threads(options.threads);
  std::optional<SavedRun> saved;
  if (!options.resume.empty()) saved = load_run(options.resume);
  const TrainSettings settings =
      saved ? settings_for_resuming(options, saved->settings) : settings_for(options);
  const Dataset data = shrunk(load(options, note), static_cast<int>(settings.shrink));
  const std::unique_ptr<RunState> state = start(options, data, saved);
  const auto step = std::ssize(state->records);

  CompareReport report;
  report.layers = settings.layers;
  report.num_cp = options.budget || options.num_cp != 0 ? options.num_cp : settings.layers;
  report.rounds = 3;
  state->detector->set_num_cp(report.num_cp);  // refuses a number out of range before any work
  measure_step(*state, data, 0);               // warm-up: kernels choose and cache their plans
  report.plain_peak = measure_step(*state, data, 0);
  Bytes limit = 0;
  if (options.budget) {
    limit = limit_of_step(*options.budget, *state, report.plain_peak.total());
    const MemoryBudget budget(limit, budget_options(options));
    report.reduced_peak = measure_step(*state, data, report.num_cp);
    report.budget = budget.report();
  } else {
    report.reduced_peak = measure_step(*state, data, report.num_cp);
  }
  const at::Tensor generator = generator_state();
  std::vector<at::Tensor> plain_gradients;
  double plain_loss = 0;
  std::vector<double> plain_seconds;
  std::vector<double> reduced_seconds;
  for (int round = 0; round < report.rounds; ++round) {
    for (const bool reduced : {false, true}) {
      state->detector->set_num_cp(reduced ? report.num_cp : 0);
      set_generator_state(generator);
      std::optional<MemoryBudget> budget;
      // The plain step's gradients are kept for comparing.
      if (reduced && options.budget)
        budget.emplace(limit + bytes_of(plain_gradients), budget_options(options));
      const Clock::time_point began = Clock::now();
      const StepRecord record = compute_gradients(*state, data, step);
      (reduced ? reduced_seconds : plain_seconds).push_back(seconds_since(began));
      budget.reset();
      const auto& parameters = state->detector->parameters();
      if (!reduced) {
        plain_loss = record.loss;
        plain_gradients.clear();
        for (const TrainedTensor& parameter : parameters) {
          plain_gradients.push_back(parameter.tensor.grad());
        }
      } else {
        report.parameters = parameters.size();
        report.loss_difference =
            std::max(report.loss_difference, std::abs(record.loss - plain_loss));
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const double difference =
              largest_difference(plain_gradients[i], parameters[i].tensor.grad());
          if (difference > report.largest_gradient_difference) {
            report.largest_gradient_difference = difference;
            report.largest_at = parameters[i].name;
          }
        }
        plain_gradients.clear();
      }
      state->optimizer->drop_gradients();
    }
  }
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  report.plain_seconds = median(plain_seconds);
  report.reduced_seconds = median(reduced_seconds);
  return report;
}

}  // namespace lowtide
