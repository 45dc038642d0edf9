#pragma once
// One tensor that autograd saved, kept by the budget's runtime instead.

#include <ATen/core/Tensor.h>

#include "src/fit/budget_runtime.h"
#include "src/fit/tensor_geometry.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide {

class SavedTensorHold final : public hook::SavedTensorHooks {
 public:
  explicit SavedTensorHold(BudgetRuntime& runtime) : runtime_(runtime) {}
  ~SavedTensorHold() override;

  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override;

 private:
  void pack(const at::Tensor& tensor);
  at::Tensor unpack();

  BudgetRuntime& runtime_;
  BudgetRuntime::Packed packed_;  // no record: kept whole
  KeptVariable kept_;
  at::Tensor whole_;
  bool is_parameter_ = false;
  hook::TensorVersion version_;
};

}  // namespace lowtide
