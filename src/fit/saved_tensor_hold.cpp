#include "src/fit/saved_tensor_hold.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "lowtide/error.h"

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

at::Tensor SavedTensorHold::original() {
  if (whole_.defined()) return is_original_ ? whole_ : at::Tensor();
  return packed_.record == nullptr ? at::Tensor() : runtime_.variable_of(packed_, kept_);
}

void SavedTensorHold::adopt(const at::Tensor& tensor) {
  if (packed_.record != nullptr) runtime_.adopt(packed_, kept_, tensor);
}

void SavedTensorHold::pack(const at::Tensor& tensor) {
  version_ = hook::TensorVersion(tensor);
  kept_.place = hook::GraphPlace::of(tensor);
  // A parameter itself: its data may be exchanged (w.data = other), and backward must see that.
  if (tensor.is_leaf() && tensor.requires_grad()) {
    whole_ = tensor;
    is_original_ = true;
    runtime_.saved_whole(tensor);
    return;
  }
  packed_ = runtime_.pack(tensor, kept_);
  if (packed_.record != nullptr) return;
  // An input's data may be exchanged too. An output that held its own graph node would never be
  // freed.
  is_original_ = !hook::is_output_of_newest_node(tensor);
  whole_ = is_original_ ? tensor : tensor.tensor_data();
}

at::Tensor SavedTensorHold::unpack() {
  TORCH_CHECK(
      !version_.changed(),
      "one of the variables needed for gradient computation has been modified by an inplace "
      "operation: it is at version ",
      version_.current(), "; expected version ", version_.recorded(),
      " instead. Hint: enable anomaly detection to find the operation that failed to "
      "compute its gradient, with torch.autograd.set_detect_anomaly(True).");
  const bool differentiates = c10::GradMode::is_enabled();
  // A backward may run inside of inference mode; what was saved outside is no inference tensor.
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled()) normal.emplace(false);
  if (whole_.defined()) {
    if (is_original_) {
      check_place(whole_, differentiates);
      return whole_;
    }
    at::Tensor tensor = whole_.tensor_data();
    version_.give_to(tensor);
    return tensor;
  }
  if (packed_.record == nullptr) return {};
  const at::Tensor original = runtime_.variable_of(packed_, kept_);
  if (original.defined()) check_place(original, differentiates);
  at::Tensor tensor;
  const c10::Storage storage = runtime_.unpack(packed_, kept_, tensor);
  // Autograd hands out what needs no gradient as it is.
  const bool is_handed_out = !kept_.place.requires_grad;
  if (is_handed_out && original.defined()) return original;
  if (storage) tensor = kept_.geometry.over(storage);
  version_.give_to(tensor);
  return is_handed_out && storage ? runtime_.adopt(packed_, kept_, tensor) : tensor;
}

// What autograd notes when it saves a tensor with hooks it does not ask again of the tensor itself,
// as it does without hooks.
void SavedTensorHold::check_place(const at::Tensor& original, bool differentiates) const {
  if (kept_.place == hook::GraphPlace::of(original) || hook::OriginalsAsked::active()) return;
  TORCH_CHECK(kept_.place.is_leaf || !hook::GraphPlace::of(original).is_leaf ||
                  hook::custom_function_runs(),
              "Trying to use a saved tensor that has been detached in-place, i.e. with "
              ".detach_(). This is not supported, please use out-of-place `.detach()` instead");
  if (!differentiates) return;
  throw DivergenceError(
      "LT0317",
      "a tensor that backward needs was given or denied a gradient after it was saved "
      "(requires_grad_(), detach_()), and this backward is to be differentiated itself "
      "(create_graph=True), which a budget would get wrong. Change that before the forward, or "
      "use a copy (x.detach()) for one of the two");
}

}  // namespace lowtide
