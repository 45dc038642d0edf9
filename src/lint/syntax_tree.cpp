// From tree-sitter's concrete tree to ours, bottom up in one walk of a cursor: tree-sitter's own
// access to "the child called body" is linear in the children, and the analysis asks for it often.
//
// Tested by tests/lint/syntax_tree_test.cpp.

#include "src/lint/syntax_tree.h"

#include <tree_sitter/api.h>

#include <memory>

#include "src/base/assert.h"

extern "C" const TSLanguage* tree_sitter_python(void);

namespace lowtide::lint {
namespace {

constexpr int kMaxDepth = 500;

struct Child {
  TSSymbol symbol;
  TSFieldId field;
  NodeId id;  // 0 for a token that has no node of its own
  std::uint32_t begin, end;
};

// The numbers that the grammar gives to the words below, looked up once.
struct Grammar {
  const TSLanguage* language = tree_sitter_python();
  std::vector<std::string_view> symbols;
  std::vector<NodeKind> simple;  // the kind of symbols that become a node with items, else kNone
  TSFieldId left, right, type, object, attribute, function, arguments, value, subscript, op, name,
      parameters, body, condition, consequence, alternative, superclasses, return_type, definition,
      module_name, key, alias, guard, subject, cause, expression;

  Grammar() {
    for (std::uint32_t i = 0; i < ts_language_symbol_count(language); ++i) {
      symbols.emplace_back(ts_language_symbol_name(language, static_cast<TSSymbol>(i)));
    }
    const auto field = [&](std::string_view word) {
      return ts_language_field_id_for_name(language, word.data(),
                                           static_cast<std::uint32_t>(word.size()));
    };
    left = field("left");
    right = field("right");
    type = field("type");
    object = field("object");
    attribute = field("attribute");
    function = field("function");
    arguments = field("arguments");
    value = field("value");
    subscript = field("subscript");
    op = field("operator");
    name = field("name");
    parameters = field("parameters");
    body = field("body");
    condition = field("condition");
    consequence = field("consequence");
    alternative = field("alternative");
    superclasses = field("superclasses");
    return_type = field("return_type");
    definition = field("definition");
    module_name = field("module_name");
    key = field("key");
    alias = field("alias");
    guard = field("guard");
    subject = field("subject");
    cause = field("cause");
    expression = field("expression");
    const std::pair<std::string_view, NodeKind> kinds[] = {
        {"module", NodeKind::kBlock},
        {"block", NodeKind::kBlock},
        {"pattern_list", NodeKind::kTuple},
        {"tuple_pattern", NodeKind::kTuple},
        {"list_pattern", NodeKind::kTuple},
        {"expression_list", NodeKind::kTuple},
        {"tuple", NodeKind::kTuple},
        {"list", NodeKind::kList},
        {"set", NodeKind::kSet},
        {"dictionary", NodeKind::kDict},
        {"slice", NodeKind::kSlice},
        {"comparison_operator", NodeKind::kCompare},
        {"raise_statement", NodeKind::kRaise},
        {"global_statement", NodeKind::kGlobal},
        {"nonlocal_statement", NodeKind::kGlobal},
        {"pass_statement", NodeKind::kPass},
        {"break_statement", NodeKind::kBreak},
        {"continue_statement", NodeKind::kContinue},
        {"assert_statement", NodeKind::kAssert},
        {"true", NodeKind::kTrue},
        {"false", NodeKind::kFalse},
        {"none", NodeKind::kNoneValue},
    };
    simple.assign(symbols.size(), NodeKind::kNone);
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      for (const auto& [word, kind] : kinds) {
        if (symbols[i] == word &&
            ts_language_symbol_type(language, static_cast<TSSymbol>(i)) == TSSymbolTypeRegular) {
          simple[i] = kind;
        }
      }
    }
  }
};

const Grammar& grammar() {
  static const Grammar the_grammar;
  return the_grammar;
}

class Builder {
 public:
  Builder(SyntaxTree& tree, Names& names) : tree_(tree), names_(names), g_(grammar()) {
    tree_.nodes.emplace_back();
    tree_.nodes.reserve(tree_.source.size() / 5);
  }

