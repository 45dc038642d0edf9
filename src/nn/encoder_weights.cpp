#include "src/nn/encoder_weights.h"

#include <array>
#include <set>
#include <utility>
#include <vector>

#include "lowtide/error.h"
#include "src/base/text.h"

// Tested by tests/nn/encoder_test.cpp

namespace lowtide {
namespace {

constexpr std::string_view kLayers = "layers.";
// Every encoder layer has this one, and no decoder layer does (theirs is in cross_attn).
constexpr std::string_view kMarker = ".self_attn.sampling_offsets.weight";

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kHuggingFaceParts = {{
    {"self_attn_layer_norm.", "norms.0."},
    {"final_layer_norm.", "norms.1."},
    {"mlp.fc1.", "ffn.layers.0.0."},
    {"mlp.fc2.", "ffn.layers.1."},
    {"fc1.", "ffn.layers.0.0."},  // transformers before 5
    {"fc2.", "ffn.layers.1."},
}};

// Length of "layers.{i}" at the start of `name`, 0 when it begins otherwise.
std::size_t layer_part_length(std::string_view name) {
  if (!name.starts_with(kLayers)) {
    return 0;
  }
  std::size_t end = kLayers.size();
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') {
    ++end;
  }
  return end > kLayers.size() ? end : 0;
}

std::string join(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 20;
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) {
    out += i == 0 ? "" : ", ";
    out += names[i];
  }
  return names.size() > kShown ? concat(out, ", and ", names.size() - kShown, " more") : out;
}

}  // namespace

std::string encoder_parameter_name(std::string_view name) {
  const std::size_t layer_length = layer_part_length(name);
  if (layer_length == 0 || layer_length == name.size() || name[layer_length] != '.') {
    return std::string(name);
  }
  const std::string_view head = name.substr(0, layer_length + 1);
  const std::string_view tail = name.substr(layer_length + 1);
  for (const auto& [theirs, ours] : kHuggingFaceParts) {
    if (tail.starts_with(theirs)) {
      return concat(head, ours, tail.substr(theirs.size()));
    }
  }
  return std::string(name);
}

std::string find_encoder_prefix(const std::map<std::string, at::Tensor>& tensors) {
  std::set<std::string> prefixes;
  for (const auto& [name, tensor] : tensors) {
    if (!name.ends_with(kMarker)) {
      continue;
    }
    const std::string_view path = std::string_view(name).substr(0, name.size() - kMarker.size());
    const std::size_t at = path.rfind(kLayers);
    if (at != std::string_view::npos && layer_part_length(path.substr(at)) == path.size() - at &&
        (at == 0 || path[at - 1] == '.')) {
      prefixes.emplace(path.substr(0, at));
    }
  }
  if (prefixes.empty()) {
    throw UsageError(
        "LT0425", concat("cannot load encoder weights: none of the ", tensors.size(),
                         " tensors is named [prefix.]layers.{i}", kMarker,
                         ". Give the weights of a Deformable DETR encoder, with mmdetection's or "
                         "Hugging Face's names"));
  }
  if (prefixes.size() > 1) {
    std::vector<std::string> shown;
    for (const std::string& prefix : prefixes) {
      shown.push_back("'" + prefix + "'");
    }
    throw UsageError("LT0425",
                     concat("cannot load encoder weights: the tensors hold ", prefixes.size(),
                            " encoders, with the prefixes ", join(shown), ". Give only one"));
  }
  return *prefixes.begin();
}

std::map<std::string, at::Tensor> match_encoder_weights(
    const std::map<std::string, at::Tensor>& tensors,
    const std::map<std::string, at::Tensor>& parameters) {
  const std::string prefix = find_encoder_prefix(tensors);
  // Beside an encoder that has a name of its own stand other parts, which are not ours to judge.
  const bool others_allowed = prefix.ends_with("encoder.");

  std::map<std::string, at::Tensor> matched;
  std::vector<std::string> unexpected;
  std::vector<std::string> ill_shaped;
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with(prefix)) {
      if (!others_allowed) {
        unexpected.push_back(name);
      }
      continue;
    }
    const std::string parameter_name =
        encoder_parameter_name(std::string_view(name).substr(prefix.size()));
    const auto parameter = parameters.find(parameter_name);
    if (parameter == parameters.end()) {
      unexpected.push_back(name);
      continue;
    }
    if (!matched.emplace(parameter_name, tensor).second) {
      unexpected.push_back(concat(name, " (a second ", parameter_name, ")"));
    }
    if (!tensor.defined()) {
      ill_shaped.push_back(concat(name, " is undefined"));
    } else if (tensor.sizes() != parameter->second.sizes() || !tensor.is_floating_point()) {
      ill_shaped.push_back(concat(name, " is ", tensor.sizes(), " ", tensor.scalar_type(),
                                  " instead of ", parameter->second.sizes(), " floating"));
    }
  }
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : parameters) {
    if (matched.count(name) == 0) {
      missing.push_back(name);
    }
  }
  if (missing.empty() && unexpected.empty() && ill_shaped.empty()) {
    return matched;
  }

  std::string message = "cannot load encoder weights";
  if (!prefix.empty()) {
    message += concat(" (prefix '", prefix, "')");
  }
  const auto append = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) {
      message += concat("; ", names.size(), " ", what, ": ", join(names));
    }
  };
  append("missing", missing);
  append("unexpected", unexpected);
  append("of wrong shape or dtype", ill_shaped);
  throw UsageError("LT0426",
                   message +
                       ". Make the encoder with the options of the weights; nothing was "
                       "changed",
                   {{"missing", static_cast<std::int64_t>(missing.size())},
                    {"unexpected", static_cast<std::int64_t>(unexpected.size())},
                    {"ill_shaped", static_cast<std::int64_t>(ill_shaped.size())}});
}

}  // namespace lowtide
