// Tested by tests/train/train_report_test.cpp.
#include "src/train/train_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "src/base/text.h"

namespace lowtide {
namespace {

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

Json kinds_to_json(const MemoryByKind& kinds) {
  Json json = Json::object();
  for (const MemoryKind kind : kAllMemoryKinds) json[to_string(kind)] = kinds[kind];
  json["total"] = kinds.total();
  return json;
}

double mean_loss(std::vector<StepRecord>::const_iterator begin,
                 std::vector<StepRecord>::const_iterator end) {
  if (begin == end) return 0;
  double sum = 0;
  for (auto step = begin; step != end; ++step) sum += step->loss;
  return sum / double(end - begin);
}

std::string kind_lines(const MemoryByKind& kinds) {
  std::string text;
  for (const MemoryKind kind : kAllMemoryKinds) {
    if (kinds[kind] == 0) continue;
    char line[96];
    std::snprintf(line, sizeof line, "  %-18s %12s\n", to_string(kind),
                  format_bytes(kinds[kind]).c_str());
    text += line;
  }
  return text;
}

std::string budget_lines(const BudgetReport& budget) {
  std::string text = concat("budget             ", format_bytes(budget.limit_bytes),
                            budget.share > 0 ? concat("  (", fixed(budget.share * 100, 0),
                                                      "% of what a step adds to what stays)")
                                             : std::string(),
                            "\n");
  text += concat("  dropped          ", budget.drops, " tensors, ",
                 format_bytes(budget.dropped_bytes), "\n  run again        ", budget.recomputed_ops,
                 " ops, ", fixed(double(budget.recompute_ns) * 1e-6, 0), " ms\n");
  if (budget.spilled_tensors > 0) {
    text += concat("  spilled          ", budget.spilled_tensors, " tensors, ",
                   format_bytes(budget.spilled_bytes), ", waited ",
                   fixed(double(budget.spill_wait_ns) * 1e-6, 0), " ms\n");
  }
  if (budget.packed_tensors > 0) {
    text +=
        concat("  packed           ", budget.packed_tensors, " tensors, ",
               format_bytes(budget.packed_bytes), " to ", format_bytes(budget.packed_into_bytes),
               ", ", fixed(double(budget.pack_ns) * 1e-6, 0), " ms\n");
  }
  if (budget.smallest_budget_bytes > 0) {
    text += concat("  would do          ", format_bytes(budget.smallest_budget_bytes), "\n");
  }
  return text;
}

}  // namespace

double TrainReport::first_loss() const {
  return mean_loss(steps.begin(), steps.begin() + std::min<std::ptrdiff_t>(10, std::ssize(steps)));
}

double TrainReport::last_loss() const {
  return mean_loss(steps.end() - std::min<std::ptrdiff_t>(10, std::ssize(steps)), steps.end());
}

double TrainReport::median_step_seconds() const {
  if (steps.empty()) return 0;
  std::vector<double> seconds;
  for (const StepRecord& step : steps) seconds.push_back(step.seconds);
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

Json to_json(const TrainReport& report) {
  Json json = Json::object();
  json["format"] = "lowtide-train-report";
  json["version"] = 1;
  json["settings"] = to_json(report.settings);
  json["num_cp"] = report.num_cp;
  json["threads"] = report.threads;
  json["photographs"] = report.photographs;
  json["boxes"] = report.boxes;
  json["interrupted"] = report.interrupted;
  json["steps_done"] = report.steps.size();
  Json loss = Json::object();
  loss["first_ten_mean"] = report.first_loss();
  loss["last_ten_mean"] = report.last_loss();
  loss["ratio"] = report.first_loss() > 0 ? report.last_loss() / report.first_loss() : 0.0;
  json["loss"] = std::move(loss);
  if (!report.interrupted) {
    Json precision = Json::object();
    precision["ap50"] = report.precision.value;
    precision["recall50"] = report.precision.recall;
    precision["true_boxes"] = report.precision.true_boxes;
    precision["detections"] = report.precision.detections;
    json["training_images"] = std::move(precision);
  }
  json["step_seconds_median"] = report.median_step_seconds();
  json["peak_bytes"] = kinds_to_json(report.peak);
  if (report.budget) json["budget"] = parse_json(report.budget->to_json());
  Json files = Json::object();
  files["checkpoint"] = report.checkpoint;
  files["boxes"] = report.boxes_picture;
  files["loss_curve"] = report.loss_picture;
  json["files"] = std::move(files);
  Json steps = Json::array();
  for (const StepRecord& step : report.steps) {
    Json row = Json::object();
    row["step"] = step.step;
    row["loss"] = step.loss;
    row["classification"] = step.classification;
    row["l1"] = step.l1;
    row["giou"] = step.giou;
    row["gradient_norm"] = step.gradient_norm;
    row["seconds"] = step.seconds;
    row["peak_bytes"] = step.peak_bytes;
    steps.push_back(std::move(row));
  }
  json["steps"] = std::move(steps);
  return json;
}

std::string to_text(const TrainReport& report) {
  const double seconds = report.median_step_seconds();
  std::string text;
  text += concat(report.interrupted ? "stopped after " : "trained ", report.steps.size(),
                 " steps of ", report.settings.batch, " crops on ", report.photographs,
                 " photographs with ", report.boxes, " boxes (seed ", report.settings.seed,
                 ", num_cp ", report.num_cp, " of ", report.settings.layers, ", ", report.threads,
                 report.threads == 1 ? " thread" : " threads", ")\n");
  text += concat("loss               ", fixed(report.first_loss(), 3), " -> ",
                 fixed(report.last_loss(), 3), "  (means of the first and last ten steps, ratio ",
                 fixed(report.first_loss() > 0 ? report.last_loss() / report.first_loss() : 0, 3),
                 ")\n");
  if (!report.interrupted) {
    text += concat("AP at IoU 0.5      ", fixed(report.precision.value, 3),
                   "  (training photographs; recall ", fixed(report.precision.recall, 2), " of ",
                   report.precision.true_boxes, ")\n");
  }
  text +=
      concat("time per step      ", fixed(seconds * 1000, 0), " ms  (median; ",
             fixed(seconds > 0 ? double(report.settings.batch) / seconds : 0, 1), " images/s)\n");
  text += concat("peak tensor memory ", format_bytes(report.peak.total()), ", of it\n");
  text += kind_lines(report.peak);
  if (report.budget) text += budget_lines(*report.budget);
  for (const auto& [name, file] : {std::pair{"boxes drawn on", &report.boxes_picture},
                                   std::pair{"loss curve", &report.loss_picture},
                                   std::pair{"checkpoint", &report.checkpoint}}) {
    if (file->empty()) continue;
    std::string label = name;
    label.resize(19, ' ');
    text += label + *file + "\n";
  }
  return text;
}

Json to_json(const CompareReport& report) {
  Json json = Json::object();
  json["format"] = "lowtide-train-compare";
  json["version"] = 1;
  json["layers"] = report.layers;
  json["num_cp"] = report.num_cp;
  json["equal"] = report.equal();
  json["loss_difference"] = report.loss_difference;
  json["largest_gradient_difference"] = report.largest_gradient_difference;
  json["largest_at"] = report.largest_at;
  json["parameters"] = report.parameters;
  json["rounds"] = report.rounds;
  Json plain = Json::object();
  plain["peak_bytes"] = kinds_to_json(report.plain_peak);
  plain["seconds"] = report.plain_seconds;
  json["plain"] = std::move(plain);
  Json reduced = Json::object();
  reduced["peak_bytes"] = kinds_to_json(report.reduced_peak);
  reduced["seconds"] = report.reduced_seconds;
  if (report.budget) reduced["budget"] = parse_json(report.budget->to_json());
  json[report.budget ? "budgeted" : "checkpointed"] = std::move(reduced);
  return json;
}

std::string to_text(const CompareReport& report) {
  const auto row = [](const std::string& name, const std::string& plain, const std::string& reduced,
                      const std::string& ratio) {
    char line[128];
    std::snprintf(line, sizeof line, "%-18s %12s %12s %8s\n", name.c_str(), plain.c_str(),
                  reduced.c_str(), ratio.c_str());
    return std::string(line);
  };
  const auto ratio = [](double plain, double other) {
    return plain > 0 ? fixed(other / plain, 2) + "x" : std::string("-");
  };
  std::string text =
      concat("one training step from the same state, ", report.layers, " encoder layers\n");
  text += report.budget
              ? row("", "plain", concat("in ", format_bytes(report.budget->limit_bytes)), "")
              : row("", "num_cp 0", concat("num_cp ", report.num_cp), "");
  text += row("peak", format_bytes(report.plain_peak.total()),
              format_bytes(report.reduced_peak.total()),
              ratio(double(report.plain_peak.total()), double(report.reduced_peak.total())));
  for (const MemoryKind kind : kAllMemoryKinds) {
    if (report.plain_peak[kind] == 0 && report.reduced_peak[kind] == 0) continue;
    text += row(concat("  ", to_string(kind)), format_bytes(report.plain_peak[kind]),
                format_bytes(report.reduced_peak[kind]),
                ratio(double(report.plain_peak[kind]), double(report.reduced_peak[kind])));
  }
  text += row("time", concat(fixed(report.plain_seconds * 1000, 0), " ms"),
              concat(fixed(report.reduced_seconds * 1000, 0), " ms"),
              ratio(report.plain_seconds, report.reduced_seconds));
  if (report.budget) {
    text +=
        concat("in one step ", report.budget->drops, " tensors were dropped (",
               format_bytes(report.budget->dropped_bytes), ") and ", report.budget->recomputed_ops,
               " ops run again (", fixed(double(report.budget->recompute_ns) * 1e-6, 0), " ms)\n");
  }
  text += concat("largest difference of ", report.parameters,
                 " gradients: ", report.largest_gradient_difference);
  if (!report.largest_at.empty()) text += concat(", in ", report.largest_at);
  text += concat("; of the loss: ", report.loss_difference, "\n");
  return text;
}

std::string loss_curve_svg(const std::vector<StepRecord>& steps) {
  constexpr double kWidth = 760, kHeight = 420, kLeft = 64, kRight = 24, kTop = 56, kBottom = 56;
  const double plot_width = kWidth - kLeft - kRight;
  const double plot_height = kHeight - kTop - kBottom;
  double most = 0;
  for (const StepRecord& step : steps) most = std::max(most, step.loss);
  // A round step between grid lines: 1, 2 or 5 times a power of ten, four to seven lines.
  const auto round_step = [](double range) {
    const double raw = std::max(range, 1e-12) / 7;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * power >= raw) return factor * power;
    }
    return 10 * power;
  };
  const double y_step = round_step(most);
  const double y_top = std::max(y_step, std::ceil(most / y_step) * y_step);
  const double x_last = std::max<double>(1, double(steps.size()));
  const auto x_of = [&](double step) { return kLeft + plot_width * step / x_last; };
  const auto y_of = [&](double loss) { return kTop + plot_height * (1 - loss / y_top); };
  const auto number = [](double value) {
    std::string text = fixed(value, 2);
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
    return text;
  };
  const auto at = [&](double x, double y) { return fixed(x, 1) + "," + fixed(y, 1) + " "; };

