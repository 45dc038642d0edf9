#pragma once
// Holds the encoder, or the attention op alone, against a parity file: inputs, parameters and the
// outputs and gradients that they must give (docs/formats/parity.md).
//
//   ParityReport report = verify_parity_file("p1_basic.safetensors", {.num_cp = 2});
//   std::cout << parity_text(report);
//   return report.passed ? 0 : 4;
//
// What the file holds decides how it is read, never its name. It knows nothing of detectors: files
// with decoder and heads are refused.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lowtide/export.h"
#include "src/base/json.h"

namespace lowtide {

struct ParityOptions {
  // Encoder layers to checkpoint, from -1 (none) to all. Files of the op alone ignore it.
  std::int64_t num_cp = 0;
};

struct LOWTIDE_API ParityTensor {
  std::string name;
  // max|got - expected| / max|expected|; for names that end in ".norm" the relative difference of
  // the L2 norms. NaN when a value on either side is.
  double max_rel_err = 0;
  double tolerance = 0;

  bool passed() const { return max_rel_err <= tolerance; }  // false for NaN
};

struct LOWTIDE_API ParityLoss {
  double got = 0;
  double expected = 0;
  double spread = 0;  // a size to measure the difference by where it is above the expected value's

  bool passed() const;  // |got - expected| <= 1e-5 max(|expected|, spread), false for NaN
};

struct ParityReport {
  std::string file;
  std::string case_name;
  bool passed = false;
  std::vector<ParityTensor> tensors;
  std::optional<ParityLoss> loss;       // none for files of the op alone
  std::vector<std::string> in_float64;  // tensors whose error is that of a float64 run
  std::vector<std::string> ignored;     // tensors of the file that say nothing to compare
};

// Runs what `path` describes forward and backward and compares everything that it expects.
// Throws IoError and FormatError as load_safetensors does; FormatError LT0440 when the file is not
// a parity file or lacks a piece, LT0442 when its pieces do not fit each other; Error LT0441 for a
// detector file; UsageError LT0420 for a num_cp that the file's encoder does not have.
// Needs the memory of the step itself; a full-size file (800x1333) about 2 GiB without num_cp.
LOWTIDE_API ParityReport verify_parity_file(const std::filesystem::path& path,
                                            const ParityOptions& options = {});

// {"file","case","passed","tensors":[{"name","max_rel_err","tolerance"}],"loss":{"got","expected"}};
// got and expected are null when the file has no loss.
LOWTIDE_API Json parity_json(const ParityReport& report);

// A table for people, one line a tensor, ending in the verdict.
LOWTIDE_API std::string parity_text(const ParityReport& report);

// The values that hash files are filled with: float32, a function of `key`, the element's row-major
// index and `scale`, in [-scale, scale).
LOWTIDE_API at::Tensor parity_fill(std::string_view key, at::IntArrayRef shape, float scale);

}  // namespace lowtide
