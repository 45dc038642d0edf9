// The fused operator against its twins: the definition one tap at a time, the grid_sample
// formulation, central differences, and published vectors. Then what it promises besides numbers.

#include "lowtide/ms_deform_attn.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <doctest/doctest.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include <limits>
#include <string>
#include <tuple>

#include "lowtide/error.h"
#include "lowtide/memory_meter.h"
#include "lowtide/safetensors.h"
#include "src/nn/ms_deform_attn_dispatch.h"
#include "tests/nn/ms_deform_attn_reference.h"

namespace lowtide {
extern const MsDeformAttnKernels kMsDeformAttnWide;

namespace {

using at::Tensor;
using reference::by_grid_sample;
using reference::by_scalar;
using reference::fused;
using reference::Index;
using reference::Inputs;
using reference::Levels;
using reference::random_inputs;
using reference::Sizes;

const Levels kThreeLevels = {{8, 10}, {4, 5}, {1, 3}};

// max |a - b| / max |b|; NaN anywhere gives NaN, which no bound admits.
double relative_error(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) {
    return std::numeric_limits<double>::infinity();
  }
  if (b.numel() == 0) {
    return 0.0;
  }
  const double scale = b.to(at::kDouble).abs().max().item().toDouble();
  const double difference = a.to(at::kDouble).sub(b.to(at::kDouble)).abs().max().item().toDouble();
  return difference / (scale > 0 ? scale : 1);
}

struct Result {
  Tensor output;
  Tensor grad_value;
  Tensor grad_locations;
  Tensor grad_weights;
};

Tensor gradient_for(const Tensor& output, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return reference::filled(output.sizes(), output.scalar_type(), [&] { return normal(random); });
}

template <typename Operation>
Result run(Operation&& operation, Inputs in, const Tensor& grad_output = {}) {
  for (Tensor* input : {&in.value, &in.locations, &in.weights}) {
    *input = input->detach().requires_grad_();
  }
  const Tensor output = operation(in);
  output.backward(grad_output.defined() ? grad_output : gradient_for(output, 11));
  return {output.detach(), in.value.grad(), in.locations.grad(), in.weights.grad()};
}

Result run_fused(const Inputs& in, const Tensor& grad_output = {}) {
  return run(fused, in, grad_output);
}

bool same_bits(const Result& a, const Result& b) {
  return at::equal(a.output, b.output) && at::equal(a.grad_value, b.grad_value) &&
         at::equal(a.grad_locations, b.grad_locations) && at::equal(a.grad_weights, b.grad_weights);
}

void check_close(const Result& got, const reference::Scalar& expected, double tolerance) {
  CHECK(relative_error(got.output, expected.output) < tolerance);
  CHECK(relative_error(got.grad_value, expected.grad_value) < tolerance);
  CHECK(relative_error(got.grad_locations, expected.grad_locations) < tolerance);
  CHECK(relative_error(got.grad_weights, expected.grad_weights) < tolerance);
}

class ForcedKernels {
 public:
  explicit ForcedKernels(const MsDeformAttnKernels* kernels) {
    force_ms_deform_attn_kernels(kernels);
  }
  ~ForcedKernels() { force_ms_deform_attn_kernels(nullptr); }
  ForcedKernels(const ForcedKernels&) = delete;
  ForcedKernels& operator=(const ForcedKernels&) = delete;
};

class ThreadCount {
 public:
  explicit ThreadCount(int threads) { at::set_num_threads(threads); }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_ = at::get_num_threads();
};

class CpuAutocast {
 public:
  CpuAutocast() { at::autocast::set_autocast_enabled(at::kCPU, true); }
  ~CpuAutocast() { at::autocast::set_autocast_enabled(at::kCPU, before_); }
  CpuAutocast(const CpuAutocast&) = delete;
  CpuAutocast& operator=(const CpuAutocast&) = delete;

