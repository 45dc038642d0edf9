#include "src/evidence/log_line.h"

#include <array>
#include <cctype>

namespace lowtide {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_digit(c) || is_alpha(c) || c == '_' || c == '-' || c == '.'; }
bool is_blank(char c) { return c == ' ' || c == '\t'; }

struct Replacement {
  std::string_view from;
  std::string_view to;
};

constexpr std::array<Replacement, 9> kEntities{{{"&gt;", ">"},
                                                {"&lt;", "<"},
                                                {"&amp;", "&"},
                                                {"&quot;", "\""},
                                                {"&#39;", "'"},
                                                {"&#x27;", "'"},
                                                {"&#34;", "\""},
                                                {"&nbsp;", " "},
                                                {"&apos;", "'"}}};

// Typographic characters that people's editors and chat programs put in.
constexpr std::array<Replacement, 6> kTypography{{{"\u00a0", " "},
                                                  {"\u2019", "'"},
                                                  {"\u2018", "'"},
                                                  {"\u201c", "\""},
                                                  {"\u201d", "\""},
                                                  {"\ufeff", ""}}};

// A box-drawing or arrow character as UTF-8: U+2500 to U+259F, and the heavy arrow that marks a
// line in rich's tracebacks, which is kept as ">".
std::size_t box_character(std::string_view text) {
  if (text.size() < 3 || static_cast<unsigned char>(text[0]) != 0xE2) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  return second == 0x94 || second == 0x95 || second == 0x96 ? 3 : 0;
}

// Takes out escape sequences and control characters, decodes entities, and drops the frame of a
// box.
std::string plain(std::string_view raw) {
  std::string out;
  out.reserve(raw.size());
  for (std::size_t i = 0; i < raw.size();) {
    const char c = raw[i];
    if (c == '\x1b') {
      ++i;
      if (i < raw.size() && raw[i] == '[') {  // CSI: parameters, then one final byte
        ++i;
        while (i < raw.size() && !(raw[i] >= '@' && raw[i] <= '~')) ++i;
        if (i < raw.size()) ++i;
      } else if (i < raw.size() && raw[i] == ']') {  // OSC: up to BEL or ST
        while (i < raw.size() && raw[i] != '\a' && raw[i] != '\x1b') ++i;
        if (i < raw.size() && raw[i] == '\a') ++i;
      } else if (i < raw.size()) {
        ++i;
      }
      continue;
    }
    // Logs kept as JSON or in Python's repr spell the escape character out.
    if (c == '\\' && (raw.substr(i, 7) == "\\u001b[" || raw.substr(i, 5) == "\\x1b[")) {
      i += raw[i + 1] == 'u' ? 7 : 5;
      while (i < raw.size() && (is_digit(raw[i]) || raw[i] == ';')) ++i;
      if (i < raw.size() && is_alpha(raw[i])) ++i;
      continue;
    }
    if (c == '\t') {
      out += ' ';
      ++i;
      continue;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      ++i;
      continue;
    }
    if (c == '&' || static_cast<unsigned char>(c) >= 0xC2) {
      bool replaced = false;
      const auto apply = [&](const Replacement& entry) {
        if (!replaced && raw.substr(i, entry.from.size()) == entry.from) {
          out += entry.to;
          i += entry.from.size();
          replaced = true;
        }
      };
      if (c == '&') {
        for (const Replacement& entry : kEntities) apply(entry);
      } else {
        for (const Replacement& entry : kTypography) apply(entry);
        if (!replaced && raw.substr(i, 3) == "\u2771") {  // rich's arrow
          out += '>';
          i += 3;
          replaced = true;
        }
        if (!replaced) {
          if (const std::size_t width = box_character(raw.substr(i)); width != 0) {
            out += ' ';
            i += width;
            replaced = true;
          }
        }
      }
      if (replaced) continue;
    }
    out += c;
    ++i;
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

std::size_t digits(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size() && is_digit(text[n])) ++n;
  return n;
}

bool starts_with_word(std::string_view text, std::string_view word) {
  if (text.size() < word.size()) return false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(text[i])) != word[i]) return false;
  }
  return true;
}