  void build(TSTree* parsed) {
    TSTreeCursor cursor = ts_tree_cursor_new(ts_tree_root_node(parsed));
    if (ts_node_has_error(ts_tree_root_node(parsed))) has_error_ = true;
    const Child root = convert(cursor, 0);
    ts_tree_cursor_delete(&cursor);
    tree_.root = root.id;
    if (root.id == 0 || tree_[root.id].kind != NodeKind::kBlock) {
      // Nothing could be read at all.
      tree_.root = add(NodeKind::kBlock, {});
      note_error(0, 0);
    }
  }

 private:
  std::string_view text(const Child& child) const {
    return std::string_view(tree_.source).substr(child.begin, child.end - child.begin);
  }
  Name name_of(const Child& child) { return names_.intern(text(child)); }

  void note_error(std::uint32_t row, std::uint32_t column) {
    if (tree_.error_line != 0) return;
    tree_.error_line = row + 1;
    tree_.error_column = column + 1;
  }

  NodeId add(NodeKind kind, const std::vector<NodeId>& items) {
    Node node;
    node.kind = kind;
    node.begin = begin_;
    node.end = end_;
    node.line = point_.row + 1;
    node.column = point_.column + 1;
    node.items = static_cast<std::uint32_t>(tree_.lists.size());
    node.item_count = static_cast<std::uint32_t>(items.size());
    tree_.lists.insert(tree_.lists.end(), items.begin(), items.end());
    tree_.nodes.push_back(node);
    return static_cast<NodeId>(tree_.nodes.size() - 1);
  }
  NodeId add(NodeKind kind) { return add(kind, {}); }
  NodeId add(NodeKind kind, NodeId a, NodeId b = 0, NodeId c = 0) {
    const NodeId id = add(kind, std::vector<NodeId>{});
    node(id).a = a;
    node(id).b = b;
    node(id).c = c;
    return id;
  }
  Node& node(NodeId id) { return tree_.nodes[id]; }

  Child convert(TSTreeCursor& cursor, int depth) {
    const TSNode here = ts_tree_cursor_current_node(&cursor);
    Child out{ts_node_symbol(here), ts_tree_cursor_current_field_id(&cursor), 0,
              ts_node_start_byte(here), ts_node_end_byte(here)};
    const TSPoint point = ts_node_start_point(here);
    if (has_error_ && (ts_node_is_error(here) || ts_node_is_missing(here))) {
      note_error(point.row, point.column);
    }
    if (ts_node_is_extra(here) && ts_node_is_named(here) && symbol(out) == "comment") {
      const std::string_view line =
          std::string_view(tree_.source).substr(out.begin - point.column, point.column);
      tree_.comments.push_back({point.row + 1, out.begin, out.end,
                                line.find_first_not_of(" \t") == std::string_view::npos});
      return out;
    }
    const std::size_t first = stack_.size();
    if (depth < kMaxDepth && ts_tree_cursor_goto_first_child(&cursor)) {
      do {
        const Child child = convert(cursor, depth + 1);
        stack_.push_back(child);
      } while (ts_tree_cursor_goto_next_sibling(&cursor));
      ts_tree_cursor_goto_parent(&cursor);
    }
    if (ts_node_is_named(here)) {
      begin_ = out.begin;
      end_ = out.end;
      point_ = point;
      const std::vector<Child> children(stack_.begin() + static_cast<std::ptrdiff_t>(first),
                                        stack_.end());
      out.id = make(out, children);
    }
    stack_.resize(first);
    return out;
  }

  std::string_view symbol(const Child& child) const {
    return child.symbol < g_.symbols.size() ? g_.symbols[child.symbol] : "ERROR";
  }

