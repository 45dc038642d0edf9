// AVX2 and FMA.
#define LOWTIDE_VECTOR_BYTES 32
#include "src/nn/kernels/ms_deform_attn_loops.inc"

namespace lowtide {
const MsDeformAttnKernels kMsDeformAttnAvx2 = kKernels;
}  // namespace lowtide
