#pragma once
// Where a step begins and ends, and what the steps so far have taught.
//
// A step ends at the first tensor that autograd saves outside of a backward after one has run: a
// new graph begins to grow. So gradient accumulation, two graphs in turn (GANs) and closures that
// an optimizer calls again (L-BFGS) each count one step for one backward. mark() overrides that for
// good.
//
// What is learned. The first two steps are recorded (the second has the optimizer's state too), and
// then each step of a kind not seen before: kinds differ in the sizes of their saved tensors. From
// the tape comes the smallest budget that would carry it, and a bound. For a later step of the same
// kind above another amount of memory (what is live where it begins) the first moves up with it,
// and the second down.
//
// What an earlier budget of the process has learned still serves to say what would be enough; it is
// no bound, because another program may begin alike.
//
// A step that begins while other graphs still hold saved tensors (is_alone is false: several
// threads, a graph kept for later) neither teaches nor is compared: what is live beneath it can be
// dropped.
//
// Not thread-safe: the runtime's lock guards it.

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "lowtide/bytes.h"
#include "src/tape/tape.h"

namespace lowtide {

class StepWatch {
 public:
  // A budget begins; `live_bytes` are there.
  void begin(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns);

  // --- what happens ---
  // An op runs, in a backward or outside of one. Only changes matter: is_change() tells, without
  // the lock.
  bool is_change(bool in_backward) const { return in_backward != in_backward_; }
  void op_runs(bool in_backward, Bytes live_bytes);
  // A tensor is saved outside of a backward. True: a step ended before it; call next() first.
  bool ends_before_saving() const { return !marked_ && saw_backward_; }
  void saved(Bytes bytes);
  // The running step was refused and will not go on: the next saved tensor begins it anew.
  void abandon() { abandoned_ = true; }
  bool is_abandoned() const { return abandoned_; }
  void restart(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns);
  // From now on only mark() ends steps.
  void mark() { marked_ = true; }

  struct Ended {
    std::uint64_t index;
    std::uint64_t begin_ns;
    std::uint64_t duration_ns;
    Bytes static_bytes;      // live when its backward had ended; 0 when it had none
    bool is_to_be_recorded;  // the step that begins now
  };
  // The step ends and the next begins.
  Ended next(Bytes live_bytes, bool is_alone, std::uint64_t clock_ns);

  // The ended step, of which there is no tape, was carried by so many bytes. Before next().
  void was_carried(Bytes bytes);
  // A step was refused, and needs so many bytes, or more.
  void was_refused(Bytes smallest);
  // The ended step can be carried by `smallest` bytes, and by no fewer than `bound`. Before next().
  void learn(Bytes smallest, Bytes bound);

  // --- what is known ---
  std::uint64_t index() const { return index_; }
  bool saw_backward() const { return saw_backward_; }
  // Of the running step, so far: a hash of its saved tensors' sizes, and what was live where it
  // began.
  std::uint64_t kind() const { return kind_.empty() ? 0 : kind_.back() + kind_.size(); }
  Bytes base() const { return base_; }
  // For a step that went like the running one so far: the smallest budget known to carry it, and
  // the bytes without which nothing can. nullopt: none was recorded.
  std::optional<Bytes> smallest_budget() const;
  std::optional<Bytes> lower_bound() const;
  // The largest of all that were recorded; 0: none was.
  Bytes largest_smallest_budget() const;
  Bytes largest_lower_bound() const;

 private:
  struct Known {
    std::vector<std::uint64_t> kind;
    Bytes smallest = 0;
    Bytes bound = 0;
    Bytes base = 0;  // live where that step began
    std::uint64_t budget = 0;
  };
  const Known* nearest(bool is_of_this_budget) const;
  bool has_room() const;

  std::vector<Known> known_;  // those of earlier budgets first
  Bytes largest_carried_ = 0;
  std::uint64_t budget_ = 0;         // its number
  std::vector<std::uint64_t> kind_;  // the n-th is a hash of the first n saved tensors' sizes
  std::uint64_t index_ = 0;
  std::uint64_t begin_ns_ = 0;
  Bytes base_ = 0;
  Bytes static_ = 0;
  bool saw_backward_ = false;
  bool is_alone_ = true;
  std::atomic<bool> in_backward_{false};
  bool marked_ = false;
  bool abandoned_ = false;
};

}  // namespace lowtide
