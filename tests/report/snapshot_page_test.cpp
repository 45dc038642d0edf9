#include "src/report/snapshot_page.h"

#include <doctest/doctest.h>

#include <string>

#include "src/evidence/snapshot_reader.h"
#include "tests/evidence/made_snapshots.h"

using namespace lowtide;  // the tests of one header

TEST_CASE("a page names nothing outside itself") {
  const std::string page =
      snapshot_page(read_snapshot(LOWTIDE_SOURCE_DIR "/tests/data/snapshots/step.pickle"));
  CHECK(page.find("default-src 'none'") != std::string::npos);
  for (const char* outside : {"http:", "https:", "src=", "@import", "url("}) {
    CAPTURE(outside);
    CHECK(page.find(outside) == std::string::npos);
  }
  CHECK(page.find("const DATA = {") != std::string::npos);
  CHECK(page.find("/*DATA*/") == std::string::npos);
}

TEST_CASE("a name in the file can't end the page's script") {
  MadeSnapshot made;
  const int stack =
      made.add_stack({{"</script><script>alert(1)</script>", "/job/<img src=x>.py", 1}});
  made.add_segment(
      0, 1 << 30, 2 << 20,
      {{1 << 30, 512, 5, "active_allocated"}, {(1 << 30) + 512, (2 << 20) - 512, 0, "inactive"}});
  made.traces = {{{"alloc", 1 << 30, 5, stack}}};
  const std::string page = snapshot_page(read_made(made.pickle(Dialect::kPython, 4, {})));
  CHECK(page.find("alert(1)") != std::string::npos);
  CHECK(page.find("<script>alert") == std::string::npos);
  CHECK(page.find("<img") == std::string::npos);
}

TEST_CASE("a snapshot without anything is a page too") {
  const std::string page = snapshot_page(
      read_made(PickleWriter(Dialect::kPython, 4).write(Made::Dict{{"segments", Made::List{}}})));
  CHECK(page.find("\"devices\":[]") != std::string::npos);
}
