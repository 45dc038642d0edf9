// lowtide verify: flags to options, the report to stdout, the verdict as exit code.

#include <cstdio>
#include <string>

#include "cli/verb.h"
#include "src/base/json.h"
#include "src/nn/parity.h"

namespace lowtide {
namespace {

int verify(const Arguments& arguments) {
  const ParityReport report =
      verify_parity_file(arguments.words().front(), {.num_cp = arguments.integer("num-cp")});
  if (arguments.has("json")) {
    std::puts(to_text(parity_json(report), 2).c_str());
    for (const std::string& name : report.ignored) {
      std::fprintf(stderr, "lowtide: not compared: %s\n", name.c_str());
    }
  } else {
    std::fputs(parity_text(report).c_str(), stdout);
  }
  return report.passed ? kDone : kResultDiffers;
}

}  // namespace
}  // namespace lowtide

extern "C" LOWTIDE_API int lowtide_verify(const lowtide::Arguments& arguments) {
  return lowtide::verify(arguments);
}
