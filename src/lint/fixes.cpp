// A fix is safe when training goes the same way with it, to the bit: it may only take history from
// values that no backward uses, or run under no_grad what no gradient is asked of. What mends a
// mistake by changing what is trained is suggested, and applied on request only.
//
// Tested by tests/lint/fixes_test.cpp, and by tests/lint/fixes_run.py, which runs programs before
// and after and compares their weights.

#include "src/lint/fixes.h"

#include <algorithm>

#include "src/base/text.h"

namespace lowtide::lint {
namespace {

class Fixer {
 public:
  Fixer(const RawFinding& finding, const SyntaxTree& tree, Names& names, Vocabulary& words)
      : finding_(finding), tree_(tree), names_(names), words_(words) {}

  std::optional<Fix> fix() {
    if (finding_.rule == "history-accumulated" || finding_.rule == "history-stored")
      return detach();
    if (finding_.rule == "hidden-not-detached") return detach_state();
    if (finding_.rule == "eval-with-grad") return evaluate_without_grad();
    if (finding_.rule == "graph-not-needed" || finding_.rule == "update-with-grad") {
      return statement_without_grad();
    }
    if (finding_.rule == "retain-graph") return without_retain();
    if (finding_.rule == "zero-grad-missing") return zero_grad();
    if (finding_.rule == "tensor-held") return del();
    if (finding_.rule == "fairscale-missing") return no_checkpoint();
    return std::nullopt;
  }

 private:
  const Node& site() const { return tree_[finding_.site]; }

  static Edit insert(std::uint32_t at, std::string text) { return {at, at, std::move(text)}; }
  std::uint32_t line_begin(std::uint32_t line) const { return tree_.line_begins[line - 1]; }
  std::string indent_of(std::uint32_t line) const {
    const std::string_view text = tree_.line_text(line);
    return std::string(text.substr(0, std::min(text.find_first_not_of(" \t"), text.size())));
  }
  std::uint32_t last_line(NodeId id) const {
    std::uint32_t line = tree_[id].line;
    const std::string_view text = tree_.text(id);
    for (std::size_t i = 0; i + 1 < text.size(); ++i) line += text[i] == '\n';
    return line;
  }
  // Whether the statement has its lines to itself: no `if x: y` and no `x; y`.
  bool stands_alone(NodeId id) const {
    const std::uint32_t begin = line_begin(tree_[id].line);
    const std::string_view before =
        std::string_view(tree_.source).substr(begin, tree_[id].begin - begin);
    if (before.find_first_not_of(" \t") != std::string_view::npos) return false;
    const std::string_view after = std::string_view(tree_.source).substr(tree_[id].end);
    const std::size_t next = after.find_first_not_of(" \t");
    return next == std::string_view::npos || after[next] == '\n' || after[next] == '\r' ||
           after[next] == '#';
  }
  bool has_torch() const {
    return tree_.source.find("\nimport torch\n") != std::string::npos ||
           tree_.source.rfind("import torch\n", 0) == 0 ||
           tree_.source.find("\nimport torch\r\n") != std::string::npos;
  }

  std::vector<Edit> detached(NodeId value) const {
    const NodeKind kind = tree_[value].kind;
    const bool primary = kind == NodeKind::kName || kind == NodeKind::kAttribute ||
                         kind == NodeKind::kCall || kind == NodeKind::kSubscript;
    const bool parenthesised =
        tree_[value].begin > 0 && tree_.source[tree_[value].begin - 1] == '(' &&
        tree_[value].end < tree_.source.size() && tree_.source[tree_[value].end] == ')';
    if (primary) return {insert(tree_[value].end, ".detach()")};
    if (parenthesised) return {insert(tree_[value].end + 1, ".detach()")};
    return {insert(tree_[value].begin, "("), insert(tree_[value].end, ").detach()")};
  }

