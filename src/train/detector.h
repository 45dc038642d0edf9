#pragma once
// The network of the main job: photographs in, a score and a box from every encoder token out.
//
//   Detector detector({.width = 128, .encoder_layers = 3});
//   Predictions found = detector.forward(batch);
//
// A small convolutional backbone gives levels of stride 8, 16 and 32; one more convolution gives
// stride 64; lowtide's Deformable DETR encoder mixes them; the head is that of two-stage Deformable
// DETR's encoder proposals. There is no decoder.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/train/adamw.h"
#include "src/train/dataset.h"
#include "src/train/detection_loss.h"

namespace lowtide {

struct DetectorOptions {
  std::int64_t width = 128;         // channels of the tokens, a multiple of 32
  std::int64_t encoder_layers = 3;  // at least 1
  std::int64_t feedforward = 256;   // hidden channels of each encoder layer
  double dropout = 0;               // of the encoder, in [0, 1)
  std::int64_t num_cp = 0;          // encoder layers to checkpoint, 0 to encoder_layers
};

struct ImageBatch {
  at::Tensor pixels;               // (B, 3, S, S) float32, normalised, 0 where padded
  std::vector<int> valid_widths;   // (B) pixels
  std::vector<int> valid_heights;  // (B)
  std::vector<at::Tensor>
      targets;  // B times (boxes, 4), centre and size in [0, 1] of the valid part
};

// Crops of equal size as tensors. Pixels are shifted and scaled by the usual means and deviations.
ImageBatch make_batch(const std::vector<Crop>& crops);

class Detector {
 public:
  // Draws the weights from the default generator. Throws UsageError (LT0520) for an option out of
  // range.
  explicit Detector(const DetectorOptions& options);
  ~Detector();
  Detector(const Detector&) = delete;
  Detector& operator=(const Detector&) = delete;

  Predictions forward(const ImageBatch& batch);

  // Changes how many encoder layers are checkpointed; results stay bitwise the same.
  void set_num_cp(std::int64_t num_cp);
  void set_training(bool training);

  // In a fixed order, with the optimizer's treatment: rate 0.1 for sampling_offsets; no decay for
  // norms, biases and level_embed. The backbone has the full rate, as it starts from nothing.
  const std::vector<TrainedTensor>& parameters() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lowtide
