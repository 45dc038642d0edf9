// lowtide train: flags to options, progress to stderr, the report to stdout.

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "cli/verb.h"
#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/train/interrupt.h"
#include "src/train/trainer.h"

namespace lowtide {
namespace {

TrainOptions read_options(const Arguments& arguments) {
  TrainOptions options;
  const auto integer = [&](const char* flag, std::optional<std::int64_t>& into) {
    if (arguments.has(flag)) into = arguments.integer(flag);
  };
  const auto number = [&](const char* flag, std::optional<double>& into) {
    if (arguments.has(flag)) into = arguments.number(flag);
  };
  integer("steps", options.steps);
  integer("batch", options.batch);
  integer("crop", options.crop);
  integer("shrink", options.shrink);
  integer("layers", options.layers);
  integer("width", options.width);
  integer("seed", options.seed);
  number("lr", options.learning_rate);
  number("dropout", options.dropout);
  if (arguments.has("data")) options.data = arguments.text("data");
  options.out = arguments.text("out");
  if (arguments.has("spill")) options.spill_directory = arguments.text("spill");
  if (arguments.has("plan")) options.plan_path = arguments.text("plan");
  if (arguments.has("resume")) options.resume = arguments.text("resume");
  if (arguments.text("num-cp") == "auto") {
    options.num_cp_auto = true;
  } else {
    options.num_cp = arguments.integer("num-cp");
  }
  if (arguments.has("budget")) options.budget = BudgetLimit::parse(arguments.text("budget"));
  options.save_every = arguments.integer("save-every");
  if (arguments.has("threads")) {
    options.threads = static_cast<int>(arguments.integer("threads"));
    if (options.threads < 1 || options.threads > 1024) {
      throw UsageError("LT0520", concat("cannot train with --threads ", options.threads,
                                        ": it must be from 1 to 1024"));
    }
  }
  return options;
}

// One line that a terminal overwrites; in a log, a line every ten steps.
void show(const StepProgress& progress, std::int64_t batch, bool terminal) {
  const StepRecord& record = progress.record;
  const std::int64_t done = record.step + 1;
  if (!terminal && done % 10 != 0 && done != progress.steps) return;
  std::fprintf(stderr,
               "%sstep %lld/%lld  loss %.3f (class %.2f, l1 %.2f, giou %.2f)  %.2f steps/s, %.1f "
               "images/s  memory %s, peak %s%s",
               terminal ? "\r\x1b[K" : "", static_cast<long long>(done),
               static_cast<long long>(progress.steps), record.loss, record.classification,
               record.l1, record.giou, progress.steps_per_second,
               progress.steps_per_second * double(batch), format_bytes(progress.live_bytes).c_str(),
               format_bytes(record.peak_bytes).c_str(),
               terminal && done != progress.steps ? "" : "\n");
}

int meet_requirements(const Arguments& arguments, const TrainReport& report) {
  int code = kDone;
  const auto complain = [&](const char* what, double got, const char* side, double wanted) {
    std::fprintf(stderr, "lowtide: %s is %.4f, and %s %.4f is required\n", what, got, side, wanted);
    code = kFailed;
  };
  if (arguments.has("require-loss-ratio")) {
    const double most = arguments.number("require-loss-ratio");
    const double ratio = report.last_loss() / report.first_loss();
    if (!(ratio <= most)) complain("the ratio of last to first loss", ratio, "at most", most);
  }
  if (arguments.has("require-ap50")) {
    const double least = arguments.number("require-ap50");
    if (!(report.precision.value >= least)) {
      complain("AP at IoU 0.5", report.precision.value, "at least", least);
    }
  }
  return code;
}

int run_train(const Arguments& arguments) {
  const TrainOptions options = read_options(arguments);
  const InterruptWatch interrupt;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  TrainListener listener;
  listener.note = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };

  if (arguments.has("compare")) {
    const CompareReport report = compare_steps(options, listener);
    std::fputs(arguments.has("json") ? (to_text(to_json(report), 2) + "\n").c_str()
                                     : to_text(report).c_str(),
               stdout);
    return report.equal() ? kDone : kResultDiffers;
  }

  listener.stop = [&] { return interrupt.requested(); };
  listener.progress = [&](const StepProgress& progress) {
    show(progress, progress.batch, terminal);
  };
  const TrainReport report = train(options, listener);
  if (report.interrupted && terminal) std::fputc('\n', stderr);
  std::fputs(arguments.has("json") ? (to_text(to_json(report), 2) + "\n").c_str()
                                   : to_text(report).c_str(),
             stdout);
  if (report.interrupted) {
    std::fprintf(stderr, "interrupted; go on with: lowtide train --resume %s --out %s%s%s\n",
                 report.checkpoint.c_str(), options.out.c_str(),
                 options.data.empty() ? "" : " --data ", options.data.c_str());
    return kInterrupted;
  }
  return meet_requirements(arguments, report);
}

}  // namespace
}  // namespace lowtide

extern "C" LOWTIDE_API int lowtide_train(const lowtide::Arguments& arguments) {
  return lowtide::run_train(arguments);
}
