// The rules that what stands in the source decides: no value has to be followed for them.

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "src/base/text.h"
#include "src/lint/judge.h"

namespace lowtide::lint {
namespace {

using Set = std::unordered_set<std::string_view>;

const Set& tensor_attributes() {
  static const auto* const set =
      new Set{"shape",         "size",       "device",    "dtype",     "to",      "view",
              "reshape",       "cuda",       "cpu",       "float",     "half",    "detach",
              "clone",         "norm",       "mean",      "sum",       "exp",     "log",
              "abs",           "pow",        "clamp",     "unsqueeze", "squeeze", "transpose",
              "permute",       "contiguous", "matmul",    "mm",        "bmm",     "data",
              "requires_grad", "numel",      "new_zeros", "new_empty", "is_cuda", "sigmoid",
              "tanh",          "relu",       "sqrt",      "dim",       "t",       "T",
              "new",           "data_ptr",   "backward",  "flatten",   "item",    "is_contiguous",
              "softmax",       "type",       "ndim"};
  return *set;
}

class SourceJudge {
 public:
  SourceJudge(const SyntaxTree& tree, Names& names, Vocabulary& words, bool has_fairscale)
      : tree_(tree), names_(names), words_(words), has_fairscale_(has_fairscale) {}

  std::vector<RawFinding> run() {
    blocks(tree_.root, 0);
    for (NodeId id = 1; id < tree_.nodes.size(); ++id) {
      const Node& node = tree_[id];
      switch (node.kind) {
        case NodeKind::kCall:
          create_graph(id);
          config(id);
          break;
        case NodeKind::kDict:
          config(id);
          break;
        case NodeKind::kClass:
          function_class(id);
          break;
        case NodeKind::kTry:
          exceptions(id);
          break;
        case NodeKind::kFunction:
          cached_function(id);
          held(id);
          break;
        default:
          break;
      }
    }
    return std::move(out_);
  }

 private:
  void add(std::string_view rule, NodeId site, std::string message, Cost cost) {
    for (const RawFinding& known : out_) {
      if (known.rule == rule && tree_[known.site].line == tree_[site].line) return;
    }
    out_.push_back({std::string(rule), site, std::move(message), cost, false});
  }
  const std::string& text(Name name) const { return names_.text(name); }

  // Calls `visit` for the node and all below it, in order; below a node for which it gives false
  // nothing is visited.
  void walk(NodeId id, const std::function<bool(NodeId)>& visit) const {
    if (id == 0 || !visit(id)) return;
    const Node& node = tree_[id];
    const bool items_first = node.kind == NodeKind::kWith || node.kind == NodeKind::kBlock;
    if (items_first) {
      for (const NodeId item : tree_.items(id)) walk(item, visit);
    }
    walk(node.a, visit);
    if (node.kind == NodeKind::kTry) {
      for (const NodeId item : tree_.items(id)) walk(item, visit);
    }
    walk(node.b, visit);
    walk(node.c, visit);
    if (!items_first && node.kind != NodeKind::kTry) {
      for (const NodeId item : tree_.items(id)) walk(item, visit);
    }
  }

  std::string_view last_word(NodeId callee) const {
    const Node& node = tree_[callee];
    if (node.kind == NodeKind::kName || node.kind == NodeKind::kAttribute) return text(node.name);
    return {};
  }
  bool is_true(NodeId id) const { return id != 0 && tree_[id].kind == NodeKind::kTrue; }

  void create_graph(NodeId id) {
    if (last_word(tree_[id].a) != "backward") return;
    for (const NodeId item : tree_.items(id)) {
      const Node& keyword = tree_[item];
      if (keyword.kind == NodeKind::kKeyword && text(keyword.name) == "create_graph" &&
          is_true(keyword.a)) {
        add("create-graph-backward", id,
            "backward(create_graph=True) makes a cycle of each parameter and its gradient, which "
            "nothing frees: take the gradients with torch.autograd.grad(loss, parameters, "
            "create_graph=True)",
            Cost::kLeak);
      }
    }
  }

  // ------------------------------------------------------------ fairscale

