#include "lowtide/watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "src/base/json.h"
#include "src/base/text.h"
#include "src/watch/watch_runtime.h"

namespace lowtide {
namespace {

// "12", "0.5": of nodes a step.
std::string rate_text(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, rate == std::floor(rate) ? "%.0f" : "%.1f", rate);
  return text;
}

}  // namespace

const char* to_string(WatchFinding::Kind kind) noexcept {
  switch (kind) {
    case WatchFinding::Kind::kGraphCarried:
      return "graph_carried";
    case WatchFinding::Kind::kGraphKept:
      return "graph_kept";
    case WatchFinding::Kind::kTensorsKept:
      return "tensors_kept";
    case WatchFinding::Kind::kHeldAtPeak:
      return "held_at_peak";
  }
  return "";
}

std::string WatchFinding::to_text() const {
  std::string text = concat("step ", step, ": ");
  if (kind == Kind::kHeldAtPeak) {
    text += concat(is_alarm ? "" : "note: ", "the peak would be ", format_bytes(fall_bytes),
                   " lower without what is ");
  } else {
    text += concat(is_alarm ? "memory grows by " : "note: tensors grow by ",
                   format_bytes(bytes_per_step));
    if (nodes_per_step > 0) text += concat(" and ", rate_text(nodes_per_step), " graph nodes");
    text += " a step: ";
  }
  text += chain;
  if (!held_by.empty() && !op.empty()) {
    text += concat("; made by ", op, line.empty() ? "" : " at ", line);
  }
  return concat(text, ". Fix: ", fix);
}

bool WatchReport::has_alarm() const {
  return std::any_of(findings.begin(), findings.end(),
                     [](const WatchFinding& finding) { return finding.is_alarm; });
}

std::string WatchReport::to_text() const {
  std::string text = concat("watched ", steps, " steps, ", ops, " ops: ");
  if (findings.empty()) return text + "nothing grows\n";
  const auto alarms = std::count_if(findings.begin(), findings.end(),
                                    [](const WatchFinding& one) { return one.is_alarm; });
  text += concat(alarms, alarms == 1 ? " finding, " : " findings, ",
                 findings.size() - static_cast<std::size_t>(alarms), " notes");
  for (const WatchFinding& finding : findings) text += concat("\n  ", finding.to_text());
  return text + "\n";
}

std::string WatchReport::to_json() const {
  Json report = Json::object();
  report["steps"] = steps;
  report["ops"] = ops;
  report["findings"] = Json::array();
  for (const WatchFinding& finding : findings) {
    Json entry = Json::object();
    entry["kind"] = to_string(finding.kind);
    entry["alarm"] = finding.is_alarm;
    entry["step"] = finding.step;
    entry["op"] = finding.op;
    entry["line"] = finding.line;
    entry["stored_at"] = finding.stored_at;
    entry["held_by"] = finding.held_by;
    entry["chain"] = finding.chain;
    entry["bytes_per_step"] = finding.bytes_per_step;
    entry["nodes_per_step"] = finding.nodes_per_step;
    entry["graph_nodes"] = finding.graph_nodes;
    entry["peak_bytes"] = finding.peak_bytes;
    entry["fall_bytes"] = finding.fall_bytes;
    entry["fix"] = finding.fix;
    report["findings"].push_back(std::move(entry));
  }
  return lowtide::to_text(report, 2);
}

struct Watch::Impl {
  std::shared_ptr<WatchSession> session;
};

Watch::Watch(const WatchOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->session = WatchRuntime::instance().begin(options);
}

Watch::~Watch() { WatchRuntime::instance().end(impl_->session); }

void Watch::step() { WatchRuntime::instance().mark_step(); }

void Watch::optimizer_stepped() { WatchRuntime::instance().optimizer_stepped(); }

void Watch::look(Look look) { WatchRuntime::instance().look(look); }

WatchReport Watch::report() const { return WatchRuntime::instance().report(*impl_->session); }

}  // namespace lowtide