  // A memory of the file's, or of elsewhere, is given what it keeps: pooled = pool.query(fake).
  bool keeps_its_argument(NodeId value) const {
    return finding_.rule == "history-stored" && tree_[value].kind == NodeKind::kCall &&
           tree_[site().a].kind == NodeKind::kName &&
           !tree_.text(tree_[value].a).starts_with("torch.");
  }

  std::optional<Fix> detach() {
    NodeId value = 0;
    NodeId call = 0;
    if (site().kind == NodeKind::kAugAssign || site().kind == NodeKind::kAssign) {
      value = site().b;
      if (value == 0 || tree_[value].kind == NodeKind::kTuple ||
          tree_[value].kind == NodeKind::kList || tree_[value].kind == NodeKind::kAssign ||
          tree_[site().a].kind == NodeKind::kTuple) {
        return std::nullopt;
      }
      if (keeps_its_argument(value)) call = value;
    } else if (site().kind == NodeKind::kExprStatement && tree_[site().a].kind == NodeKind::kCall) {
      call = site().a;
    } else if (site().kind == NodeKind::kReturn && site().a != 0) {
      value = site().a;
    } else {
      return std::nullopt;
    }
    if (call != 0) {
      value = kept_argument(call);
      if (value == 0) return std::nullopt;
      const NodeKind kind = tree_[value].kind;
      if (kind != NodeKind::kName && kind != NodeKind::kAttribute && kind != NodeKind::kCall &&
          kind != NodeKind::kSubscript && kind != NodeKind::kBinary) {
        return std::nullopt;
      }
    }
    // Of a list made in one go, or of a sum over one, each element.
    if (tree_[value].kind == NodeKind::kCall && tree_.text(tree_[value].a) == "sum" &&
        !tree_.items(value).empty()) {
      value = tree_.items(value)[0];
    }
    switch (tree_[value].kind) {
      case NodeKind::kListComp:
      case NodeKind::kSetComp:
      case NodeKind::kGenerator:
        value = tree_[value].a;
        break;
      case NodeKind::kDictComp:
        value = tree_[tree_[value].a].b;
        break;
      default:
        if (site().kind == NodeKind::kReturn) return std::nullopt;
        break;
    }
    if (tree_.text(value).ends_with(".detach()")) return std::nullopt;
    // A meter's first argument need not be the value: with more than one, a name must say so.
    const bool sure =
        finding_.detach_is_safe &&
        (call == 0 || tree_.items(call).size() == 1 ||
         (tree_[value].kind == NodeKind::kName && words_.like_loss(tree_[value].name)));
    return Fix{"detach what outlives the iteration", sure, detached(value)};
  }

  // The one argument, or the one of several that is named for a loss; 0: nobody can tell.
  NodeId kept_argument(NodeId call) const {
    const auto given = tree_.items(call);
    if (given.size() == 1) return given[0];
    NodeId found = 0;
    for (const NodeId argument : given) {
      if (tree_[argument].kind == NodeKind::kName && words_.like_loss(tree_[argument].name)) {
        if (found != 0) return 0;
        found = argument;
      }
    }
    return found;
  }

  std::optional<Fix> detach_state() {
    if (site().kind != NodeKind::kAssign || site().b == 0 || !stands_alone(finding_.site)) {
      return std::nullopt;
    }
    // The name that is both given to the call and assigned from it.
    std::vector<NodeId> targets{site().a};
    if (tree_[site().a].kind == NodeKind::kTuple) {
      const auto items = tree_.items(site().a);
      targets.assign(items.begin(), items.end());
    }
    if (tree_[site().b].kind != NodeKind::kCall) return std::nullopt;
    for (const NodeId target : targets) {
      const std::string name(tree_.text(target));
      if (tree_[target].kind != NodeKind::kName && tree_[target].kind != NodeKind::kAttribute)
        continue;
      for (const NodeId given : tree_.items(site().b)) {
        if (tree_.text(given) != name) continue;
        const std::string indent = indent_of(site().line);
        return Fix{concat("detach ", name, " from the graph of the iteration before"),
                   false,
                   {insert(line_begin(site().line),
                           concat(indent, "if ", name, " is not None:\n", indent, "    ", name,
                                  " = tuple(h.detach() for h in ", name, ") if isinstance(", name,
                                  ", tuple) else ", name, ".detach()\n"))}};
      }
    }
    return std::nullopt;
  }

