#pragma once
// [tool.lowtide.lint] of a pyproject.toml:
//
//   [tool.lowtide.lint]
//   select = ["history-accumulated"]      # these rules only
//   ignore = ["tensor-held"]              # all but these
//   exclude = ["third_party/*"]           # paths, beside the pyproject.toml
//   fairscale = true                      # it, or a stand-in, is there
//
//   [tool.lowtide.lint.per-file-ignores]
//   "tests/*" = ["eval-with-grad"]

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lowtide::lint {

struct Config {
  std::filesystem::path folder;  // of the pyproject.toml; empty when there is none
  std::vector<std::string> select, ignore, exclude;
  std::vector<std::pair<std::string, std::vector<std::string>>> per_file_ignores;
  bool fairscale = false;

  bool is_excluded(const std::filesystem::path& file) const;
  bool reports(const std::string& rule, const std::filesystem::path& file) const;
};

// Reads the text of a pyproject.toml; nothing when it has no [tool.lowtide.lint].
// Throws UsageError: LT0551 for an unknown rule, LT0552 for an unknown key or a value that cannot
// be read, with the line.
std::optional<Config> parse_config(std::string_view text, const std::filesystem::path& file);

// The nearest pyproject.toml with such a table, in the folder of `path` or above it.
Config find_config(const std::filesystem::path& path);

// "*" matches anything but "/", "**" anything; a pattern without "/" matches a name anywhere.
bool matches_pattern(std::string_view pattern, std::string_view path);

}  // namespace lowtide::lint
