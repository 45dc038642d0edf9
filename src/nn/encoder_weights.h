#pragma once
// Matches the tensors of a checkpoint file to the encoder's parameters by name.
//
// mmdetection's names are the encoder's own; Hugging Face's differ in the norms and the
// feed-forward layers, and by version of transformers.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>

namespace lowtide {

// The name of the parameter that `name` (without prefix) stands for, by mmdetection's names:
// "layers.0.self_attn_layer_norm.bias" -> "layers.0.norms.0.bias". Names that are neither
// spelling come back as they are.
std::string encoder_parameter_name(std::string_view name);

// What stands before "layers." in the names of the one encoder in `tensors`. Throws UsageError
// (LT0425) when there is none or more than one.
std::string find_encoder_prefix(const std::map<std::string, at::Tensor>& tensors);

// For each parameter name of `parameters`, the tensor of `tensors` to load. Throws UsageError
// (LT0425, LT0426) as load_state_dict says.
std::map<std::string, at::Tensor> match_encoder_weights(
    const std::map<std::string, at::Tensor>& tensors,
    const std::map<std::string, at::Tensor>& parameters);

}  // namespace lowtide
