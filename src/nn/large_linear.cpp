#include "lowtide/large_linear.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

LinearCost cost_of(std::uint64_t weights, std::uint64_t biases, const LinearCostOptions& options) {
  LinearCost cost;
  cost.parameters = weights + biases;
  cost.weights = cost.parameters * options.element_bytes;
  cost.gradients = cost.weights;
  cost.optimizer = cost.parameters * static_cast<std::uint64_t>(options.optimizer_values) *
                   options.optimizer_element_bytes;
  cost.multiply_adds = weights;
  return cost;
}

void check_rank(std::int64_t inputs, std::int64_t outputs, std::int64_t rank) {
  if (inputs >= 1 && outputs >= 1 && rank >= 1 && rank <= std::min(inputs, outputs)) return;
  throw UsageError(
      "LT0437",
      concat("cannot factorise a linear layer of ", outputs, " x ", inputs, " with rank ", rank,
             ": give a rank from 1 to ", std::min(inputs, outputs)),
      {{"rank", rank}});
}

}  // namespace

namespace detail {

std::vector<at::Tensor> token_chunks(const at::Tensor& x, std::int64_t chunk_tokens) {
  if (chunk_tokens < 1 || !x.defined() || x.dim() < 1 || x.numel() == 0) {
    throw UsageError(
        "LT0436", concat("cannot run checkpointed_mlp in chunks of ", chunk_tokens,
                         " tokens on an input of ", x.defined() ? x.sizes() : at::IntArrayRef(),
                         ": give at least one token, (..., features), and at least one a chunk"));
  }
  const at::Tensor tokens = x.reshape({-1, x.size(-1)});
  if (tokens.size(0) <= chunk_tokens) return {tokens};
  return tokens.split(chunk_tokens);
}

at::Tensor join_tokens(const std::vector<at::Tensor>& parts, const at::Tensor& x) {
  const std::int64_t tokens = x.numel() / x.size(-1);
  std::int64_t found = 0;
  for (const at::Tensor& part : parts) found += part.dim() == 2 ? part.size(0) : -1;
  if (found != tokens) {
    throw UsageError(
        "LT0436", concat("cannot run checkpointed_mlp: the MLP returned ", parts.front().sizes(),
                         " for the first chunk of ", tokens,
                         " tokens. It must treat each token alone and return (tokens, features)"));
  }
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = parts.front().size(-1);
  return (parts.size() == 1 ? parts.front() : at::cat(parts)).reshape(sizes);
}

}  // namespace detail

FactorisedComparison compare_factorised(std::int64_t inputs, std::int64_t outputs,
                                        std::int64_t rank, const LinearCostOptions& options) {
  check_rank(inputs, outputs, rank);
  FactorisedComparison comparison{inputs, outputs, rank, {}, {}, 0};
  const auto m = static_cast<std::uint64_t>(inputs), n = static_cast<std::uint64_t>(outputs),
             r = static_cast<std::uint64_t>(rank);
  const std::uint64_t biases = options.bias ? n : 0;
  comparison.full = cost_of(n * m, biases, options);
  comparison.factorised = cost_of(r * (n + m), biases, options);
  comparison.largest_saving_rank = static_cast<std::int64_t>((n * m - 1) / (n + m));
  return comparison;
}

std::string FactorisedComparison::to_text() const {
  const auto line = [](const char* name, const LinearCost& cost) {
    return concat(name, cost.parameters, " parameters, ", format_bytes(cost.total()),
                  " in training (weights ", format_bytes(cost.weights), ", gradients ",
                  format_bytes(cost.gradients), ", optimizer ", format_bytes(cost.optimizer), "), ",
                  cost.multiply_adds, " multiply-adds a token\n");
  };
  std::string text = concat("linear layer of ", outputs, " x ", inputs, ", rank ", rank, "\n");
  text += line("full:       ", full);
  text += line("factorised: ", factorised);
  if (factorised.total() < full.total()) {
    text +=
        concat("saves ", format_bytes(full.total() - factorised.total()), " of ",
               format_bytes(full.total()), "; any rank up to ", largest_saving_rank, " saves\n");
  } else {
    text += concat("saves nothing: it takes ", format_bytes(factorised.total() - full.total()),
                   " more; ranks up to ", largest_saving_rank, " save\n");
  }
  return text;
}

LinearFactors factorise(const at::Tensor& weight, std::int64_t rank) {
  if (!weight.defined() || weight.dim() != 2 ||
      (weight.scalar_type() != at::kFloat && weight.scalar_type() != at::kDouble)) {
    throw UsageError(
        "LT0437",
        concat("cannot factorise ",
               weight.defined() ? concat(weight.scalar_type(), " of shape ", weight.sizes())
                                : "an undefined tensor",
               ": give a weight of (outputs, inputs) in float32 or float64"));
  }
  check_rank(weight.size(1), weight.size(0), rank);
  const at::NoGradGuard no_grad;
  const auto [u, s, vh] = at::linalg_svd(weight.detach(), /*full_matrices=*/false);
  const at::Tensor root = s.narrow(0, 0, rank).sqrt();
  LinearFactors factors;
  factors.up = (u.narrow(1, 0, rank) * root).contiguous();
  factors.down = (root.unsqueeze(1) * vh.narrow(0, 0, rank)).contiguous();
  const double all = s.square().sum(at::kDouble).item<double>();
  const double rest = s.narrow(0, rank, s.size(0) - rank).square().sum(at::kDouble).item<double>();
  factors.relative_error = all > 0 ? std::sqrt(rest / all) : 0;
  return factors;
}

at::Tensor factorised_linear(const at::Tensor& x, const at::Tensor& up, const at::Tensor& down,
                             const at::Tensor& bias) {
  const bool defined = x.defined() && up.defined() && down.defined();
  if (!defined || up.dim() != 2 || down.dim() != 2 || x.dim() < 1 || up.size(1) != down.size(0) ||
      x.size(-1) != down.size(1) ||
      (bias.defined() && (bias.dim() != 1 || bias.size(0) != up.size(0)))) {
    throw UsageError(
        "LT0437",
        defined
            ? concat("cannot run factorised_linear: up ", up.sizes(), " and down ", down.sizes(),
                     " must be (outputs, rank) and (rank, inputs), x (..., inputs) is ", x.sizes(),
                     bias.defined() ? ", and bias (outputs)" : "")
            : std::string("cannot run factorised_linear: an input is undefined"));
  }
  return at::linear(at::linear(x, down), up, bias);
}

}  // namespace lowtide
