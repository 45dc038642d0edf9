#include "src/nn/ms_deform_attn_dispatch.h"

#include <atomic>
#include <cstdlib>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr const char* kVariable = "LOWTIDE_MS_DEFORM_ATTN";

// Written by tests only; relaxed, as the pointees are constants.
std::atomic<const MsDeformAttnKernels*> forced{nullptr};

const MsDeformAttnKernels& choose() {
  const char* wanted = std::getenv(kVariable);
  return wanted == nullptr || *wanted == '\0' ? *runnable_ms_deform_attn_kernels().front().kernels
                                              : ms_deform_attn_kernels_named(wanted);
}

}  // namespace

std::vector<NamedMsDeformAttnKernels> runnable_ms_deform_attn_kernels() {
  std::vector<NamedMsDeformAttnKernels> runnable;
#ifdef LOWTIDE_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("fma")) {
    runnable.push_back({"avx512", &kMsDeformAttnAvx512});
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    runnable.push_back({"avx2", &kMsDeformAttnAvx2});
  }
#endif
  runnable.push_back({"plain", &kMsDeformAttnPlain});
  return runnable;
}

const MsDeformAttnKernels& ms_deform_attn_kernels_named(const std::string& name) {
  std::string names;
  for (const NamedMsDeformAttnKernels& candidate : runnable_ms_deform_attn_kernels()) {
    if (candidate.name == name) {
      return *candidate.kernels;
    }
    names += names.empty() ? candidate.name : ", " + candidate.name;
  }
  throw UsageError("LT0407", concat("cannot run ms_deform_attn with ", kVariable, "=", name,
                                    ": this processor and build can run ", names,
                                    ". Set it to one of these, or unset it"));
}

const MsDeformAttnKernels& chosen_ms_deform_attn_kernels() {
  if (const MsDeformAttnKernels* kernels = forced.load(std::memory_order_relaxed)) {
    return *kernels;
  }
  static const MsDeformAttnKernels& chosen = choose();
  return chosen;
}

void force_ms_deform_attn_kernels(const MsDeformAttnKernels* kernels) {
  forced.store(kernels, std::memory_order_relaxed);
}

}  // namespace lowtide
