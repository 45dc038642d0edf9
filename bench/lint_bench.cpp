// Lint over folders of Python: lines a second, and that nothing crashes.
//
//   lint_bench FOLDER...      prints one row a folder and writes nothing
//
// Each folder is linted once to warm the file cache, then five times; the median and the spread are
// of the wall clock, in one process, on all cores, as the verb runs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "lowtide/error.h"
#include "src/lint/lint.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: lint_bench FOLDER...\n");
    return 2;
  }
  std::printf("%9s %9s %9s %9s %9s %12s  %s\n", "files", "lines", "median s", "min s", "max s",
              "s/100k lines", "folder");
  for (int i = 1; i < argc; ++i) {
    lowtide::lint::Options options;
    options.paths = {argv[i]};
    try {
      lowtide::lint::Report report = lowtide::lint::run(options);
      std::vector<double> seconds;
      for (int run = 0; run < 5; ++run) {
        const auto begin = std::chrono::steady_clock::now();
        report = lowtide::lint::run(options);
        seconds.push_back(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      }
      std::sort(seconds.begin(), seconds.end());
      std::printf("%9zu %9zu %9.3f %9.3f %9.3f %12.3f  %s (%zu findings)\n", report.files,
                  report.lines, seconds[2], seconds[0], seconds[4],
                  seconds[2] * 1e5 / static_cast<double>(std::max<std::size_t>(report.lines, 1)),
                  argv[i], report.findings.size());
    } catch (const lowtide::Error& error) {
      std::fprintf(stderr, "lint_bench: %s\n", error.what());
      return 1;
    }
  }
  return 0;
}
