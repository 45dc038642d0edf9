#pragma once
// The inner loops of multi-scale deformable attention, one build of them for each instruction set.
//
// In: pointers to float or double rows. Out: rows of the output, or of the gradients. The loops
// know nothing of tensors, threads, (batch, head) slices or half precision:
// src/nn/ms_deform_attn_cpu.cpp stages those and calls them for a block of queries at a time.
//
// Plain structs and function pointers only. The files that define the kernels are compiled with
// flags that the rest of the program must not depend on, so nothing they include may define an
// inline function with external linkage. See Note [One set of flags per object].

#include <cstdint>

namespace lowtide {

// The integer that is as wide as T.
template <typename T>
struct MsDeformAttnInt;
template <>
struct MsDeformAttnInt<float> {
  using Type = std::int32_t;
};
template <>
struct MsDeformAttnInt<double> {
  using Type = std::int64_t;
};

// One slice is one head of one image. `points` samples on each level; a sample is numbered
// level * points + point. Strides count elements.
template <typename T>
struct MsDeformAttnSlice {
  // Rows of `width` elements, one for each token, at multiples of value_stride. `width` is a
  // multiple of the kernel's vector; there is no alignment beyond the element's.
  const T* value;
  std::int64_t value_stride;
  std::int64_t width;

  // One entry for each sample, and 15 more to be read but not used: the size of its level, the
  // level's first token, and the elements of value from one row of the map to the next. Sizes are
  // at most 2^24 and tokens below 2^31, so that float and int32_t hold them exactly.
  const T* sample_width;
  const T* sample_height;
  const typename MsDeformAttnInt<T>::Type* sample_width_px;
  const typename MsDeformAttnInt<T>::Type* level_start;
  const std::int64_t* row_stride;

  // For each query: (x, y) pairs and weights, of all the slice's samples.
  const T* locations;
  std::int64_t locations_stride;
  const T* weights;
  std::int64_t weights_stride;
  std::int64_t queries;
};

template <typename T>
struct MsDeformAttnForward {
  MsDeformAttnSlice<T> slice;
  std::int64_t samples;
  T* output;  // overwritten, `width` elements for each query
  std::int64_t output_stride;
};

// Does samples [sample_begin, sample_end) of each query, and of these only what touches map rows
// [row_begin, row_end): the taps in these rows are added to grad_value, and the gradients of a
// sample are written by the caller whose rows hold its upper tap (row 0's owner also writes those
// of samples out of the map). Calls on disjoint rows, or on disjoint levels, touch disjoint memory
// and together give the same bits as one call on all of it.
template <typename T>
struct MsDeformAttnBackward {
  MsDeformAttnSlice<T> slice;
  std::int64_t sample_begin;
  std::int64_t sample_end;
  std::int32_t row_begin;
  std::int32_t row_end;  // INT32_MAX: to the end of each map
  const T* grad_output;
  std::int64_t grad_output_stride;
  T* grad_value;      // added to; null when not needed; strides of `value`
  T* grad_locations;  // overwritten; null when not needed; strides of `locations`
  T* grad_weights;    // overwritten; null when not needed; strides of `weights`
};

struct MsDeformAttnKernels {
  std::int64_t vector_bytes;  // `width` must be a multiple of this
  void (*forward_float)(const MsDeformAttnForward<float>&);
  void (*forward_double)(const MsDeformAttnForward<double>&);
  void (*backward_float)(const MsDeformAttnBackward<float>&);
  void (*backward_double)(const MsDeformAttnBackward<double>&);
};

extern const MsDeformAttnKernels kMsDeformAttnPlain;
#ifdef LOWTIDE_X86_KERNELS
extern const MsDeformAttnKernels kMsDeformAttnAvx2;
extern const MsDeformAttnKernels kMsDeformAttnAvx512;
#endif

}  // namespace lowtide
