#pragma once
// A Python file as the analysis sees it: every construct is a Node in one array, and children are
// numbers. parse_python() makes it from tree-sitter's tree, which is met in syntax_tree.cpp only.
//
//   Names names;
//   SyntaxTree tree = parse_python("total += loss\n", names);
//   for (NodeId statement : tree.items(tree.root)) ...
//
// What a field of Node means depends on the kind and stands beside it.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/lint/names.h"

namespace lowtide::lint {

using NodeId = std::uint32_t;  // 0 is "none"

enum class NodeKind : std::uint8_t {
  kNone,
  // expressions
  kName,         // name
  kAttribute,    // a.name
  kCall,         // a(items)
  kKeyword,      // name=a, among a call's items
  kStar,         // *a
  kDoubleStar,   // **a
  kSubscript,    // a[items]
  kSlice,        // items
  kBinary,       // a name b
  kUnary,        // name a; "not" too
  kBoolean,      // a name b: "and", "or"
  kCompare,      // items, name is the first operator
  kTuple,        // items
  kList,         // items
  kSet,          // items
  kDict,         // items: kPair, kDoubleStar
  kPair,         // a: b
  kListComp,     // a, items: kCompFor, kCompIf
  kSetComp,      //
  kDictComp,     // a is a kPair
  kGenerator,    //
  kCompFor,      // for a in b
  kCompIf,       // if a
  kLambda,       // items: kParam; a is the body
  kConditional,  // b if a else c
  kAwait,        // a
  kYield,        // a; flag 1: yield from
  kNamedExpr,    // a := b
  kNumber,       // name is the text
  kString,       // name is the content
  kFString,      // items: what is interpolated
  kTrue,
  kFalse,
  kNoneValue,
  kAsPattern,  // a as b
  kOther,      // items: whatever it holds
  // statements
  kExprStatement,  // a
  kAssign,         // a = b (0: annotation only), c the annotation; b may be a kAssign
  kAugAssign,      // a name b, name without "="
  kReturn,         // a
  kRaise,          // items
  kDelete,         // a
  kGlobal,         // items: kName; nonlocal too
  kIf,             // if a: b else: c
  kWhile,          // while a: b else: c
  kFor,            // for a in b: c else: items[0]
  kWith,           // with items (kAsPattern or expression): a
  kTry,            // try: a; items kHandler; b else; c finally
  kHandler,        // except a as name: b
  kFunction,       // def name(items): a; b the return type; more: decorators
  kParam,          // name, a default, b annotation; flag 1: *name, 2: **name, 3: a bare separator
  kClass,          // class name(items): a; more: decorators
  kBlock,          // items
  kImport,         // items: kImportName
  kImportFrom,     // from name import items (kImportName; none: *)
  kImportName,     // name (dotted), a: kName of the alias
  kMatch,          // match a: items kCase
  kCase,           // case items if a: b
  kPass,
  kBreak,
  kContinue,
  kAssert,  // items
};

struct Node {
  NodeKind kind = NodeKind::kNone;
  std::uint8_t flag = 0;
  Name name = 0;
  NodeId a = 0, b = 0, c = 0;
  std::uint32_t items = 0, item_count = 0;
  std::uint32_t more = 0, more_count = 0;
  std::uint32_t begin = 0, end = 0;    // bytes of the source, [begin, end)
  std::uint32_t line = 0, column = 0;  // from 1; the column counts bytes
};

struct Comment {
  std::uint32_t line;  // from 1
  std::uint32_t begin, end;
  bool alone;  // nothing else stands on its line
};

struct SyntaxTree {
  std::string source;
  std::vector<Node> nodes;
  std::vector<NodeId> lists;
  std::vector<Comment> comments;
  std::vector<std::uint32_t> line_begins;  // byte at which each line begins
  NodeId root = 0;
  std::uint32_t error_line = 0, error_column = 0;  // where it does not parse; 0 when it does

  const Node& operator[](NodeId id) const { return nodes[id]; }
  std::span<const NodeId> items(NodeId id) const {
    return {lists.data() + nodes[id].items, nodes[id].item_count};
  }
  std::span<const NodeId> more(NodeId id) const {
    return {lists.data() + nodes[id].more, nodes[id].more_count};
  }
  std::string_view text(NodeId id) const {
    return std::string_view(source).substr(nodes[id].begin, nodes[id].end - nodes[id].begin);
  }
  std::string_view line_text(std::uint32_t line) const;  // without its end
};

// Parses Python 3. A text that does not parse gives a tree of what could be read, with error_line
// set. Linear in the text; expressions nested deeper than 500 are cut off.
SyntaxTree parse_python(std::string source, Names& names);

}  // namespace lowtide::lint
