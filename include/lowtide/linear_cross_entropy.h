#pragma once
// The cross entropy of a linear layer's output, without that output: for heads over large
// vocabularies, whose logits (tokens x vocabulary) are often the largest tensor of a training step.
//
//   at::Tensor loss = lowtide::linear_cross_entropy(hidden, head->weight, target);
//   loss.backward();
//
//   lowtide::LinearCrossEntropyOptions options;
//   options.bias = head->bias;
//   options.label_smoothing = 0.1;
//   options.ignore_index = pad;
//   loss = lowtide::linear_cross_entropy(hidden, head->weight, target, options);
//
// The value and gradients of cross_entropy(linear(hidden, weight, bias), target, ...), exact: every
// token and class counts, nothing is sampled. Logits exist for a chunk of tokens at a time, in
// a buffer of `chunk_bytes`. Where a gradient will be wanted it is made in the same pass, while the
// chunk's logits are there (as Liger Kernel and Cut Cross-Entropy do), so that the layer's three
// matrix products are done once each, as in the plain pair; backward then only scales. With
// Reduction::kNone, where backward brings a factor for each token, and with
// `gradients_in_forward` off, backward makes the logits again: four products, and no gradient is
// held between forward and backward.
//
// Precision: sums and exponentials are in float32 for float32, bfloat16 and float16 inputs, which
// may be mixed, and in float64 if an input is float64. So are the factors of products; but where
// hidden and weight are both bfloat16 and the processor multiplies such, the gradient by the logits
// is rounded to bfloat16 before it is multiplied, as by the plain pair (logits are not). Gradients
// have their input's dtype, and are rounded to it at the end. Autocast changes nothing here: inputs
// are taken in the dtype in which they come.
//
// Memory beside inputs and gradients: the chunk, for bfloat16 half as much again, and for inputs of
// a narrower dtype than float32 a float32 sum of their gradients, and 8 MiB of weight's rows at a
// time; where the processor multiplies bfloat16 instead of those rows a copy of weight, which is
// gone before the sums are rounded.
//
// Tokens whose target is ignore_index are left out before the products.
//
// Cost, measured: docs/large_layers.md.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lowtide/bytes.h"
#include "lowtide/export.h"

namespace lowtide {

enum class Reduction {
  kNone,  // one loss a token, 0 for those left out
  kMean,  // the sum divided by the weights of the targets' classes (or the number of tokens that
          // count); with probabilities as targets, by the number of tokens
  kSum,
};

struct LinearCrossEntropyOptions {
  at::Tensor bias = {};           // (V), or undefined
  at::Tensor class_weights = {};  // (V) floating, or undefined for ones; gets no gradient
  std::int64_t ignore_index = -100;
  // In [0, 1]: the share of the target that is spread over all classes.
  double label_smoothing = 0.0;
  // Adds z_loss * logsumexp(logits)^2 to each token's loss (PaLM, Chowdhery et al., 2022, section
  // 5). With kMean its mean is over the tokens that count, whatever their classes' weights.
  double z_loss = 0.0;
  Reduction reduction = Reduction::kMean;

  // Bytes of logits that exist at a time. Smaller means less memory, and more passes over weight's
  // gradient: one for each chunk of tokens.
  Bytes chunk_bytes = 64_MiB;
  // Classes of a chunk; 0 means all, while one row of logits fits chunk_bytes. With fewer, two
  // passes are needed, the first for the logsumexp: four products for three.
  std::int64_t vocabulary_chunk = 0;
  // Whether gradients are made by the forward, where any will be wanted and the reduction is not
  // kNone. They then lie from there on, where the plain pair has logits.
  bool gradients_in_forward = true;
};

// hidden: (..., D) floating; weight: (V, D) floating; target: hidden's leading sizes, int64 classes
// in [0, V) or ignore_index; or (..., V) floating, probabilities of the classes (ignore_index does
// not apply; it gets no gradient). On the CPU. D >= 1, V >= 1.
//
// Returns a scalar, or hidden's leading sizes for kNone; float64 if an input is, else float32.
// Gradients flow to hidden, weight and bias, as far as they need them.
//
// Throws UsageError: LT0430 (shapes), LT0431 (dtypes or device), LT0432 (a target out of range),
// LT0433 (options), LT0435 (torch.func's tensors, dual tensors, subclasses); later, from backward,
// LT0434 (double backward). It may be called on any thread; the result depends on the number of
// intra-op threads as matrix products do.
LOWTIDE_API at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                            const at::Tensor& target,
                                            const LinearCrossEntropyOptions& options = {});

}  // namespace lowtide