  // The innermost def, for, while or with around the site of the given kind.
  NodeId enclosing(NodeKind kind) const {
    NodeId best = 0;
    for (NodeId id = 1; id < tree_.nodes.size(); ++id) {
      const Node& node = tree_[id];
      if (node.kind != kind || node.begin > site().begin || node.end < site().end ||
          id == finding_.site) {
        continue;
      }
      if (best == 0 || node.begin >= tree_[best].begin) best = id;
    }
    return best;
  }
  bool contains_call(NodeId within, std::string_view method) const {
    for (NodeId id = 1; id < tree_.nodes.size(); ++id) {
      const Node& node = tree_[id];
      if (node.kind == NodeKind::kCall && node.begin >= tree_[within].begin &&
          node.end <= tree_[within].end && tree_[node.a].kind == NodeKind::kAttribute &&
          names_.text(tree_[node.a].name) == method) {
        return true;
      }
    }
    return false;
  }
  bool contains_yield(NodeId within) const {
    for (NodeId id = 1; id < tree_.nodes.size(); ++id) {
      const Node& node = tree_[id];
      if (node.kind == NodeKind::kYield && node.begin >= tree_[within].begin &&
          node.end <= tree_[within].end) {
        return true;
      }
    }
    return false;
  }

  std::optional<Fix> evaluate_without_grad() {
    if (!has_torch()) return std::nullopt;
    const NodeId function = enclosing(NodeKind::kFunction);
    if (function != 0 && !contains_call(function, "backward") && !contains_call(function, "step") &&
        !contains_yield(function)) {
      // `def` itself, not the decorators before it.
      const std::uint32_t line = tree_[function].line;
      return Fix{concat("decorate ", names_.text(tree_[function].name), " with @torch.no_grad()"),
                 true,
                 {insert(line_begin(line), concat(indent_of(line), "@torch.no_grad()\n"))}};
    }
    const NodeId loop = enclosing(NodeKind::kFor);
    const NodeId body = loop != 0 && !contains_call(loop, "backward") ? loop : finding_.site;
    return under_no_grad(body);
  }

  std::optional<Fix> statement_without_grad() {
    if (!has_torch()) return std::nullopt;
    auto fix = under_no_grad(finding_.site);
    if (fix) fix->safe = finding_.detach_is_safe;
    return fix;
  }

  std::optional<Fix> under_no_grad(NodeId statement) {
    if (!stands_alone(statement)) return std::nullopt;
    const std::uint32_t first = tree_[statement].line, last = last_line(statement);
    const std::string indent = indent_of(first);
    Fix fix{"run it under torch.no_grad()", true, {}};
    fix.edits.push_back(insert(line_begin(first), concat(indent, "with torch.no_grad():\n")));
    for (std::uint32_t line = first; line <= last; ++line) {
      const std::string_view text = tree_.line_text(line);
      // Inside a string over several lines, indenting would change it.
      if (text.find("\"\"\"") != std::string_view::npos ||
          text.find("'''") != std::string_view::npos) {
        return std::nullopt;
      }
      if (!text.empty()) fix.edits.push_back(insert(line_begin(line), "    "));
    }
    return fix;
  }

  std::optional<Fix> without_retain() {
    if (site().kind != NodeKind::kCall || !finding_.detach_is_safe) return std::nullopt;
    const auto given = tree_.items(finding_.site);
    for (std::size_t i = 0; i < given.size(); ++i) {
      const Node& argument = tree_[given[i]];
      if (argument.kind != NodeKind::kKeyword || names_.text(argument.name) != "retain_graph")
        continue;
      std::uint32_t begin = argument.begin, end = argument.end;
      if (i > 0) {
        begin = tree_[given[i - 1]].end;
      } else if (given.size() > 1) {
        end = tree_[given[1]].begin;
      }
      return Fix{"leave retain_graph=True out", true, {{begin, end, ""}}};
    }
    return std::nullopt;
  }

