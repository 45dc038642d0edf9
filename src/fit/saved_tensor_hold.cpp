#include "src/fit/saved_tensor_hold.h"

#include <c10/util/Exception.h>

#include <utility>

#include "src/hook/host_errors.h"

namespace lowtide {

SavedTensorHold::~SavedTensorHold() {
  if (packed_.record != nullptr) runtime_.release(std::move(packed_), kept_);
}

void SavedTensorHold::call_pack_hook(const at::Tensor& tensor) {
  hook::with_host_errors([&] { pack(tensor); });
}

at::Tensor SavedTensorHold::call_unpack_hook() {
  return hook::with_host_errors([&] { return unpack(); });
}

void SavedTensorHold::pack(const at::Tensor& tensor) {
  version_ = hook::TensorVersion(tensor);
  // A parameter itself: its data may be exchanged (w.data = other), and backward must see that.
  if (tensor.is_leaf() && tensor.requires_grad()) {
    whole_ = tensor;
    is_parameter_ = true;
    runtime_.saved_whole(tensor);
    return;
  }
  packed_ = runtime_.pack(tensor, kept_);
  if (packed_.record != nullptr) return;
  // An input's data may be exchanged too. An output that held its own graph node would never be
  // freed.
  whole_ = hook::is_output_of_newest_node(tensor) ? tensor.tensor_data() : tensor;
}

at::Tensor SavedTensorHold::unpack() {
  TORCH_CHECK(
      !version_.changed(),
      "one of the variables needed for gradient computation has been modified by an inplace "
      "operation: it is at version ",
      version_.current(), "; expected version ", version_.recorded(),
      " instead. Hint: enable anomaly detection to find the operation that failed to "
      "compute its gradient, with torch.autograd.set_detect_anomaly(True).");
  if (whole_.defined()) {
    if (is_parameter_) return whole_;
    at::Tensor tensor = whole_.tensor_data();
    version_.give_to(tensor);
    return tensor;
  }
  if (packed_.record == nullptr) return {};
  at::Tensor tensor;
  const c10::Storage storage = runtime_.unpack(packed_, kept_, tensor);
  if (storage) tensor = kept_.geometry.over(storage);
  version_.give_to(tensor);
  return tensor;
}

}  // namespace lowtide
