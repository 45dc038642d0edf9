#pragma once
// AdamW with its state in the open: what a checkpoint must hold are plain named tensors.
//
//   AdamW optimizer(detector.parameters(), {.learning_rate = 1e-3});
//   clip_gradients(detector.parameters(), 0.1);
//   optimizer.step(schedule);
//
// libtorch's own fused kernel does the arithmetic (Loshchilov and Hutter, 2019); there are no
// temporaries, and results do not depend on the number of threads.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lowtide {

// A parameter of the model and how the optimizer treats it.
struct TrainedTensor {
  std::string name;
  at::Tensor tensor;
  double rate_factor = 1;  // times the learning rate
  bool decays = true;      // false: no weight decay (norms, biases, embeddings)
};

struct AdamWOptions {
  double learning_rate = 1e-3;
  double weight_decay = 1e-4;
  double beta1 = 0.9;    // memory of the mean gradient; nearer to 1 is longer
  double beta2 = 0.999;  // memory of the squared gradient
  double eps = 1e-8;
};

class AdamW {
 public:
  // Makes the two averages of each parameter at once, zero, so that the first step allocates
  // nothing.
  AdamW(std::vector<TrainedTensor> parameters, const AdamWOptions& options);

  // One update with all learning rates times `rate_factor`. Parameters without a gradient stay.
  void step(double rate_factor);

  // Sets all gradients to undefined, which gives their memory back.
  void drop_gradients();

  // "exp_avg.NAME", "exp_avg_sq.NAME" and "step.NAME" of each parameter, sharing memory.
  std::map<std::string, at::Tensor> state() const;

 private:
  struct Group {
    double rate_factor;
    double weight_decay;
    std::vector<std::size_t> members;
  };
  std::vector<TrainedTensor> parameters_;
  AdamWOptions options_;
  std::vector<Group> groups_;
  std::vector<at::Tensor> means_;
  std::vector<at::Tensor> squares_;
  std::vector<at::Tensor> steps_;
};

// Scales all gradients so that their joint Euclidean norm is at most `largest_norm`; returns the
// norm before. Leaves the gradients alone when the norm is not finite.
double clip_gradients(const std::vector<TrainedTensor>& parameters, double largest_norm);

}  // namespace lowtide