 private:
  bool before_ = at::autocast::is_autocast_enabled(at::kCPU);
};

std::vector<NamedMsDeformAttnKernels> all_kernels() {
  std::vector<NamedMsDeformAttnKernels> kernels = runnable_ms_deform_attn_kernels();
  kernels.push_back({"wide", &kMsDeformAttnWide});
  return kernels;
}

// The backward operator, as the autograd kernel calls it.
std::tuple<Tensor, Tensor, Tensor> backward_operator(const Tensor& grad_output, const Inputs& in,
                                                     std::array<bool, 3> mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lowtide::ms_deform_attn_backward", "")
                             .typed<std::tuple<Tensor, Tensor, Tensor>(
                                 const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&, std::array<bool, 3>)>();
  return op.call(grad_output, in.value, in.spatial_shapes, in.level_start_index, in.locations,
                 in.weights, mask);
}

// The message of the UsageError with this id that the call must throw.
template <typename Function>
std::string refusal(const std::string& id, Function&& function) {
  try {
    function();
  } catch (const UsageError& error) {
    CHECK_MESSAGE(error.id() == id, error.what());
    return error.what();
  }
  FAIL("no UsageError");
  return {};
}

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) {
    MESSAGE("\"", part, "\" is not in \"", text, "\"");
  }
  return found;
}

Inputs small_inputs(at::ScalarType dtype = at::kFloat) {
  return random_inputs({2, 2, 4, 5, 3, kThreeLevels}, dtype, 1);
}

TEST_CASE("every kernel agrees with the definition, at any head width") {
  for (const NamedMsDeformAttnKernels& named : all_kernels()) {
    CAPTURE(named.name);
    const ForcedKernels forced(named.kernels);
    for (const Index width : {1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 48, 64, 96, 100, 128, 150}) {
      CAPTURE(width);
      // Many queries for the path that copies slices, few for the one that reads them in place.
      for (const Index queries : {70, 2}) {
        CAPTURE(queries);
        for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
          const Inputs in = random_inputs({2, 3, width, queries, 4, kThreeLevels}, dtype, 1);
          const Tensor g = gradient_for(fused(in), 2);
          check_close(run_fused(in, g), by_scalar(in, g), dtype == at::kDouble ? 5e-15 : 5e-6);
        }
      }
    }
  }
}

TEST_CASE("one to nine levels and any number of points agree with the definition") {
  for (const NamedMsDeformAttnKernels& named : all_kernels()) {
    CAPTURE(named.name);
    const ForcedKernels forced(named.kernels);
    for (std::size_t levels = 1; levels <= 9; ++levels) {
      Levels sizes;
      for (std::size_t l = 0; l < levels; ++l) {
        sizes.push_back({static_cast<Index>(9 - l), static_cast<Index>(2 + l)});
      }
      // 9 * 21 samples are more than a table of the loops holds.
      for (const Index points : {1, 3, 8, 21}) {
        CAPTURE(levels);
        CAPTURE(points);
        const Inputs in = random_inputs({1, 2, 9, 11, points, sizes}, at::kFloat, 3);
        const Tensor g = gradient_for(fused(in), 2);
        check_close(run_fused(in, g), by_scalar(in, g), 5e-6);
      }
    }
  }
}

TEST_CASE("output and gradients agree with the grid_sample formulation") {
  for (const NamedMsDeformAttnKernels& named : all_kernels()) {
    CAPTURE(named.name);
    const ForcedKernels forced(named.kernels);
    const Inputs in = random_inputs({2, 2, 12, 50, 4, kThreeLevels}, at::kDouble, 5);
    const Result got = run_fused(in);
    const Result expected = run(by_grid_sample, in);
    check_close(
        got, {expected.output, expected.grad_value, expected.grad_locations, expected.grad_weights},
        1e-12);
  }
}

