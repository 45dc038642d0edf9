#pragma once
// Loads and saves tensors in safetensors files, the format of model weights.
//
//   SafetensorsFile file = load_safetensors("encoder.safetensors");
//   encoder->load_state_dict(file.tensors);
//   save_safetensors("copy.safetensors", file.tensors, {{"made_with", "lowtide"}});
//
// A file is untrusted: damage ends in a FormatError that says where and what, never in a crash or
// in a tensor of wrong bytes. Tensors are copied to memory of their own, so the file may change or
// go afterwards. It does not load parts of a file and does not read PyTorch's own .pt files.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "lowtide/export.h"

namespace lowtide {

struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors;    // contiguous, on the CPU, without grad
  std::map<std::string, std::string> metadata;  // the header's "__metadata__"
};

// Reads all tensors of `path`. Dtypes: F64 F32 F16 BF16, I64 I32 I16 I8, U64 U32 U16 U8, BOOL, C64,
// F8_E4M3, F8_E5M2. Tensors without elements and single numbers are fine.
// Throws IoError (LT0116) when the file cannot be opened or read, FormatError (LT0110 to LT0113)
// for a damaged header, LT0114 for a dtype that torch has no counterpart of, LT0115 for a BOOL byte
// that is neither 0 nor 1. Costs one read of the file.
LOWTIDE_API SafetensorsFile load_safetensors(const std::filesystem::path& path);

// Writes `tensors` to `path`: the file appears whole or not at all (written beside `path`, flushed
// to the disk, then renamed over it). The same tensors always give the same bytes: wide dtypes
// first, then by name. An existing file's permissions are kept. Tensors are made contiguous and
// brought to the CPU one at a time.
// Throws UsageError (LT0117) for a tensor that the format cannot hold (undefined, sparse,
// quantized, a dtype that is not listed above) or a name or metadata text that is not UTF-8 or is
// "__metadata__"; IoError (LT0118) when writing fails, and then `path` is as it was.
LOWTIDE_API void save_safetensors(const std::filesystem::path& path,
                                  const std::map<std::string, at::Tensor>& tensors,
                                  const std::map<std::string, std::string>& metadata = {});

}  // namespace lowtide
