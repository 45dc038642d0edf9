#pragma once
// A verb of the command line as data: parsing, help and tests all read the same table.
//
//   lowtide <verb> [flags] [words]
//
// Each verb has a file cli/<verb>.cpp with its table and its torch-free part. What needs libtorch
// stands in cli/torch/<verb>.cpp, which is built into a module that is loaded when it is first
// needed (torch_module.h), so that `lowtide` itself starts in milliseconds and without torch.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lowtide/bytes.h"
#include "lowtide/export.h"

namespace lowtide {

// What the process exits with.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kWrongUsage = 2,
  kNoPlanFits = 3,
  kResultDiffers = 4,
  kInterrupted = 130,
};

struct Flag {
  std::string name;                       // without the dashes: "num-cp"
  std::string value_name;                 // shown in help, "N"; empty for a switch
  std::string help;                       // one sentence, no full stop
  std::string default_value;              // used when the flag is absent; empty for none
  std::vector<std::string> choices = {};  // allowed values; empty for any
  bool repeats = false;                   // may be given several times: see Arguments::texts
  std::string letter = {};                // "o" for -o; empty for none
};

struct Word {
  std::string name;  // shown in help, "FILE"
  std::string help;
  bool required = true;
  bool repeated = false;  // the last word only: may be given any number of times
};

// What was given for a verb's flags and words. Each getter throws UsageError (LT0702), naming the
// flag and the text, when the text cannot be read as asked.
class LOWTIDE_API Arguments {
 public:
  Arguments(std::map<std::string, std::string> values, std::vector<std::string> words)
      : values_(std::move(values)), words_(std::move(words)) {}

  // True when the flag was given or has a default.
  bool has(const std::string& flag) const { return values_.count(flag) != 0; }
  const std::string& text(const std::string& flag) const;
  // All values of a flag that repeats, in order; none when it is absent.
  std::vector<std::string> texts(const std::string& flag) const;
  std::int64_t integer(const std::string& flag) const;
  double number(const std::string& flag) const;
  Bytes bytes(const std::string& flag) const;
  const std::vector<std::string>& words() const { return words_; }

 private:
  std::map<std::string, std::string> values_;
  std::vector<std::string> words_;
};

struct Verb {
  std::string name;
  std::string summary;  // one line
  std::vector<Word> words;
  std::vector<Flag> flags;
  std::vector<std::string> examples;  // two real command lines
  int (*run)(const Arguments&);
  bool passes_on =
      false;  // the words are another program's command: no flag after the first is ours
};

// All verbs, in the order in which help shows them.
const std::vector<Verb>& verbs();

}  // namespace lowtide