TEST_CASE("gradients agree with central differences") {
  Inputs in = random_inputs({1, 2, 3, 4, 2, {{4, 5}, {2, 3}}}, at::kDouble, 7);
  // Off the kinks: every pixel coordinate between .2 and .8 of a pixel, some samples on the border.
  double* locations = in.locations.mutable_data_ptr<double>();
  const std::array<std::array<double, 2>, 2> extents = {{{5, 4}, {3, 2}}};
  for (Index i = 0; i < in.locations.numel(); ++i) {
    const double extent =
        extents[static_cast<std::size_t>(i / 4 % 2)][static_cast<std::size_t>(i % 2)];
    locations[i] =
        (std::floor(locations[i] * extent) + 0.1 * static_cast<double>(i % 7 - 3)) / extent;
  }
  const Tensor g = gradient_for(fused(in), 2);
  const Result got = run_fused(in, g);
  const auto loss = [&] { return fused(in).mul(g).sum().item().toDouble(); };
  constexpr double kStep = 1e-6;
  const auto check = [&](Tensor& input, const Tensor& gradient) {
    double* data = input.mutable_data_ptr<double>();
    const double* claimed = gradient.const_data_ptr<double>();
    for (Index i = 0; i < input.numel(); ++i) {
      CAPTURE(i);
      const double kept = data[i];
      data[i] = kept + kStep;
      const double above = loss();
      data[i] = kept - kStep;
      const double below = loss();
      data[i] = kept;
      CHECK((above - below) / (2 * kStep) == doctest::Approx(claimed[i]).epsilon(1e-6).scale(1));
    }
  };
  check(in.value, got.grad_value);
  check(in.locations, got.grad_locations);
  check(in.weights, got.grad_weights);
}

TEST_CASE("published vectors are met within 1e-5 of the largest entry") {
  const SafetensorsFile file =
      load_safetensors(LOWTIDE_SOURCE_DIR "/tests/data/detr/msda_op.safetensors");
  for (const NamedMsDeformAttnKernels& named : all_kernels()) {
    CAPTURE(named.name);
    const ForcedKernels forced(named.kernels);
    for (const std::string name : {"q1", "q2_edges"}) {
      CAPTURE(name);
      const auto tensor = [&](const char* part) { return file.tensors.at(name + "." + part); };
      const Inputs in{tensor("value"), tensor("spatial_shapes"), tensor("level_start_index"),
                      tensor("sampling_locations"), tensor("attention_weights")};
      const Result got = run_fused(in, tensor("gout"));
      CHECK(relative_error(got.output, tensor("out")) < 1e-5);
      CHECK(relative_error(got.grad_value, tensor("grad_value")) < 1e-5);
      CHECK(relative_error(got.grad_weights, tensor("grad_attention_weights")) < 1e-5);
      if (name != "q2_edges") {  // one-sided there, see the vectors' README
        CHECK(relative_error(got.grad_locations, tensor("grad_sampling_locations")) < 1e-5);
      }
    }
  }
}

TEST_CASE("results are bitwise the same for any number of threads") {
  const std::vector<Sizes> cases = {
      {1, 1, 32, 500, 4, {{37, 29}}},                  // one slice, one level: bands of rows
      {1, 1, 32, 300, 4, {{20, 30}, {10, 15}}},        // one slice: levels and bands
      {2, 3, 24, 400, 2, {{20, 30}, {0, 4}, {1, 9}}},  // empty and flat levels
      {1, 8, 32, 300, 4, {{20, 30}, {10, 15}}},
      {3, 4, 5, 200, 4, {{2, 3}}},     // more threads than rows
      {1, 2, 16, 100, 4, {{60, 70}}},  // read in place
  };
  for (const Sizes& sizes : cases) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const Inputs in = random_inputs(sizes, dtype, 13);
      const Tensor g = gradient_for(fused(in), 2);
      Result one;
      {
        const ThreadCount threads(1);
        one = run_fused(in, g);
      }
      for (const int count : {2, 3, 5, 16, 40}) {
        CAPTURE(count);
        const ThreadCount threads(count);
        CHECK(same_bits(run_fused(in, g), one));
      }
    }
  }
}

TEST_CASE("locations off the map, NaN, infinite or huge add zero and get zero gradients") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const NamedMsDeformAttnKernels& named : all_kernels()) {
    CAPTURE(named.name);
    const ForcedKernels forced(named.kernels);
    for (const float bad : {nan, inf, -inf, 1e30f, -1e30f, 3e9f, -3e9f, 1.2f, -0.2f}) {
      CAPTURE(bad);
      for (const Index axis : {0, 1}) {
        for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
          Inputs in = random_inputs({1, 2, 8, 6, 4, {{8, 10}}}, dtype, 17);
          Inputs without = in;
          without.weights = in.weights.clone();
          in.locations = in.locations.clone();
          in.locations.select(4, 1).select(-1, axis).fill_(bad);
          without.locations = in.locations.clone();
          without.locations.select(4, 1).fill_(0.5);
          without.weights.select(4, 1).fill_(0);
          const Tensor g = gradient_for(fused(in), 2);
          const Result got = run_fused(in, g);
          const Result expected = run_fused(without, g);
          CHECK(at::equal(got.output, expected.output));
          CHECK(at::equal(got.grad_value, expected.grad_value));
          CHECK(got.grad_locations.select(4, 1).abs().max().item().toDouble() == 0);
          CHECK(got.grad_weights.select(4, 1).abs().max().item().toDouble() == 0);
        }
      }
    }
  }
}

