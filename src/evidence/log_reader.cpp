#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "src/evidence/log_evidence.h"
#include "src/evidence/log_line.h"
#include "src/evidence/message_reader.h"

// Lines are gathered into a window and read when it is full or when lines were left out. Of a full
// window the end is kept back, so that a message that is not all there yet is read with the next
// one, and enough lines before it stay for its traceback.

namespace lowtide {
namespace {

constexpr std::size_t kWindowLines = 12000;
constexpr std::size_t kWindowBytes = std::size_t{3} << 20;
constexpr std::size_t kHeldBackLines = 400;
constexpr std::size_t kContextLines = 2000;
constexpr std::size_t kContextBytes = std::size_t{512} << 10;
constexpr std::size_t kMaxSightings = 64;
constexpr std::size_t kMaxNotices = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool contains(std::string_view text, std::string_view word) {
  return text.find(word) != std::string_view::npos;
}

std::optional<Notice> notice_of(const std::string& text) {
  if (contains(text, "install fairscale") ||
      contains(text, "does not support gradient checkpointing") ||
      contains(text, "not compatible with gradient checkpointing")) {
    return Notice::kCheckpointingRefused;
  }
  if (contains(text, "None of the inputs have requires_grad=True")) {
    return Notice::kCheckpointingWithoutGrad;
  }
  if (contains(text, "Using a target size") && contains(text, "input size")) {
    return Notice::kBroadcastWarning;
  }
  if (contains(text, "sequence length is longer than the specified maximum")) {
    return Notice::kLongSequence;
  }
  if (contains(text, "device-side assert") ||
      (contains(text, "Assertion `") && contains(text, "failed") && contains(text, "block: ["))) {
    return Notice::kDeviceAssert;
  }
  if (text.size() < 4000) {
    const std::string small = lower(text);
    if ((contains(small, "out of memory") || contains(small, "oom")) &&
        (contains(small, "skipping") || contains(small, "skip batch") ||
         contains(small, "recover from oom") || contains(small, "skipped batch") ||
         contains(small, "ran out of memory, retrying") ||
         contains(small, "ran out of memory with exception"))) {
      return Notice::kBatchSkipped;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number_after(std::string_view text, std::size_t at) {
  // Up to six signs and blanks: "step: [ 12", "step=12", "iter 12".
  std::size_t i = at;
  // "Epoch(train) [31]"
  if (i < text.size() && text[i] == '(') {
    const std::size_t close = text.find(')', i);
    if (close != std::string_view::npos && close < i + 12 && !is_digit(text[i + 1])) i = close + 1;
  }
  at = i;
  while (i < text.size() && i < at + 6 &&
         (text[i] == ' ' || text[i] == ':' || text[i] == '=' || text[i] == '[' || text[i] == '#' ||
          text[i] == '(' || text[i] == '"' || text[i] == '\'')) {
    ++i;
  }
  if (i >= text.size() || !is_digit(text[i])) return std::nullopt;
  std::string digits;
  while (i < text.size() &&
         (is_digit(text[i]) || (text[i] == ',' && i + 3 < text.size() && is_digit(text[i + 1]) &&
                                is_digit(text[i + 2]) && is_digit(text[i + 3])))) {
    if (text[i] != ',') digits += text[i];
    ++i;
  }
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (problem != std::errc()) return std::nullopt;
  (void)end;
  return value;
}

std::optional<std::uint64_t> number_named(const std::string& small,
                                          std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    for (std::size_t at = small.find(name); at != std::string::npos;
         at = small.find(name, at + 1)) {
      if (at > 0 && std::isalpha(static_cast<unsigned char>(small[at - 1]))) continue;
      if (const auto value = number_after(small, at + name.size())) return value;
    }
  }
  return std::nullopt;
}

// "12/345 [" of a progress bar, "][12/345]" of others.
std::optional<std::uint64_t> fraction(const std::string& text) {
  for (std::size_t slash = text.find('/'); slash != std::string::npos;
       slash = text.find('/', slash + 1)) {
    std::size_t begin = slash;
    while (begin > 0 && is_digit(text[begin - 1])) --begin;
    std::size_t end = slash + 1;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (begin == slash || end == slash + 1 || slash - begin > 12) continue;
    const bool bar = end + 1 < text.size() && text[end] == ' ' && text[end + 1] == '[';
    const bool bracket = end < text.size() && text[end] == ']';
    if (!bar && !bracket) continue;
    return number_after(text, begin);
  }
  return std::nullopt;
}

bool read_progress(const std::string& text, Progress& progress) {
  if (text.size() > 2000) return false;
  const std::string small = lower(text);
  Progress found;
  found.step = number_named(small, {"global_step", "global step", "steps", "step", "iteration",
                                    "iter", "it", "batch", "update", "num_updates"});
  if (const auto bar = fraction(small); bar && (!found.step || *bar > *found.step)) {
    found.step = bar;
  }
  found.epoch = number_named(small, {"epoch", "ep"});
  if (!found.step && !found.epoch) return false;
  if (!progress.step) progress.step = found.step;
  if (!progress.epoch) progress.epoch = found.epoch;
  if (progress.text.empty()) progress.text = text.substr(0, 200);
  return progress.step && progress.epoch;
}

// "max mem: 4321", "GPU mem 3.2G", "memory: 4321": label and value.
bool memory_figure(const std::string& small, std::string& label, double& value) {
  for (std::size_t at = small.find("mem"); at != std::string::npos;
       at = small.find("mem", at + 3)) {
    std::size_t i = at + 3;
    while (i < small.size() && i < at + 24 && !is_digit(small[i]) && small[i] != '\n') ++i;
    if (i >= small.size() || !is_digit(small[i])) continue;
    const std::size_t begin = i;
    while (i < small.size() && (is_digit(small[i]) || small[i] == '.')) ++i;
    value = std::strtod(small.substr(begin, i - begin).c_str(), nullptr);
    label = small.substr(at, begin - at);
    std::string unit;
    while (i < small.size() && small[i] == ' ') ++i;
    while (i < small.size() && std::isalpha(static_cast<unsigned char>(small[i])) &&
           unit.size() < 3) {
      unit += small[i++];
    }
    if (unit == "g" || unit == "gb" || unit == "gib") value *= 1024;
    return value > 0;
  }
  return false;
}

std::vector<MemorySeries> memory_series(const std::vector<std::string>& lines, std::size_t end) {
  std::map<std::string, MemorySeries> series;
  for (std::size_t i = end > 1500 ? end - 1500 : 0; i < end; ++i) {
    if (lines[i].size() > 1000 || contains(lines[i], "Tried to allocate")) continue;
    std::string label;
    double value = 0;
    if (memory_figure(lower(lines[i]), label, value) && series.size() < 32) {
      MemorySeries& one = series[label];
      one.label = label;
      if (one.values.size() < 2000) one.values.push_back(value);
    }
  }
  std::vector<MemorySeries> out;
  for (auto& [label, one] : series) {
    if (one.values.size() >= 4) out.push_back(std::move(one));
  }
  return out;
}

// A row of nvidia-smi's processes: "|    0   N/A  N/A     31794      C   python      5371MiB |".
std::optional<DeviceProcess> device_process(const std::string& text) {
  if (text.empty() || (text[0] != '|' && !is_digit(text[0])) || text.size() > 200) {
    return std::nullopt;
  }
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    if (c == ' ' || c == '|') {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else {
      word += c;
    }
  }
  if (!word.empty()) words.push_back(word);
  if (words.size() < 5 || !words.back().ends_with("MiB") || contains(text, "/ ")) {
    return std::nullopt;
  }
  const auto number = [](const std::string& digits) -> std::optional<std::uint64_t> {
    std::uint64_t value = 0;
    const auto [end, problem] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (problem != std::errc() || end == digits.data()) return std::nullopt;
    return value;
  };
  DeviceProcess process;
  const auto device = number(words[0]);
  std::size_t next = 1;
  while (next < words.size() && words[next] == "N/A") ++next;
  const auto pid = next < words.size() ? number(words[next]) : std::nullopt;
  const auto size = number(words.back());
  if (!device || !pid || !size || next + 2 >= words.size()) return std::nullopt;
  const std::string& type = words[next + 1];
  if (type != "C" && type != "G" && type != "C+G") return std::nullopt;
  process.device = *device;
  process.pid = *pid;
  process.name = words[next + 2];
  process.bytes = *size << 20;
  return process;
}

// Which traceback raised the message on lines [first, last]: the one whose exception stands there,
// or the one just before where a logger printed the message after it.
std::optional<std::size_t> traceback_of(const std::vector<Traceback>& tracebacks, std::size_t first,
                                        std::size_t last) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < tracebacks.size(); ++i) {
    const Traceback& traceback = tracebacks[i];
    if (traceback.exception_line <= last && traceback.exception_line + 3 >= first) best = i;
    // Notebooks and debuggers print the message first.
    if (!best && traceback.first_line > last && traceback.first_line <= last + 3) best = i;
  }
  return best;
}

class Reader {
 public:
  explicit Reader(LogEvidence& evidence) : evidence_(evidence) {}

