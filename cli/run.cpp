// lowtide run: a Python program inside a budget; lowtide record: its step as a tape; lowtide
// predict: its peak without running it at full size. The package does them
// (python/lowtide/_run.py); this finds the Python that has the package, and becomes it.

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr int kNotFound = 127;

std::string default_python() {
  if (const char* environment = std::getenv("VIRTUAL_ENV")) {
    const std::string python = concat(environment, "/bin/python");
    if (access(python.c_str(), X_OK) == 0) return python;
  }
  return "python3";
}

std::filesystem::path program_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

// The Python that prepares the run has the package: that of the environment in which this program
// is installed, else the one that the command runs under.
std::string python_with_package(const Arguments& arguments, const std::string& python) {
  const std::string beside = (program_path().parent_path() / "python").string();
  if (access(beside.c_str(), X_OK) == 0) return beside;
  const std::string& first = arguments.words()[0];
  const std::string name = std::filesystem::path(first).filename().string();
  return name.starts_with("python") ? first : python;
}

// The package that was built beside this program is found without being installed.
void show_package_of_build() {
  const std::filesystem::path package = program_path().parent_path().parent_path() / "python";
  if (!std::filesystem::exists(package / "lowtide")) return;
  const char* before = std::getenv("PYTHONPATH");
  const std::string path = before == nullptr || *before == '\0'
                               ? package.string()
                               : concat(package.string(), ":", before);
  setenv("PYTHONPATH", path.c_str(), 1);
}

int pass_on(const std::string& verb, const Arguments& arguments,
            const std::vector<std::string>& flags, const std::vector<std::string>& switches = {}) {
  const std::string python = arguments.has("python") ? arguments.text("python") : default_python();
  std::vector<std::string> words{
      python_with_package(arguments, python), "-m", "lowtide", verb, "--python", python};
  for (const std::string& flag : flags) {
    if (!arguments.has(flag)) continue;
    words.push_back("--" + flag);
    if (flag != "watch") words.push_back(arguments.text(flag));
  }
  for (const std::string& one : switches) {
    if (arguments.has(one)) words.push_back("--" + one);
  }
  words.push_back("--");
  words.insert(words.end(), arguments.words().begin(), arguments.words().end());
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  show_package_of_build();
  execvp(raw[0], raw.data());
  const int problem = errno;
  std::fprintf(stderr, "lowtide: %s: cannot start %s: %s. Name the Python with --python\n",
               verb.c_str(), raw[0], std::strerror(problem));
  return kNotFound;
}

int run(const Arguments& arguments) {
  if (!arguments.has("budget") && !arguments.has("watch")) {
    throw UsageError(
        "LT0703",
        "run: --budget is missing: a number of bytes, 6GiB, or a share of the step such "
        "as 50%; or --watch, to see what grows. See: lowtide run --help");
  }
  return pass_on("run", arguments, {"budget", "watch", "report", "spill", "plan"});
}

int record(const Arguments& arguments) { return pass_on("record", arguments, {"output"}); }

int predict(const Arguments& arguments) {
  return pass_on("predict", arguments, {"batch", "batch-option"}, {"json"});
}

const Word kCommand{.name = "COMMAND",
                    .help = "a script that ends in .py, or a program, with its arguments",
                    .repeated = true};
const Flag kPython{"python", "PROGRAM",
                   "the Python for a script; else that of VIRTUAL_ENV, else python3", ""};

}  // namespace

Verb run_verb() {
  return {.name = "run",
          .summary = "run a Python program with a limit on the bytes of its tensors, or watched",
          .words = {kCommand},
          .flags = {{"budget", "B", "bytes, 6GiB, or a share of the step such as 50%", ""},
                    {"watch", "", "name what grows from step to step, and what keeps it", ""},
                    {"report", "FILE", "also write the report as JSON", ""},
                    {"spill", "DIR",
                     "what cannot be computed again, or takes longer than to read back, goes to a "
                     "file there",
                     ""},
                    {"plan", "FILE",
                     "what to drop, as lowtide plan wrote it for a tape of the step; else that is "
                     "planned after the first step",
                     ""},
                    kPython},
          .examples = {"lowtide run --budget 6GiB -- python train.py --epochs 3",
                       "lowtide run --budget 50% --report out.json train.py",
                       "lowtide run --watch train.py"},
          .run = run,
          .passes_on = true};
}

Verb record_verb() {
  return {.name = "record",
          .summary = "write down what a training step of a Python program does, as a tape",
          .words = {kCommand},
          .flags = {{.name = "output",
                     .value_name = "FILE",
                     .help = "where the tape goes",
                     .default_value = "step.tape",
                     .letter = "o"},
                    kPython},
          .examples = {"lowtide record -o step.tape -- python train.py",
                       "lowtide plan step.tape --budget 6GiB"},
          .run = record,
          .passes_on = true};
}

Verb predict_verb() {
  return {
      .name = "predict",
      .summary = "the peak of a Python program's training steps, from small runs of it",
      .words = {kCommand},
      .flags = {{"batch", "N", "predict for this batch size; else the program's own", ""},
                {"batch-option", "NAME",
                 "the program's option for its batch size, such as --bs; else one is looked for, "
                 "and without one its DataLoaders are cut",
                 ""},
                {"json", "", "print the result as JSON", ""},
                kPython},
      .examples = {"lowtide predict train.py --batch-size 64",
                   "lowtide predict --json --batch 256 -- python train.py"},
      .run = predict,
      .passes_on = true};
}

}  // namespace lowtide
