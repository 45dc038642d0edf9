// lowtide lint: the mistakes that cost memory, found in Python source.

#include "src/lint/lint.h"

#include <cstdio>

#include "cli/verbs.h"
#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/lint/fixes.h"
#include "src/lint/report.h"
#include "src/lint/rules.h"

namespace lowtide {
namespace {

std::string counted(std::size_t count, const char* one, const char* many) {
  return concat(count, " ", count == 1 ? one : many);
}

int run(const Arguments& arguments) {
  if (arguments.has("explain")) {
    std::fputs(std::string(lint::find_rule(arguments.text("explain")).page).c_str(), stdout);
    return kDone;
  }
  lint::Options options;
  options.paths = arguments.words();
  if (options.paths.empty()) {
    throw UsageError("LT0553",
                     "lint: missing PATH (a file or folder to check). See: lowtide lint --help");
  }
  if (arguments.has("json") && arguments.has("sarif")) {
    throw UsageError("LT0553",
                     "lint: --json and --sarif both want standard output: give one of them");
  }
  const bool fix = arguments.has("fix");
  const bool diff = arguments.has("diff");
  if (arguments.has("suggested") && !fix && !diff) {
    throw UsageError("LT0553",
                     "lint: --suggested says which fixes to apply: give --fix or --diff too");
  }
  if (fix || diff) {
    options.fix = arguments.has("suggested") ? lint::FixMode::kSuggested : lint::FixMode::kSafe;
    options.write = fix && !diff;
  }
  const lint::Report report = lint::run(options);

  const bool machine = arguments.has("json") || arguments.has("sarif");
  // The diff goes where the findings do, unless those are for a program.
  if (diff) {
    for (const lint::MendedFile& file : report.mended) {
      std::fputs(lint::unified_diff(file.path, file.before, file.after).c_str(),
                 machine ? stderr : stdout);
    }
  }
  if (arguments.has("json")) {
    std::fputs(lint::to_json(report).c_str(), stdout);
  } else if (arguments.has("sarif")) {
    std::fputs(lint::to_sarif(report).c_str(), stdout);
  } else if (!diff) {
    std::fputs(lint::to_lines(report).c_str(), stdout);
  }
  const std::string mended = report.fixes == 0
                                 ? std::string()
                                 : concat(", ", counted(report.fixes, "fix", "fixes"),
                                          options.write ? " applied" : " to apply with --fix");
  std::fprintf(stderr, "lint: %s in %s%s%s\n",
               counted(report.findings.size(), "finding", "findings").c_str(),
               counted(report.files, "file", "files").c_str(), mended.c_str(),
               report.findings.empty()
                   ? ""
                   : concat(". Next: lowtide lint --explain ", report.findings[0].rule).c_str());
  return report.findings.empty() && (!diff || report.mended.empty()) ? kDone : kFailed;
}

}  // namespace

Verb lint_verb() {
  return {
      .name = "lint",
      .summary = "find and mend what costs memory in PyTorch programs, in their source",
      .words = {{.name = "PATH",
                 .help = "files, and folders to search for .py and .ipynb",
                 .required = false,
                 .repeated = true}},
      .flags = {{"fix", "", "mend what can be mended with bit-equal weights", ""},
                {"suggested", "", "with --fix or --diff: also what changes training or logs", ""},
                {"diff", "", "show what --fix would change, and change nothing", ""},
                {"json", "", "print the findings as one JSON array", ""},
                {"sarif", "", "print the findings as SARIF 2.1.0", ""},
                {"explain", "RULE", "print a rule's page: why, an example, what is right", ""}},
      .examples = {"lowtide lint train.py src", "lowtide lint --explain history-accumulated"},
      .run = run};
}

}  // namespace lowtide
