#include "src/fit/tensor_geometry.h"

#include <c10/core/DispatchKeySet.h>

namespace lowtide {

TensorGeometry TensorGeometry::of(const at::Tensor& tensor) {
  TensorGeometry geometry;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  geometry.sizes.assign(sizes.begin(), sizes.end());
  geometry.strides.assign(strides.begin(), strides.end());
  geometry.offset = tensor.storage_offset();
  geometry.dtype = tensor.scalar_type();
  geometry.conjugate = tensor.is_conj();
  geometry.negative = tensor.is_neg();
  geometry.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  return geometry;
}

at::Tensor TensorGeometry::over(const c10::Storage& storage) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, offset);
  if (conjugate) impl->_set_conj(true);
  if (negative) impl->_set_neg(true);
  if (wrapped_number) impl->set_wrapped_number(true);
  return tensor;
}

bool is_plain(const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  static constexpr c10::DispatchKeySet kExpected = c10::DispatchKeySet(
      {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::ADInplaceOrView,
       c10::DispatchKey::AutocastCPU, c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // Taking keys away leaves the backend's bit; what is above those bits must be gone.
  if ((impl->key_set() - kExpected).raw_repr() >> c10::num_backends != 0) return false;
  if (!impl->device().is_cpu() || !impl->has_storage()) return false;
  if (impl->layout() != c10::kStrided || impl->has_symbolic_sizes_strides()) return false;
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  return storage != nullptr && !storage->has_materializer();
}

}  // namespace lowtide
