// lowtide plan: what a step costs inside a budget, before it runs.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <sstream>

#include "cli/verbs.h"
#include "lowtide/error.h"
#include "src/base/file.h"
#include "src/base/text.h"
#include "src/plan/dtr_log.h"
#include "src/plan/num_cp.h"
#include "src/plan/plan_file.h"
#include "src/report/plan_report.h"
#include "src/tape/tape_bytes.h"
#include "src/tape/tape_scale.h"

namespace lowtide {
namespace {

void print(const Arguments& arguments, const Json& json, const std::string& text) {
  if (arguments.has("json")) {
    std::puts(to_text(json, 2).c_str());
  } else {
    std::fputs(text.c_str(), stdout);
  }
}

std::string stem(const std::string& path) { return std::filesystem::path(path).stem().string(); }

void refuse_flags(const Arguments& arguments, std::initializer_list<const char*> flags,
                  const char* why) {
  for (const char* flag : flags) {
    if (arguments.has(flag)) {
      throw UsageError("LT0155", concat("plan: --", flag, " ", why, ". See: lowtide plan --help"));
    }
  }
}

int plan_log(const Arguments& arguments) {
  refuse_flags(arguments, {"budget", "plan", "largest-batch", "batches"},
               "does not go with --format dtr, which plans at .9 to .1 of the log's peak");
  if (arguments.words().size() > 1) throw UsageError("LT0155", "plan: --format dtr takes one log");
  const std::string& path = arguments.words()[0];
  const DtrLog log = read_dtr_log(path);
  LogCurve curve;
  curve.name = stem(path);
  curve.peak_bytes = log.peak_bytes;
  curve.floor_bytes = lowest_budget(log.trace).bytes;
  curve.plain_ns = plain_ns(log.trace);
  std::vector<Bytes> budgets;
  for (int tenths = 9; tenths >= 1; --tenths) {
    const auto part = static_cast<Bytes>(tenths);
    curve.ratios.push_back(tenths / 10.0);
    budgets.push_back(log.peak_bytes / 10 * part + log.peak_bytes % 10 * part / 10);
  }
  curve.points = plan_curve(log.trace, budgets, {});
  if (arguments.has("svg")) {
    write_file(arguments.text("svg"), curve_svg(curve.name, curve.peak_bytes, curve.floor_bytes,
                                                curve.plain_ns, curve.points));
  }
  print(arguments, log_curve_json(curve), log_curve_text(curve));
  return kDone;
}

// More cannot be meant, and sums of a few of them stay inside 64 bits.
bool is_plannable(const Tape& tape) {
  constexpr long double kMost = 1152921504606846976.0L;  // 2^60
  long double bytes = 0;
  for (const TapeStorage& storage : tape.storages) bytes += static_cast<long double>(storage.bytes);
  long double time = 0;
  for (const TapeOp& op : tape.ops) {
    bytes += static_cast<long double>(op.working_bytes);
    time += static_cast<long double>(op.cost_ns);
  }
  return bytes < kMost && time < kMost;
}

// The budgets of a curve: the floor, the natural peak, and eight between.
std::vector<Bytes> curve_budgets(Bytes floor, Bytes peak) {
  constexpr Bytes kParts = 9;
  std::vector<Bytes> budgets;
  for (Bytes part = 0; part <= kParts; ++part) {
    const Bytes budget =
        floor + (peak - floor) / kParts * part + (peak - floor) % kParts * part / kParts;
    if (budgets.empty() || budget != budgets.back()) budgets.push_back(budget);
  }
  return budgets;
}

int refuse_budget(Bytes budget, const TapeCurve& curve, Bytes smallest) {
  std::string way_out = smallest == 0
                            ? std::string("Raise --budget")
                            : concat("Raise --budget to ", format_bytes(smallest), " or more");
  std::fprintf(stderr,
               "lowtide: no plan keeps %s within %s: the floor is %s, the natural peak %s. %s, or "
               "make the batch smaller\n",
               curve.name.c_str(), format_bytes(budget).c_str(),
               format_bytes(curve.floor_bytes).c_str(), format_bytes(curve.peak.bytes).c_str(),
               way_out.c_str());
  return kNoPlanFits;
}

int plan_tape(const Arguments& arguments) {
  refuse_flags(arguments, {"batches"}, "belongs to --largest-batch");
  if (arguments.words().size() > 1) {
    throw UsageError("LT0155",
                     "plan: several tapes are for --largest-batch. See: lowtide plan --help");
  }
  const std::string& path = arguments.words()[0];
  const Tape tape = read_tape(path);
  const Trace trace = trace_of(tape);
  if (!is_plannable(tape)) {
    throw FormatError("LT0159", concat("cannot plan ", path,
                                       ": its bytes or times add up to 2^60 or "
                                       "more. Record the step again"));
  }
  TapeCurve curve;
  curve.name = stem(path);
  curve.plain_ns = plain_ns(trace);
  const Floor floor = lowest_budget(trace);
  curve.floor_bytes = floor.bytes;
  curve.floor_op = floor.limiting_op;
  curve.peak = summarize_peak(tape);

  std::vector<Bytes> budgets = curve_budgets(floor.bytes, std::max(floor.bytes, curve.peak.bytes));
  const bool reads_plan = arguments.has("plan") && !arguments.has("budget");
  if (reads_plan) {
    curve.plan = read_plan(arguments.text("plan"), trace);
  } else {
    if (arguments.has("budget")) budgets.push_back(arguments.bytes("budget"));
    curve.points = plan_curve(trace, budgets, {});
  }
  if (arguments.has("budget")) {
    const CurvePoint wanted = std::move(curve.points.back());
    curve.points.pop_back();
    if (!wanted.planned) {
      Bytes smallest = 0;
      for (const CurvePoint& point : curve.points) {
        if (point.planned && smallest == 0) smallest = point.budget_bytes;
      }
      return refuse_budget(wanted.budget_bytes, curve, smallest);
    }
    curve.plan = wanted.planned;
    if (arguments.has("plan")) write_plan(arguments.text("plan"), *curve.plan, tape);
  }
  if (curve.plan) curve.places = summarize_plan(tape, *curve.plan);
  if (arguments.has("svg")) {
    if (reads_plan)
      throw UsageError("LT0155",
                       "plan: --svg draws a curve, which --plan without --budget does not make");
    write_file(arguments.text("svg"), curve_svg(curve.name, curve.peak.bytes, curve.floor_bytes,
                                                curve.plain_ns, curve.points));
  }
  print(arguments, tape_curve_json(tape, curve), tape_curve_text(tape, curve));
  return kDone;
}

std::vector<std::uint64_t> batch_sizes(const Arguments& arguments) {
  std::vector<std::uint64_t> sizes;
  if (!arguments.has("batches")) return sizes;
  std::istringstream list(arguments.text("batches"));
  for (std::string part; std::getline(list, part, ',');) {
    const Arguments one({{"batches", part}}, {});
    const std::int64_t size = one.integer("batches");
    if (size < 1)
      throw UsageError("LT0702",
                       concat("cannot read --batches \"", part, "\" as a batch size of 1 or more"));
    sizes.push_back(static_cast<std::uint64_t>(size));
  }
  return sizes;
}

// The largest n >= 0 for which fits(n), taking it that it fits below where it fits.
template <typename Fits>
std::uint64_t largest(Fits&& fits) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 32;
  std::uint64_t low = 0;
  std::uint64_t high = 1;
  while (high < kMost && fits(high)) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

int largest_batch(const Arguments& arguments) {
  refuse_flags(arguments, {"svg", "plan"}, "does not go with --largest-batch");
  const std::vector<std::string>& paths = arguments.words();
  if (!arguments.has("budget")) {
    throw UsageError("LT0155", "plan: --largest-batch needs --budget. See: lowtide plan --help");
  }
  if (paths.size() < 2 || paths.size() > 3) {
    throw UsageError("LT0155", concat("plan: --largest-batch needs two tapes of the same step, and "
                                      "a third to check; ",
                                      paths.size(), " given"));
  }
  const std::vector<std::uint64_t> sizes = batch_sizes(arguments);
  if (!sizes.empty() && sizes.size() != paths.size()) {
    throw UsageError("LT0155", concat("plan: --batches gives ", sizes.size(), " sizes for ",
                                      paths.size(), " tapes"));
  }
  std::vector<Tape> tapes;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    tapes.push_back(read_tape(paths[i]));
    if (!sizes.empty()) tapes.back().batch_size = sizes[i];
  }
  LargestBatch answer;
  answer.budget_bytes = arguments.bytes("budget");
  if (tapes.size() == 3) {
    answer.checked_at = tapes[2].batch_size;
    if (answer.checked_at == 0) {
      throw UsageError("LT0156",
                       "the third tape has no batch size. Give all three with --batches 4,8,16");
    }
    answer.predicted_bytes = tape_peak(tape_at_batch(tapes[0], tapes[1], answer.checked_at));
    answer.measured_bytes = tape_peak(tapes[2]);
    const double off = static_cast<double>(answer.predicted_bytes) /
                           static_cast<double>(std::max<Bytes>(1, answer.measured_bytes)) -
                       1;
    constexpr double kMostOff = 0.03;
    if (off > kMostOff || off < -kMostOff) {
      throw FormatError(
          "LT0158", concat("the first two tapes do not foretell the third: at batch ",
                           answer.checked_at, " a peak of ", format_bytes(answer.predicted_bytes),
                           ", on the tape ", format_bytes(answer.measured_bytes),
                           ". The step does not grow evenly with the batch; record two sizes "
                           "nearer to the one that is wanted"));
    }
  }
  const auto at = [&](std::uint64_t batch) { return tape_at_batch(tapes[0], tapes[1], batch); };
  answer.plain = largest([&](std::uint64_t batch) {
    const Tape tape = at(batch);
    return is_plannable(tape) && tape_peak(tape) <= answer.budget_bytes;
  });
  answer.planned = largest([&](std::uint64_t batch) {
    const Tape tape = at(batch);
    if (!is_plannable(tape)) return false;
    const Trace trace = trace_of(tape);
    PlannerOptions options;
    options.budget_bytes = answer.budget_bytes;
    options.cpu_limit_ns = 200'000'000;  // whether it fits is known early
    options.most_tries = 150;
    const PlannerResult result = Planner(trace).plan(options);
    if (result.plan) answer.overhead = result.plan->overhead();
    return result.plan.has_value();
  });
  answer.planned = std::max(answer.planned, answer.plain);
  if (answer.planned == 0) {
    const Tape one = at(1);
    std::fprintf(stderr,
                 "lowtide: not even one sample fits %s: a batch of 1 has a floor of %s. Raise "
                 "--budget\n",
                 format_bytes(answer.budget_bytes).c_str(),
                 format_bytes(lowest_budget(trace_of(one)).bytes).c_str());
    return kNoPlanFits;
  }
  print(arguments, largest_batch_json(answer), largest_batch_text(answer));
  return kDone;
}

int num_cp(const Arguments& arguments) {
  refuse_flags(arguments, {"svg", "plan", "largest-batch", "batches"}, "does not go with --num-cp");
  if (arguments.words().size() > 1) throw UsageError("LT0155", "plan: --num-cp takes one tape");
  const std::string& path = arguments.words()[0];
  const Tape tape = read_tape(path);
  const std::string prefix = arguments.has("layers") ? arguments.text("layers") : std::string();
  const auto layers = checkpoint_layers(tape, prefix);
  if (!layers) {
    throw UsageError("LT0160",
                     concat("no layers", prefix.empty() ? "" : concat(" ", prefix, ".0, .1"),
                            " are known to ", path,
                            ": none of its ops has a module with a number, forward and "
                            "backward. Record it with lowtide record, and name the "
                            "layers with --layers, such as encoder.layers"));
  }
  const Bytes budget = arguments.has("budget") ? arguments.bytes("budget") : 0;
  const std::uint64_t plain = plain_ns(trace_of(tape));
  print(arguments, num_cp_json(*layers, budget, plain), num_cp_text(*layers, budget, plain));
  if (budget == 0 || smallest_num_cp(*layers, budget)) return kDone;
  const Bytes least = *std::min_element(layers->peaks.begin(), layers->peaks.end());
  std::fprintf(stderr,
               "lowtide: no num_cp keeps %s within %s: the least peak is %s. Raise --budget, or "
               "plan without --num-cp\n",
               stem(path).c_str(), format_bytes(budget).c_str(), format_bytes(least).c_str());
  return kNoPlanFits;
}

int run(const Arguments& arguments) {
  if (arguments.has("num-cp")) {
    if (arguments.text("format") == "dtr") {
      throw UsageError("LT0155", "plan: --num-cp reads tapes. See: lowtide plan --help");
    }
    return num_cp(arguments);
  }
  refuse_flags(arguments, {"layers"}, "belongs to --num-cp");
  if (arguments.text("format") == "dtr") return plan_log(arguments);
  return arguments.has("largest-batch") ? largest_batch(arguments) : plan_tape(arguments);
}

}  // namespace

