#include <cstdlib>

#include "cli/torch_module.h"
#include "cli/verbs.h"

namespace lowtide {

// Defaults in brackets in the text: a flag that is absent must be told from one that was given, for
// --resume takes the settings of the run that it goes on with.
Verb train_verb() {
  return {
      .name = "train",
      .summary = "train a Deformable DETR encoder on photographs with boxes",
      .words = {},
      .flags = {{"data", "DIR",
                 "images (PNG, JPEG) with PASCAL VOC or CSV boxes [those of the Python package "
                 "deepforest]",
                 ""},
                {"out", "DIR", "where checkpoint, pictures and report.json go", "out/train"},
                {"steps", "N", "optimizer steps in all [700]", ""},
                {"batch", "N", "crops a step [2]", ""},
                {"crop", "PIXELS", "side of a crop [160]", ""},
                {"shrink", "N", "reduce photographs by this factor first [2]", ""},
                {"layers", "N", "encoder layers [2]", ""},
                {"width", "N", "channels of a token, a multiple of 32 [128]", ""},
                {"lr", "RATE", "learning rate at its highest [0.0005]", ""},
                {"dropout", "SHARE", "dropout of the encoder [0]", ""},
                {"seed", "N", "of weights and crops; equal seeds give equal runs [0]", ""},
                {"num-cp", "N|auto",
                 "encoder layers to checkpoint: less memory, more time, same results; auto: the "
                 "smallest that fits --budget, found by a trial step for each",
                 "0"},
                {"budget", "BYTES|SHARE%",
                 "keep the steps inside so many bytes, or that share of what a step adds to what "
                 "stays: saved tensors are dropped and recomputed, results are the same",
                 ""},
                {"spill", "DIR",
                 "with --budget: saved tensors that cannot be computed again, or take longer than "
                 "to read back, go to a file there",
                 ""},
                {"plan", "FILE",
                 "with --budget: what to drop, as lowtide plan wrote it for a tape of the step; "
                 "else that is planned after the first step",
                 ""},
                {"resume", "FILE", "go on from a checkpoint with its settings", ""},
                {"save-every", "N", "steps between checkpoints, 0 for only at the end", "100"},
                {"threads", "N", "threads of libtorch [its own choice]", ""},
                {"compare", "",
                 "instead of training, run one step plain and within --budget, or without a budget "
                 "with checkpointing (--num-cp N, else all layers), and compare memory, time and "
                 "gradients",
                 ""},
                {"require-loss-ratio", "R", "exit with 1 when last/first loss is above R", ""},
                {"require-ap50", "A", "exit with 1 when AP at IoU 0.5 is below A", ""},
                {"json", "", "print the report as JSON", ""}},
      .examples = {"lowtide train --steps 60 --num-cp auto --budget 300MiB",
                   "lowtide train --budget 50%",
                   "lowtide train --compare --layers 6 --crop 320 --budget 50%"},
      .run = [](const Arguments& arguments) {
        // Before libtorch is loaded, which brings the OpenMP that reads it. A step is some hundred
        // short parallel regions: workers that spin at their ends cost a machine with other work on
        // it seven times the time.
        setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/0);
        return run_in_torch_module("lowtide_train", arguments);
      }};
}

}  // namespace lowtide