  void line(std::string_view raw, std::uint64_t number) {
    tidied_.clear();
    tidy_line(raw, number, tidied_);
    for (LogLine& one : tidied_) {
      join_broken_message(one);
      window_bytes_ += one.text.size() + sizeof(LogLine);
      window_.push_back(std::move(one));
    }
    if (window_.size() >= kWindowLines || window_bytes_ >= kWindowBytes) read_window(false);
  }
  void gap() { read_window(true); }
  void finish() {
    std::vector<std::string> texts;
    for (std::size_t i = window_.size() > 400 ? window_.size() - 400 : 0; i < window_.size(); ++i) {
      texts.push_back(window_[i].text);
    }
    read_window(true);
    if (evidence_.sightings.empty()) {
      evidence_.last_tracebacks = read_tracebacks(texts);
      if (evidence_.last_tracebacks.size() > 4) {
        evidence_.last_tracebacks.erase(evidence_.last_tracebacks.begin(),
                                        evidence_.last_tracebacks.end() - 4);
      }
      if (texts.size() > 160) texts.erase(texts.begin(), texts.end() - 160);
      evidence_.last_lines = std::move(texts);
    }
  }

 private:
  // A terminal that breaks a rank's long line sets no prefix on the rest.
  void join_broken_message(LogLine& one) {
    const std::string& text = one.text;
    const bool begins = text.starts_with("Traceback (") || text.starts_with("File \"") ||
                        text.starts_with("  File \"");
    if (!one.lane.empty()) {
      broken_lane_ = contains(text, "Tried to allocate") ? one.lane : std::string();
      broken_lines_ = 0;
    } else if (broken_lane_.empty() || text.empty() || begins || ++broken_lines_ > 4) {
      broken_lane_.clear();
    } else {
      one.lane = broken_lane_;
    }
    if (text.ends_with(')') || (text.ends_with('.') && contains(text, "reserved"))) {
      broken_lane_.clear();
    }
  }

