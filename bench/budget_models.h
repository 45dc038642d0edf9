#pragma once
// The training steps that budget_bench runs.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace lowtide::bench {

// A model with its batch. Seeded: two of one kind are equal, bit for bit.
struct StepModel {
  std::string description;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;  // running statistics
  // A forward pass up to the loss. Every `checkpoint_every`-th block, the first included, runs
  // under lowtide::checkpoint; 0: none.
  std::function<at::Tensor(int checkpoint_every)> loss;
};

// 12 pre-norm blocks, 512 wide, 8 heads, feed-forward 2048, GELU; 8 sequences of 512. Small: 4
// blocks, 256 wide, 4 sequences of 256.
StepModel transformer(bool small);

// ResNet-18's stem, its first three widths and three blocks of each: batch norm, ReLU and residual
// sum in place; 32 images of 128x128. Small: two widths, 8 images of 64x64.
StepModel residual_conv_net(bool small);

// The deformable encoder on four levels of an 800x1333 image, 6 layers, as in encoder_bench. Small:
// 2 layers, 200x333.
StepModel deformable_encoder(bool small);

// A binary TreeLSTM over 45 leaves (small: 15), each node's state 128x128: 64 KiB a tensor.
StepModel tree_lstm(bool small);

}  // namespace lowtide::bench
