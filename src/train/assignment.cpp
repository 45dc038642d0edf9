// The assignment problem by shortest augmenting paths (Jonker and Volgenant, "A shortest augmenting
// path algorithm for dense and sparse linear assignment problems", Computing 38, 1987; rectangular
// form as in Crouse, "On implementing 2D rectangular assignment algorithms", 2016).
//
// Rows (boxes) are added one at a time. Prices u and v with cost[i][j] - u[i] - v[j] >= 0, equal to
// zero on assigned pairs, prove that the assignment so far is the cheapest. A new row looks for a
// free column by Dijkstra over these reduced costs: from a column that is taken the path goes on
// from the row that holds it. Then the pairs along the path are swapped and the prices are raised
// by the distances, which keeps the proof. With few rows and many columns, as here (some 20 boxes,
// over a thousand tokens), a row costs a few passes over the columns.
//
// Prices are double, since the costs of a thousand tokens lie close together.
//
// Tested by tests/train/assignment_test.cpp against trying all assignments.
#include "src/train/assignment.h"

#include <limits>

#include "src/base/assert.h"

namespace lowtide {

std::vector<int> assign(const std::vector<float>& costs, int rows, int columns) {
  LOWTIDE_ASSERT(rows <= columns && costs.size() == std::size_t(rows) * std::size_t(columns));
  constexpr double kFar = std::numeric_limits<double>::infinity();
  const auto width = static_cast<std::size_t>(columns);
  std::vector<double> row_price(static_cast<std::size_t>(rows), 0.0);
  std::vector<double> column_price(width, 0.0);
  std::vector<int> row_of(width, -1);
  std::vector<int> column_of(static_cast<std::size_t>(rows), -1);

  std::vector<double> distance(width);
  std::vector<int> came_from(width);  // row before the column on the shortest path
  std::vector<char> settled(width);
  for (int start = 0; start < rows; ++start) {
    distance.assign(width, kFar);
    settled.assign(width, 0);
    int row = start;
    int end = -1;
    double reached = 0;
    while (end < 0) {
      const float* cost = &costs[std::size_t(row) * width];
      int nearest = -1;
      double least = kFar;
      for (std::size_t j = 0; j < width; ++j) {
        if (settled[j] != 0) continue;
        const double through = reached + cost[j] - row_price[std::size_t(row)] - column_price[j];
        if (through < distance[j]) {
          distance[j] = through;
          came_from[j] = row;
        }
        if (distance[j] < least) {
          least = distance[j];
          nearest = static_cast<int>(j);
        }
      }
      LOWTIDE_ASSERT(nearest >= 0);
      reached = least;
      settled[std::size_t(nearest)] = 1;
      row = row_of[std::size_t(nearest)];
      if (row < 0) end = nearest;
    }

    row_price[std::size_t(start)] += reached;
    for (std::size_t j = 0; j < width; ++j) {
      if (settled[j] == 0 || static_cast<int>(j) == end) continue;
      row_price[std::size_t(row_of[j])] += reached - distance[j];
      column_price[j] -= reached - distance[j];
    }
    for (int column = end; column >= 0;) {
      const int holder = came_from[std::size_t(column)];
      row_of[std::size_t(column)] = holder;
      std::swap(column, column_of[std::size_t(holder)]);
    }
  }
  return column_of;
}

}  // namespace lowtide
