#include "src/fit/budget_journal.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>

#include "src/base/json.h"
#include "src/base/text.h"

namespace lowtide {

const char* to_string(BudgetEvent::Kind kind) noexcept {
  switch (kind) {
    case BudgetEvent::Kind::kDrop:
      return "drop";
    case BudgetEvent::Kind::kRecompute:
      return "recompute";
    case BudgetEvent::Kind::kRefusal:
      return "refusal";
    case BudgetEvent::Kind::kStep:
      return "step";
    case BudgetEvent::Kind::kPutAway:
      return "put_away";
    case BudgetEvent::Kind::kReadBack:
      return "read_back";
  }
  return "unknown";
}

void BudgetJournal::read_log_level() {
  const char* value = std::getenv("LOWTIDE_LOG");
  const std::string_view level = value == nullptr ? "" : value;
  LogLevel read = LogLevel::kOff;
  if (level == "info") {
    read = LogLevel::kInfo;
  } else if (level == "debug") {
    read = LogLevel::kDebug;
  } else if (!level.empty() && level != "off") {
    throw UsageError(
        "LT0308", concat("LOWTIDE_LOG is \"", level, "\", which is none of off, info and debug"));
  }
  const std::lock_guard lock(mutex_);
  log_level_ = read;
  is_heard_ = read != LogLevel::kOff || !listeners_.empty();
}

void BudgetJournal::add(const BudgetEvent& event) noexcept {
  const std::lock_guard lock(mutex_);
  const auto kind = static_cast<std::size_t>(event.kind);
  counts_.events[kind] += 1;
  counts_.bytes[kind] += event.bytes;
  counts_.ns[kind] += event.duration_ns;
  if (!is_heard_) return;
  try {
    waiting_.push_back(event);
  } catch (const std::bad_alloc&) {
    // An event less.
  }
}

void BudgetJournal::deliver() noexcept {
  if (!is_heard_) return;
  std::vector<BudgetEvent> events;
  std::list<Listener> listeners;
  try {
    {
      const std::lock_guard lock(mutex_);
      events.swap(waiting_);
      if (events.empty()) return;
      listeners = listeners_;
    }
    for (const BudgetEvent& event : events) {
      log(event);
      for (const Listener& listener : listeners) listener(event);
    }
  } catch (...) {
    // A listener that throws must not become an error of the step's.
  }
}

BudgetJournal::Counts BudgetJournal::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

BudgetJournal::Key BudgetJournal::listen(Listener listener) {
  const std::lock_guard lock(mutex_);
  listeners_.push_back(std::move(listener));
  is_heard_ = true;
  return std::prev(listeners_.end());
}

void BudgetJournal::remove(Key key) {
  deliver();
  const std::lock_guard lock(mutex_);
  listeners_.erase(key);
  is_heard_ = log_level_ != LogLevel::kOff || !listeners_.empty();
}

void BudgetJournal::log(const BudgetEvent& event) const {
  const bool is_detail =
      event.kind != BudgetEvent::Kind::kStep && event.kind != BudgetEvent::Kind::kRefusal;
  if (log_level_ == LogLevel::kOff || (is_detail && log_level_ != LogLevel::kDebug)) return;
  std::string line = concat("lowtide: step ", event.step, ": ");
  switch (event.kind) {
    case BudgetEvent::Kind::kStep:
      line += concat("ended after ", event.duration_ns / 1'000'000, " ms, peak ",
                     format_bytes(event.bytes));
      break;
    case BudgetEvent::Kind::kRefusal:
      line += concat("refused ", format_bytes(event.bytes), " to ",
                     event.op[0] == '\0' ? "the program" : event.op);
      break;
    case BudgetEvent::Kind::kDrop:
      line += concat("dropped ", format_bytes(event.bytes), " made by ", event.op);
      break;
    case BudgetEvent::Kind::kRecompute:
      line += concat("ran ", event.op, " again (", format_bytes(event.bytes), ", ",
                     event.duration_ns / 1000, " us)");
      break;
    case BudgetEvent::Kind::kPutAway:
      line += concat("put away ", format_bytes(event.bytes), " made by ", event.op);
      break;
    case BudgetEvent::Kind::kReadBack:
      line += concat("read back ", format_bytes(event.bytes), " made by ", event.op, " (",
                     event.duration_ns / 1000, " us)");
      break;
  }
  line += concat("; live ", format_bytes(event.live_bytes), "\n");
  std::fputs(line.c_str(), stderr);
}

ChromeTrace::ChromeTrace(std::string path) : path_(std::move(path)) {
  std::ofstream file(path_);
  if (!file) {
    throw UsageError("LT0307", concat("cannot write the trace ", path_,
                                      ": its folder is missing or not writable"));
  }
}

void ChromeTrace::add(const BudgetEvent& event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
}

void ChromeTrace::write() const {
  const std::lock_guard lock(mutex_);
  Json list = Json::array();
  const auto add = [&](const BudgetEvent& event, const char* phase, std::string name) {
    Json entry = Json::object();
    entry["name"] = std::move(name);
    entry["cat"] = to_string(event.kind);
    entry["ph"] = phase;
    entry["ts"] = static_cast<double>(event.begin_ns) / 1000;
    entry["pid"] = 1;
    entry["tid"] = 1;
    return entry;
  };
  for (const BudgetEvent& event : events_) {
    const bool is_step = event.kind == BudgetEvent::Kind::kStep;
    const bool has_duration = event.duration_ns > 0;
    Json entry = add(event, has_duration ? "X" : "i",
                     is_step ? concat("step ", event.step) : std::string(event.op));
    if (has_duration) {
      entry["dur"] = static_cast<double>(event.duration_ns) / 1000;
    } else {
      entry["s"] = "t";
    }
    Json arguments = Json::object();
    arguments["bytes"] = event.bytes;
    arguments["live_bytes"] = event.live_bytes;
    arguments["step"] = event.step;
    entry["args"] = std::move(arguments);
    list.push_back(std::move(entry));
    if (is_step) continue;
    Json counter = add(event, "C", "live bytes");
    Json value = Json::object();
    value["live"] = event.live_bytes;
    counter["args"] = std::move(value);
    list.push_back(std::move(counter));
  }
  Json document = Json::object();
  document["displayTimeUnit"] = "ms";
  document["traceEvents"] = std::move(list);
  std::ofstream file(path_);
  file << to_text(document) << '\n';
  file.flush();
  if (!file)
    throw IoError("LT0307", concat("cannot write the trace ", path_, ": is the disk full?"));
}

}  // namespace lowtide