  // A number, or a name that the file gives one to.
  bool positive_integer(NodeId id) const {
    if (id != 0 && tree_[id].kind == NodeKind::kName) {
      for (const NodeId statement : tree_.items(tree_.root)) {
        const Node& assigned = tree_[statement];
        if (assigned.kind == NodeKind::kAssign && assigned.b != 0 &&
            tree_[assigned.a].kind == NodeKind::kName && tree_[assigned.a].name == tree_[id].name &&
            tree_[assigned.b].kind == NodeKind::kNumber) {
          return positive_integer(assigned.b);
        }
      }
    }
    return id != 0 && tree_[id].kind == NodeKind::kNumber && text(tree_[id].name) != "0" &&
           text(tree_[id].name).find_first_not_of("0123456789") == std::string::npos;
  }

  // One dict of a config: dict(num_cp=4, ...) or {"num_cp": 4, ...}.
  void config(NodeId id) {
    if (has_fairscale_) return;
    const Node& node = tree_[id];
    if (node.kind == NodeKind::kCall && last_word(node.a) != "dict") return;
    const auto key_of = [&](NodeId item) -> std::string_view {
      const Node& entry = tree_[item];
      if (entry.kind == NodeKind::kKeyword) return text(entry.name);
      if (entry.kind == NodeKind::kPair && entry.a != 0 &&
          tree_[entry.a].kind == NodeKind::kString) {
        return text(tree_[entry.a].name);
      }
      return {};
    };
    const auto value_of = [&](NodeId item) {
      return tree_[item].kind == NodeKind::kKeyword ? tree_[item].a : tree_[item].b;
    };
    bool encoder = is_encoder(id);
    for (const NodeId item : tree_.items(id)) {
      const std::string_view key = key_of(item);
      if (key == "num_layers" || key == "layer_cfg" || key == "transformerlayers") encoder = true;
      if (key == "type" && tree_.text(value_of(item)).find("ncoder") != std::string_view::npos) {
        encoder = true;
      }
    }
    if (!encoder) return;
    for (const NodeId item : tree_.items(id)) {
      const std::string_view key = key_of(item);
      if ((key != "num_cp" && key != "with_cp") || !positive_integer(value_of(item))) continue;
      add("fairscale-missing", item,
          concat(key, "=", tree_.text(value_of(item)),
                 " asks for checkpointed encoder layers, which need fairscale, and no requirements "
                 "file here names it: require fairscale, or set it to 0"),
          Cost::kPeak);
    }
  }

  // Whether the dict stands under a key or name with "encoder" in it.
  bool is_encoder(NodeId id) const {
    const std::size_t begin = tree_[id].begin;
    const std::size_t from = begin > 40 ? begin - 40 : 0;
    std::string_view before = std::string_view(tree_.source).substr(from, begin - from);
    const std::size_t stop = before.find_last_of(",({\n");
    if (stop != std::string_view::npos) before.remove_prefix(stop);
    return before.find("encoder") != std::string_view::npos;
  }

  // ------------------------------------------------------------ autograd.Function

