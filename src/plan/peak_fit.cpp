// Tested by tests/plan/peak_fit_test.cpp.

#include "src/plan/peak_fit.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

namespace lowtide {
namespace {

// Lines through whole numbers may miss one by so many bytes.
constexpr double kExact = 16;
constexpr double kPage = 4096;
// Sequences that differ in more places than this are compared by phase.
constexpr std::size_t kMostDifferences = 3000;

constexpr std::uint32_t kBeforeAll = 0xffffffffu;  // an event before the first

// Live bytes, beyond those at the start, right after an allocation.
struct Point {
  std::uint64_t key = 0;  // op, module and phase, the same in all logs
  std::uint32_t op_number = 0;
  std::uint32_t event = kBeforeAll;
  StepPhase phase = StepPhase::kForward;
  std::int64_t live = 0;
  Bytes bytes = 0;  // of the block
};
using Points = std::vector<Point>;

// The same moment in every log.
using Moment = std::vector<const Point*>;

struct Value {
  enum class Shape : std::uint8_t { kLine, kParabola, kScattered };
  double at = 0;
  Shape shape = Shape::kLine;
};

// Through (x[i], y[i]), at `to`. x ascends.
Value fit_value(std::span<const double> x, std::span<const double> y, double to) {
  const std::size_t count = x.size();
  if (count == 1) return {y[0]};
  const double slope = (y[count - 1] - y[0]) / (x[count - 1] - x[0]);
  const auto line = [&](double at) { return y[0] + slope * (at - x[0]); };
  double off = 0;
  for (std::size_t i = 1; i + 1 < count; ++i) off = std::max(off, std::abs(y[i] - line(x[i])));
  if (off <= kExact) return {line(to)};
  if (count >= 4) {
    const double mid = (y[1] - y[0]) / (x[1] - x[0]);
    const double bend = (slope - mid) / (x[count - 1] - x[1]);
    const auto parabola = [&](double at) {
      return y[0] + mid * (at - x[0]) + bend * (at - x[0]) * (at - x[1]);
    };
    double bent_off = 0;
    for (std::size_t i = 2; i + 1 < count; ++i) {
      bent_off = std::max(bent_off, std::abs(y[i] - parabola(x[i])));
    }
    if (bent_off <= kExact) return {parabola(to), Value::Shape::kParabola};
  }
  double mean_x = 0;
  double mean_y = 0;
  for (std::size_t i = 0; i < count; ++i) {
    mean_x += x[i] / static_cast<double>(count);
    mean_y += y[i] / static_cast<double>(count);
  }
  double products = 0;
  double squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    products += (x[i] - mean_x) * (y[i] - mean_y);
    squares += (x[i] - mean_x) * (x[i] - mean_x);
  }
  const double least_squares = products / squares;
  double above = 0;
  for (std::size_t i = 0; i < count; ++i) {
    above = std::max(above, y[i] - mean_y - least_squares * (x[i] - mean_x));
  }
  return {mean_y + least_squares * (to - mean_x) + above, Value::Shape::kScattered};
}

// The same for one block. Off the line, a block is taken to grow with the batch from nothing (an
// expert's tokens), or to stay (what was found in the data), where that tells its sizes about as
// well as a line through anywhere does, which would carry the scatter far.
Value fit_block(std::span<const double> x, std::span<const double> y, double to) {
  const Value exact = fit_value(x, y, to);
  if (exact.shape != Value::Shape::kScattered) return exact;
  const auto count = static_cast<double>(x.size());
  double sum_x = 0;
  double sum_y = 0;
  bool whole_pages = true;
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum_x += x[i];
    sum_y += y[i];
    whole_pages &= std::fmod(y[i], kPage) == 0;
  }
  double products = 0;
  double squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    products += (x[i] - sum_x / count) * (y[i] - sum_y / count);
    squares += (x[i] - sum_x / count) * (x[i] - sum_x / count);
  }
  const double slope = products / squares;
  double off_line = 0;
  double off_ratio = 0;
  double off_mean = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto square = [](double value) { return value * value; };
    off_line += square(y[i] - sum_y / count - slope * (x[i] - sum_x / count));
    off_ratio += square(y[i] - sum_y / sum_x * x[i]);
    off_mean += square(y[i] - sum_y / count);
  }
  constexpr double kAboutAsWell = 6;
  double at = sum_y / count + slope * (to - sum_x / count);
  if (whole_pages) return {at, Value::Shape::kScattered};
  if (off_ratio <= kAboutAsWell * off_line && off_ratio <= off_mean) {
    at = sum_y / sum_x * to;
  } else if (off_mean <= kAboutAsWell * off_line) {
    at = *std::max_element(y.begin(), y.end());
  }
  return {at, Value::Shape::kScattered};
}

