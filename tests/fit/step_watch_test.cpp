#include "src/fit/step_watch.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <utility>

using namespace lowtide;  // the tests of one header

namespace {

// A graph grows from tensors of these sizes; then its backward runs.
void forward(StepWatch& watch, std::initializer_list<Bytes> saved) {
  watch.op_runs(false, 0);
  for (const Bytes bytes : saved) watch.saved(bytes);
}
void backward(StepWatch& watch, Bytes live_after) {
  watch.op_runs(true, 0);
  watch.op_runs(false, live_after);
}

}  // namespace

TEST_CASE("a step ends at the first tensor saved after a backward, not at the backward") {
  StepWatch watch;
  watch.begin(100, true, 1'000);
  forward(watch, {10, 20});
  CHECK(!watch.ends_before_saving());
  backward(watch, 130);
  CHECK(watch.saw_backward());
  CHECK(watch.ends_before_saving());
  const StepWatch::Ended ended = watch.next(140, true, 5'000);
  CHECK(ended.index == 0);
  CHECK(ended.begin_ns == 1'000);
  CHECK(ended.duration_ns == 4'000);
  CHECK(ended.static_bytes == 130);
  CHECK(ended.is_to_be_recorded);
  CHECK(watch.index() == 1);
  CHECK(!watch.ends_before_saving());
}

TEST_CASE("once the program marks steps, nothing else ends them") {
  StepWatch watch;
  watch.begin(100, true, 0);
  watch.mark();
  forward(watch, {10});
  backward(watch, 100);
  CHECK(!watch.ends_before_saving());
}

TEST_CASE("the first two steps are recorded, then those that begin in a new way") {
  StepWatch watch;
  watch.begin(100, true, 0);
  const auto step = [&](std::initializer_list<Bytes> saved) {
    forward(watch, saved);
    backward(watch, 100);
    const bool was_new = !watch.smallest_budget().has_value();
    watch.learn(900, 500);
    const bool records = watch.next(100, true, 0).is_to_be_recorded;
    return std::pair(was_new, records);
  };
  CHECK(step({10, 20}) == std::pair(true, true));
  CHECK(step({10, 20}) == std::pair(false, false));
  CHECK(step({10, 30}).first);
  CHECK(!step({10, 20}).first);
}

TEST_CASE("what a step needs moves with what lies beneath it") {
  StepWatch watch;
  watch.begin(100, true, 0);
  forward(watch, {10, 20});
  backward(watch, 100);
  watch.learn(900, 500);
  watch.next(150, true, 0);
  CHECK(!watch.smallest_budget().has_value());  // nothing is known of how it begins
  watch.saved(10);
  CHECK(watch.smallest_budget() == Bytes{950});
  CHECK(watch.lower_bound() == Bytes{500});
  watch.saved(21);
  CHECK(!watch.smallest_budget().has_value());
  watch.restart(60, true, 0);
  watch.saved(10);
  CHECK(watch.smallest_budget() == Bytes{900});
  CHECK(watch.lower_bound() == Bytes{460});
  CHECK(watch.largest_smallest_budget() == Bytes{900});
  CHECK(watch.largest_lower_bound() == Bytes{500});
}

TEST_CASE("a step among other graphs neither teaches nor is compared") {
  StepWatch watch;
  watch.begin(100, false, 0);
  forward(watch, {10, 20});
  backward(watch, 100);
  watch.learn(900, 500);
  CHECK(watch.largest_smallest_budget() == 0);
  watch.was_carried(700);
  CHECK(watch.largest_smallest_budget() == 700);
}

TEST_CASE("of steps of a kind the one above the most similar amount of memory tells") {
  StepWatch watch;
  watch.begin(100, true, 0);
  forward(watch, {10});
  watch.learn(900, 500);
  watch.next(300, true, 0);  // the optimizer has state now
  forward(watch, {10});
  watch.learn(950, 700);
  // The first one's 910 would not do for the next step.
  for (const auto& [base, smallest] :
       {std::pair<Bytes, Bytes>{110, 950}, std::pair<Bytes, Bytes>{290, 950},
        std::pair<Bytes, Bytes>{320, 970}}) {
    watch.restart(base, true, 0);
    watch.saved(10);
    CHECK(watch.smallest_budget() == smallest);
  }
}

TEST_CASE("all saved tensors tell kinds apart, but no more than thirty-two") {
  StepWatch watch;
  watch.begin(100, true, 0);
  forward(watch, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  watch.learn(900, 500);
  watch.restart(100, true, 0);
  forward(watch, {1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(watch.smallest_budget() == Bytes{900});  // alike so far
  watch.saved(99);
  CHECK(!watch.smallest_budget().has_value());
  for (Bytes first = 1'000; first < 1'040; ++first) {
    watch.restart(100, true, 0);
    watch.saved(first);
    watch.learn(first, 1);
  }
  CHECK(watch.largest_smallest_budget() == 1'030);  // the first 31 of them
  watch.restart(100, true, 0);
  watch.saved(1'001);
  watch.learn(5'000, 1);  // one that is known learns on
  CHECK(watch.smallest_budget() == Bytes{5'000});
}

TEST_CASE("this budget's knowledge takes the place of earlier ones'") {
  StepWatch watch;
  for (Bytes budget = 1; budget <= 10; ++budget) {
    watch.begin(100, true, 0);
    for (Bytes kind = 1; kind <= 5; ++kind) {
      watch.restart(100, true, 0);
      watch.saved(1'000 * budget + kind);
      watch.learn(10'000 * budget + kind, 1);
    }
    CHECK(watch.largest_smallest_budget() == 10'000 * budget + 5);
  }
  watch.restart(100, true, 0);
  watch.saved(9'003);
  CHECK(watch.smallest_budget() == Bytes{90'003});
  watch.restart(100, true, 0);
  watch.saved(1'003);
  CHECK(!watch.smallest_budget().has_value());
}

TEST_CASE(
    "a refused step is begun anew; an earlier budget tells what is enough, not what is needed") {
  StepWatch watch;
  watch.begin(100, true, 0);
  forward(watch, {10});
  watch.learn(900, 500);
  watch.abandon();
  CHECK(watch.is_abandoned());
  watch.restart(100, true, 0);
  CHECK(!watch.is_abandoned());
  watch.begin(160, true, 0);
  watch.saved(10);
  CHECK(watch.smallest_budget() == Bytes{960});
  CHECK(!watch.lower_bound().has_value());
  CHECK(watch.largest_smallest_budget() == 0);
  CHECK(watch.index() == 0);
  watch.learn(950, 400);
  CHECK(watch.lower_bound() == Bytes{400});
}
