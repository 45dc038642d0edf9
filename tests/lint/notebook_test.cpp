#include "src/lint/notebook.h"

#include <doctest/doctest.h>

#include "lowtide/error.h"

namespace lowtide::lint {
namespace {

TEST_CASE("code cells are joined, magics are comments, and lines know their cells") {
  const NotebookSource source = read_notebook(
      R"({"cells": [{"cell_type": "markdown", "source": ["# title"]},
                    {"cell_type": "code", "source": ["%matplotlib inline\n", "x = 1"]},
                    {"cell_type": "code", "source": "%%bash\nls\n"},
                    {"cell_type": "code", "source": ["!pip install torch\n", "y = 2\n"]}]})");
  CHECK(source.python == "#matplotlib inline\nx = 1\n#%bash\n#s\n#pip install torch\ny = 2\n");
  REQUIRE(source.places.size() == 6);
  CHECK(source.places[1].cell == 2);
  CHECK(source.places[1].line == 2);
  CHECK(source.places[5].cell == 4);
}

TEST_CASE("what is no notebook is refused") {
  CHECK_THROWS_AS(read_notebook("{"), FormatError);
  CHECK_THROWS_AS(read_notebook("{\"nbformat\": 4}"), FormatError);
  CHECK_THROWS_AS(read_notebook("{\"cells\": 3}"), FormatError);
}

}  // namespace
}  // namespace lowtide::lint
