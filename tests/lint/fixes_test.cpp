#include "src/lint/fixes.h"

#include <doctest/doctest.h>

#include "src/lint/lint.h"

namespace lowtide::lint {
namespace {

// The text after the safe fixes of all findings.
std::string mended(const std::string& source) {
  const std::vector<Finding> findings = lint_source(source, "x.py", false);
  std::vector<const Fix*> fixes;
  for (const Finding& finding : findings) {
    if (finding.fix && finding.fix->safe) fixes.push_back(&*finding.fix);
  }
  std::vector<bool> applied;
  return apply_fixes(source, fixes, applied);
}

const std::string kLoop =
    "import torch\n\n\ndef train(model, loader, optimizer, criterion):\n    total = 0\n"
    "    for x, y in loader:\n        loss = criterion(model(x), y)\n        "
    "optimizer.zero_grad()\n"
    "        loss.backward()\n        optimizer.step()\n";

TEST_CASE("what is summed is detached, in parentheses where it must be") {
  CHECK(mended(kLoop + "        total += loss\n") == kLoop + "        total += loss.detach()\n");
  CHECK(mended(kLoop + "        total += loss / 2\n") ==
        kLoop + "        total += (loss / 2).detach()\n");
}

TEST_CASE("an evaluation function is decorated") {
  const std::string source =
      "import torch\n\n\ndef validate(model, loader):\n    model.eval()\n    for x in loader:\n"
      "        print(model(x).argmax())\n";
  CHECK(mended(source) ==
        "import torch\n\n\n@torch.no_grad()\ndef validate(model, loader):\n    model.eval()\n"
        "    for x in loader:\n        print(model(x).argmax())\n");
}

TEST_CASE("an evaluation inside a training function is put under no_grad") {
  const std::string tail =
      "    model.eval()\n    for x in loader:\n        print(model(x).argmax())\n";
  const std::string fixed = mended(kLoop + tail);
  CHECK(fixed == kLoop +
                     "    model.eval()\n    with torch.no_grad():\n        for x in loader:\n"
                     "            print(model(x).argmax())\n");
}

TEST_CASE("retain_graph=True goes, with its comma") {
  const std::string source =
      "import torch\ndef f(model, loader, opt, criterion):\n    for x in loader:\n        "
      "opt.zero_grad()\n"
      "        criterion(model(x)).backward(retain_graph=True)\n        opt.step()\n";
  CHECK(mended(source).find("backward()\n") != std::string::npos);
}

TEST_CASE("a fix whose place another has taken waits") {
  const Fix a{"a", true, {{3, 5, "x"}}}, b{"b", true, {{4, 6, "y"}}}, c{"c", true, {{7, 7, "z"}}};
  std::vector<bool> applied;
  CHECK(apply_fixes("0123456789", {&a, &b, &c}, applied) == "012x56z789");
  CHECK(applied == std::vector<bool>{true, false, true});
}

TEST_CASE("a diff has three lines around each change, and counts them") {
  const std::string before = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
  const std::string after = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n";
  CHECK(unified_diff("f", before, after) ==
        "--- a/f\n+++ b/f\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
  CHECK(unified_diff("f", before, before).empty());
  CHECK(unified_diff("f", "a", "b") ==
        "--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at "
        "end of "
        "file\n");
}

}  // namespace
}  // namespace lowtide::lint
