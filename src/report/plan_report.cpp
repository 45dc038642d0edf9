#include "src/report/plan_report.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "src/base/text.h"

namespace lowtide {
namespace {

std::string formatted(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string times(const std::optional<double>& overhead) {
  return overhead ? formatted("%.3f", *overhead) : "-";
}

// "0.4 %": how far above the bound a plan is at most.
std::string within(const Plan& plan) { return formatted("%.1f %%", 100 * plan.gap()); }

}  // namespace

Json log_curve_json(const LogCurve& curve) {
  Json json = Json::object();
  json["log"] = curve.name;
  json["floor_ratio"] = ratio(curve.floor_bytes, curve.peak_bytes);
  json["points"] = Json::array();
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    const CurvePoint& point = curve.points[i];
    Json row = Json::object();
    row["ratio"] = curve.ratios[i];
    row["feasible"] = point.online.has_value() && point.planned.has_value();
    row["overhead_online"] = point.online ? Json(*point.online) : Json();
    row["overhead_planned"] = point.planned ? Json(point.planned->overhead()) : Json();
    json["points"].push_back(std::move(row));
  }
  return json;
}

std::string log_curve_text(const LogCurve& curve) {
  std::string out =
      formatted("%s: plain step %.1f ms, peak %s, no budget below %s (%.3f of the peak)\n\n",
                curve.name.c_str(), static_cast<double>(curve.plain_ns) / 1e6,
                format_bytes(curve.peak_bytes).c_str(), format_bytes(curve.floor_bytes).c_str(),
                ratio(curve.floor_bytes, curve.peak_bytes));
  out += "  ratio      budget   online  planned  within\n";
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    const CurvePoint& point = curve.points[i];
    std::optional<double> planned;
    if (point.planned) planned = point.planned->overhead();
    out += formatted("  %5.1f  %10s  %7s  %7s  %6s\n", curve.ratios[i],
                     format_bytes(point.budget_bytes).c_str(), times(point.online).c_str(),
                     times(planned).c_str(),
                     point.planned                            ? within(*point.planned).c_str()
                     : point.budget_bytes < curve.floor_bytes ? "floor"
                                                              : "");
  }
  out +=
      "\nTimes are multiples of the plain step. within: at most so far above what no schedule can\n"
      "beat that runs the ops in this order. floor: no schedule can fit. -: none was found.\n";
  return out;
}

namespace {

std::string op_label(const Tape& tape, OpId id) {
  const TapeOp& op = tape.ops[id.index()];
  std::string label = concat("op ", id.index(), " (", tape.names[op.name]);
  if (op.module != TapeOp::kNoName) label += " in " + tape.names[op.module];
  if (op.source != TapeOp::kNoName) label += ", " + tape.names[op.source];
  return label + ")";
}

Json op_json(const Tape& tape, OpId id) {
  if (!id.valid()) return Json();
  const TapeOp& op = tape.ops[id.index()];
  Json json = Json::object();
  json["op"] = id.index();
  json["name"] = tape.names[op.name];
  json["module"] = op.module == TapeOp::kNoName ? Json() : Json(tape.names[op.module]);
  json["source"] = op.source == TapeOp::kNoName ? Json() : Json(tape.names[op.source]);
  return json;
}

Json rows_json(const std::vector<BytesOf>& rows, const char* name) {
  Json json = Json::array();
  for (const BytesOf& row : rows) {
    Json item = Json::object();
    item[name] = row.name;
    item["bytes"] = row.bytes;
    json.push_back(std::move(item));
  }
  return json;
}

std::string rows_text(const std::vector<BytesOf>& rows, Bytes total) {
  constexpr std::size_t kMost = 8;
  std::string out;
  Bytes rest = total;
  for (std::size_t i = 0; i < rows.size() && i < kMost; ++i) {
    out += formatted("  %10s  %5.1f %%  %s\n", format_bytes(rows[i].bytes).c_str(),
                     100 * ratio(rows[i].bytes, total), rows[i].name.c_str());
    rest -= rows[i].bytes;
  }
  if (rest > 0) {
    out += formatted("  %10s  %5.1f %%  %zu others\n", format_bytes(rest).c_str(),
                     100 * ratio(rest, total), rows.size() - kMost);
  }
  return out + formatted("  %10s           TOTAL\n", format_bytes(total).c_str());
}

std::string place_label(const PlaceSummary& place) {
  std::string label = place.module.empty() ? place.name : place.module;
  if (!place.source.empty()) label += (label.empty() ? "" : ", ") + place.source;
  return label;
}

std::string ms(std::uint64_t ns) { return formatted("%.2f ms", static_cast<double>(ns) / 1e6); }

}  // namespace