  std::optional<Fix> zero_grad() {
    if (!stands_alone(finding_.site)) return std::nullopt;
    for (NodeId id = 1; id < tree_.nodes.size(); ++id) {
      const Node& node = tree_[id];
      if (node.kind != NodeKind::kCall || tree_[node.a].kind != NodeKind::kAttribute ||
          names_.text(tree_[node.a].name) != "step") {
        continue;
      }
      const NodeId receiver = tree_[node.a].a;
      if (!words_.like_optimizer(tree_[receiver].name)) continue;
      const std::string indent = indent_of(site().line);
      return Fix{"clear the gradients before backward",
                 false,
                 {insert(line_begin(site().line),
                         concat(indent, tree_.text(receiver), ".zero_grad()\n"))}};
    }
    return std::nullopt;
  }

  std::optional<Fix> del() {
    const NodeId loop = enclosing(NodeKind::kFor);
    if (loop == 0 || site().kind != NodeKind::kAssign || tree_[loop].c == 0) return std::nullopt;
    const auto statements = tree_.items(tree_[loop].c);
    if (statements.empty() || !stands_alone(statements.back())) return std::nullopt;
    const std::uint32_t last = last_line(statements.back());
    const std::string name(tree_.text(site().a));
    const std::string line = concat(indent_of(site().line), "del ", name, "\n");
    if (last >= tree_.line_begins.size()) {
      return Fix{concat("delete ", name, " when it is used no more"),
                 true,
                 {insert(static_cast<std::uint32_t>(tree_.source.size()), "\n" + line)}};
    }
    return Fix{concat("delete ", name, " when it is used no more"),
               true,
               {insert(line_begin(last + 1), line)}};
  }

  std::optional<Fix> no_checkpoint() {
    const NodeId value = site().kind == NodeKind::kKeyword ? site().a : site().b;
    return Fix{"checkpoint no encoder layer", false, {{tree_[value].begin, tree_[value].end, "0"}}};
  }

  const RawFinding& finding_;
  const SyntaxTree& tree_;
  Names& names_;
  Vocabulary& words_;
};

std::vector<std::string_view> lines_of(const std::string& text) {
  std::vector<std::string_view> out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const std::size_t stop = end == std::string::npos ? text.size() : end + 1;
    out.push_back(std::string_view(text).substr(begin, stop - begin));
    begin = stop;
  }
  return out;
}

}  // namespace

std::optional<Fix> fix_for(const RawFinding& finding, const SyntaxTree& tree, Names& names,
                           Vocabulary& words) {
  return Fixer(finding, tree, names, words).fix();
}

std::string apply_fixes(const std::string& source, const std::vector<const Fix*>& fixes,
                        std::vector<bool>& applied) {
  applied.assign(fixes.size(), false);
  std::vector<const Edit*> edits;
  for (std::size_t i = 0; i < fixes.size(); ++i) {
    const bool free =
        std::none_of(fixes[i]->edits.begin(), fixes[i]->edits.end(), [&](const Edit& edit) {
          return std::any_of(edits.begin(), edits.end(), [&](const Edit* taken) {
            // Two insertions at one place would depend on their order.
            return edit.begin <= taken->end && taken->begin <= edit.end;
          });
        });
    if (!free) continue;
    for (const Edit& edit : fixes[i]->edits) edits.push_back(&edit);
    applied[i] = true;
  }
  std::stable_sort(edits.begin(), edits.end(),
                   [](const Edit* a, const Edit* b) { return a->begin < b->begin; });
  std::string out;
  std::size_t at = 0;
  for (const Edit* edit : edits) {
    out.append(source, at, edit->begin - at);
    out += edit->text;
    at = edit->end;
  }
  out.append(source, at, std::string::npos);
  return out;
}

