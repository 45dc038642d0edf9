// A training step plain, inside byte limits, and with checkpoints placed by hand: time, counted
// peak and what was dropped and run again.
//
//   budget_bench [--model=all|transformer|conv|encoder|small-ops] [--quick] [--only=REGEX]
//                [--repeats=5] [--warm=3] [--spill=DIR] [--results=FILE]
//
// The figures of docs/performance.md. A step is: gradients dropped, forward, backward, an update of
// each parameter. The learning rate is 0, so every step is the same work and gradients and running
// statistics must be those of the plain step, bit for bit: rows say whether they are.
//
// The rows take turns in each round, so that a change of the machine's speed meets all of them. A
// turn runs a step and times the next; under a budget it times the one after `warm` steps, of which
// the first ones teach the budget the smallest limit, and the very first too. Ratios are taken to
// the plain turn of the same round; all figures are medians over the rounds. Peaks are the counting
// allocator's, parameters, gradients and inputs included. "static" is what is live after a plain
// step; what a step adds is its peak above what is live before it, with no gradients. One thread.
//
// Rows with packing and spilling have BudgetOptions::pack and a spill file in DIR (the system's
// folder for temporary files when not given); what they wait for the disk is in their wall time.
//
// Plain is libtorch as it comes: no block is reused. The hand-placed checkpoints run that way too.
//
// A row that the budget refuses is not run again, and says with which numbers; so does one that was
// given up after 20 times the plain step. --only runs the rows whose names REGEX matches (and
// plain);
// --quick shrinks the models, to try the bench out: its figures mean nothing.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <torch/version.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bench/budget_models.h"
#include "bench/budget_ops.h"
#include "bench/measurement.h"
#include "lowtide/budget.h"
#include "lowtide/bytes.h"
#include "lowtide/memory_meter.h"
#include "lowtide/version.h"
#include "src/base/json.h"
#include "src/base/text.h"
#include "src/hook/counting_allocator.h"
#include "src/hook/op_observer.h"

namespace lowtide::bench {
namespace {

constexpr double kPatience = 20;  // times the plain step

struct Settings {
  std::string model = "all";
  std::string only_text;
  std::regex only;
  bool quick = false;
  int repeats = 5;
  int warm = 3;
  std::string results;
  std::string spill_directory = std::filesystem::temp_directory_path();
};

struct Measurement {
  double wall_s = 0;
  double processor_s = 0;
  double first_processor_s = 0;  // of the turn's first step
  Bytes peak_bytes = 0;
  std::uint64_t result = 0;  // of all gradients and buffers
  std::uint64_t drops = 0;
  std::uint64_t recomputed_ops = 0;
  double recompute_s = 0;
  Bytes packed_bytes = 0;
  Bytes spilled_bytes = 0;
  double spill_wait_s = 0;
};

struct Row {
  std::string name;
  Bytes limit = 0;  // 0: no budget
  int checkpoint_every = 0;
  bool reuses_blocks = false;  // a budget does
  bool packs = false;
  std::string spill_directory = {};
  std::vector<Measurement> runs = {};
  Json refusal = {};
};

Json refusal_of(const BudgetError& error) {
  Json refusal = Json::object();
  refusal["message"] = error.what_without_backtrace();
  for (const auto& [name, value] : error.details()) {
    std::visit([&, key = name](const auto& v) { refusal[key] = v; }, value);
  }
  return refusal;
}

class OutOfPatience : public std::runtime_error {
 public:
  OutOfPatience() : std::runtime_error("given up") {}
};

// Words rather than bytes: this reads every gradient after each turn.
std::uint64_t hash_of(const at::Tensor& tensor, std::uint64_t hash) {
  const at::Tensor flat = tensor.contiguous();
  const auto* bytes = static_cast<const char*>(flat.const_data_ptr());
  for (std::size_t i = 0; i + 4 <= flat.nbytes(); i += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes + i, 4);
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return hash;
}

class Stepper {
 public:
  explicit Stepper(StepModel model) : model_(std::move(model)) {
    for (const at::Tensor& buffer : model_.buffers) first_buffers_.push_back(buffer.clone());
    for (const at::Tensor& parameter : model_.parameters) {
      parameter.register_hook([this](const at::Tensor&) {
        if (patience_s_ > 0 && processor_seconds() - start_s_ > patience_s_) throw OutOfPatience();
      });
    }
  }
  Stepper(const Stepper&) = delete;