  void function_class(NodeId id) {
    bool is_function = false;
    for (const NodeId base : tree_.items(id)) {
      const std::string_view name = tree_.text(base);
      is_function = is_function || name == "Function" || name.ends_with("autograd.Function") ||
                    name == "InplaceFunction" || name.ends_with("function.Function");
    }
    if (!is_function || tree_[id].a == 0) return;
    NodeId forward = 0, backward = 0, setup = 0;
    for (const NodeId item : tree_.items(tree_[id].a)) {
      if (tree_[item].kind != NodeKind::kFunction) continue;
      const std::string& name = text(tree_[item].name);
      if (name == "forward") forward = item;
      if (name == "backward") backward = item;
      if (name == "setup_context") setup = item;
    }
    if (forward == 0) return;
    const std::vector<NodeId> differentiable = gradients(backward);
    std::unordered_set<Name> tensors, outputs;
    const auto parameters = tree_.items(forward);
    const std::size_t skip = setup == 0 ? 1 : 0;
    for (std::size_t i = skip; i < parameters.size(); ++i) {
      const std::size_t at = i - skip;
      const bool known = at < differentiable.size();
      const bool needs_none = known && is_none(differentiable[at], backward);
      if (is_tensor_parameter(parameters[i], forward, known, needs_none)) {
        tensors.insert(tree_[parameters[i]].name);
      }
    }
    walk(tree_[forward].a, [&](NodeId at) {
      if (tree_[at].kind == NodeKind::kFunction || tree_[at].kind == NodeKind::kLambda)
        return false;
      if (tree_[at].kind == NodeKind::kReturn && tree_[at].a != 0) {
        const Node& value = tree_[tree_[at].a];
        if (value.kind == NodeKind::kName) outputs.insert(value.name);
        if (value.kind == NodeKind::kTuple) {
          for (const NodeId item : tree_.items(tree_[at].a)) {
            if (tree_[item].kind == NodeKind::kName) outputs.insert(tree_[item].name);
          }
        }
        if (value.kind == NodeKind::kAttribute) outputs.insert(value.name);
      }
      return true;
    });
    const NodeId where = setup != 0 ? setup : forward;
    if (parameters.empty() || tree_.items(where).empty()) return;
    const Name ctx = tree_[tree_.items(where)[0]].name;
    if (setup != 0) {
      // x, y = inputs; and `output` itself
      const auto given = tree_.items(setup);
      if (given.size() >= 3) outputs.insert(tree_[given[2]].name);
    }
    walk(tree_[where].a, [&](NodeId at) {
      const Node& node = tree_[at];
      if (node.kind != NodeKind::kAssign || node.b == 0) return true;
      const auto check = [&](NodeId target, NodeId value) {
        const Node& to = tree_[target];
        if (to.kind != NodeKind::kAttribute || tree_[to.a].name != ctx) return;
        const Node& from = tree_[value];
        bool kept = from.kind == NodeKind::kName &&
                    (tensors.count(from.name) != 0 || outputs.count(from.name) != 0);
        if (from.kind == NodeKind::kTuple || from.kind == NodeKind::kList) {
          for (const NodeId item : tree_.items(value)) {
            kept = kept ||
                   (tree_[item].kind == NodeKind::kName &&
                    (tensors.count(tree_[item].name) != 0 || outputs.count(tree_[item].name) != 0));
          }
        }
        // ctx.y = ...; return ctx.y
        if (from.kind == NodeKind::kCall && outputs.count(to.name) != 0) kept = true;
        if (!kept) return;
        add("ctx-attribute", at,
            concat("ctx.", text(to.name),
                   " holds an input or output of the function until its node dies, and with an "
                   "output that is never, for it holds the node: use ctx.save_for_backward"),
            Cost::kLeak);
      };
      const Node& target = tree_[node.a];
      const Node& value = tree_[node.b];
      if (target.kind == NodeKind::kTuple && value.kind == NodeKind::kTuple &&
          target.item_count == value.item_count) {
        for (std::size_t i = 0; i < target.item_count; ++i) {
          check(tree_.items(node.a)[i], tree_.items(node.b)[i]);
        }
      } else {
        check(node.a, node.b);
      }
      return true;
    });
  }

  // What backward returns, one for each input; empty when that cannot be told.
  std::vector<NodeId> gradients(NodeId backward) const {
    std::vector<NodeId> out;
    if (backward == 0) return out;
    walk(tree_[backward].a, [&](NodeId at) {
      if (tree_[at].kind == NodeKind::kReturn && tree_[at].a != 0) {
        const NodeKind kind = tree_[tree_[at].a].kind;
        if (kind == NodeKind::kTuple) {
          const auto items = tree_.items(tree_[at].a);
          out.assign(items.begin(), items.end());
          for (const NodeId item : items) {
            if (tree_[item].kind == NodeKind::kStar) out.clear();
          }
        } else if (kind == NodeKind::kBinary) {
          out.clear();  // tuples put together
        } else {
          out.assign(1, tree_[at].a);
        }
      }
      return tree_[at].kind != NodeKind::kFunction;
    });
    return out;
  }