  void read_window(bool whole) {
    const std::size_t size = window_.size();
    const std::size_t report_to =
        whole ? size : (size > kHeldBackLines ? size - kHeldBackLines : size);
    std::map<std::string, std::vector<std::size_t>> lanes;
    for (std::size_t i = 0; i < size; ++i) lanes[window_[i].lane].push_back(i);
    std::vector<Sighting> found;
    for (const auto& [lane, indices] : lanes) read_lane(lane, indices, report_to, found);
    std::sort(found.begin(), found.end(),
              [](const Sighting& a, const Sighting& b) { return a.first_line < b.first_line; });
    for (Sighting& sighting : found) add(std::move(sighting));
    for (std::size_t i = reported_; i < report_to; ++i) read_notices(window_[i]);

    if (whole) {
      window_.clear();
      window_bytes_ = 0;
      reported_ = 0;
      return;
    }
    std::size_t keep_from = report_to > kContextLines ? report_to - kContextLines : 0;
    std::size_t kept_bytes = 0;
    for (std::size_t i = size; i > keep_from; --i) {
      kept_bytes += window_[i - 1].text.size() + sizeof(LogLine);
      if (kept_bytes > kContextBytes) {
        keep_from = i;
        break;
      }
    }
    keep_from = std::min(keep_from, report_to);
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(keep_from));
    reported_ = report_to - keep_from;
    window_bytes_ = 0;
    for (const LogLine& one : window_) window_bytes_ += one.text.size() + sizeof(LogLine);
    // What is held back alone may fill a window: then it is read now, whole.
    if (window_bytes_ >= kWindowBytes / 2) read_window(true);
  }

