#pragma once
// Wide layers in less memory: an MLP whose hidden activations exist for a chunk of tokens at a
// time, and linear layers of low rank, with what they cost and save.
//
//   at::Tensor y = lowtide::checkpointed_mlp(
//       [&](const at::Tensor& t) { return down->forward(at::gelu(up->forward(t))); }, x);
//
//   std::cout << lowtide::compare_factorised(4096, 16384, 512).to_text();
//   auto [up, down, error] = lowtide::factorise(linear->weight, 512);      // weight ~ up @ down
//   at::Tensor z = lowtide::factorised_linear(x, up, down, linear->bias);
//
// For heads over large vocabularies see linear_cross_entropy.h.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lowtide/bytes.h"
#include "lowtide/checkpoint.h"
#include "lowtide/export.h"

namespace lowtide {

namespace detail {
// `x` as (tokens, features), cut into parts of `chunk_tokens`; throws UsageError LT0436.
LOWTIDE_API std::vector<at::Tensor> token_chunks(const at::Tensor& x, std::int64_t chunk_tokens);
// The parts' results one after the other, with `x`'s leading sizes.
LOWTIDE_API at::Tensor join_tokens(const std::vector<at::Tensor>& parts, const at::Tensor& x);
}  // namespace detail

// mlp(x), where `mlp` treats each token (each row along the last dimension) alone: linear layers,
// activations, norms over the features. It runs on `chunk_tokens` tokens at a time, each time as a
// checkpointed region (checkpoint.h), so of the wide hidden activations only one chunk's exist, in
// forward and in backward. Kept for backward: x. Time: the forward once more.
//
// Values are those of mlp(x) as far as its matrix products give a row the same bits in a smaller
// product; gradients of the weights are the sum over chunks. With one chunk all is bit for bit what
// lowtide::checkpoint gives. Dropout draws chunk by chunk.
//
// x: (..., features), at least one token. `mlp` must return as many tokens. Throws UsageError
// LT0436 (chunk_tokens < 1, a scalar x, another number of tokens), and what checkpoint() throws.
template <class Mlp>
at::Tensor checkpointed_mlp(const Mlp& mlp, const at::Tensor& x, std::int64_t chunk_tokens = 1024,
                            const CheckpointOptions& options = {}) {
  std::vector<at::Tensor> parts = detail::token_chunks(x, chunk_tokens);
  for (at::Tensor& part : parts) part = checkpoint(mlp, part, options);
  return detail::join_tokens(parts, x);
}

// What a linear layer, or its two factors, costs in training.
struct LinearCost {
  std::uint64_t parameters = 0;
  Bytes weights = 0;
  Bytes gradients = 0;
  Bytes optimizer = 0;              // its state
  std::uint64_t multiply_adds = 0;  // a token, forward; backward takes twice that
  Bytes total() const noexcept { return weights + gradients + optimizer; }
  bool operator==(const LinearCost&) const = default;
};

struct FactorisedComparison {
  std::int64_t inputs = 0, outputs = 0, rank = 0;
  LinearCost full, factorised;
  // The largest rank with fewer parameters than the full layer: r (n + m) < n m.
  std::int64_t largest_saving_rank = 0;

  // For people, a few lines.
  LOWTIDE_API std::string to_text() const;
};

struct LinearCostOptions {
  bool bias = true;
  Bytes element_bytes = 4;            // of a weight and of its gradient
  std::int64_t optimizer_values = 2;  // a parameter: AdamW 2, SGD with momentum 1, SGD 0
  Bytes optimizer_element_bytes = 4;
};

// A linear layer of n = `outputs` by m = `inputs` weights beside one of rank r: n m parameters
// against r (n + m), as much again for gradients, and the optimizer's state for each. Throws
// UsageError LT0437 unless inputs, outputs >= 1 and 1 <= rank <= min(inputs, outputs).
LOWTIDE_API FactorisedComparison compare_factorised(std::int64_t inputs, std::int64_t outputs,
                                                    std::int64_t rank,
                                                    const LinearCostOptions& options = {});

struct LinearFactors {
  at::Tensor up;    // (outputs, rank)
  at::Tensor down;  // (rank, inputs)
  // ||weight - up @ down|| / ||weight||, Frobenius. 0 for a weight of zeros.
  double relative_error = 0;
};

// The best factors of that rank (Eckart and Young, 1936): from the singular value decomposition,
// the singular values shared evenly. weight: (outputs, inputs), float32 or float64; gets no
// gradient. Cost: that of the decomposition, outputs * inputs * min(outputs, inputs). Throws
// UsageError LT0437.
LOWTIDE_API LinearFactors factorise(const at::Tensor& weight, std::int64_t rank);

// (x @ down^T) @ up^T + bias. bias may be undefined. Throws UsageError LT0437 for shapes that do
// not fit.
LOWTIDE_API at::Tensor factorised_linear(const at::Tensor& x, const at::Tensor& up,
                                         const at::Tensor& down, const at::Tensor& bias = {});

}  // namespace lowtide