// Kinds that can be told from the log alone: what was made in the forward pass and was there when a
// part of the backward pass ran is saved, what one op made and gave back is its workspace.
void tell_kinds(AllocationLog& log) {
  constexpr std::uint32_t kNone = 0xffffffffu;
  std::vector<std::uint32_t> backward_before(log.blocks.size(), kNone);
  std::uint32_t backward_blocks = 0;
  std::uint32_t last_op = 0;
  const auto goes = [&](AllocationLog::Block& block, std::size_t index, bool is_end) {
    if (block.was_there || block.kind != StorageKind::kProgram) return;
    if (block.phase == StepPhase::kForward && backward_before[index] != kNone &&
        backward_blocks > backward_before[index]) {
      block.kind = StorageKind::kSaved;
    } else if (!is_end && block.op_number != 0 && block.op_number == last_op) {
      block.kind = StorageKind::kWorkspace;
    }
  };
  for (const AllocationLog::Event& event : log.events) {
    AllocationLog::Block& block = log.blocks[event.block];
    if (event.is_made) {
      backward_before[event.block] = backward_blocks;
      if (block.phase == StepPhase::kBackward) ++backward_blocks;
      last_op = block.op_number;
    } else {
      goes(block, event.block, false);
    }
  }
  std::vector<bool> is_gone(log.blocks.size());
  for (const AllocationLog::Event& event : log.events) is_gone[event.block] = !event.is_made;
  for (std::size_t i = 0; i < log.blocks.size(); ++i) {
    if (!is_gone[i]) goes(log.blocks[i], i, true);
  }
}

class Names {
 public:
  std::uint64_t index(const std::string& name) {
    return names_.emplace(name, names_.size()).first->second;
  }

 private:
  std::unordered_map<std::string, std::uint64_t> names_;
};

// By step.
std::vector<Points> points_of(const AllocationLog& log, Names& names) {
  std::vector<std::uint64_t> shared;
  for (const std::string& name : log.names) shared.push_back(names.index(name));
  std::vector<Points> steps;
  std::int64_t live = 0;
  std::size_t event_index = 0;
  for (const std::size_t end : log.step_ends) {
    Points points;
    for (; event_index < end; ++event_index) {
      const AllocationLog::Event& event = log.events[event_index];
      const AllocationLog::Block& block = log.blocks[event.block];
      const auto bytes = static_cast<std::int64_t>(block.bytes);
      live += event.is_made ? bytes : -bytes;
      if (!event.is_made) continue;
      const std::uint64_t key = (shared[block.op] << 34) ^ (shared[block.module] << 2) ^
                                static_cast<std::uint64_t>(block.phase);
      points.push_back({key, block.op_number, static_cast<std::uint32_t>(event_index), block.phase,
                        live, block.bytes});
    }
    steps.push_back(std::move(points));
  }
  return steps;
}

// One point an op, its highest.
Points by_op(const Points& points) {
  Points ops;
  for (const Point& point : points) {
    if (!ops.empty() && point.op_number != 0 && ops.back().op_number == point.op_number &&
        ops.back().key == point.key) {
      if (point.live > ops.back().live) ops.back() = point;
    } else {
      ops.push_back(point);
    }
  }
  return ops;
}

