#include "src/fit/step_watch.h"

#include <algorithm>
#include <utility>

namespace lowtide {
namespace {

// More kinds of steps than this are not told apart.
constexpr std::size_t kMostKnown = 16;
// Saved tensors after these do not tell kinds apart.
constexpr std::size_t kLongestKind = 4096;

std::uint64_t mixed(std::uint64_t hash, Bytes bytes) {
  hash = (hash ^ bytes) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

}  // namespace

void StepWatch::begin(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns) {
  ++budget_;
  // The newest of those before stay, for what they are worth.
  if (known_.size() >= kMostKnown) known_.erase(known_.begin(), known_.end() - kMostKnown / 2);
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
  const Known* known = matching();
  const bool is_new = known == nullptr || known->budget != budget_;
  const Ended ended{index_, begin_ns_, clock_ns - begin_ns_, static_,
                    index_ == 0 || (is_new && known_.size() < kMostKnown)};
  ++index_;
  restart(live_bytes, is_alone, clock_ns);
  return ended;
}

void StepWatch::was_carried(Bytes bytes) {
  if (matching() == nullptr) largest_carried_ = std::max(largest_carried_, bytes);
}

void StepWatch::learn(Bytes smallest, Bytes bound) {
  if (!is_alone_) return;
  const Known learned{kind_, smallest, bound, base_, budget_};
  const auto same = std::find_if(known_.begin(), known_.end(),
                                 [&](const Known& known) { return known.kind == kind_; });
  if (same != known_.end()) {
    *same = learned;
  } else if (known_.size() < kMostKnown) {
    known_.push_back(learned);
  }
}

// This budget's go first.
const StepWatch::Known* StepWatch::matching() const {
  if (kind_.empty() || !is_alone_) return nullptr;
  const Known* found = nullptr;
  for (const Known& known : known_) {
    if (known.kind.size() < kind_.size() || known.kind[kind_.size() - 1] != kind_.back()) continue;
    if (found == nullptr || known.budget > found->budget) found = &known;
  }
  return found;
}

std::optional<Bytes> StepWatch::smallest_budget() const {
  const Known* known = matching();
  if (known == nullptr) return std::nullopt;
  // What lies beneath the running step beyond that may have been made in the recorded one (the
  // optimizer's state) and be counted twice: enough is enough.
  if (base_ >= known->base) return known->smallest + (base_ - known->base);
  return known->smallest - std::min(known->smallest, known->base - base_);
}

std::optional<Bytes> StepWatch::lower_bound() const {
  const Known* known = matching();
  if (known == nullptr || known->budget != budget_) return std::nullopt;
  // What lies beneath it beyond that may go in mid-step.
  return known->bound - std::min(known->bound, known->base - std::min(known->base, base_));
}

Bytes StepWatch::largest_smallest_budget() const {
  Bytes largest = largest_carried_;
  for (const Known& known : known_) {
    if (known.budget == budget_) largest = std::max(largest, known.smallest);
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