  void set_patience(double seconds) { patience_s_ = seconds; }

  void step(int checkpoint_every) {
    start_s_ = processor_seconds();
    drop_gradients();
    model_.loss(checkpoint_every).backward();
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model_.parameters) parameter.add_(parameter.grad(), 0);
  }

  // A turn of `row`: untimed steps and a timed one. A refusal is noted in the row.
  void run(Row& row, int warm) {
    drop_gradients();
    hook::set_block_reuse(row.limit > 0 || row.reuses_blocks);
    try {
      row.runs.push_back(measure(row, warm));
    } catch (const BudgetError& error) {
      row.refusal = refusal_of(error);
    } catch (const OutOfPatience&) {
      row.refusal["message"] =
          concat("given up after ", static_cast<int>(kPatience), " times the plain step");
    }
    drop_gradients();
  }

  // Live bytes after a step, and without its gradients.
  std::pair<Bytes, Bytes> resting_bytes() {
    step(0);
    const Bytes after = MemoryMeter().live_bytes();
    drop_gradients();
    return {after, MemoryMeter().live_bytes()};
  }

 private:
  // So that what the timed step leaves there does not depend on how many went before.
  void restore_buffers() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < first_buffers_.size(); ++i) {
      model_.buffers[i].copy_(first_buffers_[i]);
    }
  }

  Measurement measure(const Row& row, int warm) {
    Measurement run;
    {
      std::optional<MemoryBudget> budget;
      BudgetOptions options;
      options.pack = row.packs;
      options.spill_directory = row.spill_directory;
      if (row.limit > 0) budget.emplace(row.limit, options);
      const double first_start = processor_seconds();
      if (warm > 0) step(row.checkpoint_every);
      run.first_processor_s = processor_seconds() - first_start;
      for (int i = 1; i < (budget ? warm : 1); ++i) step(row.checkpoint_every);
      restore_buffers();
      const BudgetReport before = budget ? budget->report() : BudgetReport();
      MemoryMeter meter;
      const double start = wall_seconds(), processor_start = processor_seconds();
      step(row.checkpoint_every);
      run.processor_s = processor_seconds() - processor_start;
      run.wall_s = wall_seconds() - start;
      run.peak_bytes = meter.peak_bytes();
      if (budget) {
        const BudgetReport after = budget->report();
        run.drops = after.drops - before.drops;
        run.recomputed_ops = after.recomputed_ops - before.recomputed_ops;
        run.recompute_s = static_cast<double>(after.recompute_ns - before.recompute_ns) * 1e-9;
        run.packed_bytes = after.packed_bytes - before.packed_bytes;
        run.spilled_bytes = after.spilled_bytes - before.spilled_bytes;
        run.spill_wait_s = static_cast<double>(after.spill_wait_ns - before.spill_wait_ns) * 1e-9;
      }
    }
    run.result = 0xcbf29ce484222325u;
    for (const at::Tensor& parameter : model_.parameters) {
      run.result = hash_of(parameter.grad(), run.result);
    }
    for (const at::Tensor& buffer : model_.buffers) run.result = hash_of(buffer, run.result);
    return run;
  }

  void drop_gradients() {
    for (const at::Tensor& parameter : model_.parameters) parameter.mutable_grad().reset();
  }

  StepModel model_;
  std::vector<at::Tensor> first_buffers_;
  double start_s_ = 0;
  double patience_s_ = 0;
};

