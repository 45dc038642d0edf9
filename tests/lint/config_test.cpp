#include "src/lint/config.h"

#include <doctest/doctest.h>

#include "lowtide/error.h"

namespace lowtide::lint {
namespace {

template <typename Work>
std::string error_id(const Work& work) {
  try {
    work();
  } catch (const UsageError& error) {
    return error.id();
  }
  return "";
}

TEST_CASE("a table is read among others, over lines and comments") {
  const auto config = parse_config(
      "[project]\nname = 'x'\n[tool.lowtide.lint]  # ours\nignore = [\n  \"tensor-held\",  # "
      "noisy\n"
      "  'huge-linear',\n]\nexclude = [\"third_party/*\"]\nfairscale = true\n"
      "[tool.lowtide.lint.per-file-ignores]\n\"tests/*\" = "
      "[\"eval-with-grad\"]\n[tool.other]\nselect = 3\n",
      "/project/pyproject.toml");
  REQUIRE(config.has_value());
  CHECK(config->fairscale);
  CHECK_FALSE(config->reports("tensor-held", "/project/a.py"));
  CHECK(config->reports("eval-with-grad", "/project/a.py"));
  CHECK_FALSE(config->reports("eval-with-grad", "/project/tests/a.py"));
  CHECK(config->is_excluded("/project/third_party/b.py"));
  CHECK_FALSE(config->is_excluded("/project/b.py"));
}

TEST_CASE("a file without the table has no config") {
  CHECK_FALSE(parse_config("[tool.black]\nline-length = 100\n", "/p/pyproject.toml").has_value());
}

TEST_CASE("unknown rules, keys and values are refused") {
  const auto read = [](const char* text) {
    return error_id([&] { (void)parse_config(text, "/p/pyproject.toml"); });
  };
  CHECK(read("[tool.lowtide.lint]\nselect = [\"nothing\"]\n") == "LT0551");
  CHECK(read("[tool.lowtide.lint]\nselct = []\n") == "LT0552");
  CHECK(read("[tool.lowtide.lint]\nignore = \"tensor-held\"\n") == "LT0552");
  CHECK(read("[tool.lowtide.lint]\nignore = [\"tensor-held\"\n") == "LT0552");
}

TEST_CASE("patterns match names anywhere, paths from the root") {
  CHECK(matches_pattern("*.py", "a/b.py"));
  CHECK(matches_pattern("tests", "a/tests/b.py"));
  CHECK(matches_pattern("tests/*", "tests/b.py"));
  CHECK_FALSE(matches_pattern("tests/*", "a/tests/b.py"));
  CHECK(matches_pattern("**/gen/*.py", "a/b/gen/c.py"));
  CHECK_FALSE(matches_pattern("*.py", "a/b.pyi"));
}

}  // namespace
}  // namespace lowtide::lint
