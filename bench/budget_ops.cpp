// N tensors x = -w are made, each saved by y = sin(x), and backward runs over all y. Under a limit
// with room for half of the x, forward must drop the other half, each one single op away from a
// source; backward frees what it has used, and brings them back without dropping others. So forward
// holds the cost of drops, and backward that of bring-backs.

#include "bench/budget_ops.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "bench/measurement.h"
#include "lowtide/budget.h"
#include "lowtide/memory_meter.h"

namespace lowtide::bench {
namespace {

// A pass takes milliseconds: so many make one repeat.
constexpr int kPasses = 20;
// In a pass; few enough for the caches.
constexpr std::size_t kOps = 250;
// A budget's first steps teach it the smallest limit; what is measured is what comes after.
constexpr int kFirstSteps = 3;

enum class Saves { kNothing, kOneTensor };

struct Pass {
  double forward_s = 0;
  double backward_s = 0;
  double forward_drops = 0;
  double drops = 0;
  double recomputed_ops = 0;
  double seconds() const { return forward_s + backward_s; }
};

enum class Limit { kNone, kRoom, kHalf };

class OpCosts {
 public:
  explicit OpCosts(std::int64_t bytes)
      : bytes_(static_cast<Bytes>(bytes)),
        w_(at::randn({bytes / 4}).set_requires_grad(true)),
        gradients_(kOps, at::ones({bytes / 4})) {
    w_.mutable_grad() = at::zeros({bytes / 4});
  }

  // Seconds of kOps ops whose results all live until the end.
  double run_ops(Limit limit) {
    const std::optional<MemoryBudget> budget = make_budget(limit, {});
    for (int i = 0; budget && i < kFirstSteps; ++i) step(budget, Saves::kOneTensor);
    std::vector<at::Tensor> results(kOps);
    const double start = processor_seconds();
    for (at::Tensor& result : results) result = source_.neg();
    results.clear();
    return processor_seconds() - start;
  }

  Pass run_graph(Limit limit, Saves saves, bool check_replays = true) {
    BudgetOptions options;
    options.check_replays = check_replays;
    const std::optional<MemoryBudget> budget = make_budget(limit, options);
    for (int i = 0; budget && i < kFirstSteps; ++i) step(budget, saves);
    return step(budget, saves);
  }

 private:
  Pass step(const std::optional<MemoryBudget>& budget, Saves saves) {
    const auto report = [&] { return budget ? budget->report() : BudgetReport(); };
    std::vector<at::Tensor> results(kOps);
    const BudgetReport before = report();
    const double start = processor_seconds();
    for (at::Tensor& result : results) {
      const at::Tensor x = w_.neg();
      result = saves == Saves::kOneTensor ? x.sin() : x.neg();
    }
    const double middle = processor_seconds();
    const BudgetReport between = report();
    const double turn = processor_seconds();
    torch::autograd::backward(results, gradients_);
    results.clear();
    Pass pass;
    pass.forward_s = middle - start;
    pass.backward_s = processor_seconds() - turn;
    const BudgetReport after = report();
    pass.forward_drops = static_cast<double>(between.drops - before.drops);
    pass.drops = static_cast<double>(after.drops - before.drops);
    pass.recomputed_ops = static_cast<double>(after.recomputed_ops - before.recomputed_ops);
    return pass;
  }

  std::optional<MemoryBudget> make_budget(Limit limit, const BudgetOptions& options) const {
    if (limit == Limit::kNone) return std::nullopt;
    const Bytes live = MemoryMeter().live_bytes();
    const Bytes all = kOps * bytes_;
    return std::optional<MemoryBudget>(
        std::in_place, limit == Limit::kRoom ? live + 8 * all : live + all + all / 2, options);
  }

  Bytes bytes_;
  at::Tensor w_;
  at::Tensor source_ = w_.detach();
  std::vector<at::Tensor> gradients_;
};

}  // namespace

Json measure_op_costs(int repeats) {
  OpCosts costs(4096), large(65536);
  std::map<std::string, std::vector<double>> samples;
  Pass half;
  for (int round = -1; round < kPasses * repeats; ++round) {
    const double op = costs.run_ops(Limit::kNone) / kOps;
    const double recorded = costs.run_ops(Limit::kRoom) / kOps;
    const auto over_plain = [&](Saves saves) {
      const double plain = costs.run_graph(Limit::kNone, saves).seconds();
      return (costs.run_graph(Limit::kRoom, saves).seconds() - plain) / kOps;
    };
    const double pack_unpack = over_plain(Saves::kOneTensor) - over_plain(Saves::kNothing);
    const Pass room = costs.run_graph(Limit::kRoom, Saves::kOneTensor, false);
    half = costs.run_graph(Limit::kHalf, Saves::kOneTensor, false);
    if (half.forward_drops == 0 || half.recomputed_ops == 0) {
      throw std::runtime_error("room for half, and nothing was dropped: nothing to measure");
    }
    const double drop = (half.forward_s - room.forward_s) / half.forward_drops;
    const double late_drops_s = (half.drops - half.forward_drops) * drop;
    const double bring_back =
        (half.backward_s - room.backward_s - late_drops_s) / half.recomputed_ops - op;
    const Pass checked = large.run_graph(Limit::kHalf, Saves::kOneTensor, true);
    const Pass unchecked = large.run_graph(Limit::kHalf, Saves::kOneTensor, false);
    const double checksum =
        (checked.seconds() - unchecked.seconds()) / (checked.drops + checked.recomputed_ops);
    if (round < 0) continue;  // warms up
    const std::map<std::string, double> now{
        {"op", op},     {"record", recorded - op},  {"pack_unpack", pack_unpack},
        {"drop", drop}, {"bring_back", bring_back}, {"checksum_64_kib", checksum}};
    for (const auto& [name, seconds] : now) samples[name].push_back(seconds * 1e9);
  }
  Json result = Json::object();
  result["tensors"] = kOps;
  result["drops"] = half.drops;
  result["bring_backs"] = half.recomputed_ops;
  for (const char* name :
       {"op", "record", "pack_unpack", "drop", "bring_back", "checksum_64_kib"}) {
    result[name] = median(samples.at(name));
  }
  return result;
}

}  // namespace lowtide::bench
