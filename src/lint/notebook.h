#pragma once
// The Python in a Jupyter notebook: its code cells one after the other.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide::lint {

struct NotebookSource {
  std::string python;  // magics and shell lines are comments of the same length
  // For each line of `python`: its cell, counted from 1 over all cells, and its line in it.
  struct Place {
    std::uint32_t cell, line;
  };
  std::vector<Place> places;
};

// Throws FormatError (LT0130, LT0131) when the text is no notebook.
NotebookSource read_notebook(std::string_view json);

}  // namespace lowtide::lint