std::vector<double> ratios_to(const Row& plain, const Row& row, double Measurement::* field) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < row.runs.size(); ++i) {
    ratios.push_back(row.runs[i].*field / (plain.runs[i].*field));
  }
  return ratios;
}

template <typename Field>
double median_of(const Row& row, Field Measurement::* field) {
  std::vector<double> values;
  for (const Measurement& run : row.runs) values.push_back(static_cast<double>(run.*field));
  return median(std::move(values));
}

Bytes largest_peak(const Row& row) {
  Bytes largest = 0;
  for (const Measurement& run : row.runs) largest = std::max(largest, run.peak_bytes);
  return largest;
}

Json report_of(const Row& row, const Row& plain, Bytes before_step) {
  const double plain_peak = static_cast<double>(largest_peak(plain));
  Json report = Json::object();
  report["row"] = row.name;
  if (row.limit > 0) {
    report["limit_bytes"] = row.limit;
    report["limit_of_plain_peak"] = static_cast<double>(row.limit) / plain_peak;
  }
  if (!row.refusal.is_null()) {
    report["refused"] = row.refusal;
    return report;
  }
  const std::vector<double> ratios = ratios_to(plain, row, &Measurement::processor_s);
  report["processor_time_of_plain"] = median(ratios);
  report["wall_time_of_plain"] = median(ratios_to(plain, row, &Measurement::wall_s));
  if (row.limit > 0) {
    report["first_step_of_plain"] = median_of(row, &Measurement::first_processor_s) /
                                    median_of(plain, &Measurement::processor_s);
  }
  report["processor_s"] = median_of(row, &Measurement::processor_s);
  report["wall_s"] = median_of(row, &Measurement::wall_s);
  report["peak_bytes"] = largest_peak(row);
  report["peak_of_plain"] = static_cast<double>(largest_peak(row)) / plain_peak;
  report["added_of_plain"] = static_cast<double>(largest_peak(row) - before_step) /
                             static_cast<double>(largest_peak(plain) - before_step);
  report["drops"] = median_of(row, &Measurement::drops);
  report["recomputed_ops"] = median_of(row, &Measurement::recomputed_ops);
  report["recompute_s"] = median_of(row, &Measurement::recompute_s);
  if (row.packs) report["packed_bytes"] = median_of(row, &Measurement::packed_bytes);
  if (!row.spill_directory.empty()) {
    report["spilled_bytes"] = median_of(row, &Measurement::spilled_bytes);
    report["spill_wait_s"] = median_of(row, &Measurement::spill_wait_s);
  }
  bool same = true;
  for (const Measurement& run : row.runs) same = same && run.result == plain.runs[0].result;
  report["same_gradients_and_buffers"] = same;
  Json runs = Json::array();
  for (const double ratio : ratios) runs.push_back(ratio);
  report["processor_time_of_plain_in_rounds"] = std::move(runs);
  return report;
}

void print_turn(const Row& row) {
  if (!row.refusal.is_null()) {
    std::fprintf(stderr, "  %-34s refused: %s\n", row.name.c_str(),
                 row.refusal.at("message").as_string().c_str());
    return;
  }
  const Measurement& run = row.runs.back();
  std::fprintf(stderr, "  %-34s %7.3f s processor %7.3f s wall  peak %s, %llu drops, %llu again\n",
               row.name.c_str(), run.processor_s, run.wall_s, format_bytes(run.peak_bytes).c_str(),
               static_cast<unsigned long long>(run.drops),
               static_cast<unsigned long long>(run.recomputed_ops));
}

// The limits to try, as parts of what the plain step adds.
struct Plan {
  std::vector<double> of_added;
  std::vector<int> checkpoint_every;
};

struct Measured {
  std::vector<Row> rows;  // plain first
  Bytes static_bytes = 0;
  Bytes before_step_bytes = 0;
};