// For each of `a` its partner in `b` in a longest common subsequence of keys (E. Myers, An O(ND)
// difference algorithm, 1986). nullopt: they differ in more than kMostDifferences places.
std::optional<std::vector<std::ptrdiff_t>> align(const Points& a, const Points& b) {
  std::vector<std::ptrdiff_t> partner(a.size(), -1);
  const auto n = static_cast<std::ptrdiff_t>(a.size());
  const auto m = static_cast<std::ptrdiff_t>(b.size());
  const auto same = [&](std::ptrdiff_t i, std::ptrdiff_t j) {
    return a[static_cast<std::size_t>(i)].key == b[static_cast<std::size_t>(j)].key;
  };
  const auto most = static_cast<std::ptrdiff_t>(kMostDifferences);
  std::vector<std::ptrdiff_t> furthest(static_cast<std::size_t>(2 * most + 3), 0);
  const auto at = [&](std::ptrdiff_t k) { return static_cast<std::size_t>(k + most + 1); };
  std::vector<std::vector<std::ptrdiff_t>> rounds;  // furthest in [-d, d] after round d
  for (std::ptrdiff_t d = 0; d <= most; ++d) {
    for (std::ptrdiff_t k = -d; k <= d; k += 2) {
      const bool down = k == -d || (k != d && furthest[at(k - 1)] < furthest[at(k + 1)]);
      std::ptrdiff_t i = down ? furthest[at(k + 1)] : furthest[at(k - 1)] + 1;
      if (d == 0) i = 0;
      while (i < n && i - k < m && same(i, i - k)) ++i;
      furthest[at(k)] = i;
      if (i < n || i - k < m) continue;
      // Back along the way.
      std::ptrdiff_t j = i - k;
      for (std::ptrdiff_t round = d; round >= 0; --round) {
        const std::ptrdiff_t now = i - j;
        std::ptrdiff_t from_i = 0;
        std::ptrdiff_t from_j = 0;
        std::ptrdiff_t run_i = 0;
        if (round > 0) {
          const auto& before = rounds[static_cast<std::size_t>(round - 1)];
          const auto was = [&](std::ptrdiff_t diagonal) {
            return before[static_cast<std::size_t>(diagonal + round - 1)];
          };
          const bool went_down = now == -round || (now != round && was(now - 1) < was(now + 1));
          from_i = went_down ? was(now + 1) : was(now - 1);
          from_j = went_down ? from_i - (now + 1) : from_i - (now - 1);
          run_i = went_down ? from_i : from_i + 1;
        }
        while (i > run_i) {
          --i;
          --j;
          partner[static_cast<std::size_t>(i)] = j;
        }
        i = from_i;
        j = from_j;
      }
      return partner;
    }
    rounds.emplace_back(furthest.begin() + static_cast<std::ptrdiff_t>(at(-d)),
                        furthest.begin() + static_cast<std::ptrdiff_t>(at(d)) + 1);
  }
  return std::nullopt;
}

bool are_same(const Points& a, const Points& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Point& x, const Point& y) { return x.key == y.key; });
}

const Point* highest(std::span<const Point> points) {
  const auto found = std::max_element(
      points.begin(), points.end(), [](const Point& a, const Point& b) { return a.live < b.live; });
  return found == points.end() ? nullptr : &*found;
}

