// lowtide doctor: is everything here that Lowtide needs, and does libtorch behave as it must?

#include <cstdio>

#include "cli/health.h"
#include "cli/torch_module.h"
#include "cli/verbs.h"
#include "lowtide/version.h"
#include "src/base/json.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

const char* word_for(Health health) {
  switch (health) {
    case Health::kGood:
      return "ok";
    case Health::kMissing:
      return "missing";
    case Health::kBroken:
      return "broken";
    case Health::kNote:
      return "note";
  }
  return "";
}

std::vector<HealthCheck> examine() {
  std::vector<HealthCheck> checks;
  if (const auto problem = torch_module_problem()) {
    checks.push_back({"libtorch", Health::kMissing, *problem,
                      "pip install torch==" LOWTIDE_TORCH_VERSION
                      ", then build again: scripts/setup && scripts/build"});
    return checks;
  }
  using Examine = void(std::vector<HealthCheck>&);
  reinterpret_cast<Examine*>(torch_module_entry("lowtide_examine_torch"))(checks);
  return checks;
}

int run(const Arguments& arguments) {
  const std::vector<HealthCheck> checks = examine();
  std::size_t failures = 0;
  for (const HealthCheck& check : checks) {
    if (check.health == Health::kMissing || check.health == Health::kBroken) ++failures;
  }
  if (arguments.has("json")) {
    Json report = Json::object();
    report["version"] = LOWTIDE_VERSION_STRING;
    report["built_for_torch"] = LOWTIDE_TORCH_VERSION;
    report["healthy"] = failures == 0;
    report["checks"] = Json::array();
    for (const HealthCheck& check : checks) {
      Json row = Json::object();
      row["name"] = check.name;
      row["health"] = word_for(check.health);
      row["detail"] = check.detail;
      row["remedy"] = check.remedy;
      report["checks"].push_back(std::move(row));
    }
    std::puts(to_text(report, 2).c_str());
  } else {
    std::puts("lowtide " LOWTIDE_VERSION_STRING ", built for torch " LOWTIDE_TORCH_VERSION);
    for (const HealthCheck& check : checks) {
      std::printf("  %-8s %-20s %s\n", word_for(check.health), check.name.c_str(),
                  check.detail.c_str());
      if (!check.remedy.empty())
        std::printf("  %-8s %-20s get it: %s\n", "", "", check.remedy.c_str());
    }
    std::puts(failures == 0
                  ? "Everything that Lowtide needs is here. Next: lowtide train --help"
                  : concat(failures, " of ", checks.size(), " checks failed; see above.").c_str());
  }
  return failures == 0 ? kDone : kFailed;
}

}  // namespace

Verb doctor_verb() {
  return {.name = "doctor",
          .summary = "check libtorch, the hooks into it, this CPU, and what is missing",
          .words = {},
          .flags = {{"json", "", "print the result as JSON", ""}},
          .examples = {"lowtide doctor", "lowtide doctor --json"},
          .run = run};
}

}  // namespace lowtide