Measured measure_rows(StepModel model, const Settings& settings, const Plan& plan) {
  Stepper stepper(std::move(model));
  stepper.step(0);  // warms up libtorch
  Measured measured;
  std::tie(measured.static_bytes, measured.before_step_bytes) = stepper.resting_bytes();
  std::vector<Row>& rows = measured.rows;
  const auto try_out = [&](int checkpoint_every) {
    Row row{"", 0, checkpoint_every};
    stepper.run(row, 0);
    return row.runs[0];
  };
  const Measurement plain = try_out(0);
  stepper.set_patience(kPatience * plain.processor_s);
  const auto part = [&](double f, Bytes base) {
    return base + static_cast<Bytes>(f * static_cast<double>(plain.peak_bytes - base));
  };
  const auto add = [&](Row row) {
    if (rows.empty() || std::regex_search(row.name, settings.only)) rows.push_back(row);
  };
  const auto text = [](double f) { return std::to_string(f).substr(0, 4); };
  add({"plain"});
  add({.name = "no budget, blocks reused", .reuses_blocks = true});
  add({"budget, room to spare", 2 * plain.peak_bytes});
  for (const double f : plan.of_added) {
    const std::string name = concat("budget, ", text(f), " of added");
    const Bytes limit = part(f, measured.before_step_bytes);
    add({name, limit});
    add({.name = name + ", packing", .limit = limit, .packs = true});
    add({.name = name + ", packing and spilling",
         .limit = limit,
         .packs = true,
         .spill_directory = settings.spill_directory});
  }
  for (const double f : {0.5, 0.35}) {
    add({concat("budget, static + ", text(f)), part(f, measured.static_bytes)});
  }
  for (const int every : plan.checkpoint_every) {
    const std::string name = every == 1 ? "every block" : "every second block";
    add({"checkpoint, " + name, 0, every});
    add({"budget, at that peak: " + name, try_out(every).peak_bytes});
  }
  for (int round = 0; round < settings.repeats; ++round) {
    for (Row& row : rows) {
      if (!row.refusal.is_null()) continue;
      stepper.run(row, settings.warm);
      print_turn(row);
    }
  }
  return measured;
}

Json report_of(const std::string& name, const std::string& description, const Measured& measured) {
  Json report = Json::object();
  report["model"] = name;
  report["description"] = description;
  report["plain_peak_bytes"] = largest_peak(measured.rows[0]);
  report["static_bytes"] = measured.static_bytes;
  report["before_step_bytes"] = measured.before_step_bytes;
  Json rows = Json::array();
  for (const Row& row : measured.rows) {
    rows.push_back(report_of(row, measured.rows[0], measured.before_step_bytes));
  }
  report["rows"] = std::move(rows);
  return report;
}

// Leaf ops of a step, forward and backward.
std::uint64_t count_ops(StepModel& model) {
  struct Counter final : hook::OpListener {
    std::uint64_t count = 0;
    std::unique_ptr<hook::OpTicket> before(const hook::Operator&,
                                           c10::ArrayRef<c10::IValue>) noexcept override {
      ++count;
      return std::make_unique<hook::OpTicket>();
    }
    void after(hook::OpTicket&, c10::ArrayRef<c10::IValue>) noexcept override {}
  } counter;
  hook::listen_to_ops(&counter);
  model.loss(0).backward();
  hook::listen_to_ops(nullptr);
  return counter.count;
}