TEST_CASE("a NaN weight spoils the output only where its sample is on the map") {
  for (const NamedMsDeformAttnKernels& named : all_kernels()) {
    CAPTURE(named.name);
    const ForcedKernels forced(named.kernels);
    Inputs in = random_inputs({1, 1, 8, 2, 1, {{8, 10}}}, at::kFloat, 17);
    in.weights.fill_(std::numeric_limits<double>::quiet_NaN());
    in.locations.select(1, 0).fill_(0.5);
    in.locations.select(1, 1).fill_(7.0);
    const Result got = run_fused(in);
    CHECK(got.output.select(1, 0).isnan().all().item().toBool());
    CHECK(got.output.select(1, 1).abs().max().item().toDouble() == 0);
    CHECK(got.grad_locations.select(1, 1).abs().max().item().toDouble() == 0);
  }
}

TEST_CASE("an infinite value reaches only the samples that touch its pixel") {
  for (const NamedMsDeformAttnKernels& named : all_kernels()) {
    CAPTURE(named.name);
    const ForcedKernels forced(named.kernels);
    // Two rows of three pixels, x at -0.7 .. 2.7: the sample at 2.7 has its right taps off the map,
    // where the next row begins.
    Inputs in = random_inputs({1, 1, 8, 2, 1, {{2, 3}}}, at::kFloat, 19);
    in.value.select(1, 3).fill_(std::numeric_limits<double>::infinity());  // pixel (0, 1)
    float* locations = in.locations.mutable_data_ptr<float>();
    const std::array<float, 4> pixels = {2.7f, -0.2f, 1.5f, -0.9f};  // in row 0 only
    for (std::size_t i = 0; i < 4; ++i) {
      locations[i] = (pixels[i] + 0.5f) / (i % 2 == 0 ? 3.0f : 2.0f);
    }
    CHECK(fused(in).isfinite().all().item().toBool());
  }
}

TEST_CASE("half-precision values are summed in float32 and rounded once") {
  for (const NamedMsDeformAttnKernels& named : all_kernels()) {
    CAPTURE(named.name);
    const ForcedKernels forced(named.kernels);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const Index width : {5, 32}) {
        CAPTURE(width);
        const Inputs in = random_inputs({2, 2, width, 60, 4, kThreeLevels}, dtype, 23);
        Inputs exact = in;
        exact.value = in.value.to(at::kFloat);
        const Tensor g = gradient_for(fused(in), 2);
        const Result got = run_fused(in, g);
        const Result expected = run_fused(exact, g.to(at::kFloat));
        CHECK((got.output.scalar_type() == dtype));
        CHECK((got.grad_value.scalar_type() == dtype));
        CHECK((got.grad_locations.scalar_type() == at::kFloat));
        CHECK(at::equal(got.output, expected.output.to(dtype)));
        CHECK(at::equal(got.grad_value, expected.grad_value.to(dtype)));
        CHECK(at::equal(got.grad_locations, expected.grad_locations));
        CHECK(at::equal(got.grad_weights, expected.grad_weights));
      }
    }
  }
}

TEST_CASE("autocast leaves float32 locations as they are and raises half-precision ones") {
  Inputs in = small_inputs(at::kBFloat16);
  const Result plain = run_fused(in);
  const CpuAutocast autocast;
  CHECK(same_bits(run_fused(in), plain));

  Inputs half = in;
  half.locations = in.locations.to(at::kBFloat16);
  half.weights = in.weights.to(at::kBFloat16);
  Inputs raised = in;
  raised.locations = half.locations.to(at::kFloat);
  raised.weights = half.weights.to(at::kFloat);
  const Result got = run_fused(half);
  const Result expected = run_fused(raised);
  CHECK(at::equal(got.output, expected.output));
  CHECK(at::equal(got.grad_value, expected.grad_value));
  CHECK((got.grad_locations.scalar_type() == at::kBFloat16));
  CHECK(at::equal(got.grad_locations, expected.grad_locations.to(at::kBFloat16)));

  const Inputs full = small_inputs(at::kFloat);
  CHECK((fused(full).scalar_type() == at::kFloat));
}