// Length of a time stamp at the start: digits, the separators of dates and times, T, Z and zones.
// At least one ':' or two '-' or '/', and at least six digits, so that no other number is taken.
std::size_t time_stamp(std::string_view text) {
  std::size_t i = 0;
  const bool bracketed = !text.empty() && (text[0] == '[' || text[0] == '(');
  if (bracketed) ++i;
  const std::size_t begin = i;
  std::size_t digit_count = 0;
  std::size_t colons = 0;
  std::size_t dashes = 0;
  std::size_t last = begin;  // one past the last character that belongs
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (is_digit(c)) {
      ++digit_count;
      last = i + 1;
    } else if (c == ':') {
      ++colons;
    } else if (c == '-' || c == '/') {
      ++dashes;
    } else if (c == 'Z' && i > begin && is_digit(text[i - 1])) {
      last = i + 1;
    } else if (c == 'T' && i > begin && is_digit(text[i - 1])) {
      continue;
    } else if (c == '.' || c == ',' || c == '+') {
      continue;
    } else if (c == ' ' && i + 3 < text.size() && is_digit(text[i + 1]) && colons == 0 &&
               (dashes >= 2 || (dashes == 1 && is_digit(text[i + 2]) && text[i + 3] == ':'))) {
      continue;  // between date and time
    } else {
      break;
    }
  }
  if (digit_count < 6 || (colons < 2 && dashes < 2)) return 0;
  if (bracketed) {
    if (last >= text.size() || text[last] != ']') {
      const std::size_t close = text.find_first_of("])", last);
      if (close == std::string_view::npos || close > last + 6) return 0;
      last = close;
    }
    return last + 1;
  }
  // A number that goes on as a word or a number with a unit is none.
  if (last < text.size() && (is_alpha(text[last]) || text[last] == '.')) return 0;
  while (last < text.size() && (text[last] == ':' || text[last] == ',' || text[last] == ']')) {
    ++last;
  }
  return last;
}

// "Dec  1 12:00:00 host name[123]: " of syslog.
std::size_t syslog_stamp(std::string_view text) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  if (text.size() < 16 || kMonths.find(text.substr(0, 3)) % 3 != 0) return 0;
  std::size_t i = 3;
  while (i < text.size() && is_blank(text[i])) ++i;
  const std::size_t day = digits(text.substr(i));
  if (day == 0 || day > 2) return 0;
  i += day + 1;
  if (i + 8 > text.size() || text[i + 2] != ':' || text[i + 5] != ':') return 0;
  return i + 8;
}

// "node1 python[77]: " and "node1 kernel: ", which follow the stamp.
std::size_t syslog_sender(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size() && is_word(text[i])) ++i;
  if (i == 0 || i >= text.size() || text[i] != ' ') return 0;
  ++i;
  const std::size_t name = i;
  while (i < text.size() && (is_word(text[i]) || text[i] == '/')) ++i;
  if (i == name) return 0;
  if (i < text.size() && text[i] == '[') {
    const std::size_t close = text.find(']', i);
    if (close == std::string_view::npos || close > i + 10) return 0;
    i = close + 1;
  }
  return i < text.size() && text[i] == ':' ? i + 1 : 0;
}