  // None, or a name that backward gives no other value.
  bool is_none(NodeId gradient, NodeId backward) const {
    if (tree_[gradient].kind != NodeKind::kName)
      return tree_[gradient].kind == NodeKind::kNoneValue;
    bool none = false, other = false;
    const std::function<void(NodeId, NodeId)> assigned = [&](NodeId target, NodeId value) {
      if (tree_[target].kind == NodeKind::kName && tree_[target].name == tree_[gradient].name) {
        NodeId last = value;
        while (tree_[last].kind == NodeKind::kAssign && tree_[last].b != 0) last = tree_[last].b;
        (tree_[last].kind == NodeKind::kNoneValue ? none : other) = true;
      }
      for (const NodeId item : tree_.items(target)) {
        if (tree_[target].kind == NodeKind::kTuple) assigned(item, value);
      }
    };
    walk(tree_[backward].a, [&](NodeId at) {
      if (tree_[at].kind == NodeKind::kAssign && tree_[at].b != 0) {
        assigned(tree_[at].a, tree_[at].b);
      }
      return true;
    });
    return none && !other;
  }

  bool is_tensor_parameter(NodeId parameter, NodeId function, bool known, bool needs_none) const {
    const Node& node = tree_[parameter];
    if (node.flag != 0) return false;
    if (node.b != 0) return tree_.text(node.b).find("Tensor") != std::string_view::npos;
    if (node.a != 0) return false;
    if (known && !needs_none) return true;
    return used_as_tensor(node.name, function, !known);
  }

  // `by_modules`: to be given to what sounds like a module is enough.
  bool used_as_tensor(Name name, NodeId function, bool by_modules = true) const {
    bool tensor = false;
    walk(tree_[function].a, [&](NodeId at) {
      const Node& node = tree_[at];
      if (node.kind == NodeKind::kAttribute && tree_[node.a].kind == NodeKind::kName &&
          tree_[node.a].name == name && tensor_attributes().count(text(node.name)) != 0) {
        tensor = true;
      }
      if (node.kind == NodeKind::kCall && node.a != 0) {
        const std::string_view callee = tree_.text(node.a);
        const std::string_view last = last_word(node.a);
        const bool torch = callee.starts_with("torch.") || callee.starts_with("F.");
        const bool creates =
            words_.torch_function(last) == FunctionRole::kCreate && last != "as_tensor";
        const std::vector<std::string> words = words_of(last);
        const bool module = by_modules && !words.empty() &&
                            words_.like_module(names_.intern(words.back())) &&
                            !words_.like_loader(names_.intern(last));
        if ((torch && !creates) || module) {
          for (const NodeId item : tree_.items(at)) {
            if (tree_[item].kind == NodeKind::kName && tree_[item].name == name) tensor = true;
          }
        }
        if (callee.ends_with("save_for_backward")) {
          for (const NodeId item : tree_.items(at)) {
            if (tree_[item].kind == NodeKind::kName && tree_[item].name == name) tensor = true;
          }
        }
      }
      return true;
    });
    return tensor;
  }

  // ------------------------------------------------------------ exceptions

  bool works_on_tensors(NodeId call) const {
    const std::string_view last = last_word(tree_[call].a);
    if (last.empty() || (last[0] >= 'A' && last[0] <= 'Z') || last.starts_with("on_")) return false;
    const Name name = names_.intern(last);
    if (last == "backward" || words_.method(name) == MethodRole::kModuleRun) return true;
    static const auto* const verbs =
        new Set{"train",   "training", "step",    "infer",      "inference", "predict",
                "forward", "generate", "denoise", "transcribe", "attention"};
    static const auto* const makers = new Set{"get", "load", "create", "build",   "make",
                                              "new", "init", "setup",  "prepare", "from"};
    const std::vector<std::string> words = words_of(last);
    for (const std::string& word : words) {
      if (verbs->count(word) != 0) return true;
    }
    return !words.empty() && words.size() < 3 && words.back() != "module" && words[0] != "import" &&
           makers->count(words[0]) == 0 && words_.like_module(names_.intern(words.back()));
  }