  static std::vector<NodeId> ids(const std::vector<Child>& children) {
    std::vector<NodeId> out;
    for (const Child& child : children) {
      if (child.id != 0) out.push_back(child.id);
    }
    return out;
  }
  static NodeId first(const std::vector<Child>& children) {
    for (const Child& child : children) {
      if (child.id != 0) return child.id;
    }
    return 0;
  }
  static const Child* with_field(const std::vector<Child>& children, TSFieldId field) {
    for (const Child& child : children) {
      if (child.field == field) return &child;
    }
    return nullptr;
  }
  static NodeId at(const std::vector<Child>& children, TSFieldId field) {
    const Child* child = with_field(children, field);
    return child != nullptr ? child->id : 0;
  }
  bool has_token(const std::vector<Child>& children, std::string_view token) const {
    for (const Child& child : children) {
      if (child.id == 0 && text(child) == token) return true;
    }
    return false;
  }
  void take_items(NodeId into, NodeId from) {
    if (from == 0) return;
    node(into).items = tree_[from].items;
    node(into).item_count = tree_[from].item_count;
  }
  void set_more(NodeId into, const std::vector<NodeId>& list) {
    node(into).more = static_cast<std::uint32_t>(tree_.lists.size());
    node(into).more_count = static_cast<std::uint32_t>(list.size());
    tree_.lists.insert(tree_.lists.end(), list.begin(), list.end());
  }

  NodeId make_named(NodeKind kind, Name name, NodeId a = 0, NodeId b = 0) {
    const NodeId id = add(kind, a, b);
    node(id).name = name;
    return id;
  }

  NodeId make_parameter(const std::vector<Child>& children, std::string_view what) {
    if (what == "default_parameter" || what == "typed_default_parameter") {
      const Child* name = with_field(children, g_.name);
      return make_named(NodeKind::kParam, name != nullptr ? name_of(*name) : 0,
                        at(children, g_.value), at(children, g_.type));
    }
    // typed_parameter: an identifier or a splat, then the type
    const NodeId target = first(children);
    const NodeId id = make_named(NodeKind::kParam, target != 0 ? tree_[target].name : 0, 0,
                                 at(children, g_.type));
    if (target != 0 && tree_[target].kind == NodeKind::kStar) node(id).flag = 1;
    if (target != 0 && tree_[target].kind == NodeKind::kDoubleStar) node(id).flag = 2;
    return id;
  }

  // The parameters of a def or lambda, each as a kParam.
  NodeId make_parameters(const std::vector<Child>& children) {
    std::vector<NodeId> parameters;
    for (const Child& child : children) {
      if (child.id == 0) continue;
      if (tree_[child.id].kind == NodeKind::kParam) {
        parameters.push_back(child.id);
        continue;
      }
      const NodeKind kind = tree_[child.id].kind;
      const NodeId id = make_named(NodeKind::kParam, tree_[child.id].name);
      node(id).begin = child.begin;
      node(id).end = child.end;
      if (kind == NodeKind::kStar) node(id).flag = 1;
      if (kind == NodeKind::kDoubleStar) node(id).flag = 2;
      if (kind == NodeKind::kOther) node(id).flag = 3;
      parameters.push_back(id);
    }
    return add(NodeKind::kOther, parameters);
  }

  NodeId make_string(const std::vector<Child>& children) {
    std::vector<NodeId> interpolated;
    std::string content;
    for (const Child& child : children) {
      if (symbol(child) == "interpolation") {
        interpolated.push_back(child.id);
      } else if (symbol(child) == "string_content") {
        content += text(child);
      }
    }
    const NodeId id =
        add(interpolated.empty() ? NodeKind::kString : NodeKind::kFString, interpolated);
    node(id).name = names_.intern(content);
    return id;
  }

  NodeId make_concatenated_string(const std::vector<Child>& children) {
    std::vector<NodeId> interpolated;
    std::string content;
    for (const Child& child : children) {
      if (child.id == 0) continue;
      content += names_.text(tree_[child.id].name);
      for (const NodeId item : tree_.items(child.id)) interpolated.push_back(item);
    }
    const NodeId id =
        add(interpolated.empty() ? NodeKind::kString : NodeKind::kFString, interpolated);
    node(id).name = names_.intern(content);
    return id;
  }

