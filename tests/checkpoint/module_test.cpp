// checkpoint_wrapper and checkpoint_sequential on torch::nn modules.

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "tests/checkpoint/both_ways.h"

namespace lowtide::testing {
namespace {

namespace nn = torch::nn;

struct BlockImpl : nn::Cloneable<BlockImpl> {
  explicit BlockImpl(int width) : width_(width) { BlockImpl::reset(); }
  void reset() override {
    inner = register_module("inner", nn::Linear(width_, width_));
    norm = register_module("norm", nn::BatchNorm1d(width_));
    scale = register_parameter("scale", at::ones({width_}));
    calls = register_buffer("calls", at::zeros({1}));
  }
  std::vector<at::Tensor> forward(const at::Tensor& x, at::Tensor shift, double factor) {
    ++runs;
    at::Tensor y = at::dropout(norm->forward(inner->forward(x)).tanh(), 0.2, is_training());
    return {(y * scale).sin() * factor, shift.exp()};
  }

  int width_;
  int runs = 0;
  nn::Linear inner{nullptr};
  nn::BatchNorm1d norm{nullptr};
  at::Tensor scale, calls;
};
TORCH_MODULE(Block);

std::vector<std::string> names(const nn::Module& module) {
  std::vector<std::string> all;
  for (const auto& item : module.named_parameters()) all.push_back(item.key());
  for (const auto& item : module.named_buffers()) all.push_back(item.key());
  for (const auto& item : module.named_modules("", false)) all.push_back(item.key());
  return all;
}

TEST_CASE("a wrapped module gives the plain module's gradients, and replays") {
  int runs = 0;
  same_both_ways([&](Run& run) {
    Block block(8);
    at::Tensor x = parameter({4, 8}), shift = parameter({4, 8});
    std::vector<at::Tensor> y;
    std::shared_ptr<BlockImpl> used = block.ptr();
    if (run.checkpointed) {
      auto wrapped = checkpoint_wrapper(block);
      y = wrapped->forward(x * 1, shift * 1, 0.5);
      used = wrapped;
    } else {
      y = block->forward(x * 1, shift * 1, 0.5);
    }
    (y[0].sum() + y[1].sum()).backward();
    runs = used->runs;
    return std::vector<at::Tensor>{y[0],
                                   x.grad(),
                                   shift.grad(),
                                   block->scale.grad(),
                                   block->inner->weight.grad(),
                                   block->inner->bias.grad(),
                                   block->norm->weight.grad(),
                                   block->norm->running_mean,
                                   block->norm->running_var,
                                   block->norm->num_batches_tracked};
  });
  CHECK(runs == 2);
}

TEST_CASE("names in the state dict are the module's own, and weights are shared") {
  Block block(8);
  auto wrapped = checkpoint_wrapper(block);
  CHECK(names(*wrapped) == names(*block));
  CHECK(wrapped->scale.is_same(block->scale));
  CHECK(wrapped->named_parameters()["inner.weight"].is_same(block->inner->weight));
  wrapped->eval();
  CHECK(!block->inner->is_training());
}

TEST_CASE("a clone uses its own weights") {
  auto wrapped = checkpoint_wrapper(Block(8));
  auto clone = std::dynamic_pointer_cast<Checkpointed<BlockImpl>>(wrapped->clone());
  REQUIRE(clone != nullptr);
  CHECK(names(*clone) == names(*wrapped));
  at::Tensor x = at::randn({4, 8});
  clone->forward(x, x, 0.5)[0].sum().backward();
  CHECK(clone->scale.grad().defined());
  CHECK(!wrapped->scale.grad().defined());
  CHECK(clone->runs == 2);
  CHECK(wrapped->runs == 0);
}

TEST_CASE("a clone of a model with wrapped children uses its own weights") {
  nn::Sequential model(checkpoint_wrapper(nn::Linear(8, 8)), nn::Tanh(),
                       checkpoint_wrapper(nn::Linear(8, 8)));
  auto clone = std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone());
  REQUIRE(clone != nullptr);
  clone->forward(at::randn({4, 8})).sum().backward();
  for (const at::Tensor& weight : clone->parameters()) CHECK(weight.grad().defined());
  for (const at::Tensor& weight : model->parameters()) CHECK(!weight.grad().defined());
}

TEST_CASE("wrapped modules in Sequential and AnyModule, and a wrapped Sequential") {
  same_both_ways([](Run& run) {
    nn::Linear first(8, 16), second(16, 8);
    nn::Sequential inner(nn::Linear(8, 8), nn::ReLU(), nn::Dropout(0.5));
    at::Tensor x = parameter({4, 8}), y;
    if (run.checkpointed) {
      nn::Sequential model(checkpoint_wrapper(first), nn::Tanh(), checkpoint_wrapper(second),
                           checkpoint_wrapper(inner));
      CHECK(model->parameters().size() == 6);
      y = model->forward(x);
    } else {
      y = inner->forward(second->forward(first->forward(x).tanh()));
    }
    y.sin().sum().backward();
    std::vector<at::Tensor> all = {y, x.grad()};
    for (const nn::Module* module :
         {static_cast<nn::Module*>(first.get()), static_cast<nn::Module*>(second.get()),
          static_cast<nn::Module*>(inner.get())}) {
      for (const at::Tensor& weight : module->parameters()) all.push_back(weight.grad());
    }
    CHECK(all.size() == 2 + 6);
    return all;
  });
  nn::AnyModule any(checkpoint_wrapper(nn::Linear(8, 3)));
  CHECK(any.forward(at::randn({4, 8})).size(1) == 3);
}

TEST_CASE("a region keeps the module that it needs") {
  at::Tensor y;
  at::Tensor weight;
  {
    auto wrapped = checkpoint_wrapper(nn::Linear(8, 8));
    weight = wrapped->weight;
    y = wrapped->forward(at::randn({4, 8}) * 1).sin();
  }
  y.sum().backward();
  CHECK(weight.grad().defined());
}

TEST_CASE("a sequence in segments gives the plain gradients") {
  for (const std::int64_t segments : {1, 2, 3, 5}) {
    same_both_ways([&](Run& run) {
      nn::Sequential model(nn::Linear(8, 16), nn::ReLU(), nn::Dropout(0.5), nn::Linear(16, 8),
                           nn::BatchNorm1d(8));
      at::Tensor x = parameter({4, 8});
      at::Tensor y =
          run.checkpointed ? checkpoint_sequential(model, segments, x) : model->forward(x);
      y.sin().sum().backward();
      std::vector<at::Tensor> all = {y, x.grad()};
      for (const at::Tensor& weight : model->parameters()) all.push_back(weight.grad());
      for (const at::Tensor& buffer : model->buffers()) all.push_back(buffer);
      return all;
    });
  }
}

TEST_CASE("impossible numbers of segments are refused with both numbers") {
  nn::Sequential model(nn::Linear(8, 8), nn::ReLU());
  std::string message;
  for (const std::int64_t segments : {-1, 0, 3}) {
    CHECK(error_id([&] { checkpoint_sequential(model, segments, at::randn({4, 8})); }, &message) ==
          "LT0206");
  }
  CHECK(message.find("2 modules in 3") != std::string::npos);
}

// Its clone() gives a BlockImpl.
struct DerivedImpl : BlockImpl {
  using BlockImpl::BlockImpl;
};

TEST_CASE("a module whose clone is of another class is refused") {
  auto wrapped = checkpoint_wrapper(std::make_shared<DerivedImpl>(8));
  CHECK(error_id([&] { wrapped->clone(); }) == "LT0207");
}

}  // namespace
}  // namespace lowtide::testing