TEST_CASE("inputs that are not contiguous give the same result") {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Inputs in = small_inputs(dtype);
    Inputs strided;
    strided.value = in.value.permute({3, 1, 0, 2}).contiguous().permute({2, 1, 3, 0});
    strided.locations =
        in.locations.permute({5, 0, 1, 2, 3, 4}).contiguous().permute({1, 2, 3, 4, 5, 0});
    strided.weights = in.weights.transpose(1, 4).contiguous().transpose(1, 4);
    strided.spatial_shapes = in.spatial_shapes.t().contiguous().t();
    strided.level_start_index =
        in.level_start_index.view({-1, 1}).expand({-1, 2}).contiguous().select(1, 1);
    REQUIRE_FALSE(strided.value.is_contiguous());
    REQUIRE_FALSE(strided.locations.is_contiguous());
    REQUIRE_FALSE(strided.weights.is_contiguous());
    REQUIRE_FALSE(strided.spatial_shapes.is_contiguous());
    REQUIRE_FALSE(strided.level_start_index.is_contiguous());
    const Tensor output = fused(in);
    const Tensor g = gradient_for(output, 2);
    const Tensor strided_g = g.transpose(0, 2).contiguous().transpose(0, 2);
    CHECK(same_bits(run_fused(strided, strided_g), run_fused(in, g)));
    // sum() sends an expanded gradient, all strides zero.
    CHECK(same_bits(
        run_fused(in,
                  at::ones_like(output).narrow(0, 0, 1).narrow(1, 0, 1).narrow(2, 0, 1).expand_as(
                      output)),
        run_fused(in, at::ones_like(output))));
  }
}

TEST_CASE("empty inputs give empty or zero results") {
  const Sizes usual = {2, 2, 4, 5, 3, kThreeLevels};
  std::vector<Sizes> cases(6, usual);
  cases[0].bs = 0;
  cases[1].queries = 0;
  cases[2].levels = {{0, 5}, {3, 0}};
  cases[3].points = 0;
  cases[4].heads = 0;
  cases[5].width = 0;
  for (const Sizes& sizes : cases) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Inputs in = random_inputs(sizes, dtype, 29);
      const Result got = run_fused(in);
      CHECK(got.output.sizes() ==
            at::IntArrayRef({sizes.bs, sizes.queries, sizes.heads * sizes.width}));
      for (const auto& [gradient, input] :
           {std::pair(got.grad_value, in.value), std::pair(got.grad_locations, in.locations),
            std::pair(got.grad_weights, in.weights)}) {
        CHECK(gradient.sizes() == input.sizes());
        CHECK((gradient.scalar_type() == input.scalar_type()));
        CHECK(at::equal(gradient, at::zeros_like(gradient)));
      }
      CHECK(at::equal(got.output, at::zeros_like(got.output)));
    }
  }
}

TEST_CASE("only the gradients that are asked for are computed, and with the same bits") {
  for (const Index queries : {60, 1}) {
    const Inputs in = random_inputs({2, 2, 16, queries, 3, kThreeLevels}, at::kFloat, 31);
    const Tensor g = gradient_for(fused(in), 2);
    const auto [value, locations, weights] = backward_operator(g, in, {true, true, true});
    for (int mask = 0; mask < 8; ++mask) {
      CAPTURE(mask);
      const std::array<bool, 3> needed = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
      const auto [v, l, w] = backward_operator(g, in, needed);
      CHECK(v.defined() == needed[0]);
      CHECK(l.defined() == needed[1]);
      CHECK(w.defined() == needed[2]);
      CHECK((!v.defined() || at::equal(v, value)));
      CHECK((!l.defined() || at::equal(l, locations)));
      CHECK((!w.defined() || at::equal(w, weights)));
    }
  }
  Inputs in = small_inputs();
  in.weights.requires_grad_();
  const Tensor output = fused(in);
  const Tensor g = gradient_for(output, 11);
  output.backward(g);
  CHECK_FALSE(in.value.grad().defined());
  CHECK(at::equal(in.weights.grad(), run_fused(small_inputs(), g).grad_weights));
}

