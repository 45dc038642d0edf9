#include "src/fit/step_watch.h"

#include <algorithm>
#include <utility>

namespace lowtide {
namespace {

// More kinds of steps than this are not told apart.
constexpr std::size_t kMostKnown = 32;
// Saved tensors after these do not tell kinds apart.
constexpr std::size_t kLongestKind = 4096;

std::uint64_t mixed(std::uint64_t hash, Bytes bytes) {
  hash = (hash ^ bytes) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

}  // namespace

void StepWatch::begin(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns) {
  ++budget_;
  largest_carried_ = 0;
  index_ = 0;
  marked_ = false;
  restart(live_bytes, is_alone, clock_ns);
}

void StepWatch::restart(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns) {
  is_alone_ = is_alone;
  kind_.clear();
  begin_ns_ = clock_ns;
  base_ = live_bytes;
  static_ = 0;
  saw_backward_ = false;
  in_backward_ = false;
  abandoned_ = false;
}

void StepWatch::op_runs(bool in_backward, Bytes live_bytes) {
  if (in_backward) {
    saw_backward_ = true;
  } else if (in_backward_) {
    static_ = live_bytes;
  }
  in_backward_ = in_backward;
}

void StepWatch::saved(Bytes bytes) {
  if (kind_.size() < kLongestKind) {
    kind_.push_back(mixed(kind_.empty() ? 1 : kind_.back(), bytes));
  }
}

StepWatch::Ended StepWatch::next(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns) {
  const bool is_new = nearest(true) == nullptr;
  const Ended ended{index_, begin_ns_, clock_ns - begin_ns_, static_,
                    index_ == 0 || (is_new && has_room())};
  ++index_;
  restart(live_bytes, is_alone, clock_ns);
  return ended;
}

bool StepWatch::has_room() const {
  return known_.size() < kMostKnown || known_.front().budget != budget_;
}

void StepWatch::was_refused(Bytes smallest) {
  largest_carried_ = std::max(largest_carried_, smallest);
}

void StepWatch::was_carried(Bytes bytes) {
  if (nearest(true) == nullptr) largest_carried_ = std::max(largest_carried_, bytes);
}

void StepWatch::learn(Bytes smallest, Bytes bound) {
  if (!is_alone_) return;
  const Known learned{kind_, smallest, bound, base_, budget_};
  const auto same = std::find_if(known_.begin(), known_.end(), [&](const Known& known) {
    return known.kind == kind_ && known.base == base_;
  });
  if (same != known_.end()) {
    *same = learned;
    return;
  }
  if (known_.size() >= kMostKnown) {
    const auto earlier = std::find_if(known_.begin(), known_.end(),
                                      [&](const Known& known) { return known.budget != budget_; });
    if (earlier == known_.end()) return;
    known_.erase(earlier);
  }
  known_.push_back(learned);
}

// The known step that began like the running one, above the most similar amount of memory.
const StepWatch::Known* StepWatch::nearest(bool is_of_this_budget) const {
  if (kind_.empty() || !is_alone_) return nullptr;
  const auto distance = [&](const Known& known) {
    return std::max(known.base, base_) - std::min(known.base, base_);
  };
  const Known* found = nullptr;
  for (const Known& known : known_) {
    if (is_of_this_budget && known.budget != budget_) continue;
    if (known.kind.size() < kind_.size() || known.kind[kind_.size() - 1] != kind_.back()) continue;
    if (found == nullptr || distance(known) <= distance(*found)) found = &known;
  }
  return found;
}

std::optional<Bytes> StepWatch::smallest_budget() const {
  const Known* known = nearest(false);
  if (known == nullptr) return std::nullopt;
  // What lies beneath the running step beyond that may have been made in the recorded one (the
  // optimizer's state), and what it lacks may be made in it: enough is enough.
  Bytes smallest = known->smallest + (base_ - std::min(base_, known->base));
  // The steps after it are of its kind too, above more.
  for (const Known& other : known_) {
    if (other.kind != known->kind || other.base < known->base) continue;
    smallest = std::max(smallest, other.smallest + (base_ - std::min(base_, other.base)));
  }
  return smallest;
}

std::optional<Bytes> StepWatch::lower_bound() const {
  const Known* known = nearest(true);
  if (known == nullptr) return std::nullopt;
  // What lies beneath it beyond that may go in mid-step.
  return known->bound - std::min(known->bound, known->base - std::min(known->base, base_));
}

Bytes StepWatch::largest_smallest_budget() const {
  Bytes largest = largest_carried_;
  for (auto known = known_.begin(); known != known_.end(); ++known) {
    // Of each kind the newest: it has all that training keeps from step to step.
    const bool is_newest = std::none_of(known + 1, known_.end(), [&](const Known& later) {
      return later.kind == known->kind && later.budget == known->budget;
    });
    if (known->budget == budget_ && is_newest) largest = std::max(largest, known->smallest);
  }
  return largest;
}

Bytes StepWatch::largest_lower_bound() const {
  Bytes largest = 0;
  for (const Known& known : known_) {
    if (known.budget == budget_) largest = std::max(largest, known.bound);
  }
  return largest;
}

}  // namespace lowtide