std::string unified_diff(const std::string& path, const std::string& before,
                         const std::string& after) {
  const std::vector<std::string_view> a = lines_of(before), b = lines_of(after);
  struct Op {
    char kind;
    std::string_view line;
  };
  std::vector<Op> ops;
  std::size_t head = 0, tail_length = 0;
  while (head < a.size() && head < b.size() && a[head] == b[head]) ++head;
  while (tail_length < a.size() - head && tail_length < b.size() - head &&
         a[a.size() - 1 - tail_length] == b[b.size() - 1 - tail_length]) {
    ++tail_length;
  }
  // The longest common subsequence of what is between, by the textbook table: fixes touch one file,
  // and a stretch too long for the table is shown as replaced.
  const std::size_t n = a.size() - head - tail_length, m = b.size() - head - tail_length;
  constexpr std::size_t kMaxTable = 20'000'000;
  const bool fits = (n + 1) * (m + 1) <= kMaxTable;
  std::vector<std::uint32_t> table(fits ? (n + 1) * (m + 1) : 0);
  const auto common = [&](std::size_t i, std::size_t j) -> std::uint32_t& {
    return table[i * (m + 1) + j];
  };
  for (std::size_t i = n; fits && i-- > 0;) {
    for (std::size_t j = m; j-- > 0;) {
      common(i, j) = a[head + i] == b[head + j] ? common(i + 1, j + 1) + 1
                                                : std::max(common(i + 1, j), common(i, j + 1));
    }
  }
  for (std::size_t i = 0; i < head; ++i) ops.push_back({' ', a[i]});
  std::size_t i = 0, j = 0;
  while (i < n || j < m) {
    if (fits && i < n && j < m && a[head + i] == b[head + j]) {
      ops.push_back({' ', a[head + i++]});
      ++j;
    } else if (i < n && (j == m || !fits || common(i + 1, j) >= common(i, j + 1))) {
      ops.push_back({'-', a[head + i++]});
    } else {
      ops.push_back({'+', b[head + j++]});
    }
  }
  for (std::size_t k = a.size() - tail_length; k < a.size(); ++k) ops.push_back({' ', a[k]});
  constexpr std::size_t kContext = 3;
  std::string out;
  std::size_t line_a = 1, line_b = 1;
  for (std::size_t at = 0; at < ops.size();) {
    std::size_t change = at;
    while (change < ops.size() && ops[change].kind == ' ') ++change;
    if (change == ops.size()) break;
    const std::size_t begin = change - std::min(change - at, kContext);
    std::size_t end = change;
    for (std::size_t quiet = 0; end < ops.size() && quiet <= 2 * kContext; ++end) {
      quiet = ops[end].kind == ' ' ? quiet + 1 : 0;
    }
    std::size_t tail = end;
    while (tail > change && ops[tail - 1].kind == ' ') --tail;
    end = std::min(end, tail + kContext);
    line_a += begin - at;
    line_b += begin - at;
    std::size_t count_a = 0, count_b = 0;
    for (std::size_t k = begin; k < end; ++k) {
      count_a += ops[k].kind != '+';
      count_b += ops[k].kind != '-';
    }
    if (out.empty()) out = concat("--- a/", path, "\n+++ b/", path, "\n");
    out += concat("@@ -", line_a, ",", count_a, " +", line_b, ",", count_b, " @@\n");
    for (std::size_t k = begin; k < end; ++k) {
      out += ops[k].kind;
      out += ops[k].line;
      if (ops[k].line.empty() || ops[k].line.back() != '\n') {
        out += "\n\\ No newline at end of file\n";
      }
    }
    line_a += count_a;
    line_b += count_b;
    at = end;
  }
  return out;
}

}  // namespace lowtide::lint
