// The portfolio: greedy runs that know the future, with and without a set that is to be kept across
// the moment of the peak (KeepSets). Each schedule is cleaned and filled (Schedule). The rest of
// the time goes into a local search on the weights of single values, starting from the best.
//
// What helps where: keep sets in the middle budgets (a few thousandths above the bound), greedy
// runs near the floor, the search on steps of a few hundred ops, where a try takes 0.2 ms.
//
// Tested by tests/plan/planner_test.cpp against all schedules of small steps.

#include "src/plan/planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "src/base/assert.h"
#include "src/plan/chain_plan.h"
#include "src/plan/greedy_run.h"
#include "src/plan/keep_set.h"
#include "src/plan/online_policy.h"
#include "src/plan/schedule.h"
#include "src/plan/simulator.h"
#include "src/plan/small_search.h"
#include "src/plan/step_graph.h"

namespace lowtide {
namespace {

constexpr std::uint32_t kNone = StepGraph::kNone;

// A filled schedule can come out better than one that was ahead of it before.
constexpr double kWorthFinishing = 1.02;
// Of the local search: the part that tries random weights, the rounds of annealing, and how much
// worse is taken at the start of each.
constexpr double kNoisePart = 0.3;
constexpr int kRounds = 2;
constexpr double kLicence = 0.006;
// So near to the bound the search ends.
constexpr double kGoodEnough = 1.0003;
constexpr std::size_t kMoments = 6;
// Of a search over all schedules: about 5 us each.
constexpr int kMostStates = 20'000;

struct Settings {
  double live_weight = 0.3;
  double child_weight = 0.1;
  int distance_quarters = 2;
};

}  // namespace

std::uint64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

class Planner::Impl {
 public:
  explicit Impl(const Trace& trace)
      : trace_(trace),
        graph_(trace),
        run_(graph_),
        plain_(graph_, {}),
        small_(graph_),
        chain_(graph_) {
    LOWTIDE_ASSERT(plain_.is_sound());
    find_moments();
  }

  PlannerResult plan(const PlannerOptions& options, std::span<const Plan> known) {
    options_ = options;
    stop_ns_ = thread_cpu_ns() + options.cpu_limit_ns;
    tries_ = 0;
    best_.reset();
    last_replays_.clear();
    last_same_ns_ = 0;
    bound_ns_ = graph_.plain_ns();
    PlannerResult result;
    if (plain_.peak_bytes() <= budget()) {
      best_ = plain_;
    } else if (lowest_budget(trace_).bytes <= budget()) {
      for (const Plan& plan : known) try_known(plan);
      search();
    }
    result.tries = tries_;
    result.bound_ns = bound_ns_;
    if (best_) {
      result.plan = best_->to_plan();
      result.plan->budget_bytes = budget();
      result.plan->bound_ns = std::min(bound_ns_, result.plan->total_ns);
      const auto problem = find_problem(trace_, *result.plan);
      if (problem)
        throw InternalError("LT0001", concat("the planner made a plan that fails: ", problem->what,
                                             ". Please report this as a bug"));
    }
    return result;
  }

 private:
  Bytes budget() const { return options_.budget_bytes; }
  bool out_of_time() const {
    return tries_ >= options_.most_tries || thread_cpu_ns() >= stop_ns_ ||
           (best_ &&
            static_cast<double>(best_->total_ns()) <= kGoodEnough * static_cast<double>(bound_ns_));
  }

