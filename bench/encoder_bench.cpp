// One step (forward and backward) of the whole encoder: peak tensor bytes and time with no and with
// all layers checkpointed, and on the grid_sample formulation of attention.
//
//   encoder_bench [--size=800x1333] [--layers=6] [--threads=1] [--repeats=5] [--results=FILE]
//
// The figures of docs/performance.md. The variants take turns in each round, so that a change of
// the machine's speed meets all of them; times are medians of wall and of processor seconds. Peaks
// are the counting allocator's, parameters and inputs included; they do not depend on time and are
// the same in every round. Batch 1, seed 1, standard layers (256 channels, 8 heads, 4 levels, 4
// points, ffn 1024, dropout 0).
//
// The grid_sample encoder is written as mmdetection's is: linear layers on three dimensions, a list
// of sampled maps that is stacked, ReLU in place. It has the same weights and must give the same
// result.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <time.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "lowtide/bytes.h"
#include "lowtide/deformable_detr_encoder.h"
#include "lowtide/memory_meter.h"
#include "lowtide/version.h"
#include "src/base/json.h"

namespace lowtide {
namespace {

constexpr std::int64_t kChannels = 256;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kLevels = 4;
constexpr std::int64_t kPoints = 4;

struct Settings {
  ImageSize image = {800, 1333};
  std::int64_t layers = 6;
  int threads = 1;
  int repeats = 5;
  std::string results;
};

EncoderTokens make_tokens(ImageSize image) {
  std::vector<at::Tensor> maps;
  ImageSize level = {(image.height + 7) / 8, (image.width + 7) / 8};
  for (std::int64_t i = 0; i < kLevels; ++i) {
    maps.push_back(at::randn({1, kChannels, level.height, level.width}));
    level = {(level.height + 1) / 2, (level.width + 1) / 2};
  }
  EncoderTokens tokens =
      flatten_feature_maps(maps, at::randn({kLevels, kChannels}), {image}, image);
  tokens.query.set_requires_grad(true);
  tokens.query_pos.set_requires_grad(true);
  return tokens;
}

// mmcv's multi_scale_deformable_attn_pytorch, op for op.
at::Tensor grid_sample_attention(const at::Tensor& value, const at::Tensor& shapes,
                                 const at::Tensor& locations, const at::Tensor& weights) {
  const std::int64_t batch = value.size(0);
  const std::int64_t width = value.size(3);
  const std::int64_t queries = locations.size(1);
  const at::Tensor grids = locations * 2 - 1;
  std::vector<at::Tensor> sampled;
  std::int64_t start = 0;
  for (std::int64_t level = 0; level < shapes.size(0); ++level) {
    const std::int64_t h = shapes[level][0].item<std::int64_t>();
    const std::int64_t w = shapes[level][1].item<std::int64_t>();
    const at::Tensor map = value.narrow(1, start, h * w)
                               .flatten(2)
                               .transpose(1, 2)
                               .reshape({batch * kHeads, width, h, w});
    const at::Tensor grid = grids.select(3, level).transpose(1, 2).flatten(0, 1);
    sampled.push_back(at::grid_sampler(map, grid, 0, 0, false));
    start += h * w;
  }
  const at::Tensor shares =
      weights.transpose(1, 2).reshape({batch * kHeads, 1, queries, kLevels * kPoints});
  return (at::stack(sampled, -2).flatten(-2) * shares)
      .sum(-1)
      .view({batch, kHeads * width, queries})
      .transpose(1, 2)
      .contiguous();
}

at::Tensor grid_sample_encoder(const torch::OrderedDict<std::string, at::Tensor>& weights,
                               std::int64_t layers, const EncoderTokens& tokens) {
  const std::int64_t count = tokens.query.size(1);
  const at::Tensor reference = encoder_reference_points(tokens.spatial_shapes, tokens.valid_ratios)
                                   .unsqueeze(2)
                                   .unsqueeze(4);
  const at::Tensor sizes = tokens.spatial_shapes.flip(1).to(at::kFloat).unsqueeze(1);
  at::Tensor x = tokens.query;
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    const auto linear = [&](const at::Tensor& input, const char* name) {
      return at::linear(input, weights[layer + name + ".weight"], weights[layer + name + ".bias"]);
    };
    const auto norm = [&](const at::Tensor& input, const char* name) {
      return at::layer_norm(input, {kChannels}, weights[layer + name + ".weight"],
                            weights[layer + name + ".bias"]);
    };
    const at::Tensor value = linear(x, "self_attn.value_proj").view({1, count, kHeads, -1});
    const at::Tensor query = x + tokens.query_pos;
    const at::Tensor locations =
        reference +
        linear(query, "self_attn.sampling_offsets").view({1, count, kHeads, kLevels, kPoints, 2}) /
            sizes;
    const at::Tensor attention = linear(query, "self_attn.attention_weights")
                                     .view({1, count, kHeads, kLevels * kPoints})
                                     .softmax(-1)
                                     .view({1, count, kHeads, kLevels, kPoints});
    const at::Tensor attended =
        grid_sample_attention(value, tokens.spatial_shapes, locations, attention);
    x = norm(linear(attended, "self_attn.output_proj") + x, "norms.0");
    x = norm(linear(linear(x, "ffn.layers.0.0").relu_(), "ffn.layers.1") + x, "norms.1");
  }
  return x;
}

struct Measurement {
  Bytes peak_bytes = 0;
  double wall_s = 0;
  double processor_s = 0;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Variant {
  std::string name;
  std::function<at::Tensor()> forward;
  std::vector<Measurement> runs = {};
  double memory_sum = 0;  // of the result, to see that all compute the same
};

void measure(Variant& variant, DeformableDetrTransformerEncoder& encoder, EncoderTokens& tokens,
             const at::Tensor& gout) {
  encoder->zero_grad();
  tokens.query.mutable_grad() = at::Tensor();
  tokens.query_pos.mutable_grad() = at::Tensor();
  MemoryMeter meter;
  const auto start = std::chrono::steady_clock::now();
  const double processor_start = processor_seconds();
  {
    const at::Tensor memory = variant.forward();
    variant.memory_sum = (memory.detach() * gout).sum().item<double>();
    memory.backward(gout);
  }
  Measurement run;
  run.processor_s = processor_seconds() - processor_start;
  run.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  run.peak_bytes = meter.peak_bytes();
  variant.runs.push_back(run);
  std::fprintf(stderr, "%-22s %6.2f s wall %6.2f s processor  peak %s\n", variant.name.c_str(),
               run.wall_s, run.processor_s, format_bytes(run.peak_bytes).c_str());
}

double median(const Variant& variant, double Measurement::* field) {
  std::vector<double> values;
  for (const Measurement& run : variant.runs) {
    values.push_back(run.*field);
  }
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Bytes peak(const Variant& variant) {
  Bytes largest = 0;
  for (const Measurement& run : variant.runs) {
    largest = std::max(largest, run.peak_bytes);
  }
  return largest;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown";
}

Json row_of(const Variant& variant) {
  Json row = Json::object();
  row["variant"] = variant.name;
  row["peak_bytes"] = peak(variant);
  row["wall_s"] = median(variant, &Measurement::wall_s);
  row["processor_s"] = median(variant, &Measurement::processor_s);
  Json runs = Json::array();
  for (const Measurement& run : variant.runs) {
    runs.push_back(run.processor_s);
  }
  row["processor_s_of_runs"] = std::move(runs);
  row["result_times_gout"] = variant.memory_sum;
  return row;
}

Json report_of(const Settings& settings, const std::vector<Variant>& variants,
               std::int64_t token_count) {
  const Variant& plain = variants[0];
  const Variant& checkpointed = variants[1];
  const Variant& grid_sample = variants[2];
  const auto ratio = [](double a, double b) { return a / b; };
  const auto bytes = [](const Variant& variant) { return static_cast<double>(peak(variant)); };
  Json report = Json::object();
  report["command"] = "encoder_bench --size=" + std::to_string(settings.image.height) + "x" +
                      std::to_string(settings.image.width) +
                      " --layers=" + std::to_string(settings.layers) +
                      " --threads=" + std::to_string(settings.threads) +
                      " --repeats=" + std::to_string(settings.repeats) + " --results=FILE";
  report["processor"] = processor_name();
  report["torch"] = TORCH_VERSION;
  report["lowtide"] = LOWTIDE_VERSION_STRING;
  report["seed"] = 1;
  report["tokens"] = token_count;
  Json rows = Json::array();
  for (const Variant& variant : variants) {
    rows.push_back(row_of(variant));
  }
  report["rows"] = std::move(rows);
  Json ratios = Json::object();
  ratios["peak_num_cp_all_by_none"] = ratio(bytes(checkpointed), bytes(plain));
  ratios["time_num_cp_all_by_none"] = ratio(median(checkpointed, &Measurement::processor_s),
                                            median(plain, &Measurement::processor_s));
  ratios["wall_num_cp_all_by_none"] =
      ratio(median(checkpointed, &Measurement::wall_s), median(plain, &Measurement::wall_s));
  ratios["peak_fused_by_grid_sample"] = ratio(bytes(plain), bytes(grid_sample));
  ratios["time_fused_by_grid_sample"] = ratio(median(plain, &Measurement::processor_s),
                                              median(grid_sample, &Measurement::processor_s));
  report["ratios"] = std::move(ratios);
  return report;
}

Json run(const Settings& settings) {
  at::set_num_threads(settings.threads);
  at::manual_seed(1);
  DeformableDetrTransformerEncoder encoder(settings.layers,
                                           DeformableDetrEncoderLayerOptions{.dropout = 0});
  EncoderTokens tokens = make_tokens(settings.image);
  const at::Tensor gout = at::randn(tokens.query.sizes());
  const auto weights = encoder->named_parameters();
  const auto with_num_cp = [&](std::int64_t num_cp) {
    return [&, num_cp] {
      encoder->set_num_cp(num_cp);
      return encoder->forward(tokens);
    };
  };
  std::vector<Variant> variants = {{"fused, num_cp 0", with_num_cp(0)},
                                   {"fused, num_cp all", with_num_cp(settings.layers)},
                                   {"grid_sample, num_cp 0", [&] {
                                      return grid_sample_encoder(weights, settings.layers, tokens);
                                    }}};
  for (int round = 0; round < settings.repeats; ++round) {
    for (Variant& variant : variants) {
      measure(variant, encoder, tokens, gout);
    }
  }
  return report_of(settings, variants, tokens.query.size(1));
}

Settings read_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = argument.substr(argument.find('=') + 1);
    if (argument.starts_with("--size=")) {
      settings.image = {std::atoll(value.c_str()),
                        std::atoll(value.substr(value.find('x') + 1).c_str())};
    } else if (argument.starts_with("--layers=")) {
      settings.layers = std::atoll(value.c_str());
    } else if (argument.starts_with("--threads=")) {
      settings.threads = std::atoi(value.c_str());
    } else if (argument.starts_with("--repeats=")) {
      settings.repeats = std::atoi(value.c_str());
    } else if (argument.starts_with("--results=")) {
      settings.results = value;
    } else {
      std::fprintf(stderr, "unknown argument %s; see the head of bench/encoder_bench.cpp\n",
                   argv[i]);
      std::exit(2);
    }
  }
  return settings;
}

}  // namespace
}  // namespace lowtide

int main(int argc, char** argv) {
  const lowtide::Settings settings = lowtide::read_settings(argc, argv);
  const std::string report = lowtide::to_text(lowtide::run(settings), 2) + "\n";
  std::fputs(report.c_str(), stdout);
  if (!settings.results.empty()) {
    std::ofstream(settings.results) << report;
  }
  return 0;
}
