// What the analysis must tell apart, one claim a case; whole programs are in programs_test.cpp.

#include <doctest/doctest.h>

#include <string>

#include "src/lint/lint.h"

namespace lowtide::lint {
namespace {

// The rules reported for a training loop with `body` after its step, in order of their lines.
std::string rules_for(const std::string& before, const std::string& body) {
  const std::string source = "import torch\n\ndef train(model, loader, optimizer, criterion):\n" +
                             before +
                             "    for x, y in loader:\n"
                             "        loss = criterion(model(x), y)\n"
                             "        optimizer.zero_grad()\n"
                             "        loss.backward()\n"
                             "        optimizer.step()\n" +
                             body;
  std::string out;
  for (const Finding& finding : lint_source(source, "x.py", false)) {
    if (!out.empty()) out += ' ';
    out += finding.rule;
  }
  return out;
}

TEST_CASE("each way to take history from a value is known") {
  for (const char* cut : {"loss.item()", "loss.detach()", "loss.data", "float(loss)", "int(loss)",
                          "loss.tolist()", "loss.cpu().detach().numpy()", "loss.detach().cpu()",
                          "(loss > 1).sum()", "loss.argmax()", "len(x)"}) {
    CAPTURE(cut);
    CHECK(rules_for("    total = 0\n", std::string("        total += ") + cut + "\n").empty());
  }
}

TEST_CASE("each way to keep history is known") {
  for (const char* kept : {"loss", "loss / 2", "loss.cpu()", "loss.clone()", "torch.sqrt(loss)",
                           "-loss", "loss * x.size(0)", "(loss, 1)[0]", "[loss][0]"}) {
    CAPTURE(kept);
    CHECK(rules_for("    total = 0\n", std::string("        total += ") + kept + "\n") ==
          "history-accumulated");
  }
}

TEST_CASE("a sum that each iteration begins anew is none") {
  CHECK(rules_for("", "        total = 0\n        total += loss\n").empty());
}

TEST_CASE("a list that each iteration clears holds nothing over") {
  CHECK(rules_for("    kept = []\n", "        kept.append(loss)\n        kept.clear()\n").empty());
  CHECK(rules_for("    kept = []\n", "        kept.append(loss)\n        kept = []\n").empty());
}

TEST_CASE("a list that is cleared in some iterations holds history over") {
  CHECK(
      rules_for("    kept = []\n",
                "        kept.append(loss)\n        if len(kept) == 9:\n            kept = []\n") ==
      "history-stored");
}

TEST_CASE("under no_grad nothing gets history") {
  CHECK(rules_for("    total = 0\n",
                  "        with torch.no_grad():\n            total = total + loss\n")
            .empty());
}

TEST_CASE("a value that is None in one branch keeps its history in the other") {
  CHECK(rules_for("    mean = None\n",
                  "        if mean is None:\n            mean = loss.detach()\n"
                  "        else:\n            mean = 0.9 * mean + 0.1 * loss\n") ==
        "history-accumulated");
}

TEST_CASE("what a nested function adds to an outer name is seen") {
  CHECK(rules_for("    total = 0\n    def add(v):\n        nonlocal total\n        total += v\n",
                  "        add(loss)\n") == "history-accumulated");
}

TEST_CASE("an object that calls itself, and functions that call each other, come to an end") {
  const std::string source =
      "import torch\nclass A:\n    pass\na = A()\nA.__call__ = a\na()\n"
      "def f(x):\n    return g(x)\ndef g(x):\n    return f(x)\nf(1)\n";
  CHECK(lint_source(source, "x.py", false).empty());
}

TEST_CASE("a comment on the line, or alone above it, silences the rules that it names") {
  CHECK(rules_for("    total = 0\n",
                  "        total += loss  # lowtide: ignore[history-accumulated]\n")
            .empty());
  CHECK(rules_for("    total = 0\n", "        # lowtide: ignore\n        total += loss\n").empty());
  CHECK(
      rules_for("    total = 0\n", "        total += loss  # lowtide: ignore[history-stored]\n") ==
      "history-accumulated");
}

TEST_CASE("columns count characters") {
  const auto findings = lint_source(
      "import torch\ndef f(modèle, loader, opt, criterion):\n    for x in loader:\n        "
      "opt.zero_grad()\n"
      "        criterion(modèle(x)).backward(create_graph=True)\n        opt.step()\n",
      "x.py", false);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].line == 5);
  CHECK(findings[0].column == 9);
}

TEST_CASE("a file that does not parse is a finding beside those of the rest") {
  const auto findings = lint_source("def f(:\n    pass\n", "x.py", false);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].rule == "syntax-error");
  CHECK(findings[0].line == 1);
}

TEST_CASE("a vocabulary is noted, and a flattened map is found") {
  std::vector<Finding> notes;
  const std::vector<Finding> findings = lint_source(
      "from torch import nn\n"
      "vocab_size = 262144\n"
      "table = nn.Embedding(vocab_size, 4096)\n"
      "head = nn.Linear(4096, vocab_size)\n"
      "flat = nn.Linear(256 * 112 * 112, 1000)\n",
      "a.py", false, &notes);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].line == 5);
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].line == 3);
  CHECK(notes[1].line == 4);
}

}  // namespace
}  // namespace lowtide::lint