  std::string svg = concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", kWidth,
                           "\" height=\"", kHeight, "\" viewBox=\"0 0 ", kWidth, " ", kHeight,
                           "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
                           "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
                           "<text x=\"",
                           kLeft,
                           "\" y=\"26\" font-size=\"16\" font-weight=\"bold\" fill=\"#222222\">"
                           "Training loss</text>\n");
  for (double loss = 0; loss <= y_top + y_step / 2; loss += y_step) {
    svg += concat("<line x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", y_of(loss),
                  "\" y2=\"", y_of(loss), "\" stroke=\"", loss == 0 ? "#444444" : "#e3e3e3",
                  "\"/>\n<text x=\"", kLeft - 10, "\" y=\"", y_of(loss) + 4.5,
                  "\" text-anchor=\"end\" fill=\"#444444\">", number(loss), "</text>\n");
  }
  const double x_step = std::max(1.0, round_step(x_last));
  for (double step = 0; step <= x_last + 1e-9; step += x_step) {
    svg += concat("<line x1=\"", x_of(step), "\" x2=\"", x_of(step), "\" y1=\"", y_of(0),
                  "\" y2=\"", y_of(0) + 5, "\" stroke=\"#444444\"/>\n<text x=\"", x_of(step),
                  "\" y=\"", y_of(0) + 21, "\" text-anchor=\"middle\" fill=\"#444444\">",
                  number(step), "</text>\n");
  }
  svg += concat("<text x=\"", kLeft + plot_width / 2, "\" y=\"", kHeight - 14,
                "\" text-anchor=\"middle\" fill=\"#222222\">step</text>\n<text x=\"18\" y=\"",
                kTop + plot_height / 2,
                "\" text-anchor=\"middle\" fill=\"#222222\" transform=\""
                "rotate(-90 18 ",
                kTop + plot_height / 2, ")\">loss per box</text>\n");

  std::string every;
  std::string smooth;
  const std::ptrdiff_t window = std::clamp<std::ptrdiff_t>(std::ssize(steps) / 20, 1, 50);
  double sum = 0;
  for (std::ptrdiff_t i = 0; i < std::ssize(steps); ++i) {
    const auto& step = steps[std::size_t(i)];
    every += at(x_of(double(i) + 0.5), y_of(step.loss));
    sum += step.loss;
    if (i >= window) sum -= steps[std::size_t(i - window)].loss;
    smooth += at(x_of(double(i) + 0.5), y_of(sum / double(std::min(i + 1, window))));
  }
  svg += concat("<polyline points=\"", every,
                "\" fill=\"none\" stroke=\"#9ecae1\" stroke-width=\"1\"/>\n<polyline points=\"",
                smooth,
                "\" fill=\"none\" stroke=\"#08519c\" stroke-width=\"2.2\" "
                "stroke-linejoin=\"round\"/>\n");
  const double key_x = kWidth - kRight - 300;
  svg += concat("<line x1=\"", key_x, "\" x2=\"", key_x + 24,
                "\" y1=\"22\" y2=\"22\" "
                "stroke=\"#9ecae1\" stroke-width=\"1.5\"/>\n<text x=\"",
                key_x + 30, "\" y=\"26\" fill=\"#222222\">each step</text>\n<line x1=\"",
                key_x + 120, "\" x2=\"", key_x + 144,
                "\" y1=\"22\" y2=\"22\" stroke=\"#08519c\" "
                "stroke-width=\"2.2\"/>\n<text x=\"",
                key_x + 150, "\" y=\"26\" fill=\"#222222\">mean of ", window,
                " steps</text>\n</svg>\n");
  return svg;
}

}  // namespace lowtide
