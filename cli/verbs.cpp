#include "cli/verbs.h"

namespace lowtide {

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> all{run_verb(),   record_verb(),   predict_verb(), train_verb(),
                                     plan_verb(),  verify_verb(),   explain_verb(), errors_verb(),
                                     lint_verb(),  snapshot_verb(), replay_verb(),  report_verb(),
                                     doctor_verb()};
  return all;
}

}  // namespace lowtide