// What lies between moments that all logs share is one moment, if any log has something there. A
// log that has nothing takes no part in it; if that leaves one, the others get its rise since the
// moment before.
std::vector<Moment> aligned(const std::vector<Points>& ops,
                            const std::vector<std::vector<std::ptrdiff_t>>& partners,
                            std::deque<Point>& risen) {
  static const Point kStart;
  const std::size_t logs = ops.size();
  const Points& reference = ops.back();
  std::vector<Moment> moments;
  std::vector<std::size_t> next(logs, 0);  // the first that no moment has yet
  Moment last(logs, &kStart);
  const auto gap = [&](const std::vector<std::size_t>& ends) {
    Moment moment(logs, nullptr);
    std::size_t present = 0;
    std::int64_t rise = 0;
    for (std::size_t log = 0; log < logs; ++log) {
      moment[log] = highest(std::span(ops[log]).subspan(next[log], ends[log] - next[log]));
      if (moment[log] == nullptr) continue;
      ++present;
      rise = moment[log]->live - last[log]->live;
    }
    if (present == 0) return;
    if (present == 1) {
      for (std::size_t log = 0; log < logs; ++log) {
        if (moment[log] != nullptr) continue;
        risen.push_back(*last[log]);
        risen.back().live += std::max<std::int64_t>(0, rise);
        moment[log] = &risen.back();
      }
    }
    moments.push_back(std::move(moment));
  };
  for (std::size_t i = 0; i < reference.size(); ++i) {
    std::vector<std::size_t> ends(logs);
    ends.back() = i;
    bool is_shared = true;
    for (std::size_t log = 0; log + 1 < logs && is_shared; ++log) {
      is_shared = partners[log][i] >= 0;
      if (is_shared) ends[log] = static_cast<std::size_t>(partners[log][i]);
    }
    if (!is_shared) continue;
    gap(ends);
    Moment moment(logs);
    for (std::size_t log = 0; log < logs; ++log) {
      moment[log] = &ops[log][ends[log]];
      next[log] = ends[log] + 1;
    }
    last = moment;
    moments.push_back(std::move(moment));
  }
  std::vector<std::size_t> ends(logs);
  for (std::size_t log = 0; log < logs; ++log) ends[log] = ops[log].size();
  gap(ends);
  return moments;
}

std::vector<Moment> by_phase(const std::vector<Points>& steps) {
  std::vector<Moment> moments;
  for (std::size_t phase = 0; phase < kStepPhases; ++phase) {
    Moment moment;
    for (const Points& points : steps) {
      const Point* best = nullptr;
      for (const Point& point : points) {
        if (static_cast<std::size_t>(point.phase) == phase &&
            (best == nullptr || point.live > best->live)) {
          best = &point;
        }
      }
      if (best != nullptr) moment.push_back(best);
    }
    if (moment.size() == steps.size()) moments.push_back(std::move(moment));
  }
  return moments;
}

// One step of every log, on its moments.
struct Step {
  std::vector<Points> kept;  // what moments point to, where it is not in the logs' points
  std::deque<Point> risen;
  std::vector<Moment> moments;
  FitWay way = FitWay::kEveryAllocation;
};

Step match(const std::vector<const Points*>& steps) {
  Step step;
  const bool same = std::all_of(steps.begin(), steps.end(), [&](const Points* points) {
    return are_same(*points, *steps.front());
  });
  if (same) {
    for (std::size_t i = 0; i < steps.front()->size(); ++i) {
      Moment moment;
      for (const Points* points : steps) moment.push_back(&(*points)[i]);
      step.moments.push_back(std::move(moment));
    }
    return step;
  }
  for (const Points* points : steps) step.kept.push_back(by_op(*points));
  std::vector<std::vector<std::ptrdiff_t>> partners;
  for (std::size_t log = 0; log + 1 < steps.size(); ++log) {
    auto partner = align(step.kept.back(), step.kept[log]);
    if (!partner.has_value()) {
      step.moments = by_phase(step.kept);
      step.way = FitWay::kPhases;
      return step;
    }
    partners.push_back(std::move(*partner));
  }
  step.moments = aligned(step.kept, partners, step.risen);
  step.way = FitWay::kAligned;
  return step;
}

struct Highest {
  double live = 0;
  std::size_t step = 0;
  std::vector<std::uint32_t> events;  // in each log; empty: the start
};

struct Fitted {
  Highest highest;
  std::array<double, kStepPhases> by_phase{};
  FitWay way = FitWay::kEveryAllocation;
  std::size_t points = 0;
  std::size_t curved = 0;
  std::size_t scattered = 0;
  std::size_t rounded = 0;
};

