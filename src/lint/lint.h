#pragma once
// Lint: the mistakes that cost memory, found in Python source and mended.
//
//   lint::Options options;
//   options.paths = {"train.py"};
//   lint::Report report = lint::run(options);
//   for (const lint::Finding& finding : report.findings) ...
//
// Files are independent of each other and are read on all cores; the report is the same each time.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/lint/config.h"
#include "src/lint/finding.h"

namespace lowtide::lint {

enum class FixMode { kNone, kSafe, kSuggested };

struct Options {
  std::vector<std::string> paths;  // files, and folders that are searched for .py and .ipynb
  FixMode fix = FixMode::kNone;
  bool write = false;  // write mended files back; else only report what would change
};

struct MendedFile {
  std::string path, before, after;
};

struct Report {
  std::vector<Finding> findings;  // the worst first, then by file and line; without the mended ones
  // What is as large as it has to be, such as a vocabulary: said, but no mistake. In the lines and
  // in SARIF only; by file and line.
  std::vector<Finding> notes;
  std::vector<MendedFile> mended;
  std::size_t files = 0, lines = 0, fixes = 0;
};

// Throws UsageError: LT0550 for a path that is not there, LT0551 and LT0552 for a bad config;
// IoError (LT0554) for a file that cannot be read or written.
Report run(const Options& options);

// The findings of one file's text. `has_fairscale`: see judge_source. `notes`: see Report.
std::vector<Finding> lint_source(std::string source, const std::string& file, bool has_fairscale,
                                 std::vector<Finding>* notes = nullptr);

}  // namespace lowtide::lint