  void exceptions(NodeId id) {
    std::unordered_set<std::string_view> tried;
    bool torch = false;
    walk(tree_[id].a, [&](NodeId at) {
      if (tree_[at].kind == NodeKind::kCall && works_on_tensors(at)) {
        torch = true;
        tried.insert(tree_.text(tree_[at].a));
      }
      return true;
    });
    if (!torch) return;
    // A function that calls itself tries again too.
    for (NodeId around = 1; around < tree_.nodes.size(); ++around) {
      const Node& function = tree_[around];
      if (function.kind == NodeKind::kFunction && function.begin < tree_[id].begin &&
          function.end >= tree_[id].end) {
        tried.insert(text(function.name));
      }
    }
    for (const NodeId handler : tree_.items(id)) {
      const std::string_view type =
          tree_[handler].a != 0 ? tree_.text(tree_[handler].a) : std::string_view("Exception");
      if (type.find("RuntimeError") == std::string_view::npos &&
          type.find("Memory") == std::string_view::npos &&
          type.find("Exception") == std::string_view::npos) {
        continue;
      }
      // Any exception may be caught to try another interface: that is no question of memory.
      const std::string_view body = tree_.text(handler);
      const bool of_memory = type.find("RuntimeError") != std::string_view::npos ||
                             type.find("Memory") != std::string_view::npos ||
                             body.find("memory") != std::string_view::npos ||
                             body.find("empty_cache") != std::string_view::npos ||
                             body.find("OOM") != std::string_view::npos ||
                             body.find("batch") != std::string_view::npos;
      if (of_memory) retry(handler, tried);
      if (tree_[handler].name != 0) kept(handler);
    }
  }

  bool steps_optimizer(NodeId callee) const {
    const Node& node = tree_[callee];
    if (node.kind != NodeKind::kAttribute || text(node.name) != "step") return false;
    const Node& whole = tree_[node.a];
    const std::string_view name = text(whole.name);
    return words_.like_optimizer(whole.name) || name.find("sched") != std::string_view::npos ||
           name.find("scaler") != std::string_view::npos ||
           name.find("bar") != std::string_view::npos;
  }

  void retry(NodeId handler, const std::unordered_set<std::string_view>& tried) {
    NodeId first = 0;
    NodeId statement = 0;
    walk(tree_[handler].b, [&](NodeId at) {
      const Node& node = tree_[at];
      if (node.kind == NodeKind::kFunction || node.kind == NodeKind::kLambda) return false;
      if (node.kind == NodeKind::kExprStatement || node.kind == NodeKind::kAssign ||
          node.kind == NodeKind::kReturn || node.kind == NodeKind::kAugAssign) {
        statement = at;
      }
      if (node.kind == NodeKind::kCall && first == 0) {
        const bool again = tried.count(tree_.text(node.a)) != 0;
        if (again && !steps_optimizer(node.a) && works_on_tensors(at)) {
          first = statement != 0 ? statement : at;
        }
      }
      return true;
    });
    if (first == 0) return;
    add("exception-holds-frame", first,
        "the work is tried again while the exception is handled, which holds the frames of the "
        "failed attempt and all their tensors: set a flag here and try again after the except "
        "block",
        Cost::kPeak);
  }

  // Whether the exception itself is among what the expression holds.
  bool holds(NodeId id, Name exception) const {
    if (id == 0) return false;
    const Node& node = tree_[id];
    switch (node.kind) {
      case NodeKind::kName:
        return node.name == exception;
      case NodeKind::kAttribute:
        return text(node.name) == "__traceback__" && tree_[node.a].name == exception;
      case NodeKind::kTuple:
      case NodeKind::kList:
      case NodeKind::kDict: {
        const auto items = tree_.items(id);
        return std::any_of(items.begin(), items.end(),
                           [&](NodeId item) { return holds(item, exception); });
      }
      case NodeKind::kPair:
        return holds(node.b, exception);
      case NodeKind::kKeyword:
        return holds(node.a, exception);
      case NodeKind::kCall:
        return tree_.text(node.a) == "sys.exc_info";
      default:
        return false;
    }
  }