  // The fullest moment, and the fullest of the others' thirds of the step.
  void find_moments() {
    const auto live = plain_.live_bytes();
    constexpr std::size_t kParts = 24;
    std::vector<std::pair<Bytes, std::uint32_t>> found;
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t begin = live.size() * part / kParts;
      const std::size_t end = live.size() * (part + 1) / kParts;
      if (begin == end) continue;
      const auto most = static_cast<std::size_t>(
          std::max_element(live.begin() + static_cast<std::ptrdiff_t>(begin),
                           live.begin() + static_cast<std::ptrdiff_t>(end)) -
          live.begin());
      found.emplace_back(live[most], plain_.items()[most].event);
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [bytes, event] : found) {
      if (moments_.size() < kMoments) moments_.push_back(event);
    }
  }
  KeepSets& sets_at(std::uint32_t event) {
    const auto found = sets_.find(event);
    if (found != sets_.end()) return found->second;
    return sets_.emplace(event, KeepSets(graph_, event)).first->second;
  }
  void raise_bound(std::uint32_t moment) {
    KeepSets& sets = sets_at(moment);
    const KeepSet set = sets.within(sets.free_bytes(budget()));
    const std::uint64_t bound = graph_.plain_ns() + static_cast<std::uint64_t>(set.bound_ns);
    if (bound <= bound_ns_) return;
    bound_ns_ = bound;
    tightest_ = moment;
  }

  void try_known(const Plan& plan) {
    std::vector<Replay> replays;
    for (const PlanStep& step : plan.steps) {
      if (step.kind == PlanStep::Kind::kReplay) replays.push_back({step.event, step.index});
    }
    consider(Schedule(graph_, std::move(replays)));
  }

  void try_online() {
    std::vector<Replay> replays;
    SimulationOptions options;
    options.budget_bytes = budget();
    options.time_limit = 3;
    options.on_event = [&](const SimulatedEvent& event) {
      if (event.kind == SimulatedEvent::Kind::kReplay) {
        replays.push_back({event.event, event.index});
      }
    };
    ++tries_;
    if (!simulate(trace_, options, std::make_unique<OnlinePolicy>()).done()) return;
    consider(Schedule(graph_, std::move(replays)));
  }

  void try_chain() {
    if (!chain_.possible()) return;
    ++tries_;
    auto replays = chain_(budget());
    if (replays) consider(Schedule(graph_, std::move(*replays)));
  }

  // True: better than any before.
  bool consider(Schedule schedule) {
    if (!schedule.is_sound() || schedule.peak_bytes() > budget()) return false;
    schedule.fill(budget());
    last_total_ns_ = schedule.total_ns();
    if (best_ && schedule.total_ns() >= best_->total_ns()) return false;
    best_ = std::move(schedule);
    return true;
  }

  // A greedy run, cleaned and filled. last_total_ns_: what it came to, 0 when it did not fit within
  // `most_ns` before that.
  bool attempt(const Settings& settings, std::span<const float> weights, std::uint64_t most_ns) {
    GreedyOptions options;
    options.budget_bytes = budget();
    options.live_weight = settings.live_weight;
    options.child_weight = settings.child_weight;
    options.distance_quarters = settings.distance_quarters;
    options.weights = weights;
    options.time_limit_ns = most_ns;
    ++tries_;
    last_total_ns_ = 0;
    GreedyResult result = run_(options);
    if (!result.done) return false;
    if (result.replays == last_replays_) {  // most small changes change nothing
      last_total_ns_ = last_same_ns_;
      return false;
    }
    last_replays_ = result.replays;
    const bool better = consider(Schedule(graph_, std::move(result.replays)));
    last_same_ns_ = last_total_ns_;
    return better;
  }
  std::uint64_t plain_times(double factor) const {
    return static_cast<std::uint64_t>(factor * static_cast<double>(graph_.plain_ns())) + 1;
  }