Json measure_small_ops(const Settings& settings) {
  Json report = Json::object();
  try {
    report["op_costs_ns"] = measure_op_costs(settings.repeats);
  } catch (const BudgetError& error) {
    report["op_costs_ns"]["refused"] = refusal_of(error);
  }
  std::fprintf(stderr, "  %s\n", to_text(report.at("op_costs_ns")).c_str());

  StepModel model = tree_lstm(settings.quick);
  const std::string description = model.description;
  const std::uint64_t ops = count_ops(model);
  Settings more = settings;
  more.repeats *= 4;  // steps of a fraction of a second
  const Measured measured = measure_rows(std::move(model), more, {{0.5}, {}});
  Json step = report_of("small-ops", description, measured);
  step["ops"] = ops;
  // What is beside the step's ops and the ops that ran again. recompute_s is wall time.
  Json shares = Json::object();
  for (std::size_t i = 1; i < measured.rows.size(); ++i) {
    const Row& row = measured.rows[i];
    if (!row.refusal.is_null()) continue;
    std::vector<double> of_step;
    for (std::size_t round = 0; round < row.runs.size(); ++round) {
      const Measurement& run = row.runs[round];
      const double plain_s = measured.rows[0].runs[round].wall_s;
      of_step.push_back((run.wall_s - plain_s - run.recompute_s) / run.wall_s);
    }
    shares[row.name] = median(of_step);
  }
  step["bookkeeping_of_step"] = std::move(shares);
  report["step"] = std::move(step);
  return report;
}

Json run(const Settings& settings) {
  at::set_num_threads(1);
  Json report = Json::object();
  report["command"] =
      concat("budget_bench --model=", settings.model, settings.quick ? " --quick" : "",
             settings.only_text.empty() ? "" : concat(" --only='", settings.only_text, "'"),
             " --repeats=", settings.repeats, " --warm=", settings.warm, " --results=FILE");
  report["processor"] = processor_name();
  report["torch"] = TORCH_VERSION;
  report["lowtide"] = LOWTIDE_VERSION_STRING;
  report["seed"] = 1;
  struct Case {
    const char* name;
    StepModel (*make)(bool small);
    Plan plan;
  };
  const std::vector<Case> cases = {{"transformer", transformer, {{0.73, 0.54, 0.19}, {1, 2}}},
                                   {"conv", residual_conv_net, {{0.70}, {1, 2}}},
                                   {"encoder", deformable_encoder, {{}, {1, 2}}}};
  const auto is_wanted = [&](std::string_view name) {
    return settings.model == "all" || settings.model == name;
  };
  Json models = Json::array();
  for (const Case& one : cases) {
    if (!is_wanted(one.name)) continue;
    StepModel model = one.make(settings.quick);
    const std::string description = model.description;
    std::fprintf(stderr, "%s\n", description.c_str());
    models.push_back(
        report_of(one.name, description, measure_rows(std::move(model), settings, one.plan)));
  }
  report["models"] = std::move(models);
  if (is_wanted("small-ops")) {
    // Blocks of this size come from the heap. It keeps what it has, or page faults of the plain run
    // hide what is measured.
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 1 << 25);
    report["small_ops"] = measure_small_ops(settings);
  }
  return report;
}

Settings read_settings(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = argument.substr(argument.find('=') + 1);
    if (argument.starts_with("--model=")) {
      settings.model = value;
    } else if (argument == "--quick") {
      settings.quick = true;
    } else if (argument.starts_with("--only=")) {
      settings.only_text = value;
      settings.only = std::regex(settings.only_text);
    } else if (argument.starts_with("--repeats=")) {
      settings.repeats = std::atoi(value.c_str());
    } else if (argument.starts_with("--warm=")) {
      settings.warm = std::atoi(value.c_str());
    } else if (argument.starts_with("--spill=")) {
      settings.spill_directory = value;
    } else if (argument.starts_with("--results=")) {
      settings.results = value;
    } else {
      std::fprintf(stderr, "unknown argument %s; see the head of bench/budget_bench.cpp\n",
                   argv[i]);
      std::exit(2);
    }
  }
  return settings;
}

}  // namespace
}  // namespace lowtide::bench

int main(int argc, char** argv) {
  const lowtide::bench::Settings settings = lowtide::bench::read_settings(argc, argv);
  const std::string report = lowtide::to_text(lowtide::bench::run(settings), 2) + "\n";
  std::fputs(report.c_str(), stdout);
  if (!settings.results.empty()) std::ofstream(settings.results) << report;
  return 0;
}
