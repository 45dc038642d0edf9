#pragma once
// The encoder of Deformable DETR as a libtorch module, with activation checkpointing built in.
//
//   DeformableDetrTransformerEncoder encoder(/*num_layers=*/6, DeformableDetrEncoderLayerOptions{},
//                                            /*num_cp=*/6);
//   encoder->load_state_dict(load_safetensors("detector.safetensors").tensors);
//   EncoderTokens tokens = flatten_feature_maps(maps, level_embed, image_sizes, batch_size);
//   at::Tensor memory = encoder->forward(tokens);   // (bs, N, 256)
//
// Same results, initialisation and state-dict names as mmdetection's class of the same name:
// `layers.{i}.self_attn.{sampling_offsets,attention_weights,value_proj,output_proj}`,
// `layers.{i}.norms.{0,1}`, `layers.{i}.ffn.layers.0.0` and `.1`, each with weight and bias.
// `num_cp` works with no other package. Parameters may be float32, float64 or bfloat16
// (`encoder->to(at::kDouble)`); sampling locations are never below float32. It runs on the CPU. It
// has no backbone, neck, decoder or heads.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/encoder_tokens.h"
#include "lowtide/export.h"

namespace lowtide {

// One layer. The defaults are mmdetection's for Deformable DETR (DINO's: feedforward_channels 2048,
// dropout 0).
struct DeformableDetrEncoderLayerOptions {
  std::int64_t embed_dims = 256;             // C, a multiple of num_heads
  std::int64_t num_heads = 8;                // attention heads, each of C / num_heads channels
  std::int64_t num_levels = 4;               // feature levels, L
  std::int64_t num_points = 4;               // samples a token takes on each level, per head
  std::int64_t feedforward_channels = 1024;  // width of the hidden layer
  double dropout = 0.1;  // in [0, 1]: after attention and twice in the feed-forward part
};

namespace detail {
struct EncoderLayerWeights;
struct EncoderGeometry;
}  // namespace detail

class LOWTIDE_API DeformableDetrTransformerEncoderImpl : public torch::nn::Module {
 public:
  // The first `num_cp` layers are checkpointed: they keep the inputs of their two halves and run
  // again in backward. More is less memory and more time; -1 and 0 are off, num_layers is all.
  // Gradients are bitwise the same for every num_cp, with dropout too. Throws UsageError (LT0420)
  // when num_cp is below -1 or above num_layers, or an option is out of its range. Draws the
  // initial weights from the default generator.
  DeformableDetrTransformerEncoderImpl(std::int64_t num_layers,
                                       const DeformableDetrEncoderLayerOptions& layer = {},
                                       std::int64_t num_cp = -1);

  // Encodes `query` (bs, N, C), the flattened feature maps.
  //   query_pos          (bs, N, C), added to the query where it is a query; undefined: none
  //   key_padding_mask   (bs, N) bool, true = padding, never sampled; undefined: none
  //   spatial_shapes     (L, 2) int64 (height, width); their products sum to N
  //   level_start_index  (L) int64
  //   valid_ratios       (bs, L, 2) floating, (of the width, of the height)
  // Returns the memory, (bs, N, C): every token attended to the whole pyramid, padded ones too.
  // Throws UsageError: LT0421 for query and query_pos, LT0422 for the mask, LT0423 for the level
  // tables, LT0424 for valid_ratios. Safe to call from several threads if nothing is being changed.
  at::Tensor forward(const at::Tensor& query, const at::Tensor& query_pos,
                     const at::Tensor& key_padding_mask, const at::Tensor& spatial_shapes,
                     const at::Tensor& level_start_index, const at::Tensor& valid_ratios);
  at::Tensor forward(const EncoderTokens& tokens);

  // As forward, but returns every layer's output, first layer first; the last is the memory.
  std::vector<at::Tensor> forward_layers(const EncoderTokens& tokens);

  // Draws the weights anew, as mmdetection's detector does: xavier for the projections and the
  // feed-forward weights, nothing but the fixed grid of sampling offsets, flat attention.
  // At these weights each token's samples on its own level lie exactly on pixel centres, where the
  // gradient of the offset is one-sided: do not compare gradients between kernels there.
  void reset_parameters();

  // Copies `tensors` into the parameters. Names may be mmdetection's or Hugging Face's (of
  // transformers 5 or before), with any prefix ("encoder.", "module.model.encoder.", none); the
  // prefix is found from the names. Tensors outside an "...encoder." prefix (a decoder, a backbone)
  // are left alone. Values are converted to the parameters' dtype.
  // Throws UsageError (LT0425) when there is no encoder or more than one in `tensors`, and LT0426
  // listing all missing, unexpected and ill-shaped tensors at once; then no parameter has changed.
  void load_state_dict(const std::map<std::string, at::Tensor>& tensors);

  // The parameters by mmdetection's names, sharing memory with the module, without grad.
  std::map<std::string, at::Tensor> state_dict() const;

  // Computes with `tensors` from now on, by the names of state_dict(), for a host whose own module
  // owns them; the module's parameters stay what they are. Throws UsageError (LT0426) when names or
  // shapes are not the parameters'.
  void use_parameters(const std::map<std::string, at::Tensor>& tensors);

  // A copy with parameters of its own. Draws nothing from the generator.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }
  // Layers that are checkpointed, never below 0.
  std::int64_t num_cp() const { return num_cp_; }
  // Changes num_cp for the steps to come. Throws as the constructor does.
  void set_num_cp(std::int64_t num_cp);
  const DeformableDetrEncoderLayerOptions& layer_options() const { return options_; }

 private:
  struct WithoutDrawing {};
  DeformableDetrTransformerEncoderImpl(std::int64_t num_layers,
                                       const DeformableDetrEncoderLayerOptions& layer,
                                       std::int64_t num_cp, WithoutDrawing);

  void clone_(torch::nn::Module& other, const std::optional<torch::Device>& device) override;
  void copy_parameters_from(const torch::nn::Module& source,
                            const std::optional<torch::Device>& device);
  // From the sum before the layer's input's norm (the layer `before`'s; none: from the input
  // itself) to the sum before the layer's own last norm, both (bs * N, C).
  at::Tensor run_layer(std::size_t index, const at::Tensor& sum,
                       const std::shared_ptr<const detail::EncoderLayerWeights>& before,
                       const at::Tensor& query_pos,
                       const std::shared_ptr<const detail::EncoderGeometry>& geometry) const;
  std::shared_ptr<const detail::EncoderGeometry> checked_geometry(
      const EncoderTokens& tokens) const;

  DeformableDetrEncoderLayerOptions options_;
  std::int64_t num_cp_ = 0;
  // Handles of the registered parameters, which stay theirs through to() and loading.
  std::vector<std::shared_ptr<const detail::EncoderLayerWeights>> layers_;
};

// Holds a DeformableDetrTransformerEncoderImpl by shared pointer, as libtorch's modules are held.
TORCH_MODULE(DeformableDetrTransformerEncoder);

}  // namespace lowtide