TEST_CASE("autograd does not compute gradients that nothing needs") {
  const ThreadCount threads(1);
  Inputs in = random_inputs({1, 8, 32, 60, 1, {{20, 30}}}, at::kFloat, 31);
  in.weights.requires_grad_();
  const Tensor output = fused(in);
  const Tensor g = gradient_for(output, 11);
  const MemoryMeter meter;
  const Bytes before = meter.live_bytes();
  output.backward(g);
  // A gradient of value would be one value large; the copy of one head is an eighth.
  CHECK(meter.peak_bytes() - before < in.value.nbytes() / 2);
}

TEST_CASE("no graph is made when no input needs a gradient, or grad mode is off") {
  Inputs in = small_inputs();
  CHECK_FALSE(fused(in).requires_grad());
  in.value.requires_grad_();
  CHECK(fused(in).requires_grad());
  const at::NoGradGuard no_grad;
  CHECK_FALSE(fused(in).requires_grad());
}

TEST_CASE("autograd keeps nothing beyond the inputs") {
  Inputs in = small_inputs();
  in.value.requires_grad_();
  in.locations.requires_grad_();
  in.weights.requires_grad_();
  const MemoryMeter meter;
  const Bytes before = meter.live_bytes();
  const Tensor output = fused(in);
  CHECK(meter.live_bytes() - before == output.nbytes());
  // In the usual configuration the inputs are 2.5 times value: heads * L * P * 3 = 384 numbers
  // against heads * D = 256 for each token.
  const Sizes usual = {1, 8, 32, 35, 4, {{4, 5}, {3, 3}, {2, 2}, {1, 2}}};
  const Inputs layer = random_inputs(usual, at::kFloat, 3);
  CHECK(layer.value.nbytes() + layer.locations.nbytes() + layer.weights.nbytes() <=
        3 * layer.value.nbytes());
}

TEST_CASE("changing a kept input in place before backward is an error") {
  Inputs in = small_inputs();
  in.weights.requires_grad_();
  const Tensor output = fused(in);
  in.value.add_(1);
  CHECK_THROWS_WITH_AS(output.sum().backward(),
                       doctest::Contains("modified by an inplace operation"), c10::Error);
}

TEST_CASE("double backward is refused, create_graph alone is not") {
  Inputs in = small_inputs();
  in.value.requires_grad_();
  in.locations.requires_grad_();
  const Tensor output = fused(in);
  const Tensor g = gradient_for(output, 11);
  const auto gradients = torch::autograd::grad({output}, {in.value, in.locations}, {g},
                                               /*retain_graph=*/true, /*create_graph=*/true);
  const Result plain = run_fused(small_inputs(), g);
  CHECK(at::equal(gradients[0].detach(), plain.grad_value));
  CHECK(at::equal(gradients[1].detach(), plain.grad_locations));
  CHECK(gradients[0].requires_grad());
  const std::string message = refusal("LT0405", [&] { gradients[1].pow(2).sum().backward(); });
  CHECK(contains(message, "create_graph"));
  CHECK(contains(message, "detach"));
}

TEST_CASE("forward-mode gradients are refused") {
  Inputs in = small_inputs();
  in.weights = in.weights.clone();
  const auto level = torch::autograd::forward_ad::enter_dual_level();
  in.weights._set_fw_grad(at::ones_like(in.weights), level, /*is_inplace_op=*/false);
  const std::string message = refusal("LT0406", [&] { fused(in); });
  torch::autograd::forward_ad::exit_dual_level(level);
  CHECK(contains(message, "forward-mode"));
}

