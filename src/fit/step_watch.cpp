#include "src/fit/step_watch.h"

#include <algorithm>
#include <utility>

namespace lowtide {
namespace {

// More kinds of steps than this are not told apart.
constexpr std::size_t kMostKnown = 16;

}  // namespace

void StepWatch::begin(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns) {
  known_.clear();
  largest_carried_ = 0;
  index_ = 0;
  marked_ = false;
  restart(live_bytes, is_alone, clock_ns);
}

void StepWatch::restart(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns) {
  is_alone_ = is_alone;
  prefix_.clear();
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
  if (prefix_.size() < kPrefix) prefix_.push_back(bytes);
}

StepWatch::Ended StepWatch::next(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns) {
  const bool is_new = matching() == nullptr;
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
  if (const Known* known = matching()) {
    *const_cast<Known*>(known) = {known->prefix, smallest, bound, base_};
  } else if (is_alone_ && known_.size() < kMostKnown) {
    known_.push_back({prefix_, smallest, bound, base_});
  }
}

const StepWatch::Known* StepWatch::matching() const {
  if (prefix_.empty() || !is_alone_) return nullptr;
  for (const Known& known : known_) {
    if (known.prefix.size() >= prefix_.size() &&
        std::equal(prefix_.begin(), prefix_.end(), known.prefix.begin())) {
      return &known;
    }
  }
  return nullptr;
}

// What a step needed, over what lies beneath the running one.
Bytes StepWatch::moved(Bytes bytes, const Known& known) const {
  if (base_ >= known.base) return bytes + (base_ - known.base);
  return bytes - std::min(bytes, known.base - base_);
}

std::optional<Bytes> StepWatch::smallest_budget() const {
  const Known* known = matching();
  if (known == nullptr) return std::nullopt;
  return moved(known->smallest, *known);
}

std::optional<Bytes> StepWatch::lower_bound() const {
  const Known* known = matching();
  if (known == nullptr) return std::nullopt;
  return moved(known->bound, *known);
}

Bytes StepWatch::largest_smallest_budget() const {
  Bytes largest = largest_carried_;
  for (const Known& known : known_) largest = std::max(largest, known.smallest);
  return largest;
}

Bytes StepWatch::largest_lower_bound() const {
  Bytes largest = 0;
  for (const Known& known : known_) largest = std::max(largest, known.bound);
  return largest;
}

}  // namespace lowtide
