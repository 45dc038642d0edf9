// Tested by tests/train/trainer_test.cpp.
#include "src/train/run_file.h"

#include <c10/core/GradMode.h>

#include "lowtide/error.h"
#include "lowtide/safetensors.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr const char* kMetadataKey = "lowtide_run";
constexpr std::int64_t kVersion = 1;
constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kOptimizerPrefix = "optimizer.";

// A row of numbers a step: a run of a million steps must not become a file of keys.
Json record_to_json(const StepRecord& record) {
  Json row = Json::array();
  for (const double value : {record.loss, record.classification, record.l1, record.giou,
                             record.gradient_norm, record.seconds}) {
    row.push_back(value);
  }
  row.push_back(record.peak_bytes);
  return row;
}

StepRecord record_from_json(const Json& row, std::int64_t step) {
  const Json::Array& values = row.as_array();
  if (values.size() != 7) {
    throw FormatError("LT0525", concat("cannot resume: the record of step ", step, " has ",
                                       values.size(), " numbers instead of 7"));
  }
  return {step,
          values[0].as_double(),
          values[1].as_double(),
          values[2].as_double(),
          values[3].as_double(),
          values[4].as_double(),
          values[5].as_double(),
          values[6].as_uint64()};
}

}  // namespace

void save_run(const std::filesystem::path& file, const SavedRun& run) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : run.model) tensors.emplace(concat(kModelPrefix, name), tensor);
  for (const auto& [name, tensor] : run.optimizer) {
    tensors.emplace(concat(kOptimizerPrefix, name), tensor);
  }
  tensors.emplace("generator", run.generator);
  Json header = Json::object();
  header["version"] = kVersion;
  header["settings"] = to_json(run.settings);
  header["data_fingerprint"] = run.data_fingerprint;
  Json records = Json::array();
  for (const StepRecord& record : run.records) records.push_back(record_to_json(record));
  header["records"] = std::move(records);
  save_safetensors(file, tensors, {{kMetadataKey, to_text(header)}});
}

SavedRun load_run(const std::filesystem::path& file) {
  SafetensorsFile loaded = load_safetensors(file);
  const auto fail = [&](const std::string& reason) {
    throw FormatError("LT0525", concat("cannot resume from ", file, ": ", reason,
                                       ". Give a checkpoint.safetensors that this version of "
                                       "`lowtide train` wrote"));
  };
  const auto metadata = loaded.metadata.find(kMetadataKey);
  if (metadata == loaded.metadata.end()) fail("it holds tensors, but no training run");
  const Json header = parse_json(metadata->second);
  if (const auto version = header.at("version").as_int64(); version != kVersion) {
    fail(concat("it is of version ", version, ", and version ", kVersion, " is read"));
  }
  SavedRun run;
  run.settings = settings_from_json(header.at("settings"));
  run.data_fingerprint = header.at("data_fingerprint").as_uint64();
  for (const Json& row : header.at("records").as_array()) {
    run.records.push_back(record_from_json(row, std::ssize(run.records)));
  }
  for (auto& [name, tensor] : loaded.tensors) {
    if (name.starts_with(kModelPrefix)) {
      run.model.emplace(name.substr(kModelPrefix.size()), std::move(tensor));
    } else if (name.starts_with(kOptimizerPrefix)) {
      run.optimizer.emplace(name.substr(kOptimizerPrefix.size()), std::move(tensor));
    } else if (name == "generator") {
      run.generator = std::move(tensor);
    } else {
      fail(concat("it holds an unknown tensor, ", name));
    }
  }
  if (!run.generator.defined()) fail("the state of the random generator is missing");
  if (std::ssize(run.records) > run.settings.steps) fail("it has more steps than its settings say");
  return run;
}

void restore_tensors(const std::map<std::string, at::Tensor>& saved,
                     const std::map<std::string, at::Tensor>& into, const std::string& what) {
  const auto fail = [&](const std::string& name, const char* reason) {
    throw FormatError("LT0525",
                      concat("cannot resume: the checkpoint's ", what, " ", name, " ", reason,
                             ". It was made by another network; start a new run"));
  };
  for (const auto& [name, tensor] : into) {
    const auto found = saved.find(name);
    if (found == saved.end()) fail(name, "is missing");
    if (found->second.sizes() != tensor.sizes()) fail(name, "has another shape");
    if (found->second.scalar_type() != tensor.scalar_type()) fail(name, "has another dtype");
  }
  for (const auto& [name, tensor] : saved) {
    if (into.count(name) == 0) fail(name, "belongs to nothing");
  }
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : into) tensor.copy_(saved.at(name));
}

}  // namespace lowtide