  NodeId make_if(const std::vector<Child>& children) {
    NodeId otherwise = 0;
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      if (child->field != g_.alternative || child->id == 0) continue;
      if (tree_[child->id].kind == NodeKind::kIf) {
        node(child->id).c = otherwise;
        otherwise = child->id;
      } else {
        otherwise = child->id;  // the block of an else
      }
    }
    return add(NodeKind::kIf, at(children, g_.condition), at(children, g_.consequence), otherwise);
  }

  NodeId make_try(const std::vector<Child>& children) {
    std::vector<NodeId> handlers;
    NodeId otherwise = 0, finally = 0;
    for (const Child& child : children) {
      if (child.id == 0) continue;
      if (tree_[child.id].kind == NodeKind::kHandler) handlers.push_back(child.id);
      if (symbol(child) == "else_clause") otherwise = child.id;
      if (symbol(child) == "finally_clause") finally = child.id;
    }
    const NodeId id = add(NodeKind::kTry, handlers);
    node(id).a = at(children, g_.body);
    node(id).b = otherwise;
    node(id).c = finally;
    return id;
  }

  NodeId make_handler(const std::vector<Child>& children) {
    NodeId type = 0, body = 0;
    Name name = 0;
    for (const Child& child : children) {
      if (child.id == 0) continue;
      const Node& made = tree_[child.id];
      if (made.kind == NodeKind::kBlock) {
        body = child.id;
      } else if (made.kind == NodeKind::kAsPattern) {
        type = made.a;
        if (made.b != 0) name = tree_[made.b].name;
      } else if (child.field == g_.alias) {
        name = made.name;
      } else {
        type = child.id;
      }
    }
    const NodeId id = add(NodeKind::kHandler, type, body);
    node(id).name = name;
    return id;
  }

  NodeId make_import_from(const std::vector<Child>& children) {
    std::vector<NodeId> imported;
    Name module = 0;
    for (const Child& child : children) {
      if (child.field == g_.module_name) {
        module = name_of(child);
      } else if (child.field == g_.name && child.id != 0) {
        imported.push_back(as_import_name(child));
      }
    }
    const NodeId id = add(NodeKind::kImportFrom, imported);
    node(id).name = module;
    return id;
  }

  NodeId as_import_name(const Child& child) {
    if (tree_[child.id].kind == NodeKind::kImportName) return child.id;
    return make_named(NodeKind::kImportName, name_of(child));
  }

  NodeId make_case(const std::vector<Child>& children) {
    std::vector<NodeId> patterns;
    for (const Child& child : children) {
      if (symbol(child) == "case_pattern" && child.id != 0) patterns.push_back(child.id);
    }
    const NodeId id = add(NodeKind::kCase, patterns);
    node(id).a = at(children, g_.guard);
    node(id).b = at(children, g_.consequence);
    return id;
  }

  NodeId make_match(const std::vector<Child>& children) {
    std::vector<NodeId> cases;
    if (const NodeId body = at(children, g_.body); body != 0) {
      for (const NodeId item : tree_.items(body)) {
        if (tree_[item].kind == NodeKind::kCase) cases.push_back(item);
      }
    }
    for (const Child& child : children) {
      if (child.id != 0 && tree_[child.id].kind == NodeKind::kCase) cases.push_back(child.id);
    }
    const NodeId id = add(NodeKind::kMatch, cases);
    node(id).a = at(children, g_.subject);
    return id;
  }

  NodeId make_comprehension(NodeKind kind, const std::vector<Child>& children) {
    std::vector<NodeId> clauses;
    for (const Child& child : children) {
      if (child.id == 0 || child.field == g_.body) continue;
      const NodeKind made = tree_[child.id].kind;
      if (made == NodeKind::kCompFor || made == NodeKind::kCompIf) clauses.push_back(child.id);
    }
    const NodeId id = add(kind, clauses);
    node(id).a = at(children, g_.body);
    return id;
  }

