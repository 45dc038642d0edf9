// Any machine: vectors of 16 bytes, which every x86-64 has and which are lowered elsewhere.
#define LOWTIDE_VECTOR_BYTES 16
#include "src/nn/kernels/ms_deform_attn_loops.inc"

namespace lowtide {
const MsDeformAttnKernels kMsDeformAttnPlain = kKernels;
}  // namespace lowtide
