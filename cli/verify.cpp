#include "cli/torch_module.h"
#include "cli/verbs.h"

namespace lowtide {

Verb verify_verb() {
  return {.name = "verify",
          .summary = "hold the encoder against a file of expected values",
          .words = {{"FILE", "a parity file, see docs/formats/parity.md"}},
          .flags = {{"num-cp", "N", "encoder layers to checkpoint", "0"},
                    {"json", "", "print the result as JSON", ""}},
          .examples = {"lowtide verify tests/data/detr/p1_basic.safetensors",
                       "lowtide verify --num-cp 2 --json p1_basic.safetensors"},
          .run = [](const Arguments& arguments) {
            return run_in_torch_module("lowtide_verify", arguments);
          }};
}

}  // namespace lowtide
