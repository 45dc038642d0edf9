#pragma once
// Matrix products of bfloat16 with float32 sums and results. libtorch's own matmul of bfloat16
// rounds its result to bfloat16; these use the block product under its attention kernels, which
// processors with bfloat16 units run several times faster than float32.
//
// Rows of all matrices must be dense (last stride 1). Work is split over libtorch's threads.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lowtide::hook {

// Whether this processor has the units, and libtorch was built to use them. Without, do not call.
bool has_bfloat16_products();

// out (m, n) float32 = a (m, k) @ b (n, k)^T. k even.
void product_with_transposed(const at::Tensor& a, const at::Tensor& b, at::Tensor& out);

// b (n, k)^T in the order that the block product wants, for products with many a: made once, as
// large as b. k even.
class TransposedFactor {
 public:
  explicit TransposedFactor(const at::Tensor& b);
  // out (m, n) float32 = a (m, k) @ b^T.
  void product(const at::Tensor& a, at::Tensor& out) const;

 private:
  std::int64_t n_, k_;
  at::Tensor packed_;
};

// out (m, n) float32 = a (m, k) @ b (k, n), or += with `add`. a's rows must have room for k rounded
// up to even, and a 0 there.
void product(const at::Tensor& a, const at::Tensor& b, at::Tensor& out, bool add);

// out (m, n) float32 = a (k, m)^T @ b (k, n), or += with `add`.
void transposed_product(const at::Tensor& a, const at::Tensor& b, at::Tensor& out, bool add);

}  // namespace lowtide::hook
