#include "src/watch/growth_history.h"

#include <doctest/doctest.h>

#include <vector>

namespace lowtide {
namespace {

// The step at whose end the values are first called growing, or -1.
int named_at(const std::vector<int>& values) {
  GrowthHistory history;
  for (std::size_t step = 0; step < values.size(); ++step) {
    history.add(step, values[step]);
    if (history.is_growing(step)) return static_cast<int>(step);
  }
  return -1;
}

TEST_CASE("what rises in each step is named at the fourth rise") {
  CHECK(named_at({0, 1, 2, 3, 4, 5}) == 4);
  CHECK(named_at({7, 7, 9, 11, 13, 15}) == 5);
}

TEST_CASE("what rises at every tenth step is named at the fourth rise") {
  std::vector<int> values;
  for (int i = 0; i < 60; ++i) values.push_back(i / 10);
  CHECK(named_at(values) == 40);
}

TEST_CASE("what is there from the first step on, or fills in three, is not named") {
  CHECK(named_at({5, 5, 5, 5, 5, 5, 5, 5}) == -1);
  CHECK(named_at({0, 1, 2, 3, 3, 3, 3, 3, 3, 3}) == -1);
}

TEST_CASE("what falls begins anew") {
  CHECK(named_at({0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0}) == -1);
  CHECK(named_at({0, 1, 2, 3, 0, 1, 2, 3, 4}) == 8);
}

TEST_CASE("what has stopped is not growing") {
  GrowthHistory history;
  for (std::uint64_t step = 0; step < 5; ++step) history.add(step, static_cast<int>(step));
  CHECK(history.is_growing(4));
  for (std::uint64_t step = 5; step < 9; ++step) history.add(step, 4);
  CHECK_FALSE(history.is_growing(8));
}

TEST_CASE("growth a step is the whole rise over the steps it took") {
  GrowthHistory history;
  for (std::uint64_t step = 3; step <= 11; ++step)
    history.add(step, 100 + 6 * (static_cast<int>(step) / 2));
  CHECK(history.per_step(11) == doctest::Approx(3.0));
}

}  // namespace
}  // namespace lowtide
