#include "lowtide/sine_positional_encoding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>

#include <cmath>

#include "lowtide/error.h"
#include "src/base/text.h"

// Channels 2k and 2k+1 of each half are sin and cos of position / temperature^(2k / num_feats).
// The order of operations is mmdetection's, so that the float32 results are the same bits where
// libtorch's kernels are the same.
//
// Tested by tests/nn/encoder_tokens_test.cpp

namespace lowtide {
namespace {

[[noreturn]] void refuse_option(const char* name, double value, const char* expected) {
  throw UsageError("LT0427", concat("cannot make a sine positional encoding: ", name, " is ", value,
                                    ", but must be ", expected));
}

// (bs, h, w) positions -> (bs, h, w, num_feats).
at::Tensor interleaved_sine(const at::Tensor& positions, const at::Tensor& wavelengths) {
  const at::Tensor angles = positions.unsqueeze(-1) / wavelengths;
  return at::stack(
             {angles.slice(3, 0, std::nullopt, 2).sin(), angles.slice(3, 1, std::nullopt, 2).cos()},
             4)
      .flatten(3);
}

}  // namespace

SinePositionalEncoding::SinePositionalEncoding(const SinePositionalEncodingOptions& options)
    : options_(options) {
  if (options.num_feats <= 0 || options.num_feats % 2 != 0) {
    refuse_option("num_feats", static_cast<double>(options.num_feats), "positive and even");
  }
  if (!(options.temperature > 0) || !std::isfinite(options.temperature)) {
    refuse_option("temperature", options.temperature, "above 0");
  }
  if (!(options.eps >= 0) || !std::isfinite(options.eps)) {
    refuse_option("eps", options.eps, "0 or above");
  }
  if (!std::isfinite(options.scale)) {
    refuse_option("scale", options.scale, "finite");
  }
  if (!std::isfinite(options.offset)) {
    refuse_option("offset", options.offset, "finite");
  }
}

at::Tensor SinePositionalEncoding::operator()(const at::Tensor& padding_mask) const {
  if (!padding_mask.defined() || padding_mask.dim() != 3 ||
      padding_mask.scalar_type() != at::kBool) {
    const std::string got = padding_mask.defined()
                                ? concat(padding_mask.sizes(), " ", padding_mask.scalar_type())
                                : std::string("undefined");
    throw UsageError("LT0428", concat("cannot encode positions: padding_mask must be (bs, h, w) "
                                      "bool, true where there is padding, but is ",
                                      got));
  }
  const at::Tensor valid = padding_mask.logical_not();
  at::Tensor y = valid.cumsum(1, at::kFloat);
  at::Tensor x = valid.cumsum(2, at::kFloat);
  if (options_.normalize && padding_mask.numel() > 0) {
    y = (y + options_.offset) / (y.slice(1, -1) + options_.eps) * options_.scale;
    x = (x + options_.offset) / (x.slice(2, -1) + options_.eps) * options_.scale;
  }
  const at::Tensor channel = at::arange(options_.num_feats, y.options());
  const at::Tensor exponent =
      at::floor_divide(channel, 2) * 2 / static_cast<double>(options_.num_feats);
  const at::Tensor wavelengths = at::pow(options_.temperature, exponent);
  return at::cat({interleaved_sine(y, wavelengths), interleaved_sine(x, wavelengths)}, 3)
      .permute({0, 3, 1, 2});
}

}  // namespace lowtide