  void read_lane(const std::string& lane, const std::vector<std::size_t>& indices,
                 std::size_t report_to, std::vector<Sighting>& out) {
    std::vector<std::string> texts;
    texts.reserve(indices.size());
    for (const std::size_t index : indices) texts.push_back(window_[index].text);
    const std::vector<FoundMessage> messages = read_messages(SqueezedText(texts));
    if (messages.empty()) return;
    std::vector<Traceback> tracebacks;
    bool tracebacks_read = false;
    for (const FoundMessage& message : messages) {
      const std::size_t index = indices[message.first_line];
      if (index < reported_ || index >= report_to) continue;
      if (!tracebacks_read) {
        tracebacks = read_tracebacks(texts);
        tracebacks_read = true;
      }
      Sighting sighting;
      sighting.message = message.message;
      sighting.lane = lane;
      sighting.first_line = window_[index].number;
      sighting.last_line = window_[indices[message.last_line]].number;
      for (std::size_t i = message.first_line; i <= message.last_line; ++i) {
        if (sighting.text.size() > 600) break;
        if (!sighting.text.empty()) sighting.text += ' ';
        sighting.text += texts[i];
      }
      if (sighting.text.size() > 600) sighting.text.resize(600);
      if (const auto at = traceback_of(tracebacks, message.first_line, message.last_line)) {
        std::size_t first = *at;
        while (first > 0 && *at - first < 4 && tracebacks[first].link != ChainLink::kNone) --first;
        sighting.tracebacks.assign(tracebacks.begin() + static_cast<std::ptrdiff_t>(first),
                                   tracebacks.begin() + static_cast<std::ptrdiff_t>(*at) + 1);
      }
      // Progress stands before the traceback, not in it.
      std::size_t before_end = message.first_line;
      if (!sighting.tracebacks.empty()) {
        before_end = std::min(before_end, sighting.tracebacks.front().first_line);
      }
      for (std::size_t i = before_end; i > 0 && before_end - i < 400; --i) {
        if (read_progress(texts[i - 1], sighting.progress)) break;
      }
      sighting.memory = memory_series(texts, before_end);
      const std::size_t begin = message.first_line > 160 ? message.first_line - 160 : 0;
      for (std::size_t i = begin; i < message.first_line; ++i) {
        sighting.before.push_back(texts[i].substr(0, 500));
      }
      for (std::size_t i = message.last_line + 1; i < texts.size() && i < message.last_line + 61;
           ++i) {
        sighting.after.push_back(texts[i].substr(0, 500));
      }
      out.push_back(std::move(sighting));
    }
  }

  void add(Sighting sighting) {
    for (Sighting& known : evidence_.sightings) {
      if (known.lane == sighting.lane && known.message == sighting.message) {
        ++known.count;
        if (known.tracebacks.empty() && !sighting.tracebacks.empty()) {
          known.tracebacks = std::move(sighting.tracebacks);
        }
        return;
      }
    }
    if (evidence_.sightings.size() >= kMaxSightings) {
      ++evidence_.sightings_dropped;
      return;
    }
    evidence_.sightings.push_back(std::move(sighting));
  }

  void read_notices(const LogLine& one) {
    if (const auto process = device_process(one.text);
        process && evidence_.processes.size() < 256) {
      evidence_.processes.push_back(*process);
    }
    const auto notice = notice_of(one.text);
    if (!notice) return;
    for (NoticeSighting& known : evidence_.notices) {
      if (known.notice == *notice) {
        ++known.count;
        return;
      }
    }
    if (evidence_.notices.size() < kMaxNotices) {
      evidence_.notices.push_back({*notice, one.number, one.text.substr(0, 300)});
    }
  }

  LogEvidence& evidence_;
  std::vector<LogLine> window_;
  std::vector<LogLine> tidied_;
  std::string broken_lane_;  // whose message goes on where a line has no prefix; empty: none
  int broken_lines_ = 0;
  std::size_t window_bytes_ = 0;
  std::size_t reported_ = 0;  // lines of the window whose messages are known already
};

}  // namespace

LogEvidence read_log(const LogSource& source, std::string name) {
  LogEvidence evidence;
  evidence.source = std::move(name);
  Reader reader(evidence);
  const LineSink sink{
      [&](std::string_view line, std::uint64_t number) { reader.line(line, number); },
      [&] { reader.gap(); }};
  evidence.totals = stream_log(source, sink);
  reader.finish();
  return evidence;
}

LogEvidence read_log_text(std::string_view text, std::string name) {
  std::size_t at = 0;
  return read_log(
      [&](char* buffer, std::size_t capacity) {
        const std::size_t take = std::min(capacity, text.size() - at);
        if (take != 0) std::memcpy(buffer, text.data() + at, take);
        at += take;
        return take;
      },
      std::move(name));
}

}  // namespace lowtide