bool is_rounded(const Moment& moment, std::span<const double> sizes) {
  const Bytes first = moment.front()->bytes;
  const Bytes last = moment.back()->bytes;
  if (first == 0 || last <= first) return false;
  for (const Point* point : moment) {
    if (point->bytes % static_cast<Bytes>(kPage) != 0) return false;
  }
  return static_cast<double>(first) * sizes.back() != static_cast<double>(last) * sizes.front();
}

// What a block is in each log: null where a log has no such block.
using Partners = std::vector<Moment>;  // by allocation of the last log, through all steps

// nullopt: too different.
std::optional<Partners> partners_of(const std::vector<std::vector<Points>>& points) {
  Partners partners;
  for (std::size_t step = 0; step < points.front().size(); ++step) {
    const Points& last = points.back()[step];
    const std::size_t first = partners.size();
    for (const Point& point : last) {
      partners.emplace_back(points.size(), nullptr);
      partners.back().back() = &point;
    }
    for (std::size_t log = 0; log + 1 < points.size(); ++log) {
      const auto partner = align(last, points[log][step]);
      if (!partner.has_value()) return std::nullopt;
      for (std::size_t i = 0; i < last.size(); ++i) {
        const std::ptrdiff_t at = (*partner)[i];
        if (at >= 0) partners[first + i][log] = &points[log][step][static_cast<std::size_t>(at)];
      }
    }
  }
  return partners;
}

// Each block of the last log by itself, and a pass over its events with those sizes. A block that
// no other log has grows from nothing, unless it is a gradient or an optimizer's.
Fitted fit_blocks(const AllocationLog& last, const Partners& partners,
                  std::span<const double> sizes, double to) {
  Fitted fitted;
  std::vector<double> bytes(last.blocks.size());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<double>(last.blocks[i].bytes);
  double live = 0;
  std::size_t event = 0;
  std::size_t step = 0;
  for (const Moment& moment : partners) {
    const std::uint32_t here = moment.back()->event;
    while (here >= last.step_ends[step]) ++step;
    const AllocationLog::Block& block = last.blocks[last.events[here].block];
    std::vector<double> x;
    std::vector<double> y;
    Moment present;
    for (std::size_t i = 0; i < moment.size(); ++i) {
      if (moment[i] == nullptr) continue;
      x.push_back(sizes[i]);
      y.push_back(static_cast<double>(moment[i]->bytes));
      present.push_back(moment[i]);
    }
    Value value = fit_block(x, y, to);
    const bool is_fixed = block.phase == StepPhase::kOptimizer ||
                          block.kind == StorageKind::kGradient ||
                          block.kind == StorageKind::kOptimizerState;
    if (x.size() == 1 && sizes.size() > 1) {
      value = {is_fixed ? y[0] : y[0] * to / x[0], Value::Shape::kScattered};
    }
    ++fitted.points;
    fitted.curved += value.shape == Value::Shape::kParabola ? 1 : 0;
    fitted.scattered += value.shape == Value::Shape::kScattered ? 1 : 0;
    fitted.rounded += is_rounded(present, x) ? 1 : 0;
    for (; event <= here; ++event) {
      const AllocationLog::Event& now = last.events[event];
      if (event == here) bytes[now.block] = std::max(0.0, value.at);
      live += now.is_made ? bytes[now.block] : -bytes[now.block];
    }
    double& in_phase = fitted.by_phase[static_cast<std::size_t>(block.phase)];
    in_phase = std::max(in_phase, live);
    if (live <= fitted.highest.live) continue;
    fitted.highest.live = live;
    fitted.highest.step = step;
    fitted.highest.events.clear();
    for (const Point* point : moment) {
      fitted.highest.events.push_back(point == nullptr ? kBeforeAll : point->event);
    }
  }
  return fitted;
}