  void search() {
    try_online();
    try_chain();
    tightest_ = moments_.front();
    raise_bound(moments_.front());
    std::vector<float> weights(graph_.slot_count(), 1);
    std::vector<float> best_weights = weights;
    Settings best_settings;
    const auto attempt_with = [&](const Settings& settings, double most = 3) {
      if (out_of_time()) return;
      const std::uint64_t most_ns =
          best_
              ? static_cast<std::uint64_t>(kWorthFinishing * static_cast<double>(best_->total_ns()))
              : plain_times(most);
      if (!attempt(settings, weights, most_ns)) return;
      best_settings = settings;
      best_weights = weights;
    };
    const auto keep = [&](std::uint32_t moment, double part, double far_tilt) {
      KeepSets& sets = sets_at(moment);
      const auto room = static_cast<std::int64_t>(
          part * static_cast<double>(std::max<std::int64_t>(sets.free_bytes(budget()), 0)));
      std::fill(weights.begin(), weights.end(), 1.0f);
      for (const std::uint32_t v : sets.within(room, far_tilt, 10).values) {
        std::fill(weights.begin() + graph_.first_slot(v),
                  weights.begin() + graph_.first_slot(v + 1), GreedyOptions::kKeep);
      }
    };
    const auto try_keeping = [&](std::uint32_t moment, double part, double far_tilt,
                                 std::span<const int> powers) {
      if (out_of_time()) return;
      keep(moment, part, far_tilt);
      for (const int power : powers) attempt_with({0.3, 0.1, power});
    };
    const std::array<int, 2> two_powers{1, 4};
    const std::array<int, 3> powers{1, 2, 4};
    for (const double part : {1.0, 0.9, 0.7}) {
      try_keeping(moments_.front(), part, 0, two_powers);
    }
    std::fill(weights.begin(), weights.end(), 1.0f);
    for (const double child : {0.0, 0.3, 0.1, 1.0}) {
      for (const int power : {1, 2, 3, 4}) {
        for (const double live : {0.3, 1.0, 0.0}) attempt_with({live, child, power});
      }
    }
    for (std::size_t i = 1; i < moments_.size() && !out_of_time(); ++i) raise_bound(moments_[i]);
    for (const std::uint32_t moment : {moments_.front(), tightest_}) {
      for (const double tilt : {0.0, 1.0, 4.0}) {
        for (const double part : {1.0, 0.9, 0.8, 0.7, 0.6, 1.15, 0.5}) {
          try_keeping(moment, part, tilt, powers);
        }
      }
      if (tightest_ == moments_.front()) break;
    }
    if (!best_) {
      // Near the floor what is run again many times must be let through.
      std::fill(weights.begin(), weights.end(), 1.0f);
      for (const double child : {0.3, 1.0}) {
        for (const int power : {1, 2, 4}) {
          for (const double live : {1.0, 0.3}) attempt_with({live, child, power}, 10);
        }
      }
    }
    if (small_.possible() && search_all()) return;
    if (best_) improve(best_settings, std::move(best_weights));
  }

  // True: nothing better exists.
  bool search_all() {
    for (const double weight : {1.0, 1.2, 2.0}) {
      const std::uint64_t below_ns =
          best_ ? best_->total_ns() : std::numeric_limits<std::uint64_t>::max();
      const SmallResult found = small_(budget(), below_ns, weight, kMostStates);
      if (found.replays) consider(Schedule(graph_, *found.replays));
      if (found.complete && (weight == 1.0 || !found.replays)) {
        if (best_) bound_ns_ = std::max(bound_ns_, best_->total_ns());
        return true;
      }
      if (thread_cpu_ns() >= stop_ns_) return false;
    }
    return false;
  }