Json tape_curve_json(const Tape& tape, const TapeCurve& curve) {
  Json json = Json::object();
  json["tape"] = curve.name;
  json["plain_ns"] = curve.plain_ns;
  json["natural_peak_bytes"] = curve.peak.bytes;
  json["floor"] = Json::object();
  json["floor"]["bytes"] = curve.floor_bytes;
  json["floor"]["set_by"] = op_json(tape, curve.floor_op);
  json["peak"] = Json::object();
  json["peak"]["event"] = curve.peak.event;
  json["peak"]["op"] = op_json(tape, curve.peak.op);
  json["peak"]["by_kind"] = rows_json(curve.peak.by_kind, "kind");
  json["peak"]["by_module"] = rows_json(curve.peak.by_module, "module");
  json["points"] = Json::array();
  for (const CurvePoint& point : curve.points) {
    Json row = Json::object();
    row["budget_bytes"] = point.budget_bytes;
    row["overhead_online"] = point.online ? Json(*point.online) : Json();
    row["overhead_planned"] = point.planned ? Json(point.planned->overhead()) : Json();
    row["overhead_bound"] = ratio(point.bound_ns, curve.plain_ns);
    json["points"].push_back(std::move(row));
  }
  json["plan"] = Json();
  if (curve.plan) {
    Json plan = Json::object();
    plan["budget_bytes"] = curve.plan->budget_bytes;
    plan["peak_bytes"] = curve.plan->peak_bytes;
    plan["total_ns"] = curve.plan->total_ns;
    plan["overhead"] = curve.plan->overhead();
    plan["within"] = curve.plan->gap();
    plan["places"] = Json::array();
    for (const PlaceSummary& place : curve.places) {
      Json row = Json::object();
      row["name"] = place.name;
      row["module"] = place.module;
      row["source"] = place.source;
      row["kept_bytes"] = place.kept_bytes;
      row["recomputed_bytes"] = place.recomputed_bytes;
      row["replays"] = place.replays;
      row["extra_ns"] = place.extra_ns;
      plan["places"].push_back(std::move(row));
    }
    json["plan"] = std::move(plan);
  }
  return json;
}

std::string tape_curve_text(const Tape& tape, const TapeCurve& curve) {
  std::string out =
      formatted("%s: %zu ops, plain step %s, peak %s", curve.name.c_str(), tape.ops.size(),
                ms(curve.plain_ns).c_str(), format_bytes(curve.peak.bytes).c_str());
  if (curve.peak.op.valid()) out += " in " + op_label(tape, curve.peak.op);
  out += "\nno budget below " + format_bytes(curve.floor_bytes);
  out += curve.floor_op.valid() ? ": " + op_label(tape, curve.floor_op) + " needs it"
                                : ": what must be there at the end needs it";
  out += "\n\npeak by kind\n" + rows_text(curve.peak.by_kind, curve.peak.bytes);
  out += "\npeak by module\n" + rows_text(curve.peak.by_module, curve.peak.bytes);
  if (!curve.points.empty()) {
    out += "\n      budget   online  planned  within\n";
    for (const CurvePoint& point : curve.points) {
      std::optional<double> planned;
      if (point.planned) planned = point.planned->overhead();
      out += formatted("  %10s  %7s  %7s  %6s\n", format_bytes(point.budget_bytes).c_str(),
                       times(point.online).c_str(), times(planned).c_str(),
                       point.planned ? within(*point.planned).c_str() : "");
    }
    out +=
        "\nTimes are multiples of the plain step. within: at most so far above what no schedule "
        "can\n"
        "beat that runs the ops in this order. -: no schedule was found.\n";
  }
  if (!curve.plan) return out;
  out += formatted("\nplan for %s: peak %s, step %s (%.3f of plain), within %s of the best\n",
                   format_bytes(curve.plan->budget_bytes).c_str(),
                   format_bytes(curve.plan->peak_bytes).c_str(), ms(curve.plan->total_ns).c_str(),
                   curve.plan->overhead(), within(*curve.plan).c_str());
  out += "       extra  replays  recomputed        kept\n";
  constexpr std::size_t kMost = 16;
  for (std::size_t i = 0; i < curve.places.size() && i < kMost; ++i) {
    const PlaceSummary& place = curve.places[i];
    out += formatted("  %10s  %7llu  %10s  %10s  ", ms(place.extra_ns).c_str(),
                     static_cast<unsigned long long>(place.replays),
                     format_bytes(place.recomputed_bytes).c_str(),
                     format_bytes(place.kept_bytes).c_str()) +
           place_label(place) + "\n";
  }
  if (curve.places.size() > kMost) {
    out += formatted("  and %zu places more: --json lists all\n", curve.places.size() - kMost);
  }
  return out;
}

