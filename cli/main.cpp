// lowtide: parses, calls, prints. See verb.h for how a verb is made.

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/parse.h"
#include "cli/verb.h"
#include "lowtide/error.h"
#include "lowtide/version.h"

namespace {

int run(const std::vector<std::string>& words) {
  using namespace lowtide;
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    // `lowtide help VERB` is what people type.
    if (words.size() > 1 && words[0] == "help") {
      std::fputs(help_text(find_verb(words[1])).c_str(), stdout);
      return kDone;
    }
    std::fputs(program_help_text().c_str(), words.empty() ? stderr : stdout);
    return words.empty() ? kWrongUsage : kDone;
  }
  if (words[0] == "--version") {
    std::puts("lowtide " LOWTIDE_VERSION_STRING " (built for torch " LOWTIDE_TORCH_VERSION ")");
    return kDone;
  }
  const Verb& verb = find_verb(words[0]);
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  const std::size_t end = end_of_flags(verb, rest);
  for (std::size_t i = 0; i < end; ++i) {
    if (rest[i] == "--help" || rest[i] == "-h") {
      std::fputs(help_text(verb).c_str(), stdout);
      return kDone;
    }
  }
  return verb.run(parse_arguments(verb, rest));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const lowtide::UsageError& error) {
    std::fprintf(stderr, "lowtide: %s\n", error.what());
    return lowtide::kWrongUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lowtide: %s\n", error.what());
    return lowtide::kFailed;
  }
}