  NodeId make(const Child& self, const std::vector<Child>& children) {
    if (self.symbol < g_.simple.size() && g_.simple[self.symbol] != NodeKind::kNone) {
      const NodeId id = add(g_.simple[self.symbol], ids(children));
      if (tree_[id].kind == NodeKind::kCompare) {
        std::string words;
        for (const Child& child : children) {
          if (child.id != 0) continue;
          if (!words.empty()) words += ' ';
          words += text(child);
        }
        node(id).name = names_.intern(words);
      }
      return id;
    }
    const std::string_view what = symbol(self);
    switch (what[0]) {
      case 'a':
        if (what == "attribute") {
          const Child* attribute = with_field(children, g_.attribute);
          return make_named(NodeKind::kAttribute, attribute != nullptr ? name_of(*attribute) : 0,
                            at(children, g_.object));
        }
        if (what == "assignment") {
          return add(NodeKind::kAssign, at(children, g_.left), at(children, g_.right),
                     at(children, g_.type));
        }
        if (what == "augmented_assignment") {
          const Child* op = with_field(children, g_.op);
          const std::string_view word = op != nullptr ? text(*op) : std::string_view("+=");
          return make_named(NodeKind::kAugAssign, names_.intern(word.substr(0, word.size() - 1)),
                            at(children, g_.left), at(children, g_.right));
        }
        if (what == "await") return add(NodeKind::kAwait, first(children));
        if (what == "as_pattern") {
          const std::vector<NodeId> both = ids(children);
          return add(NodeKind::kAsPattern, both.empty() ? 0 : both[0],
                     both.size() > 1 ? both[1] : 0);
        }
        if (what == "as_pattern_target") return first(children);
        if (what == "aliased_import") {
          const Child* name = with_field(children, g_.name);
          return make_named(NodeKind::kImportName, name != nullptr ? name_of(*name) : 0,
                            at(children, g_.alias));
        }
        break;
      case 'b':
        if (what == "binary_operator" || what == "boolean_operator") {
          const Child* op = with_field(children, g_.op);
          return make_named(what[1] == 'i' ? NodeKind::kBinary : NodeKind::kBoolean,
                            op != nullptr ? name_of(*op) : 0, at(children, g_.left),
                            at(children, g_.right));
        }
        break;
      case 'c':
        if (what == "call") {
          const NodeId arguments = at(children, g_.arguments);
          const NodeId id = add(NodeKind::kCall, at(children, g_.function));
          if (arguments != 0 && tree_[arguments].kind == NodeKind::kGenerator) {
            node(id).items = static_cast<std::uint32_t>(tree_.lists.size());
            node(id).item_count = 1;
            tree_.lists.push_back(arguments);
          } else {
            take_items(id, arguments);
          }
          return id;
        }
        if (what == "conditional_expression") {
          const std::vector<NodeId> three = ids(children);
          if (three.size() == 3) return add(NodeKind::kConditional, three[1], three[0], three[2]);
        }
        if (what == "concatenated_string") return make_concatenated_string(children);
        if (what == "class_definition") {
          const Child* name = with_field(children, g_.name);
          const NodeId id = make_named(NodeKind::kClass, name != nullptr ? name_of(*name) : 0,
                                       at(children, g_.body));
          take_items(id, at(children, g_.superclasses));
          return id;
        }
        if (what == "case_clause") return make_case(children);
        break;
      case 'd':
        if (what == "dictionary_splat" || what == "dictionary_splat_pattern") {
          const NodeId target = first(children);
          return make_named(NodeKind::kDoubleStar, target != 0 ? tree_[target].name : 0, target);
        }
        if (what == "dictionary_comprehension") {
          return make_comprehension(NodeKind::kDictComp, children);
        }
        if (what == "default_parameter") return make_parameter(children, what);
        if (what == "delete_statement") return add(NodeKind::kDelete, first(children));
        if (what == "decorated_definition") {
          const NodeId definition = at(children, g_.definition);
          if (definition == 0) break;
          std::vector<NodeId> decorators;
          for (const Child& child : children) {
            if (symbol(child) == "decorator" && child.id != 0) decorators.push_back(child.id);
          }
          set_more(definition, decorators);
          return definition;
        }
        if (what == "decorator") return first(children);
        if (what == "dotted_name") {
          const NodeId id = make_named(NodeKind::kName, name_of(self));
          return id;
        }
        break;
      case 'e':
        if (what == "expression_statement") {
          const std::vector<NodeId> all = ids(children);
          if (all.size() == 1) {
            const NodeKind kind = tree_[all[0]].kind;
            if (kind == NodeKind::kAssign || kind == NodeKind::kAugAssign) return all[0];
            return add(NodeKind::kExprStatement, all[0]);
          }
          return add(NodeKind::kExprStatement, add(NodeKind::kTuple, all));
        }
        if (what == "else_clause") return at(children, g_.body);
        if (what == "elif_clause") {
          return add(NodeKind::kIf, at(children, g_.condition), at(children, g_.consequence));
        }
        if (what == "except_clause" || what == "except_group_clause") return make_handler(children);
        break;
      case 'f':
        if (what == "float") return make_named(NodeKind::kNumber, name_of(self));
        if (what == "for_statement") {
          const NodeId otherwise = at(children, g_.alternative);
          const NodeId id = add(NodeKind::kFor, otherwise != 0 ? std::vector<NodeId>{otherwise}
                                                               : std::vector<NodeId>{});
          node(id).a = at(children, g_.left);
          node(id).b = at(children, g_.right);
          node(id).c = at(children, g_.body);
          return id;
        }
        if (what == "for_in_clause") {
          return add(NodeKind::kCompFor, at(children, g_.left), at(children, g_.right));
        }
        if (what == "finally_clause") return first(children);
        if (what == "function_definition") {
          const Child* name = with_field(children, g_.name);
          const NodeId id = make_named(NodeKind::kFunction, name != nullptr ? name_of(*name) : 0,
                                       at(children, g_.body), at(children, g_.return_type));
          take_items(id, at(children, g_.parameters));
          return id;
        }
        break;
      case 'g':
        if (what == "generator_expression") {
          return make_comprehension(NodeKind::kGenerator, children);
        }
        break;
      case 'i':
        if (what == "identifier") return make_named(NodeKind::kName, name_of(self));
        if (what == "integer") return make_named(NodeKind::kNumber, name_of(self));
        if (what == "if_statement") return make_if(children);
        if (what == "if_clause") return add(NodeKind::kCompIf, first(children));
        if (what == "import_statement") {
          std::vector<NodeId> imported;
          for (const Child& child : children) {
            if (child.field == g_.name && child.id != 0) imported.push_back(as_import_name(child));
          }
          return add(NodeKind::kImport, imported);
        }
        if (what == "import_from_statement") return make_import_from(children);
        if (what == "interpolation") return at(children, g_.expression);
        break;
      case 'k':
        if (what == "keyword_argument") {
          const Child* name = with_field(children, g_.name);
          return make_named(NodeKind::kKeyword, name != nullptr ? name_of(*name) : 0,
                            at(children, g_.value));
        }
        break;
      case 'l':
        if (what == "list_splat" || what == "list_splat_pattern") {
          const NodeId target = first(children);
          return make_named(NodeKind::kStar, target != 0 ? tree_[target].name : 0, target);
        }
        if (what == "list_comprehension") {
          return make_comprehension(NodeKind::kListComp, children);
        }
        if (what == "lambda") {
          const NodeId id = add(NodeKind::kLambda, at(children, g_.body));
          take_items(id, at(children, g_.parameters));
          return id;
        }
        if (what == "lambda_parameters") return make_parameters(children);
        break;
      case 'm':
        if (what == "match_statement") return make_match(children);
        break;
      case 'n':
        if (what == "not_operator") {
          return make_named(NodeKind::kUnary, names_.intern("not"), first(children));
        }
        if (what == "named_expression") {
          return add(NodeKind::kNamedExpr, at(children, g_.name), at(children, g_.value));
        }
        break;
      case 'p':
        if (what == "parenthesized_expression" || what == "parenthesized_list_splat") {
          return first(children);
        }
        if (what == "parameters") return make_parameters(children);
        if (what == "pair") {
          return add(NodeKind::kPair, at(children, g_.key), at(children, g_.value));
        }
        break;
      case 'r':
        if (what == "return_statement") return add(NodeKind::kReturn, first(children));
        break;
      case 's':
        if (what == "string") return make_string(children);
        if (what == "subscript") {
          std::vector<NodeId> indices;
          for (const Child& child : children) {
            if (child.field == g_.subscript && child.id != 0) indices.push_back(child.id);
          }
          const NodeId id = add(NodeKind::kSubscript, indices);
          node(id).a = at(children, g_.value);
          return id;
        }
        if (what == "set_comprehension") return make_comprehension(NodeKind::kSetComp, children);
        break;
      case 't':
        if (what == "typed_parameter" || what == "typed_default_parameter") {
          return make_parameter(children, what);
        }
        if (what == "type") return first(children);
        if (what == "try_statement") return make_try(children);
        break;
      case 'u':
        if (what == "unary_operator") {
          const Child* op = with_field(children, g_.op);
          return make_named(NodeKind::kUnary, op != nullptr ? name_of(*op) : 0, first(children));
        }
        break;
      case 'w':
        if (what == "while_statement") {
          return add(NodeKind::kWhile, at(children, g_.condition), at(children, g_.body),
                     at(children, g_.alternative));
        }
        if (what == "with_statement") {
          const NodeId id = add(NodeKind::kWith, at(children, g_.body));
          for (const Child& child : children) {
            if (symbol(child) == "with_clause") take_items(id, child.id);
          }
          // with (a as b, c as d): one item that is a tuple
          if (tree_.items(id).size() == 1) {
            const NodeId only = tree_.items(id)[0];
            if (tree_[only].kind == NodeKind::kTuple) take_items(id, only);
          }
          return id;
        }
        if (what == "with_item") return at(children, g_.value);
        break;
      case 'y':
        if (what == "yield") {
          const NodeId id = add(NodeKind::kYield, first(children));
          node(id).flag = has_token(children, "from") ? 1 : 0;
          return id;
        }
        break;
    }
    return add(NodeKind::kOther, ids(children));
  }

