// AVX-512 F, VL, DQ and BW.
#define LOWTIDE_VECTOR_BYTES 64
#include "src/nn/kernels/ms_deform_attn_loops.inc"

namespace lowtide {
const MsDeformAttnKernels kMsDeformAttnAvx512 = kKernels;
}  // namespace lowtide