  // First random weights for all slots, then annealing from the best: a few slots at a time.
  void improve(Settings settings, std::vector<float> weights) {
    std::mt19937 random(options_.seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const auto unit = [&] { return static_cast<double>(random()) / 4294967296.0; };
    std::vector<std::uint32_t> movable;
    for (std::uint32_t v = 0; v < graph_.values().size(); ++v) {
      const StepGraph::Value& value = graph_.values()[v];
      if (!value.fixed && value.bytes > 0 && value.root == v) movable.push_back(v);
    }
    if (movable.empty()) return;
    const std::uint64_t start_ns = thread_cpu_ns();
    const int first_try = tries_;
    const auto spent = [&] {
      return std::max(
          static_cast<double>(tries_ - first_try) / std::max(1, options_.most_tries - first_try),
          static_cast<double>(thread_cpu_ns() - start_ns) /
              static_cast<double>(std::max<std::uint64_t>(1, stop_ns_ - start_ns)));
    };
    Settings best_settings = settings;
    std::vector<float> best_weights = weights;
    std::uint64_t current_ns = best_->total_ns();
    const auto attempt_here = [&] {
      if (!attempt(settings, weights,
                   static_cast<std::uint64_t>(kWorthFinishing * static_cast<double>(current_ns)))) {
        return;
      }
      best_settings = settings;
      best_weights = weights;
    };
    const auto any_settings = [&] {
      return Settings{unit() * 1.2, below(2) == 0 ? 0 : unit(), static_cast<int>(1 + below(4))};
    };
    const std::vector<float> first_weights = weights;
    while (!out_of_time() && spent() < kNoisePart) {
      const bool around_first = below(2) == 0;
      const double spread = unit();
      for (std::size_t slot = 0; slot < weights.size(); ++slot) {
        // The sum of two even ones is near enough to a normal one.
        const double noise = std::exp(spread * 2.0 * (unit() + unit() - 1.0));
        weights[slot] = (around_first ? first_weights[slot] : 1.0f) * static_cast<float>(noise);
      }
      settings = any_settings();
      attempt_here();
      current_ns = best_->total_ns();
    }
    std::vector<std::pair<std::uint32_t, float>> undo;
    double cooled_before = 1;
    while (!out_of_time()) {
      // Each round cools down, and the next begins from the best.
      const double rounds = kRounds * (spent() - kNoisePart) / (1 - kNoisePart);
      const double cooled = rounds - std::floor(rounds);
      if (cooled < cooled_before) {
        settings = best_settings;
        weights = best_weights;
        current_ns = best_->total_ns();
      }
      cooled_before = cooled;
      const Settings settings_before = settings;
      undo.clear();
      if (below(16) == 0) settings = any_settings();
      for (std::size_t k = std::size_t{1} << below(4); k > 0; --k) {
        // Half of the time one that is made again now.
        std::uint32_t v = movable[below(movable.size())];
        if (below(2) == 0 && !best_->replays().empty()) {
          const auto writes = graph_.writes(best_->replays()[below(best_->replays().size())].op);
          v = graph_.values()[writes[below(writes.size())]].root;
        }
        const std::uint32_t first = graph_.first_slot(v);
        const std::uint32_t slots = graph_.first_slot(v + 1) - first;
        const std::size_t how = below(4);
        const bool all = below(2) == 0;
        const std::uint32_t only = first + static_cast<std::uint32_t>(below(slots));
        const auto factor = static_cast<float>(std::pow(10.0, unit() * 2 - 1));
        for (std::uint32_t slot = first; slot < first + slots; ++slot) {
          if (!all && slot != only) continue;
          undo.emplace_back(slot, weights[slot]);
          weights[slot] = how == 0   ? 1.0f
                          : how == 1 ? GreedyOptions::kKeep
                                     : std::clamp(weights[slot] * factor, 1e-6f, 1e8f);
        }
      }
      attempt_here();
      const double licence = 1 + kLicence * (1 - cooled) * unit() * unit();
      if (last_total_ns_ != 0 &&
          static_cast<double>(last_total_ns_) <= licence * static_cast<double>(current_ns)) {
        current_ns = last_total_ns_;
        continue;
      }
      settings = settings_before;
      for (std::size_t i = undo.size(); i-- > 0;) weights[undo[i].first] = undo[i].second;
    }
  }

  const Trace& trace_;
  StepGraph graph_;
  GreedyRun run_;
  Schedule plain_;
  SmallSearch small_;
  ChainPlan chain_;
  std::vector<std::uint32_t> moments_;
  std::map<std::uint32_t, KeepSets> sets_;
  PlannerOptions options_;
  std::uint64_t stop_ns_ = 0;
  std::uint64_t bound_ns_ = 0;
  std::uint32_t tightest_ = 0;
  std::uint64_t last_total_ns_ = 0;
  std::uint64_t last_same_ns_ = 0;
  std::vector<Replay> last_replays_;
  int tries_ = 0;
  std::optional<Schedule> best_;
};

Planner::Planner(const Trace& trace) : impl_(std::make_unique<Impl>(trace)) {}
Planner::~Planner() = default;
PlannerResult Planner::plan(const PlannerOptions& options, std::span<const Plan> known) {
  return impl_->plan(options, known);
}

}  // namespace lowtide