  SyntaxTree& tree_;
  Names& names_;
  const Grammar& g_;
  std::vector<Child> stack_;
  std::uint32_t begin_ = 0, end_ = 0;
  TSPoint point_{};
  bool has_error_ = false;
};

}  // namespace

std::string_view SyntaxTree::line_text(std::uint32_t line) const {
  if (line == 0 || line > line_begins.size()) return {};
  const std::size_t begin = line_begins[line - 1];
  const std::size_t end = source.find('\n', begin);
  std::string_view out = std::string_view(source).substr(
      begin, (end == std::string::npos ? source.size() : end) - begin);
  if (!out.empty() && out.back() == '\r') out.remove_suffix(1);
  return out;
}

SyntaxTree parse_python(std::string source, Names& names) {
  SyntaxTree tree;
  tree.source = std::move(source);
  tree.line_begins.push_back(0);
  for (std::size_t i = 0; i < tree.source.size(); ++i) {
    if (tree.source[i] == '\n') tree.line_begins.push_back(static_cast<std::uint32_t>(i + 1));
  }
  const std::unique_ptr<TSParser, void (*)(TSParser*)> parser(ts_parser_new(), ts_parser_delete);
  const bool fits = ts_parser_set_language(parser.get(), grammar().language);
  LOWTIDE_ASSERT(fits);
  const std::unique_ptr<TSTree, void (*)(TSTree*)> parsed(
      ts_parser_parse_string(parser.get(), nullptr, tree.source.data(),
                             static_cast<std::uint32_t>(tree.source.size())),
      ts_tree_delete);
  LOWTIDE_ASSERT(parsed != nullptr);
  Builder(tree, names).build(parsed.get());
  return tree;
}

}  // namespace lowtide::lint