Verb plan_verb() {
  return {.name = "plan",
          .summary = "what a step costs in time inside a budget, before it runs",
          .words = {{"TAPE", "a recorded step, or one of DTR's operator logs", true, true}},
          .flags = {{"format", "FORMAT", "what TAPE is", "tape", {"tape", "dtr"}},
                    {"budget", "BYTES", "plan for this much, such as 6GiB", ""},
                    {"plan", "FILE", "write the plan for --budget; without --budget, read one", ""},
                    {"svg", "FILE", "draw time against budget", ""},
                    {"largest-batch", "",
                     "the largest batch in --budget, from tapes of two batch "
                     "sizes, checked by a third",
                     ""},
                    {"batches", "N,N,N", "batch sizes of the tapes, where they do not say", ""},
                    {"num-cp", "",
                     "the peak for each number of checkpointed encoder layers, and the smallest "
                     "number that fits --budget",
                     ""},
                    {"layers", "NAME", "of which layers, such as encoder.layers", ""},
                    {"json", "", "print the result as JSON", ""}},
          .examples = {"lowtide plan step.tape --budget 6GiB --plan step.plan",
                       "lowtide plan at4.tape at8.tape at16.tape --largest-batch --budget 24GiB",
                       "lowtide plan --format dtr resnet32-56.log --json"},
          .run = run};
}

}  // namespace lowtide
