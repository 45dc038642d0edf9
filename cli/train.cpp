#include "cli/torch_module.h"
#include "cli/verbs.h"

namespace lowtide {

Verb train_verb() {
  return {.name = "train",
          .summary = "train a Deformable DETR encoder on photographs with boxes",
          .words = {},
          .flags = {{"steps", "N", "optimizer steps to run", "200"}},
          .examples = {"lowtide train --steps 40", "lowtide train --compare --num-cp 6"},
          .run = [](const Arguments& arguments) {
            return run_in_torch_module("lowtide_train", arguments);
          }};
}

}  // namespace lowtide
