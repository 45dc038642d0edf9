#pragma once
// How a tensor lies over its storage: what is left of it when its bytes are gone.

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace lowtide {

struct TensorGeometry {
  c10::SmallVector<std::int64_t, 5> sizes;
  c10::SmallVector<std::int64_t, 5> strides;
  std::int64_t offset = 0;  // in elements
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool conjugate = false;
  bool negative = false;
  bool wrapped_number = false;  // a Python or C++ number: it does not take part in type promotion

  static TensorGeometry of(const at::Tensor& tensor);
  bool operator==(const TensorGeometry&) const = default;

  // A tensor of this geometry over `storage`, with a version counter of its own.
  at::Tensor over(const c10::Storage& storage) const;
};

// True when a tensor is strided, on the CPU, and nothing else: geometry and storage say all about
// it. Not so: sparse, quantized, nested and meta tensors, subclasses, functorch's wrappers,
// storages that are copied lazily or throw on access.
bool is_plain(const at::Tensor& tensor);

}  // namespace lowtide
