#include "src/train/assignment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "src/train/random_stream.h"

namespace lowtide {
namespace {

// The twin: tries every way to give `row` and those after it a column.
double least_cost(const std::vector<float>& costs, int rows, int columns, int row,
                  std::vector<char>& taken) {
  if (row == rows) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (int j = 0; j < columns; ++j) {
    if (taken[std::size_t(j)] != 0) continue;
    taken[std::size_t(j)] = 1;
    least = std::min(least, costs[std::size_t(row * columns + j)] +
                                least_cost(costs, rows, columns, row + 1, taken));
    taken[std::size_t(j)] = 0;
  }
  return least;
}

double cost_of(const std::vector<float>& costs, int columns, const std::vector<int>& column_of) {
  double sum = 0;
  for (std::size_t i = 0; i < column_of.size(); ++i) {
    sum += costs[i * std::size_t(columns) + std::size_t(column_of[i])];
  }
  return sum;
}

void check_against_all(const std::vector<float>& costs, int rows, int columns) {
  const std::vector<int> column_of = assign(costs, rows, columns);
  CHECK(std::set<int>(column_of.begin(), column_of.end()).size() == std::size_t(rows));
  std::vector<char> taken(std::size_t(columns), 0);
  CHECK(cost_of(costs, columns, column_of) ==
        doctest::Approx(least_cost(costs, rows, columns, 0, taken)).epsilon(1e-9));
}

}  // namespace

TEST_CASE("a greedy choice that costs more in the end is not made") {
  // Row 0 likes column 0 a little more, row 1 can only live with column 0.
  CHECK(assign({1, 2, 1, 100}, 2, 2) == std::vector<int>{1, 0});
}

TEST_CASE("the assignment costs what the cheapest of all assignments costs") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed, 1, 2);
    const int rows = 1 + int(random.below(5));
    const int columns = rows + int(random.below(4));
    std::vector<float> costs;
    for (int i = 0; i < rows * columns; ++i) costs.push_back(float(random.unit() * 20 - 10));
    check_against_all(costs, rows, columns);
  }
}

TEST_CASE("many equal costs are assigned as cheaply as any") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed, 3, 4);
    const int rows = 1 + int(random.below(5));
    const int columns = rows + int(random.below(4));
    std::vector<float> costs;
    for (int i = 0; i < rows * columns; ++i) costs.push_back(float(random.below(3)));
    check_against_all(costs, rows, columns);
  }
}

TEST_CASE("no rows are assigned nothing") { CHECK(assign({}, 0, 5).empty()); }

TEST_CASE("a forbidden column is left alone while another is free") {
  CHECK(assign({1e6f, 3, 1e6f, 1e6f, 2, 90}, 2, 3) == std::vector<int>{1, 2});
}

TEST_CASE("prices prove the assignment of a size that cannot be tried out") {
  // Planted: column (7 * i) % 40 costs 1 for row i, everything else more.
  std::vector<float> costs;
  RandomStream random(5, 6, 7);
  for (int i = 0; i < 30 * 40; ++i) costs.push_back(float(2 + random.unit()));
  std::vector<int> planted;
  for (int i = 0; i < 30; ++i) {
    planted.push_back((7 * i) % 40);
    costs[std::size_t(i * 40 + planted.back())] = 1;
  }
  CHECK(assign(costs, 30, 40) == planted);
}

}  // namespace lowtide