Fitted fit_curve(const std::vector<std::vector<Points>>& logs, std::span<const double> sizes,
                 double to) {
  Fitted fitted;
  for (std::size_t index = 0; index < logs.front().size(); ++index) {
    std::vector<const Points*> steps;
    for (const auto& log : logs) steps.push_back(&log[index]);
    const Step step = match(steps);
    fitted.way = std::max(fitted.way, step.way);
    for (const Moment& moment : step.moments) {
      std::vector<double> x;
      std::vector<double> y;
      Moment present;
      for (std::size_t i = 0; i < moment.size(); ++i) {
        if (moment[i] == nullptr) continue;
        x.push_back(sizes[i]);
        y.push_back(static_cast<double>(moment[i]->live));
        present.push_back(moment[i]);
      }
      const Value value = fit_value(x, y, to);
      ++fitted.points;
      fitted.rounded += is_rounded(present, x) ? 1 : 0;
      fitted.curved += value.shape == Value::Shape::kParabola ? 1 : 0;
      fitted.scattered += value.shape == Value::Shape::kScattered ? 1 : 0;
      double& in_phase = fitted.by_phase[static_cast<std::size_t>(present.back()->phase)];
      in_phase = std::max(in_phase, value.at);
      if (value.at <= fitted.highest.live) continue;
      fitted.highest.live = value.at;
      fitted.highest.step = index;
      fitted.highest.events.clear();
      for (const Point* point : moment) {
        fitted.highest.events.push_back(point == nullptr ? kBeforeAll : point->event);
      }
    }
  }
  return fitted;
}

std::int64_t highest_of(const std::vector<Points>& steps) {
  std::int64_t most = 0;
  for (const Points& step : steps) {
    for (const Point& point : step) most = std::max(most, point.live);
  }
  return most;
}

// Of two ways the one that tells the last log better from the others: blocks each by itself
// (experts, branches), or live bytes moment by moment (loops that go round more often).
Fitted fit_all(std::span<const AllocationLog> logs, const std::vector<std::vector<Points>>& points,
               std::span<const double> sizes, double to, double* error = nullptr) {
  const auto partners = partners_of(points);
  const bool is_same =
      std::all_of(points.begin(), points.end(), [&](const std::vector<Points>& log) {
        return std::equal(log.begin(), log.end(), points.back().begin(), points.back().end(),
                          are_same);
      });
  const std::span<const double> fewer = sizes.first(sizes.size() - 1);
  std::optional<double> blocks_off;
  std::optional<double> curve_off;
  if (logs.size() >= 3) {
    const std::vector<std::vector<Points>> others(points.begin(), points.end() - 1);
    const auto truth = static_cast<double>(highest_of(points.back()));
    const auto fewer_partners = partners_of(others);
    if (fewer_partners) {
      blocks_off = std::abs(
          truth -
          fit_blocks(logs[logs.size() - 2], *fewer_partners, fewer, sizes.back()).highest.live);
    }
    if (!is_same || !fewer_partners) {
      curve_off = std::abs(truth - fit_curve(others, fewer, sizes.back()).highest.live);
    }
  }
  const bool by_blocks = partners && (is_same || (blocks_off && *blocks_off < *curve_off));
  if (error != nullptr) {
    *error = by_blocks && blocks_off ? *blocks_off : curve_off ? *curve_off : 0;
  }
  if (!by_blocks) return fit_curve(points, sizes, to);
  Fitted fitted = fit_blocks(logs.back(), *partners, sizes, to);
  if (!is_same) fitted.way = FitWay::kAligned;
  return fitted;
}

struct Composition {
  std::array<std::int64_t, kStorageKinds> by_kind{};
  std::map<std::string, std::int64_t> by_module;
};

// What is live right after an event.
Composition composition_at(const AllocationLog& log, std::uint32_t event) {
  std::vector<bool> is_there;
  for (const AllocationLog::Block& block : log.blocks) is_there.push_back(block.was_there);
  for (std::size_t i = 0; event != kBeforeAll && i <= event; ++i) {
    is_there[log.events[i].block] = log.events[i].is_made;
  }
  Composition composition;
  for (std::size_t i = 0; i < log.blocks.size(); ++i) {
    if (!is_there[i]) continue;
    const AllocationLog::Block& block = log.blocks[i];
    const auto bytes = static_cast<std::int64_t>(block.bytes);
    composition.by_kind[static_cast<std::size_t>(block.kind)] += bytes;
    composition.by_module[log.names[block.module]] += bytes;
  }
  return composition;
}

