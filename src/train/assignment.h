#pragma once
// Which prediction answers for which box: the cheapest one-to-one assignment.
//
//   std::vector<int> column = assign(costs, rows, columns);   // column[i] is row i's
//
// Exact (no approximation, no tie that depends on threads); see assignment.cpp for the method.

#include <vector>

namespace lowtide {

// `costs` is rows x columns, row-major, rows <= columns, all finite. Returns the column of each
// row, all different, so that the summed cost is the least possible; among equal ones the choice is
// fixed by the input alone. Time O(rows^2 * columns), memory O(columns).
std::vector<int> assign(const std::vector<float>& costs, int rows, int columns);

}  // namespace lowtide