TEST_CASE("wrong shapes are refused by argument, with what was expected and what came") {
  const Inputs good = small_inputs();
  const auto message = [&](auto&& change) {
    Inputs in = good;
    change(in);
    return refusal("LT0401", [&] { fused(in); });
  };
  std::string text = message([](Inputs& in) { in.value = in.value.flatten(2); });
  CHECK(contains(text, "value has shape [2, 103, 8], expected four dimensions"));
  text = message([](Inputs& in) { in.weights = in.weights.narrow(4, 0, 2); });
  CHECK(contains(text, "attention_weights has shape [2, 5, 2, 3, 2], expected [2, 5, 2, 3, 3]"));
  text = message([](Inputs& in) { in.weights = in.weights.narrow(1, 0, 4); });
  CHECK(contains(text, "attention_weights has shape [2, 4, 2, 3, 3], expected [2, 5, 2, 3, 3]"));
  text = message([](Inputs& in) { in.locations = in.locations.narrow(2, 0, 1); });
  CHECK(contains(text,
                 "sampling_locations has shape [2, 5, 1, 3, 3, 2], expected [2, 5, 2, 3, 3, 2]"));
  text = message([](Inputs& in) { in.locations = in.locations.narrow(0, 0, 1); });
  CHECK(contains(text, "sampling_locations has shape [1, 5,"));
  text = message([](Inputs& in) { in.locations = in.locations.select(5, 0); });
  CHECK(contains(text, "sampling_locations has shape [2, 5, 2, 3, 3], expected six dimensions"));
  text = message([](Inputs& in) { in.locations = at::cat({in.locations, in.locations}, 5); });
  CHECK(contains(text, "sampling_locations has shape [2, 5, 2, 3, 3, 4]"));
  text = message([](Inputs& in) { in.spatial_shapes = in.spatial_shapes.t(); });
  CHECK(contains(text, "spatial_shapes has shape [2, 3], expected (L, 2)"));
  text = message([](Inputs& in) { in.spatial_shapes = in.spatial_shapes.narrow(0, 0, 0); });
  CHECK(
      contains(text, "spatial_shapes has shape [0, 2], expected (L, 2), with at least one level"));
  text = message([](Inputs& in) { in.level_start_index = in.level_start_index.narrow(0, 0, 2); });
  CHECK(contains(text, "level_start_index has shape [2], expected [3]"));
  text = message([](Inputs& in) { in.value = Tensor(); });
  CHECK(contains(text, "value is an undefined tensor"));
  text =
      refusal("LT0401", [&] { backward_operator(at::zeros({2, 5, 9}), good, {true, true, true}); });
  CHECK(contains(text, "grad_output has shape [2, 5, 9], expected [2, 5, 8]"));
}

TEST_CASE("wrong dtypes are refused by argument, with what was expected and what came") {
  const auto message = [](at::ScalarType dtype, auto&& change) {
    Inputs in = small_inputs(dtype);
    change(in);
    return refusal("LT0402", [&] { fused(in); });
  };
  std::string text =
      message(at::kFloat, [](Inputs& in) { in.locations = in.locations.to(at::kDouble); });
  CHECK(contains(text, "sampling_locations is Double, expected Float for a value of Float"));
  text = message(at::kBFloat16, [](Inputs& in) { in.locations = in.locations.to(at::kBFloat16); });
  CHECK(contains(text, "sampling_locations is BFloat16, expected Float for a value of BFloat16"));
  text = message(at::kDouble, [](Inputs& in) { in.weights = in.weights.to(at::kFloat); });
  CHECK(contains(text, "attention_weights is Float, expected Double"));
  text = message(at::kFloat, [](Inputs& in) { in.value = in.value.to(at::kInt); });
  CHECK(contains(text, "value is Int, expected Float, Double, BFloat16 or Half"));
  text =
      message(at::kFloat, [](Inputs& in) { in.spatial_shapes = in.spatial_shapes.to(at::kInt); });
  CHECK(contains(text, "spatial_shapes is Int, expected Long (int64)"));
  text = message(at::kFloat,
                 [](Inputs& in) { in.level_start_index = in.level_start_index.to(at::kFloat); });
  CHECK(contains(text, "level_start_index is Float, expected Long (int64)"));
  text = refusal("LT0402", [&] {
    backward_operator(at::zeros({2, 5, 8}, at::kDouble), small_inputs(), {true, true, true});
  });
  CHECK(contains(text, "grad_output is Double, expected Float"));
}