  void kept(NodeId handler) {
    const Name exception = tree_[handler].name;
    walk(tree_[handler].b, [&](NodeId at) {
      const Node& node = tree_[at];
      bool keeps = false;
      if (node.kind == NodeKind::kAssign && node.b != 0) keeps = holds(node.b, exception);
      if (node.kind == NodeKind::kCall) {
        const std::string_view method = last_word(node.a);
        if (tree_[node.a].kind == NodeKind::kAttribute &&
            (method == "append" || method == "add" || method == "put" || method == "appendleft")) {
          for (const NodeId item : tree_.items(at)) keeps = keeps || holds(item, exception);
        }
      }
      if (keeps) {
        add("exception-holds-frame", at,
            "the exception is kept, and with it the frames of the failed attempt and all their "
            "tensors: keep str(error), or error.with_traceback(None)",
            Cost::kLeak);
      }
      return true;
    });
  }

  // ------------------------------------------------------------ caches

  void cached_function(NodeId id) {
    NodeId cache = 0;
    for (const NodeId decorator : tree_.more(id)) {
      const Node& node = tree_[decorator];
      if (node.kind == NodeKind::kCall && last_word(node.a) == "lru_cache") {
        for (const NodeId item : tree_.items(decorator)) {
          const NodeId value = tree_[item].kind == NodeKind::kKeyword ? tree_[item].a : item;
          if (tree_[value].kind == NodeKind::kNoneValue) cache = decorator;
        }
      } else if (tree_.text(decorator) == "functools.cache" ||
                 (tree_.text(decorator) == "cache" &&
                  tree_.source.find("functools") != std::string::npos)) {
        cache = decorator;
      }
    }
    if (cache == 0) return;
    bool keyed_by_tensor = false, sizes = false;
    const auto parameters = tree_.items(id);
    for (const NodeId parameter : parameters) {
      const Node& p = tree_[parameter];
      if (text(p.name) == "self" || text(p.name) == "cls") continue;
      const bool annotated = p.b != 0 && tree_.text(p.b).find("Tensor") != std::string_view::npos;
      if (annotated || (p.b == 0 && used_as_tensor(p.name, id))) keyed_by_tensor = true;
    }
    bool holds_tensor =
        tree_[id].b != 0 && tree_.text(tree_[id].b).find("Tensor") != std::string_view::npos;
    walk(tree_[id].a, [&](NodeId at) {
      if (tree_[at].kind != NodeKind::kCall) return true;
      const std::string_view callee = tree_.text(tree_[at].a);
      const std::string_view last = last_word(tree_[at].a);
      if (callee == "torch.load" || callee == "torch.from_numpy") holds_tensor = true;
      if (words_.torch_function(last) == FunctionRole::kCreate && callee.starts_with("torch.") &&
          last != "load" && last != "from_numpy" && last != "device") {
        sizes = true;
      }
      return true;
    });
    if (!keyed_by_tensor && !(holds_tensor && !sizes)) return;
    add("cache-unbounded", cache,
        keyed_by_tensor
            ? "a cache without bound, keyed by tensors, keeps every tensor that it is called with: "
              "leave the cache out, or key it by sizes"
            : "a cache without bound keeps every tensor that it has returned: give it a maxsize",
        Cost::kLeak);
  }

  // ------------------------------------------------------------ held intermediates

  // FAQ: for ...: kept = f(x); sum += g(kept)   then   h(sum), while kept is still there.
  void held(NodeId function) {
    if (text(tree_[function].name) == "forward" ||
        tree_.source.find("torch") == std::string::npos) {
      return;
    }
    const NodeId body = tree_[function].a;
    if (body == 0 || tree_[body].kind != NodeKind::kBlock) return;
    blocks(body, function);
  }

  void blocks(NodeId block, NodeId function) {
    const auto statements = tree_.items(block);
    for (std::size_t i = 0; i < statements.size(); ++i) {
      const Node& node = tree_[statements[i]];
      if (node.kind == NodeKind::kFor && node.c != 0 && tree_[node.c].kind == NodeKind::kBlock) {
        held_after(statements[i], statements.subspan(i + 1), function);
      }
      if (node.kind == NodeKind::kWith && node.a != 0 && tree_[node.a].kind == NodeKind::kBlock) {
        blocks(node.a, function);
      }
    }
  }

