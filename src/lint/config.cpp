#include "src/lint/config.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/lint/rules.h"

namespace lowtide::lint {
namespace {

// The part of TOML that the table needs: strings, booleans, arrays of strings over lines, comments.
class Reader {
 public:
  Reader(std::string_view text, const std::filesystem::path& file) : text_(text), file_(file) {}

  std::optional<Config> read() {
    bool found = false;
    Config config;
    std::string table;
    while (skip_to_content()) {
      if (text_[at_] == '[') {
        const std::size_t end = text_.find('\n', at_);
        std::string header(text_.substr(at_, end == std::string_view::npos ? end : end - at_));
        header = header.substr(0, header.find('#'));
        std::erase_if(header, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
        table = header;
        if (table == "[tool.lowtide.lint]" || table == "[tool.lowtide.lint.per-file-ignores]") {
          found = true;
        }
        at_ = end == std::string_view::npos ? text_.size() : end;
        continue;
      }
      if (table == "[tool.lowtide.lint]") {
        entry(config);
      } else if (table == "[tool.lowtide.lint.per-file-ignores]") {
        const std::string pattern = key();
        config.per_file_ignores.emplace_back(pattern, rules_of(strings()));
      } else {
        skip_line();
      }
    }
    if (!found) return std::nullopt;
    return config;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) {
    const auto line =
        1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    throw UsageError("LT0552",
                     concat("cannot read ", file_.string(), ", line ", line, ": ", problem,
                            ". [tool.lowtide.lint] has select, ignore and exclude (lists of "
                            "strings), fairscale (true or false) and per-file-ignores"));
  }
  bool skip_to_content() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        skip_line();
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        return true;
      }
    }
    return false;
  }
  void skip_line() {
    const std::size_t end = text_.find('\n', at_);
    at_ = end == std::string_view::npos ? text_.size() : end + 1;
  }
  std::string key() {
    std::string out;
    if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'')) {
      out = quoted();
    } else {
      while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
                                    text_[at_] == '-' || text_[at_] == '_')) {
        out += text_[at_++];
      }
    }
    if (!skip_to_content() || text_[at_] != '=') refuse(concat("no = after \"", out, "\""));
    ++at_;
    skip_to_content();
    return out;
  }
  std::string quoted() {
    const char quote = text_[at_++];
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\n') refuse("a string that does not end");
      if (quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      out += text_[at_++];
    }
    if (at_ == text_.size()) refuse("a string that does not end");
    ++at_;
    return out;
  }
  std::vector<std::string> strings() {
    if (at_ >= text_.size() || text_[at_] != '[') refuse("not a list of strings");
    ++at_;
    std::vector<std::string> out;
    while (skip_to_content()) {
      if (text_[at_] == ']') {
        ++at_;
        return out;
      }
      if (text_[at_] == ',') {
        ++at_;
        continue;
      }
      if (text_[at_] != '"' && text_[at_] != '\'') refuse("not a list of strings");
      out.push_back(quoted());
    }
    refuse("a list that does not end");
  }
  std::vector<std::string> rules_of(std::vector<std::string> names) {
    for (const std::string& name : names) find_rule(name);
    return names;
  }
  void entry(Config& config) {
    const std::size_t begin = at_;
    const std::string name = key();
    if (name == "select") {
      config.select = rules_of(strings());
    } else if (name == "ignore") {
      config.ignore = rules_of(strings());
    } else if (name == "exclude") {
      config.exclude = strings();
    } else if (name == "fairscale") {
      if (text_.substr(at_, 4) == "true") {
        config.fairscale = true;
      } else if (text_.substr(at_, 5) != "false") {
        refuse("fairscale is true or false");
      }
      skip_line();
    } else {
      at_ = begin;
      refuse(concat("unknown key \"", name, "\""));
    }
  }

  std::string_view text_;
  const std::filesystem::path& file_;
  std::size_t at_ = 0;
};

bool glob(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.substr(0, 2) == "**") {
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (glob(pattern.substr(2), text.substr(i))) return true;
    }
    return false;
  }
  if (pattern[0] == '*') {
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (glob(pattern.substr(1), text.substr(i))) return true;
      if (i < text.size() && text[i] == '/') break;
    }
    return false;
  }
  if (text.empty() || (pattern[0] != '?' && pattern[0] != text[0])) return false;
  return glob(pattern.substr(1), text.substr(1));
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view path) {
  if (pattern.empty()) return false;
  if (pattern.back() == '/') pattern.remove_suffix(1);
  // Every tail of the path may match, and what lies below a match matches too.
  for (std::size_t begin = 0;;) {
    for (std::size_t end = path.size();; end = path.rfind('/', end - 1)) {
      if (end == std::string_view::npos || end <= begin) break;
      if (glob(pattern, path.substr(begin, end - begin))) return true;
      if (end == 0) break;
    }
    if (pattern.find('/') != std::string_view::npos) return false;
    begin = path.find('/', begin);
    if (begin == std::string_view::npos) return false;
    ++begin;
  }
}

bool Config::is_excluded(const std::filesystem::path& file) const {
  const std::string path = std::filesystem::relative(file, folder).generic_string();
  return std::any_of(exclude.begin(), exclude.end(),
                     [&](const std::string& pattern) { return matches_pattern(pattern, path); });
}

bool Config::reports(const std::string& rule, const std::filesystem::path& file) const {
  const auto has = [&](const std::vector<std::string>& list) {
    return std::find(list.begin(), list.end(), rule) != list.end();
  };
  if (!select.empty() && !has(select)) return false;
  if (has(ignore)) return false;
  if (per_file_ignores.empty()) return true;
  const std::string path = std::filesystem::relative(file, folder).generic_string();
  return std::none_of(per_file_ignores.begin(), per_file_ignores.end(), [&](const auto& entry) {
    return matches_pattern(entry.first, path) && has(entry.second);
  });
}

std::optional<Config> parse_config(std::string_view text, const std::filesystem::path& file) {
  auto config = Reader(text, file).read();
  if (config) config->folder = std::filesystem::absolute(file).parent_path();
  return config;
}

Config find_config(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  fs::path folder = fs::absolute(path);
  if (!fs::is_directory(folder)) folder = folder.parent_path();
  for (;; folder = folder.parent_path()) {
    const fs::path file = folder / "pyproject.toml";
    if (std::ifstream in(file); in) {
      std::stringstream text;
      text << in.rdbuf();
      if (auto config = parse_config(text.str(), file)) return *config;
    }
    if (folder == folder.parent_path()) return {};
  }
}

}  // namespace lowtide::lint
