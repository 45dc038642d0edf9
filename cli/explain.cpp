// lowtide explain: from logs, snapshots and tapes to the cause.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "cli/verbs.h"
#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/diagnose/diagnosis.h"
#include "src/evidence/snapshot_reader.h"
#include "src/report/explanation.h"
#include "src/report/redaction.h"
#include "src/tape/tape_file.h"

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

  // The first bytes, which read() gives again.
  std::string_view head() {
    char buffer[64];
    while (head_.size() < sizeof buffer) {
      const std::size_t got = read_more(buffer, sizeof buffer - head_.size());
      if (got == 0) break;
      head_.append(buffer, got);
    }
    return head_;
  }
  std::size_t read(char* buffer, std::size_t capacity) {
    if (given_ == head_.size()) return read_more(buffer, capacity);
    const std::size_t take = std::min(capacity, head_.size() - given_);
    std::memcpy(buffer, head_.data() + given_, take);
    given_ += take;
    return take;
  }
  std::string rest() {
    std::string all;
    std::vector<char> buffer(1 << 16);
    while (const std::size_t got = read(buffer.data(), buffer.size()))
      all.append(buffer.data(), got);
    return all;
  }

 private:
  std::size_t read_more(char* buffer, std::size_t capacity) const {
    for (;;) {
      const ssize_t got = ::read(descriptor_, buffer, capacity);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) fail("read");
    }
  }
  [[noreturn]] void fail(const char* verb) const {
    throw IoError(
        "LT0611",
        concat("cannot ", verb, " ", name_, ": ", std::strerror(errno),
               ". Give the path of a log, a snapshot or a tape, or - for standard input"));
  }
  std::string name_;
  int descriptor_ = -1;
  std::string head_;
  std::size_t given_ = 0;  // of head_, by read()
};

// Files that are no logs, kept until all logs are read: what they say is asked with those.
struct Waiting {
  std::string name;
  std::optional<Snapshot> snapshot;
  std::optional<Tape> tape;
};

Waiting read_other(InputFile& file, const std::string& path, const std::string& name) {
  Waiting waiting{name, {}, {}};
  if (is_tape(file.head())) {
    waiting.tape = parse_tape(file.rest());
  } else if (path == "-") {
    const std::string bytes = file.rest();
    ByteSource source(name, std::as_bytes(std::span(bytes)));
    waiting.snapshot = read_snapshot(source);
  } else {
    waiting.snapshot = read_snapshot(path);
  }
  return waiting;
}

// What names people is learned from whole snapshots, little of which is shown.
Evidence gather(const std::vector<std::string>& paths, Redactor& redactor) {
  Evidence evidence;
  std::vector<Waiting> waiting;
  std::exception_ptr last_problem;
  for (const std::string& path : paths) {
    InputFile file(path);
    const std::string name = path == "-" ? std::string("standard input") : path;
    // A packed file goes the snapshot's way, whose reader says how to unpack it.
    if (!is_pickle(file.head()) && !is_tape(file.head()) && !is_packed(file.head())) {
      evidence.logs.push_back(read_log(
          [&file](char* buffer, std::size_t capacity) { return file.read(buffer, capacity); },
          name));
      continue;
    }
    // A damaged file is no reason to keep silent about the others.
    try {
      waiting.push_back(read_other(file, path, name));
    } catch (const FormatError& error) {
      last_problem = std::current_exception();
      evidence.unreadable.push_back(error.what());
    }
  }
  if (last_problem && evidence.logs.empty() && waiting.empty()) {
    std::rethrow_exception(last_problem);
  }
  for (Waiting& one : waiting) {
    if (one.snapshot) {
      redactor.learn(*one.snapshot);
      evidence.snapshots.push_back(facts_of(*one.snapshot, evidence.logs));
    } else {
      evidence.tapes.push_back(facts_of(*one.tape, one.name));
    }
    one = {};
  }
  return evidence;
}

int run(const Arguments& arguments) {
  Redactor redactor;
  const Evidence evidence = gather(arguments.words(), redactor);
  const Diagnosis diagnosis = diagnose(evidence.logs, evidence.snapshots, evidence.tapes);
  const bool redact = arguments.has("redact");
  const Json json = explanation_json(diagnosis, evidence);
  if (redact) redactor.learn(json);
  if (arguments.has("json")) {
    std::puts(to_text(redact ? redactor.json(json) : json, 2).c_str());
  } else {
    const std::string text = explanation_text(diagnosis, evidence);
    std::fputs((redact ? redactor.text(text) : text).c_str(), stdout);
  }
  return kDone;
}

}  // namespace

Verb explain_verb() {
  return {.name = "explain",
          .summary = "say why memory ran out, and what to do: from logs, snapshots, tapes",
          .words = {{"FILE",
                     "logs of training, the kernel, the job system; memory snapshots; tapes; any "
                     "number, told apart by their content; - for standard input",
                     true, true}},
          .flags = {{"json", "", "print the result as JSON", ""},
                    {"redact", "", "replace paths, user and host names", ""}},
          .examples = {"lowtide explain train.log snapshot.pickle",
                       "dmesg -T | lowtide explain train.log - --json"},
          .run = run};
}

}  // namespace lowtide
