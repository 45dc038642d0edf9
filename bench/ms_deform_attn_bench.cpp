// The fused attention operator against the grid_sample formulation in tensor operators.
//
//   ms_deform_attn_bench                         Google Benchmark's own table
//   ms_deform_attn_bench --results=FILE [--repeats=5]
//       the figures of docs/design/ms_deform_attn.md: both formulations in turn on the same inputs,
//       medians of wall and processor seconds, their ratio, and the bytes kept for backward
//
// One thread. Inputs are made with seed 1: "encoder" as in a layer of the encoder (samples a few
// pixels around each token), "decoder" with 300 queries anywhere.

#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <benchmark/benchmark.h>
#include <time.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "lowtide/version.h"
#include "src/base/json.h"
#include "src/nn/ms_deform_attn_dispatch.h"
#include "tests/nn/ms_deform_attn_reference.h"

namespace lowtide {
namespace {

using reference::Index;
using reference::Inputs;
using reference::Levels;

struct Case {
  std::string name;
  bool encoder;  // a query for each token, else 300
  Levels levels;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"encoder 800x1333", true, {{100, 167}, {50, 84}, {25, 42}, {13, 21}}},
      {"encoder 400x400", true, {{50, 50}, {25, 25}, {13, 13}, {7, 7}}},
      {"encoder 128x128", true, {{16, 16}, {8, 8}, {4, 4}, {2, 2}}},
      {"encoder 64x64", true, {{8, 8}, {4, 4}, {2, 2}, {1, 1}}},
      {"decoder 800x1333", false, {{100, 167}, {50, 84}, {25, 42}, {13, 21}}},
  };
  return all;
}

Inputs inputs_of(const Case& which) {
  const reference::Sizes sizes = {1, 8, 32, 300, 4, which.levels};
  Inputs in = which.encoder ? reference::encoder_inputs(sizes, at::kFloat, 1)
                            : reference::random_inputs(sizes, at::kFloat, 1);
  for (at::Tensor* input : {&in.value, &in.locations, &in.weights}) {
    input->requires_grad_();
  }
  return in;
}

using Formulation = at::Tensor (*)(const Inputs&);

void forward_and_backward(Formulation formulation, Inputs& in) {
  const at::Tensor output = formulation(in);
  output.backward(at::ones_like(output));
  for (at::Tensor* input : {&in.value, &in.locations, &in.weights}) {
    input->mutable_grad() = at::Tensor();
  }
}

void measure(benchmark::State& state, const Case& which, Formulation formulation, bool backward) {
  at::set_num_threads(1);
  Inputs in = inputs_of(which);
  for (auto _ : state) {
    if (backward) {
      forward_and_backward(formulation, in);
    } else {
      benchmark::DoNotOptimize(formulation(in));
    }
  }
}

struct Seconds {
  double wall;
  double cpu;
};

template <typename Function>
Seconds time_of(Function&& function) {
  const auto cpu_now = [] {
    timespec at{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
  };
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_begin = cpu_now();
  function();
  const double cpu = cpu_now() - cpu_begin;
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), cpu};
}

Json summary(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Json summary = Json::object();
  summary["median"] = values[values.size() / 2];
  summary["least"] = values.front();
  summary["most"] = values.back();
  return summary;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of the last minute: tells whether the machine was busy with other work.
std::string load_average() {
  std::string load;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown";
}

// Small calls are timed in bunches of about 20 ms.
int bunch_of(const Case& which) {
  const Index tokens = reference::token_count(which.levels);
  return which.encoder ? static_cast<int>(std::max<Index>(1, 2000 / tokens)) : 3;
}

void write_results(const std::string& path, int repeats) {
  at::set_num_threads(1);
  Json results = Json::object();
  results["command"] = "ms_deform_attn_bench --results=FILE --repeats=" + std::to_string(repeats);
  results["processor"] = processor();
  results["kernels"] = runnable_ms_deform_attn_kernels().front().name;
  results["load_average_before"] = load_average();
  results["threads"] = 1;
  results["torch"] = TORCH_VERSION;
  results["lowtide"] = LOWTIDE_VERSION_STRING;
  results["seed"] = 1;
  results["repeats"] = repeats;
  Json rows = Json::array();
  for (const Case& which : cases()) {
    Inputs in = inputs_of(which);
    const int bunch = bunch_of(which);
    for (const bool backward : {false, true}) {
      const auto once = [&](Formulation formulation) {
        const Seconds all = time_of([&] {
          for (int i = 0; i < bunch; ++i) {
            if (backward) {
              forward_and_backward(formulation, in);
            } else {
              formulation(in);
            }
          }
        });
        return Seconds{all.wall / bunch, all.cpu / bunch};
      };
      once(reference::fused);
      once(reference::by_grid_sample);
      std::vector<double> fused_wall, fused_cpu, grid_wall, grid_cpu, wall_ratio, cpu_ratio;
      for (int i = 0; i < repeats; ++i) {
        const Seconds fused = once(reference::fused);
        const Seconds grid = once(reference::by_grid_sample);
        fused_wall.push_back(fused.wall);
        fused_cpu.push_back(fused.cpu);
        grid_wall.push_back(grid.wall);
        grid_cpu.push_back(grid.cpu);
        wall_ratio.push_back(grid.wall / fused.wall);
        cpu_ratio.push_back(grid.cpu / fused.cpu);
      }
      Json row = Json::object();
      row["case"] = which.name;
      row["pass"] = backward ? "forward and backward" : "forward";
      row["fused_wall_s"] = summary(fused_wall);
      row["fused_cpu_s"] = summary(fused_cpu);
      row["grid_sample_wall_s"] = summary(grid_wall);
      row["grid_sample_cpu_s"] = summary(grid_cpu);
      row["times_faster_wall"] = summary(wall_ratio);
      row["times_faster_cpu"] = summary(cpu_ratio);
      const double value_bytes = static_cast<double>(in.value.nbytes());
      row["kept_bytes_over_value_bytes"] =
          (value_bytes + static_cast<double>(in.locations.nbytes() + in.weights.nbytes())) /
          value_bytes;
      rows.push_back(row);
      std::cerr << which.name << ", " << (backward ? "forward and backward" : "forward") << ": "
                << 1e3 * median(fused_wall) << " ms against " << 1e3 * median(grid_wall) << " ms, "
                << median(wall_ratio) << " times faster (processor time: " << median(cpu_ratio)
                << ")\n";
    }
  }
  results["rows"] = rows;
  std::ofstream(path) << to_text(results, 2) << "\n";
}

void register_benchmarks() {
  for (const Case& which : cases()) {
    for (const bool backward : {false, true}) {
      const std::string tail = which.name + (backward ? "/both" : "/forward");
      benchmark::RegisterBenchmark(("fused/" + tail).c_str(), measure, which, reference::fused,
                                   backward)
          ->Unit(benchmark::kMillisecond);
      benchmark::RegisterBenchmark(("grid_sample/" + tail).c_str(), measure, which,
                                   reference::by_grid_sample, backward)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace lowtide

int main(int argc, char** argv) {
  std::string results;
  int repeats = 5;
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind("--results=", 0) == 0) {
      results = argument.substr(10);
    } else if (argument.rfind("--repeats=", 0) == 0) {
      repeats = std::max(1, std::atoi(argument.c_str() + 10));
    } else {
      rest.push_back(argv[i]);
    }
  }
  if (!results.empty()) {
    lowtide::write_results(results, repeats);
    return 0;
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) {
    return 2;
  }
  lowtide::register_benchmarks();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