std::string curve_svg(const std::string& title, Bytes peak_bytes, Bytes floor_bytes,
                      std::uint64_t plain_ns, const std::vector<CurvePoint>& points) {
  constexpr double kLeft = 70, kRight = 700, kTop = 50, kBottom = 350;
  double most = 1.05;
  for (const CurvePoint& point : points) {
    if (point.planned) most = std::max(most, point.planned->overhead());
    if (point.online && *point.online < 3) most = std::max(most, *point.online);
  }
  const double step = most > 2     ? 0.5
                      : most > 1.5 ? 0.2
                      : most > 1.2 ? 0.1
                      : most > 1.1 ? 0.05
                                   : 0.01;
  most = 1 + step * (static_cast<int>((most - 1) / step) + 1);
  const auto x = [&](Bytes budget) { return kLeft + (kRight - kLeft) * ratio(budget, peak_bytes); };
  const auto y = [&](double overhead) {
    return kBottom - (kBottom - kTop) * (overhead - 1) / (most - 1);
  };
  std::string safe_title;
  for (const char c : title) {
    safe_title += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 420\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"760\" height=\"420\" fill=\"#fff\"/>\n";
  out += "<text x=\"70\" y=\"28\" font-size=\"16\">" + safe_title + "</text>\n";
  for (double at = 1; at < most + step / 2; at += step) {
    out += formatted(
        "<path d=\"M%.0f %.1fH%.0f\" stroke=\"#ddd\"/>"
        "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.2f</text>\n",
        kLeft, y(at), kRight, kLeft - 8, y(at) + 4, at);
  }
  for (int tenths = 0; tenths <= 10; tenths += 2) {
    const double at = kLeft + (kRight - kLeft) * tenths / 10;
    out += formatted(
        "<path d=\"M%.0f %.0fv5\" stroke=\"#888\"/>"
        "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>\n",
        at, kBottom, at, kBottom + 20,
        format_bytes(peak_bytes / 10 * static_cast<Bytes>(tenths)).c_str());
  }
  out += formatted(
      "<path d=\"M%.1f %.0fV%.0f\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>"
      "<text x=\"%.1f\" y=\"%.0f\" fill=\"#555\">floor</text>\n",
      x(floor_bytes), kTop, kBottom, x(floor_bytes) + 4, kTop + 12);
  out += formatted("<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">budget</text>\n",
                   (kLeft + kRight) / 2, kBottom + 44);
  out += formatted(
      "<text x=\"18\" y=\"%.0f\" text-anchor=\"middle\" "
      "transform=\"rotate(-90 18 %.0f)\">time of the step, times plain</text>\n",
      (kTop + kBottom) / 2, (kTop + kBottom) / 2);
  struct Line {
    const char* name;
    const char* color;
    const char* dash;
  };
  constexpr Line kLines[] = {{"online", "#c75000", ""},
                             {"planned", "#0060b0", ""},
                             {"lower bound", "#777", " stroke-dasharray=\"2 3\""}};
  for (int line = 0; line < 3; ++line) {
    std::string path;
    std::string dots;
    for (const CurvePoint& point : points) {
      std::optional<double> overhead;
      if (line == 0) overhead = point.online;
      if (line == 1 && point.planned) overhead = point.planned->overhead();
      if (line == 2 && point.planned) overhead = ratio(point.bound_ns, plain_ns);
      if (!overhead || *overhead > most) continue;
      path +=
          formatted("%c%.1f %.1f", path.empty() ? 'M' : 'L', x(point.budget_bytes), y(*overhead));
      if (line < 2) {
        dots += formatted("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>",
                          x(point.budget_bytes), y(*overhead), kLines[line].color);
      }
    }
    if (!path.empty()) {
      out += formatted("<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s d=\"",
                       kLines[line].color, kLines[line].dash) +
             path + "\"/>" + dots + "\n";
    }
    out += formatted(
        "<path d=\"M560 %dh24\" stroke=\"%s\" stroke-width=\"2\"%s/>"
        "<text x=\"590\" y=\"%d\">%s</text>\n",
        62 + 20 * line, kLines[line].color, kLines[line].dash, 66 + 20 * line, kLines[line].name);
  }
  return out + "</svg>\n";
}

Json largest_batch_json(const LargestBatch& answer) {
  Json json = Json::object();
  json["budget_bytes"] = answer.budget_bytes;
  json["largest_batch_plain"] = answer.plain;
  json["largest_batch_planned"] = answer.planned;
  json["overhead_planned"] = answer.overhead ? Json(*answer.overhead) : Json();
  json["check"] = Json();
  if (answer.checked_at != 0) {
    json["check"] = Json::object();
    json["check"]["batch"] = answer.checked_at;
    json["check"]["predicted_bytes"] = answer.predicted_bytes;
    json["check"]["measured_bytes"] = answer.measured_bytes;
  }
  return json;
}

std::string largest_batch_text(const LargestBatch& answer) {
  std::string out = formatted("largest batch in %s: %llu without a plan, %llu with one",
                              format_bytes(answer.budget_bytes).c_str(),
                              static_cast<unsigned long long>(answer.plain),
                              static_cast<unsigned long long>(answer.planned));
  if (answer.overhead) out += formatted(" (step %.3f of plain)", *answer.overhead);
  out += "\n";
  if (answer.checked_at == 0) {
    return out + "not checked: give a third tape of another batch size\n";
  }
  return out + formatted("checked at batch %llu: predicted peak %s, on the tape %s (%+.2f %%)\n",
                         static_cast<unsigned long long>(answer.checked_at),
                         format_bytes(answer.predicted_bytes).c_str(),
                         format_bytes(answer.measured_bytes).c_str(),
                         100 * (ratio(answer.predicted_bytes, answer.measured_bytes) - 1));
}

Json num_cp_json(const LayerPeaks& layers, Bytes budget_bytes, std::uint64_t plain_ns) {
  Json json = Json::object();
  json["layers"] = layers.layers;
  json["points"] = Json::array();
  for (std::size_t count = 0; count < layers.peaks.size(); ++count) {
    Json point = Json::object();
    point["num_cp"] = std::uint64_t{count};
    point["peak_bytes"] = layers.peaks[count];
    point["overhead"] = plain_ns == 0 ? 1.0 : 1.0 + ratio(layers.extra_ns[count], plain_ns);
    json["points"].push_back(std::move(point));
  }
  if (budget_bytes > 0) {
    const auto smallest = smallest_num_cp(layers, budget_bytes);
    json["budget_bytes"] = budget_bytes;
    json["num_cp"] = smallest ? Json(std::uint64_t{*smallest}) : Json();
  }
  return json;
}

std::string num_cp_text(const LayerPeaks& layers, Bytes budget_bytes, std::uint64_t plain_ns) {
  std::string out = formatted("%zu layers: %s\n  num_cp         peak   time of plain\n",
                              layers.peaks.size() - 1, layers.layers.c_str());
  for (std::size_t count = 0; count < layers.peaks.size(); ++count) {
    out += formatted("  %6zu  %11s   %.3f\n", count, format_bytes(layers.peaks[count]).c_str(),
                     plain_ns == 0 ? 1.0 : 1.0 + ratio(layers.extra_ns[count], plain_ns));
  }
  if (budget_bytes == 0) return out;
  const auto smallest = smallest_num_cp(layers, budget_bytes);
  if (smallest) {
    out += formatted("smallest num_cp in %s: %zu\n", format_bytes(budget_bytes).c_str(), *smallest);
  }
  return out;
}

}  // namespace lowtide
