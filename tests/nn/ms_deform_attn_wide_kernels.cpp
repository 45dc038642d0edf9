// The loops with vectors as long as AVX-512's, compiled for what any machine has: tests their logic
// where the instructions are missing.
#define LOWTIDE_VECTOR_BYTES 64
#include "src/nn/kernels/ms_deform_attn_loops.inc"

namespace lowtide {
extern const MsDeformAttnKernels kMsDeformAttnWide;
const MsDeformAttnKernels kMsDeformAttnWide = kKernels;
}  // namespace lowtide
