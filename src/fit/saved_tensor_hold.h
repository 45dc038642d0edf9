#pragma once
// One tensor that autograd saved, kept by the budget's runtime instead.

#include <ATen/core/Tensor.h>

#include "src/fit/budget_runtime.h"
#include "src/fit/tensor_geometry.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide {

class SavedTensorHold final : public hook::IdentityHooks {
 public:
  explicit SavedTensorHold(BudgetRuntime& runtime) : runtime_(runtime) {}
  ~SavedTensorHold() override;

  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override;
  at::Tensor original() override;
  void adopt(const at::Tensor& tensor) override;

 private:
  void pack(const at::Tensor& tensor);
  at::Tensor unpack();
  void check_place(const at::Tensor& original, bool differentiates) const;

  BudgetRuntime& runtime_;
  BudgetRuntime::Packed packed_;  // no record: kept whole
  KeptVariable kept_;
  at::Tensor whole_;
  bool is_original_ = false;  // whole_ is the very tensor
  hook::TensorVersion version_;
};

}  // namespace lowtide