  bool mentions(NodeId in, Name name) const {
    bool found = false;
    walk(in, [&](NodeId at) {
      if (tree_[at].kind == NodeKind::kName && tree_[at].name == name) found = true;
      return !found;
    });
    return found;
  }

  // A call of something handed in or of an attribute: of a model, as far as names do not say no.
  bool heavy_call(NodeId id, NodeId function) const {
    if (id == 0 || tree_[id].kind != NodeKind::kCall || tree_[id].item_count == 0) return false;
    const NodeId callee = tree_[id].a;
    const std::string_view last = last_word(callee);
    if (last.empty()) return false;
    const Name name = names_.intern(last);
    if (words_.like_metric(name) || words_.like_loss(name) || words_.like_loader(name))
      return false;
    if (words_.like_module(name)) return true;
    if (tree_[callee].kind != NodeKind::kName) return false;
    if (function == 0) return false;
    for (const NodeId parameter : tree_.items(function)) {
      if (tree_[parameter].name == name) return true;
    }
    return false;
  }

  void held_after(NodeId loop, std::span<const NodeId> after, NodeId function) {
    bool backward = false;
    walk(tree_[loop].c, [&](NodeId at) {
      if (tree_[at].kind == NodeKind::kCall && last_word(tree_[at].a) == "backward")
        backward = true;
      return !backward;
    });
    if (backward) return;
    std::unordered_set<Name> collected;
    const auto collects = [&](NodeId statement) -> Name {
      const Node& node = tree_[statement];
      if (node.a == 0 || tree_[node.a].kind != NodeKind::kName) return 0;
      const Name to = tree_[node.a].name;
      const bool sum = node.kind == NodeKind::kAugAssign ||
                       (node.kind == NodeKind::kAssign && node.b != 0 && mentions(node.b, to));
      return sum ? to : 0;
    };
    for (const NodeId statement : tree_.items(tree_[loop].c)) {
      if (const Name to = collects(statement); to != 0) collected.insert(to);
    }
    if (collected.empty()) return;
    for (const NodeId statement : tree_.items(tree_[loop].c)) {
      const Node& node = tree_[statement];
      if (node.kind != NodeKind::kAssign || tree_[node.a].kind != NodeKind::kName) continue;
      const Name kept = tree_[node.a].name;
      if (!heavy_call(node.b, function) || collected.count(kept) != 0) continue;
      bool passed_on = false, deleted = false;
      for (const NodeId other : tree_.items(tree_[loop].c)) {
        const Node& next = tree_[other];
        if (collects(other) != 0 && tree_[next.b].kind != NodeKind::kName &&
            mentions(next.b, kept)) {
          passed_on = true;
        }
        if (next.kind == NodeKind::kDelete && mentions(other, kept)) deleted = true;
      }
      if (!passed_on || deleted) continue;
      bool used_after = false, peak_after = false;
      for (const NodeId later : after) {
        used_after = used_after || mentions(later, kept);
        walk(later, [&](NodeId at) {
          if (heavy_call(at, function)) {
            for (const NodeId item : tree_.items(at)) {
              for (const Name name : collected) peak_after = peak_after || mentions(item, name);
            }
          }
          return true;
        });
      }
      if (used_after || !peak_after) continue;
      add("tensor-held", statement,
          concat(
              "\"", text(kept),
              "\" outlives the loop and is held while the work after it runs, which does not use "
              "it: del ",
              text(kept), " at the end of the loop body"),
          Cost::kPeak);
    }
  }

  const SyntaxTree& tree_;
  Names& names_;
  Vocabulary& words_;
  bool has_fairscale_;
  std::vector<RawFinding> out_;
};

}  // namespace

std::vector<RawFinding> judge_source(const SyntaxTree& tree, Names& names, Vocabulary& words,
                                     bool has_fairscale) {
  return SourceJudge(tree, names, words, has_fairscale).run();
}

}  // namespace lowtide::lint