TEST_CASE("wrong level tables are refused with the level and the numbers") {
  const auto message = [](const std::vector<Index>& shapes, const std::vector<Index>& starts) {
    Inputs in = small_inputs();  // 8x10, 4x5, 1x3: 103 tokens
    in.spatial_shapes = at::tensor(shapes, at::kLong).view({3, 2});
    in.level_start_index = at::tensor(starts, at::kLong);
    return refusal("LT0403", [&] { fused(in); });
  };
  CHECK(contains(
      message({8, 10, 4, 5, 1, 2}, {0, 80, 100}),
      "spatial_shapes covers 102 tokens (the sum of height * width), but value has N = 103"));
  CHECK(contains(message({8, 10, 4, 5, 1, 4}, {0, 80, 100}),
                 "level 2 is 1 x 4 = 4 from token 100, but value has N = 103"));
  CHECK(contains(message({-8, -10, 4, 5, 1, 3}, {0, 80, 100}), "spatial_shapes[0] is (-8, -10)"));
  CHECK(contains(message({8, 10, 4, 5, 1, 3}, {0, 81, 100}),
                 "level_start_index[1] is 81, expected 80"));
  CHECK(contains(message({8, 10, 4, 5, 1, 3}, {-1, 80, 100}), "level_start_index[0] is -1"));
  // 2^32 * 2^32 wraps to zero in 64 bits.
  CHECK(contains(message({Index{1} << 32, Index{1} << 32, 4, 5, 1, 3}, {0, 80, 100}),
                 "spatial_shapes[0] is (4294967296, 4294967296)"));
  CHECK(contains(message({1 << 24, 1 << 24, 4, 5, 1, 3}, {0, 80, 100}), "value has N = 103"));
}

TEST_CASE("mixed devices are refused by argument") {
  Inputs in = small_inputs();
  in.weights = in.weights.to(at::kMeta);
  CHECK(contains(refusal("LT0404", [&] { fused(in); }),
                 "attention_weights is on meta but value is on cpu"));
  in = small_inputs();
  in.spatial_shapes = in.spatial_shapes.to(at::kMeta);
  CHECK(contains(refusal("LT0404", [&] { fused(in); }),
                 "spatial_shapes is on meta but value is on cpu"));
  in = small_inputs();
  in.value = in.value.to(at::kMeta);
  CHECK(contains(refusal("LT0404", [&] { fused(in); }),
                 "sampling_locations is on cpu but value is on meta"));
  in = small_inputs();
  in.value = in.value.to_sparse();
  CHECK(contains(refusal("LT0404", [&] { fused(in); }), "value has layout Sparse"));
}

TEST_CASE("meta tensors give the shapes, also backward, and are checked like others") {
  for (const bool tables_on_cpu : {true, false}) {
    Inputs in = small_inputs(at::kBFloat16);
    for (Tensor* input : {&in.value, &in.locations, &in.weights}) {
      *input = input->to(at::kMeta).requires_grad_();
    }
    if (!tables_on_cpu) {
      in.spatial_shapes = in.spatial_shapes.to(at::kMeta);
      in.level_start_index = in.level_start_index.to(at::kMeta);
    }
    const Tensor output = fused(in);
    CHECK(output.is_meta());
    CHECK(output.sizes() == at::IntArrayRef({2, 5, 8}));
    CHECK((output.scalar_type() == at::kBFloat16));
    output.backward(at::empty_like(output));
    CHECK(in.value.grad().sizes() == in.value.sizes());
    CHECK((in.locations.grad().scalar_type() == at::kFloat));
    in.weights = in.weights.detach().narrow(4, 0, 2);
    CHECK(contains(refusal("LT0401", [&] { fused(in); }), "attention_weights"));
  }
  Inputs in = small_inputs();
  for (Tensor* input : {&in.value, &in.locations, &in.weights}) {
    *input = input->to(at::kMeta);
  }
  in.value = in.value.narrow(1, 0, 100);
  CHECK(contains(refusal("LT0403", [&] { fused(in); }), "value has N = 100"));
}

TEST_CASE("kernels that cannot run are refused with what can") {
  for (const NamedMsDeformAttnKernels& runnable : runnable_ms_deform_attn_kernels()) {
    CHECK(&ms_deform_attn_kernels_named(runnable.name) == runnable.kernels);
  }
  const std::string message = refusal("LT0407", [] { ms_deform_attn_kernels_named("sse9"); });
  CHECK(contains(message, "LOWTIDE_MS_DEFORM_ATTN=sse9"));
  CHECK(contains(message, "plain"));
}

}  // namespace
}  // namespace lowtide