std::int64_t rounded(double value) { return static_cast<std::int64_t>(std::ceil(value - 1e-3)); }

void compose(PeakFit& fit, std::span<const AllocationLog> logs, std::span<const double> sizes,
             const std::vector<std::uint32_t>& events, double to) {
  std::vector<Composition> parts;
  std::vector<double> present;
  const bool is_known = std::any_of(events.begin(), events.end(),
                                    [](std::uint32_t event) { return event != kBeforeAll; });
  for (std::size_t i = 0; i < logs.size(); ++i) {
    if (is_known && events[i] == kBeforeAll) continue;
    AllocationLog log = logs[i];
    tell_kinds(log);
    parts.push_back(composition_at(log, is_known ? events[i] : kBeforeAll));
    present.push_back(sizes[i]);
  }
  std::vector<double> values(parts.size());
  const auto fitted = [&] {
    return std::max<std::int64_t>(0, rounded(fit_value(present, values, to).at));
  };
  for (std::size_t kind = 0; kind < kStorageKinds; ++kind) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      values[i] = static_cast<double>(parts[i].by_kind[kind]);
    }
    fit.by_kind[kind] = fitted();
  }
  std::map<std::string, bool> names;
  for (const Composition& part : parts) {
    for (const auto& [name, bytes] : part.by_module) names[name] = true;
  }
  for (const auto& [name, unused] : names) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto found = parts[i].by_module.find(name);
      values[i] = found == parts[i].by_module.end() ? 0 : static_cast<double>(found->second);
    }
    const std::int64_t bytes = fitted();
    if (bytes > 0) fit.by_module.push_back({name, bytes});
  }
  std::stable_sort(fit.by_module.begin(), fit.by_module.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
}

}  // namespace

PeakFit fit_peak(std::span<const AllocationLog> logs, std::uint64_t batch_size) {
  Names names;
  std::vector<std::vector<Points>> points;
  std::vector<double> sizes;
  for (const AllocationLog& log : logs) {
    points.push_back(points_of(log, names));
    sizes.push_back(static_cast<double>(log.batch_size));
  }
  const auto to = static_cast<double>(batch_size);
  double off = 0;
  const Fitted fitted = fit_all(logs, points, sizes, to, &off);
  PeakFit fit;
  fit.growth_bytes = rounded(fitted.highest.live);
  fit.step = fitted.highest.step;
  for (std::size_t phase = 0; phase < kStepPhases; ++phase) {
    fit.growth_by_phase[phase] = rounded(fitted.by_phase[phase]);
  }
  fit.way = fitted.way;
  fit.points = fitted.points;
  fit.curved_points = fitted.curved;
  fit.scattered_points = fitted.scattered;
  fit.rounded_points = fitted.rounded;
  const std::vector<std::uint32_t>& events = fitted.highest.events;
  if (!events.empty() && events.back() != kBeforeAll) {
    const AllocationLog& log = logs.back();
    const AllocationLog::Block& block = log.blocks[log.events[events.back()].block];
    fit.phase = block.phase;
    fit.op = log.names[block.op];
    fit.module = log.names[block.module];
  }
  compose(fit, logs, sizes, events, to);

  // How far off the largest log was, told from the others, and how much further `batch_size` is.
  if (logs.size() >= 3 && fit.growth_bytes > 0) {
    const double reach = (to - sizes.front()) / (sizes.back() - sizes.front());
    const double reach_then =
        (sizes.back() - sizes.front()) / (sizes[sizes.size() - 2] - sizes.front());
    fit.error_bound =
        off * std::max(1.0, reach / reach_then) / static_cast<double>(fit.growth_bytes);
  }
  return fit;
}

}  // namespace lowtide
