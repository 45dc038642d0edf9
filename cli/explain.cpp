// lowtide explain: from logs to the cause.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "cli/verbs.h"
#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/diagnose/diagnosis.h"
#include "src/report/explanation.h"
#include "src/report/redaction.h"

namespace lowtide {
namespace {

// An open file, read from its begin to its end.
class InputFile {
 public:
  explicit InputFile(const std::string& name) : name_(name) {
    descriptor_ = name == "-" ? STDIN_FILENO : open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail("open");
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() {
    if (descriptor_ > STDIN_FILENO) close(descriptor_);
  }
  std::size_t read(char* buffer, std::size_t capacity) const {
    for (;;) {
      const ssize_t got = ::read(descriptor_, buffer, capacity);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) fail("read");
    }
  }

 private:
  [[noreturn]] void fail(const char* verb) const {
    throw IoError("LT0611", concat("cannot ", verb, " ", name_, ": ", std::strerror(errno),
                                   ". Give the path of a log, or - for standard input"));
  }
  std::string name_;
  int descriptor_ = -1;
};

int run(const Arguments& arguments) {
  std::vector<LogEvidence> logs;
  for (const std::string& name : arguments.words()) {
    const InputFile file(name);
    logs.push_back(read_log(
        [&file](char* buffer, std::size_t capacity) { return file.read(buffer, capacity); },
        name == "-" ? std::string("standard input") : name));
  }
  const Diagnosis diagnosis = diagnose(logs);
  Redactor redactor;
  const bool redact = arguments.has("redact");
  const Json json = explanation_json(diagnosis, logs);
  if (redact) redactor.learn(json);
  if (arguments.has("json")) {
    std::puts(to_text(redact ? redactor.json(json) : json, 2).c_str());
  } else {
    const std::string text = explanation_text(diagnosis, logs);
    std::fputs((redact ? redactor.text(text) : text).c_str(), stdout);
  }
  return kDone;
}

}  // namespace

Verb explain_verb() {
  return {
      .name = "explain",
      .summary = "say from logs why memory ran out, and what to do",
      .words = {{"FILE",
                 "logs of training, the kernel, the job system; any number, - for standard input",
                 true, true}},
      .flags = {{"json", "", "print the result as JSON", ""},
                {"redact", "", "replace paths, user and host names", ""}},
      .examples = {"lowtide explain train.log", "dmesg -T | lowtide explain train.log - --json"},
      .run = run};
}

}  // namespace lowtide
