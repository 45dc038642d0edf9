#include "src/lint/syntax_tree.h"

#include <doctest/doctest.h>

namespace lowtide::lint {
namespace {

struct Parsed {
  Names names;
  SyntaxTree tree;
  explicit Parsed(std::string source) : tree(parse_python(std::move(source), names)) {}
  const Node& first() const { return tree[tree.items(tree.root)[0]]; }
};

TEST_CASE("an augmented assignment keeps its operator without the equals sign") {
  const Parsed parsed("total += loss\n");
  REQUIRE(parsed.first().kind == NodeKind::kAugAssign);
  CHECK(parsed.names.text(parsed.first().name) == "+");
  CHECK(parsed.tree.text(parsed.first().a) == "total");
  CHECK(parsed.tree.text(parsed.first().b) == "loss");
}

TEST_CASE("a decorated function knows its decorators and the line of its def") {
  const Parsed parsed("@torch.no_grad()\nasync def f(x, *, y=1, **z):\n    return x\n");
  const NodeId id = parsed.tree.items(parsed.tree.root)[0];
  REQUIRE(parsed.tree[id].kind == NodeKind::kFunction);
  CHECK(parsed.tree[id].line == 2);
  REQUIRE(parsed.tree.more(id).size() == 1);
  CHECK(parsed.tree.text(parsed.tree.more(id)[0]) == "torch.no_grad()");
  REQUIRE(parsed.tree.items(id).size() == 4);
  CHECK(parsed.tree[parsed.tree.items(id)[1]].flag == 3);
  CHECK(parsed.tree[parsed.tree.items(id)[3]].flag == 2);
}

TEST_CASE("elif chains hang from one another") {
  const Parsed parsed("if a:\n    x\nelif b:\n    y\nelse:\n    z\n");
  const Node& first = parsed.first();
  REQUIRE(first.kind == NodeKind::kIf);
  const Node& second = parsed.tree[first.c];
  REQUIRE(second.kind == NodeKind::kIf);
  CHECK(parsed.tree.text(second.a) == "b");
  CHECK(parsed.tree[second.c].kind == NodeKind::kBlock);
}

TEST_CASE("a text that does not parse says where, and the rest is still read") {
  const Parsed parsed("x = 1\ndef f(:\n    pass\ny = 2\n");
  CHECK(parsed.tree.error_line == 2);
  CHECK(parsed.first().kind == NodeKind::kAssign);
}

TEST_CASE("an empty text is an empty block") {
  const Parsed parsed("");
  CHECK(parsed.tree[parsed.tree.root].kind == NodeKind::kBlock);
  CHECK(parsed.tree.items(parsed.tree.root).empty());
}

TEST_CASE("nesting without end is cut off, not a crash") {
  const Parsed parsed("x = " + std::string(20000, '(') + "1" + std::string(20000, ')') + "\n");
  CHECK(parsed.tree.nodes.size() > 1);
}

TEST_CASE("except, with and match keep their parts") {
  const Parsed parsed(
      "try:\n    a()\nexcept (E, F) as e:\n    b(e)\nfinally:\n    c()\n"
      "with x as y, z:\n    d()\nmatch v:\n    case 1 if w:\n        pass\n");
  const auto all = parsed.tree.items(parsed.tree.root);
  REQUIRE(all.size() == 3);
  const Node& handler = parsed.tree[parsed.tree.items(all[0])[0]];
  CHECK(parsed.names.text(handler.name) == "e");
  CHECK(parsed.tree[all[0]].c != 0);
  CHECK(parsed.tree.items(all[1]).size() == 2);
  CHECK(parsed.tree.items(all[2]).size() == 1);
}

}  // namespace
}  // namespace lowtide::lint
