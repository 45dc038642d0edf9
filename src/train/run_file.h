#pragma once
// The checkpoint of a training run: all that the next step depends on, in one safetensors file.
//
//   save_run("checkpoint.safetensors", {settings, data.fingerprint, records, generator, tensors});
//   SavedRun run = load_run("checkpoint.safetensors");
//
// Tensors "model.NAME", "optimizer.exp_avg.NAME", "optimizer.exp_avg_sq.NAME",
// "optimizer.step.NAME" and "generator" (libtorch's default CPU generator), and the metadata
// "lowtide_run", a JSON object with version, settings, data fingerprint and the record of every
// step so far. The data order needs no entry: it follows from seed and step (dataset.h).

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "src/train/train_report.h"

namespace lowtide {

struct SavedRun {
  TrainSettings settings;
  std::uint64_t data_fingerprint = 0;
  std::vector<StepRecord> records;              // one a step done
  at::Tensor generator;                         // bytes
  std::map<std::string, at::Tensor> model;      // by parameter
  std::map<std::string, at::Tensor> optimizer;  // as AdamW::state() names them
};

// Appears whole or not at all. Throws what save_safetensors throws.
void save_run(const std::filesystem::path& file, const SavedRun& run);

// Throws FormatError (LT0525) for a file that is no checkpoint of a run or one of another version,
// and what load_safetensors and parse_json throw.
SavedRun load_run(const std::filesystem::path& file);

// Copies `saved` into the tensors of the same names. Throws FormatError (LT0525), before anything
// is changed, when a name is missing, additional, or of another shape or dtype.
void restore_tensors(const std::map<std::string, at::Tensor>& saved,
                     const std::map<std::string, at::Tensor>& into, const std::string& what);

}  // namespace lowtide