// What loggers set between the time and the text: "- trainer - ERROR - ", "| ERROR | module:run:12
// -
// ", "[trainer][ERROR] - ". The level stands between separators, or it is a word of the text.
std::size_t logger_fields(std::string_view text) {
  constexpr std::size_t kMaxBefore = 60;
  for (const std::string_view level : {"INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "DEBUG"}) {
    const std::size_t at = text.substr(0, kMaxBefore).find(level);
    if (at == std::string_view::npos) continue;
    const std::string_view before = trimmed(text.substr(0, at));
    if (!before.empty() && std::string_view("-|[").find(before.back()) == std::string_view::npos) {
      continue;
    }
    const std::string_view after = text.substr(at + level.size());
    const std::string_view separated = trimmed(after);
    if (separated.empty() ||
        std::string_view("-|]:").find(separated[0]) == std::string_view::npos) {
      continue;
    }
    // One separator: the text after it may begin with another of these.
    std::size_t i = static_cast<std::size_t>(separated.data() - text.data());
    while (i < text.size() && (text[i] == ']' || is_blank(text[i]))) ++i;
    const bool place = i < text.size() && text[i] == '|';
    if (i < text.size() && (text[i] == '-' || text[i] == '|' || text[i] == ':')) ++i;
    while (place && i < text.size() && is_blank(text[i])) ++i;
    if (place) {
      // "module:run:12 - "
      const std::size_t end = text.find(' ', i);
      if (end != std::string_view::npos && text.substr(end).starts_with(" - ") &&
          text.substr(i, end - i).find(':') != std::string_view::npos) {
        i = end + 3;
      }
    }
    return i;
  }
  return 0;
}

// Cuts one prefix off the front of `text`; writes what it says of the lane. False when none is
// left.
bool cut_prefix(std::string_view& text, std::string& lane) {
  text = trimmed(text);
  if (text.empty()) return false;
  const auto cut = [&text](std::size_t length) {
    text = trimmed(text.substr(length));
    return true;
  };
  // Quoting of mail and of issue trackers, pytest's error lines.
  if (text.starts_with("> ") || text.starts_with(">> ") || text.starts_with("E  ")) return cut(2);
  if (const std::size_t stamp = time_stamp(text); stamp != 0) {
    cut(stamp);
    return cut(logger_fields(text));
  }
  if (const std::size_t stamp = syslog_stamp(text); stamp != 0) {
    cut(stamp);
    return cut(syslog_sender(text));
  }
  if (text[0] == '[' || text[0] == '(') {
    const char closing = text[0] == '[' ? ']' : ')';
    const std::size_t close = text.find(closing);
    if (close != std::string_view::npos && close > 1 && close < 80) {
      const std::string_view inside = text.substr(1, close - 1);
      const std::string_view after = text.substr(close + 1);
      const bool colon = after.starts_with(":");
      const bool rank = starts_with_word(inside, "rank");
      const bool numbered = digits(inside) == inside.size();
      const bool mpi =
          digits(inside) > 0 && inside.find(',') == digits(inside) && after.starts_with("<std");
      const bool pid = inside.find("pid=") != std::string_view::npos;
      if (mpi) {
        lane.assign(inside);
        const std::size_t end = after.find(':');
        return cut(close + 1 + (end == std::string_view::npos ? 0 : end + 1));
      }
      if (rank || pid || (colon && (numbered || starts_with_word(inside, "default")))) {
        lane.assign(inside);
        return cut(close + 1 + (colon ? 1 : 0));
      }
      if (numbered && close < 5 && after.starts_with(" ")) {
        lane.assign(inside);
        return cut(close + 1);
      }
      // Kernel time, "[12345.678901]".
      if (text[0] == '[' && inside.find_first_not_of("0123456789. ") == std::string_view::npos &&
          inside.find('.') != std::string_view::npos) {
        return cut(close + 1);
      }
      // The place that logged, "[engine.py:160]".
      if (const std::size_t suffix = inside.find(".py:");
          suffix != std::string_view::npos && suffix + 4 < inside.size() &&
          digits(inside.substr(suffix + 4)) == inside.size() - suffix - 4) {
        return cut(close + 1);
      }
      for (const std::string_view level :
           {"info", "warning", "warn", "error", "debug", "critical"}) {
        if (inside.size() <= level.size() + 1 && starts_with_word(inside, level)) {
          return cut(close + 1 + (colon ? 1 : 0));
        }
      }
    }
  }
  // "3: " of srun --label, "rank3: ", "worker-1: ", "name | " of docker compose, "trainer_0/1 |".
  std::size_t i = 0;
  while (i < text.size() && (is_word(text[i]) || text[i] == '/')) ++i;
  if (i > 0 && i < 48) {
    const std::string_view name = text.substr(0, i);
    const std::string_view after = text.substr(i);
    const bool number = digits(name) == name.size();
    if (number && i <= 5 && after.starts_with(": ")) {
      lane.assign(name);
      return cut(i + 1);
    }
    if (starts_with_word(name, "rank") && name.size() > 4 &&
        digits(name.substr(4)) == name.size() - 4 && after.starts_with(":")) {
      lane.assign(name);
      return cut(i + 1);
    }
    if (starts_with_word(name, "rank") && name.size() == 4 && after.size() > 2 && after[0] == ' ' &&
        is_digit(after[1])) {
      const std::size_t n = digits(after.substr(1));
      if (after.size() > n + 1 && after[n + 1] == ':') {
        lane.assign(text.substr(0, i + 1 + n));
        return cut(i + n + 2);
      }
    }
    // A name with a digit before a bar or a colon and a blank: a host, a container, a worker.
    const bool has_digit = name.find_first_of("0123456789") != std::string_view::npos;
    const std::string_view bar = trimmed(after);
    if (has_digit && !number && bar.starts_with("| ")) {
      lane.assign(name);
      return cut(static_cast<std::size_t>(bar.data() - text.data()) + 1);
    }
    if (has_digit && is_alpha(name.back() == ':' ? 'a' : name[0]) && !number &&
        name.find('.') == std::string_view::npos && name.find('/') == std::string_view::npos &&
        after.starts_with(": ") && name.find('-') != std::string_view::npos) {
      lane.assign(name);
      return cut(i + 1);
    }
    for (const std::string_view level : {"INFO", "WARNING", "ERROR", "CRITICAL", "DEBUG"}) {
      if (name != level) continue;
      if (after.starts_with(":")) {
        // "ERROR:root:text", Python's default; exceptions' names begin with a capital.
        std::size_t end = 1;
        while (end < after.size() && (is_word(after[end]) || after[end] == '.')) ++end;
        const bool named =
            end < after.size() && after[end] == ':' && after[1] >= 'a' && after[1] <= 'z';
        return cut(i + 1 + (named ? end : 0));
      }
      if (after.starts_with(" -") || time_stamp(trimmed(after)) != 0) {
        return cut(i + 1);
      }
    }
    if (name == "stderr" || name == "stdout") {
      if (after.starts_with(" F ") || after.starts_with(" P ")) return cut(i + 3);
    }
    if (name == "-" && after.starts_with(" ")) return cut(1);
  }
  return false;
}

void add(std::string_view piece, std::uint64_t number, std::vector<LogLine>& out) {
  LogLine line;
  line.number = number;
  const std::string text = plain(piece);
  std::string_view rest = text;
  // A handful nest at most: time, rank, logger.
  for (int i = 0; i < 6 && cut_prefix(rest, line.lane); ++i) {
  }
  line.text.assign(trimmed(rest));
  out.push_back(std::move(line));
}

}  // namespace

void tidy_line(std::string_view raw, std::uint64_t number, std::vector<LogLine>& out) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const bool escaped_newline =
        raw[i] == '\\' && i + 1 < raw.size() && raw[i + 1] == 'n' &&
        // "C:\new" and the like: a drive's path goes on as a word, a
        // message's line goes on with a blank, a capital or a sign.
        (i + 2 >= raw.size() || !std::islower(static_cast<unsigned char>(raw[i + 2])));
    if (raw[i] == '\r' || escaped_newline) {
      if (i > begin) add(raw.substr(begin, i - begin), number, out);
      begin = i + (escaped_newline ? 2 : 1);
      i = begin - 1;
    }
  }
  if (begin < raw.size() || raw.empty()) add(raw.substr(begin), number, out);
}

}  // namespace lowtide
