#pragma once
// Chooses the build of the attention loops that the processor can run.

#include <string>
#include <vector>

#include "lowtide/export.h"
#include "src/nn/kernels/ms_deform_attn_kernels.h"

namespace lowtide {

struct NamedMsDeformAttnKernels {
  std::string name;  // avx512, avx2 or plain
  const MsDeformAttnKernels* kernels;
};

// What this processor can run, the preferred one first. Never empty.
LOWTIDE_API std::vector<NamedMsDeformAttnKernels> runnable_ms_deform_attn_kernels();

// Those of that name. Throws UsageError (LT0407) if they cannot be run here.
LOWTIDE_API const MsDeformAttnKernels& ms_deform_attn_kernels_named(const std::string& name);

// The forced ones, else those named by LOWTIDE_MS_DEFORM_ATTN (read once; LT0407 if they cannot be
// run), else the preferred ones.
const MsDeformAttnKernels& chosen_ms_deform_attn_kernels();

// For tests and benchmarks: all calls use `kernels` until the next call of this; null undoes it.
LOWTIDE_API void force_ms_deform_attn_kernels(const MsDeformAttnKernels* kernels);

}  // namespace lowtide
