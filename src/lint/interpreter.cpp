// Statements, names and roots; expressions and calls are in files of their own.
//
// Tested by tests/lint/interpreter_test.cpp and the programs in tests/lint/programs.

#include "src/lint/interpreter.h"

#include <algorithm>

#include "src/base/text.h"

namespace lowtide::lint {

Interpreter::Interpreter(const SyntaxTree& tree, Names& names, Vocabulary& vocabulary)
    : tree_(tree), names_(names), words_(vocabulary), heap_(graph_) {
  const auto word = [&](std::string_view text) { return names_.intern(text); };
  n_ = {.element = word("$element"),
        .mode = word("$mode"),
        .frozen = word("$frozen"),
        .modules = word("$modules"),
        .self = word("self"),
        .forward = word("forward"),
        .init = word("__init__"),
        .call = word("__call__"),
        .enter = word("__enter__"),
        .exit = word("__exit__"),
        .requires_grad = word("requires_grad"),
        .grad = word("grad"),
        .data = word("data"),
        .backward = word("backward"),
        .step = word("step"),
        .retain_graph = word("retain_graph"),
        .create_graph = word("create_graph"),
        .maxlen = word("maxlen"),
        .wildcard = word("*")};
  std::unordered_set<NodeId> callees;
  for (const Node& node : tree_.nodes) {
    if (node.kind == NodeKind::kCall) callees.insert(node.a);
  }
  for (NodeId id = 1; id < tree_.nodes.size(); ++id) {
    if (tree_[id].kind == NodeKind::kAttribute && callees.count(id) == 0) {
      handed_over_.insert(tree_[id].name);
    }
  }
  for (const Node& node : tree_.nodes) {
    if (node.kind != NodeKind::kCall || node.a == 0) continue;
    const Node& callee = tree_[node.a];
    called_names_.insert(callee.name);
    if (callee.kind != NodeKind::kAttribute) continue;
    const std::string& method = names_.text(callee.name);
    if (method == "parameters" || method == "train" || method == "eval" ||
        method == "named_parameters") {
      module_names_.insert(tree_[callee.a].name);
    }
  }
  module_names_.erase(0);
  module_names_.erase(n_.self);
  is_test_ = tree_.source.find("import pytest") != std::string::npos;
  for (const char* statement : {"\nassert ", "\n    assert "}) {
    asserts_ = asserts_ || tree_.source.find(statement) != std::string::npos;
  }
  for (const Node& node : tree_.nodes) {
    if (node.kind != NodeKind::kYield) continue;
    NodeId innermost = 0;
    for (NodeId id = 1; id < tree_.nodes.size(); ++id) {
      const Node& function = tree_[id];
      if (function.kind != NodeKind::kFunction && function.kind != NodeKind::kLambda) continue;
      if (function.begin > node.begin || function.end < node.end) continue;
      if (innermost == 0 || function.begin > tree_[innermost].begin) innermost = id;
    }
    generators_.insert(innermost);
  }
}

void Interpreter::run() {
  module_scope_ = make(ObjectKind::kScope, tree_.root);
  Frame frame;
  frame.scope = module_scope_;
  frame_ = &frame;
  block(tree_.root);
  module_grad_ = grad_;
  // First what nobody calls, for it calls the rest; then what is left.
  const auto run_functions = [&](bool called) {
    for (std::size_t i = 0; i < functions_.size(); ++i) {
      const auto [node, function] = functions_[i];
      if (entered_.count(node) || method_owners_.count(node)) continue;
      if (!called && called_names_.count(tree_[node].name)) continue;
      run_function_root(function);
    }
  };
  run_functions(false);
  for (std::size_t i = 0; i < classes_.size(); ++i) run_class_root(classes_[i]);
  run_functions(true);
  frame_ = nullptr;
  graph_.index_uses();
}

void Interpreter::run_function_root(ObjectId function) {
  steps_ = 0;
  grad_ = module_grad_;
  const NodeId node = heap_[function].node;
  Arguments given;
  for (const NodeId parameter : tree_.items(node)) {
    const Node& p = tree_[parameter];
    if (p.flag == 0) given.positional.push_back(parameter_default(parameter, *frame_));
  }
  LoopRun run;
  run.implicit = true;
  run_loop(node, run, [&] {
    Arguments again = given;
    grad_ = module_grad_;
    next_is_root_ = true;
    mark_escaped(call_function(function, again, node));
    return Flow::kNormal;
  });
}

void Interpreter::run_class_root(ObjectId cls) {
  std::vector<ObjectId> methods;
  const auto pick = [&](bool called) {
    for (const Slot& slot : heap_[cls].slots) {
      const ObjectId function = slot.value.object;
      if (function == 0 || heap_[function].kind != ObjectKind::kFunction) continue;
      const NodeId node = heap_[function].node;
      if (tree_[node].kind != NodeKind::kFunction || tree_[node].name == n_.init) continue;
      if (entered_.count(node)) continue;
      // A method that is handed over is a callback: it runs after what hands it over.
      const Name name = tree_[node].name;
      if ((called_names_.count(name) != 0 || handed_over_.count(name) != 0) != called) continue;
      methods.push_back(function);
    }
  };
  pick(false);
  pick(true);
  steps_ = 0;
  grad_ = module_grad_;
  Arguments nothing;
  nothing.spread = true;
  const Value* init = find_in_class(cls, n_.init);
  const bool initialised =
      init != nullptr && init->object != 0 && entered_.count(heap_[init->object].node) != 0;
  if (methods.empty() && initialised) return;
  const Value self = instantiate(cls, nothing, heap_[cls].node);
  if (methods.empty()) return;
  const bool module = class_is_module(cls);
  const bool lightning = class_derives(cls, "Lightning");
  const bool trainer = class_derives(cls, "Trainer");
  const bool function = class_derives(cls, "Function") || class_derives(cls, "Dataset");
  if (function) return;
  const auto arguments_for = [&](ObjectId method) {
    Arguments arguments;
    bool first = !heap_[method].is_static;
    for (const NodeId parameter : tree_.items(heap_[method].node)) {
      if (first) {
        first = false;
        continue;
      }
      if (tree_[parameter].flag == 0) {
        arguments.positional.push_back(parameter_default(parameter, *frame_));
      }
    }
    return arguments;
  };
  LoopRun run;
  run.implicit = true;
  std::unordered_set<NodeId> reached;
  run_loop(heap_[cls].node, run, [&] {
    for (std::size_t i = 0; i < methods.size(); ++i) {
      const ObjectId method = methods[i];
      const NodeId node = heap_[method].node;
      // Reached from another method by now: seen with better arguments.
      if (graph_.where(where_).pass == 1 && entered_.count(node)) reached.insert(node);
      if (reached.count(node)) continue;
      grad_ = module_grad_;
      const std::string& name = names_.text(tree_[node].name);
      const bool evaluation = words_.like_evaluation(tree_[node].name);
      if (lightning && evaluation) grad_ = GradMode::kOff;
      Arguments again = arguments_for(method);
      Value result;
      next_is_root_ = true;
      root_method_ = node;
      if (name.find("epoch") != std::string::npos) {
        // Many steps are between two of these: what it resets is there in most of them.
        branches({[&] {
                    const ObjectId bound_method = make(ObjectKind::kFunction, node);
                    const Object copy = heap_[method];
                    heap_[bound_method] = copy;
                    heap_[bound_method].self = copy.is_static ? 0 : self.object;
                    result = call_function(bound_method, again, node);
                    return Flow::kNormal;
                  },
                  [] { return Flow::kNormal; }});
      } else if (module && name == "forward") {
        ++module_depth_;  // it is no call that stands anywhere
        result = call_module(self, again, node, 0);
        --module_depth_;
      } else {
        const ObjectId bound_method = make(ObjectKind::kFunction, node);
        const Object copy = heap_[method];
        heap_[bound_method] = copy;
        heap_[bound_method].self = copy.is_static ? 0 : self.object;
        result = call_function(bound_method, again, node);
      }
      mark_escaped(result);
      const bool step = (lightning && name == "training_step") ||
                        (trainer && (name == "compute_loss" || name == "training_step"));
      if (step || (module && name == "forward")) {
        // Whoever calls these goes on to backward.
        Arguments plain;
        if (!step) mark_escaped(result);
        backward(result, plain, node, /*supposed=*/!step);
      }
    }
    return Flow::kNormal;
  });
  root_method_ = 0;
  grad_ = module_grad_;
}

// ---------------------------------------------------------------- statements

Interpreter::Flow Interpreter::block(NodeId id) {
  if (id == 0) return Flow::kNormal;
  if (tree_[id].kind != NodeKind::kBlock) return statement(id);
  const auto steps = [&] {
    if (where_ == 0) return 0;
    const LoopRun& loop = graph_.loop(graph_.where(where_).loop);
    return loop.implicit || loop.function != frame_->node ? 0 : loop.steps;
  };
  const int before = steps();
  for (const NodeId item : tree_.items(id)) {
    const NodeKind kind = tree_[item].kind;
    // The loop ends with its step: there is no next one to be added to.
    if ((kind == NodeKind::kReturn || kind == NodeKind::kBreak) && steps() > before) note_zeroed();
    if (const Flow flow = statement(item); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::statement(NodeId id) {
  ++steps_;
  frame_->statement = id;
  const Node& node = tree_[id];
  switch (node.kind) {
    case NodeKind::kExprStatement:
      evaluate(node.a);
      break;
    case NodeKind::kAssign: {
      if (node.b == 0) {
        if (tree_[node.a].kind == NodeKind::kName &&
            heap_.find(frame_->scope, tree_[node.a].name) == nullptr) {
          heap_.write(frame_->scope, tree_[node.a].name, opaque(id, tree_[node.a].name));
        }
        break;
      }
      // a = b = value
      std::vector<NodeId> targets{node.a};
      NodeId value = node.b;
      while (tree_[value].kind == NodeKind::kAssign && tree_[value].b != 0) {
        targets.push_back(tree_[value].a);
        value = tree_[value].b;
      }
      const Value result = evaluate(value);
      for (const NodeId target : targets) assign(target, result, id);
      break;
    }
    case NodeKind::kAugAssign:
      augmented(id);
      break;
    case NodeKind::kReturn:
      return_statement(id);
      return Flow::kStopped;
    case NodeKind::kRaise:
      for (const NodeId item : tree_.items(id)) evaluate(item);
      return Flow::kStopped;
    case NodeKind::kBreak:
      return Flow::kStopped;
    case NodeKind::kContinue:
      return Flow::kContinued;
    case NodeKind::kDelete:
      delete_statement(id);
      break;
    case NodeKind::kGlobal:
      for (const NodeId item : tree_.items(id)) frame_->outer_names.push_back(tree_[item].name);
      break;
    case NodeKind::kIf:
      return if_statement(id);
    case NodeKind::kWhile:
      return while_statement(id);
    case NodeKind::kFor:
      return for_statement(id);
    case NodeKind::kWith:
      return with_statement(id, 0);
    case NodeKind::kTry:
      return try_statement(id);
    case NodeKind::kMatch:
      return match_statement(id);
    case NodeKind::kFunction:
      define_function(id);
      break;
    case NodeKind::kClass:
      define_class(id);
      break;
    case NodeKind::kImport:
      imports(id);
      break;
    case NodeKind::kImportFrom:
      import_from(id);
      break;
    case NodeKind::kAssert:
    case NodeKind::kOther:
      for (const NodeId item : tree_.items(id)) evaluate(item);
      break;
    case NodeKind::kBlock:
      return block(id);
    default:
      break;
  }
  return Flow::kNormal;
}

void Interpreter::imports(NodeId id) {
  for (const NodeId item : tree_.items(id)) {
    const Node& imported = tree_[item];
    const std::string& path = names_.text(imported.name);
    if (imported.a != 0) {
      heap_.write(frame_->scope, tree_[imported.a].name, external(path));
    } else {
      const std::string top = path.substr(0, path.find('.'));
      heap_.write(frame_->scope, names_.intern(top), external(top));
    }
  }
}

void Interpreter::import_from(NodeId id) {
  const std::string module = names_.text(tree_[id].name);
  for (const NodeId item : tree_.items(id)) {
    const Node& imported = tree_[item];
    const std::string& name = names_.text(imported.name);
    const Name as = imported.a != 0 ? tree_[imported.a].name : imported.name;
    heap_.write(frame_->scope, as, external(module + "." + name));
  }
}

void Interpreter::define_function(NodeId id) {
  const ObjectId function = make(ObjectKind::kFunction, id);
  ObjectId scope = frame_->scope;
  if (heap_[scope].kind == ObjectKind::kClass) {
    method_owners_[id] = scope;
    scope = heap_[scope].parent;
  }
  heap_[function].parent = scope;
  Value value = object_value(function);
  value.hint = tree_[id].name;
  value = decorated(id, value);
  if (std::none_of(functions_.begin(), functions_.end(),
                   [&](const Defined& known) { return known.node == id; })) {
    functions_.push_back({id, value.object});
  }
  heap_.write(frame_->scope, tree_[id].name, value);
}

Value Interpreter::decorated(NodeId id, Value function) {
  const auto decorators = tree_.more(id);
  for (auto decorator = decorators.rbegin(); decorator != decorators.rend(); ++decorator) {
    const Value by = evaluate(*decorator);
    Object& object = heap_[function.object];
    std::string path;
    if (by.is(kIsExternal)) path = names_.text(by.text);
    if (by.object != 0 && heap_[by.object].kind == ObjectKind::kLibrary) path = path_of(by.object);
    const auto ends = [&](std::string_view end) {
      return path.size() >= end.size() &&
             path.compare(path.size() - end.size(), end.size(), end) == 0;
    };
    if (const auto mode = grad_context(by); mode && *mode == GradMode::kOff) {
      object.no_grad = true;
    } else if (tree_.text(*decorator).find("no_grad") != std::string_view::npos ||
               tree_.text(*decorator).find("inference_mode") != std::string_view::npos) {
      // By its name it does, whatever package it comes from.
      object.no_grad = true;
    } else if (path == "builtins.property" || ends("cached_property")) {
      object.is_property = true;
    } else if (path == "builtins.staticmethod") {
      object.is_static = true;
    } else if (path == "builtins.classmethod") {
      object.is_class_method = true;
    } else if (ends("contextmanager")) {
      object.context_manager = true;
    } else if (by.object != 0 && heap_[by.object].kind == ObjectKind::kFunction) {
      Arguments given;
      given.positional.push_back(function);
      const Value result = call_value(by, given, id);
      if (result.object != 0 && heap_[result.object].kind == ObjectKind::kFunction) {
        function.object = result.object;
      }
    }
  }
  return function;
}

void Interpreter::define_class(NodeId id) {
  const ObjectId cls = make(ObjectKind::kClass, id);
  heap_[cls].parent =
      heap_[frame_->scope].kind == ObjectKind::kClass ? heap_[frame_->scope].parent : frame_->scope;
  for (const NodeId base : tree_.items(id)) {
    if (tree_[base].kind == NodeKind::kKeyword) continue;
    const Value value = evaluate(base);
    heap_[cls].fields.push_back(value);
  }
  Value value = object_value(cls);
  value.hint = tree_[id].name;
  heap_.write(frame_->scope, tree_[id].name, value);
  if (std::none_of(classes_.begin(), classes_.end(),
                   [&](ObjectId known) { return heap_[known].node == id; })) {
    classes_.push_back(cls);
  }
  const ObjectId scope = frame_->scope;
  frame_->scope = cls;
  block(tree_[id].a);
  frame_->scope = scope;
}

namespace {

// "(int, float)", "dict", "numbers.Number": types that no tensor is of.
bool names_plain_types(std::string_view type) {
  static const auto* const plain = new std::unordered_set<std::string_view>{
      "int", "float",       "str",   "bool",  "bytes",  "complex", "number",  "numbers",
      "np",  "list",        "tuple", "numpy", "dict",   "set",     "ndarray", "mapping",
      "abc", "collections", "none",  "type",  "string", "floating"};
  const std::vector<std::string> words = words_of(type);
  return !words.empty() && std::all_of(words.begin(), words.end(), [](const std::string& word) {
    return plain->count(word) != 0;
  });
}

}  // namespace

std::optional<bool> Interpreter::truth(NodeId id) {
  const Node& node = tree_[id];
  switch (node.kind) {
    case NodeKind::kTrue:
      return true;
    case NodeKind::kFalse:
    case NodeKind::kNoneValue:
      return false;
    case NodeKind::kUnary:
      if (names_.text(node.name) == "not") {
        if (const auto inner = truth(node.a)) return !*inner;
      }
      return std::nullopt;
    case NodeKind::kBoolean: {
      const auto a = truth(node.a);
      const auto b = truth(node.b);
      if (names_.text(node.name) == "and") {
        if ((a && !*a) || (b && !*b)) return false;
        if (a && b) return true;
      } else {
        if ((a && *a) || (b && *b)) return true;
        if (a && b) return false;
      }
      return std::nullopt;
    }
    case NodeKind::kCompare: {
      const auto operands = tree_.items(id);
      if (operands.size() != 2) return std::nullopt;
      const std::string& op = names_.text(node.name);
      if ((op == "is" || op == "is not") && tree_[operands[1]].kind == NodeKind::kNoneValue) {
        const NodeKind kind = tree_[operands[0]].kind;
        if (kind != NodeKind::kName && kind != NodeKind::kAttribute) return std::nullopt;
        const Value value = evaluate(operands[0]);
        if (value.only(kIsNone)) return op == "is";
        if (!value.is(kIsNone) && !value.is(kIsUnknown)) return op != "is";
      }
      return std::nullopt;
    }
    case NodeKind::kCall: {
      const auto given = tree_.items(id);
      const Node& callee = tree_[node.a];
      const std::string& name = names_.text(callee.name);
      if (name == "is_tensor" || (name == "isinstance" && given.size() == 2)) {
        const Value value = evaluate(given[0]);
        const bool container =
            value.object != 0 && (heap_[value.object].kind == ObjectKind::kTuple ||
                                  heap_[value.object].kind == ObjectKind::kList ||
                                  heap_[value.object].kind == ObjectKind::kDict);
        const std::string_view type = name == "is_tensor" ? "Tensor" : tree_.text(given[1]);
        const bool asks_tensor = type.find("Tensor") != std::string_view::npos;
        const bool asks_container = type.find("tuple") != std::string_view::npos ||
                                    type.find("list") != std::string_view::npos ||
                                    type.find("dict") != std::string_view::npos ||
                                    type.find("Sequence") != std::string_view::npos;
        if (asks_tensor && value.only(kIsTensor)) return true;
        if (asks_tensor && !asks_container && container && value.only(kIsObject)) return false;
        if (!asks_tensor && value.only(kIsTensor) && names_plain_types(type)) return false;
      }
      if (name == "hasattr" && given.size() == 2 && tree_[given[1]].kind == NodeKind::kString) {
        const std::string& asked = names_.text(tree_[given[1]].name);
        const MethodRole role = words_.method(tree_[given[1]].name);
        const bool of_tensors = role == MethodRole::kDetach || asked == "item" ||
                                asked == "tolist" || asked == "numpy" || asked == "cpu" ||
                                asked == "grad_fn" || asked == "requires_grad" ||
                                asked == "shape" || asked == "mean" || asked == "device";
        if (of_tensors && evaluate(given[0]).only(kIsTensor)) return true;
      }
      return std::nullopt;
    }
    case NodeKind::kName: {
      const Value value = evaluate(id);
      if (value.only(kIsNone)) return false;
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

void Interpreter::refine(NodeId id, bool holds) {
  const Node& node = tree_[id];
  if (node.kind == NodeKind::kUnary && names_.text(node.name) == "not")
    return refine(node.a, !holds);
  if (node.kind == NodeKind::kBoolean) {
    if ((names_.text(node.name) == "and") == holds) {
      refine(node.a, holds);
      refine(node.b, holds);
    }
    return;
  }
  NodeId subject = 0;
  bool is_none = false;
  if (node.kind == NodeKind::kCompare && tree_.items(id).size() == 2 &&
      tree_[tree_.items(id)[1]].kind == NodeKind::kNoneValue) {
    const std::string& op = names_.text(node.name);
    if (op == "is" || op == "==") {
      is_none = holds;
    } else if (op == "is not" || op == "!=") {
      is_none = !holds;
    } else {
      return;
    }
    subject = tree_.items(id)[0];
  } else if (node.kind == NodeKind::kName || node.kind == NodeKind::kAttribute) {
    subject = id;
    // A value that counts as false is not None always, but carries no history worth following.
    is_none = !holds;
    if (is_none) return;
  } else {
    return;
  }
  const NodeKind kind = tree_[subject].kind;
  if (kind != NodeKind::kName && kind != NodeKind::kAttribute) return;
  Value value = evaluate(subject);
  if (is_none) {
    if (!value.is(kIsNone) && !value.is(kIsUnknown) && value.history == 0) return;
    value = none();
  } else {
    if (!value.is(kIsNone) || value.only(kIsNone)) return;
    value.kinds &= static_cast<std::uint16_t>(~kIsNone);
  }
  bind(subject, value);
}

Interpreter::Flow Interpreter::branches(const std::vector<std::function<Flow()>>& all) {
  struct Left {
    Heap::Changes changes;
    Heap::Runs runs;
  };
  const auto runs = [&] { return static_cast<int>(graph_.backward_runs().size()); };
  std::vector<Left> survivors;
  bool continued = false;
  ++branch_depth_;
  const GradMode grad = grad_;
  GradMode after = grad;
  for (const auto& branch : all) {
    heap_.checkpoint();
    const int begin = runs();
    grad_ = grad;
    const Flow flow = branch();
    Heap::Changes changes = heap_.take_back();
    if (flow == Flow::kNormal) {
      after = survivors.empty() || after == grad_ ? grad_ : GradMode::kEither;
      survivors.push_back({std::move(changes), {begin, runs()}});
    } else {
      if (left_early_ != nullptr) left_early_->push_back(changes);
      frame_->exits.push_back(std::move(changes));
      if (flow == Flow::kContinued) continued = true;
    }
  }
  --branch_depth_;
  if (survivors.empty()) return continued ? Flow::kContinued : Flow::kStopped;
  grad_ = after;
  Left sum = std::move(survivors[0]);
  for (std::size_t i = 1; i < survivors.size(); ++i) {
    sum.changes = heap_.merged(sum.changes, survivors[i].changes, sum.runs, survivors[i].runs);
    sum.runs.end = survivors[i].runs.end;
  }
  heap_.redo(sum.changes);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::if_statement(NodeId id) {
  const Node& node = tree_[id];
  evaluate(node.a);
  const std::optional<bool> known = truth(node.a);
  if (known) {
    refine(node.a, *known);
    return block(*known ? node.b : node.c);
  }
  return branches({[&] {
                     refine(node.a, true);
                     return block(node.b);
                   },
                   [&] {
                     refine(node.a, false);
                     return block(node.c);
                   }});
}

Interpreter::Flow Interpreter::run_loop(NodeId id, LoopRun run, const std::function<Flow()>& body) {
  run.node = id;
  run.function = frame_->node;
  run.branch_depth = branch_depth_;
  const LoopId loop = graph_.begin_loop(run);
  const WhereId outer = where_;
  std::vector<Heap::Changes>* const left_before = left_early_;
  // Two iterations show what one finds of the other. A training step gets a third: what is None at
  // first, and set in the first iteration, is averaged in the second and carried into the third.
  const auto passes = [&] { return spent() ? 1 : (graph_.loop(loop).own_backwards > 0 ? 3 : 2); };
  for (int pass = 1; pass <= passes(); ++pass) {
    std::vector<Heap::Changes> left;
    left_early_ = &left;
    where_ = graph_.enter(outer, loop, pass);
    heap_.now = where_;
    const Flow flow = body();
    for (const Heap::Changes& changes : left) {
      for (const Heap::Change& change : changes) {
        if (change.value) heap_.widen(change.object, change.key, *change.value);
      }
    }
    if (flow == Flow::kStopped && left.empty()) break;
  }
  left_early_ = left_before;
  where_ = outer;
  heap_.now = outer;
  return Flow::kNormal;
}

Value Interpreter::callee_of(NodeId call) {
  const NodeId callee = tree_[call].a;
  if (tree_[callee].kind == NodeKind::kName) return look_up(tree_[callee].name);
  if (tree_[callee].kind == NodeKind::kAttribute) {
    return attribute(evaluate(tree_[callee].a), tree_[callee].name, callee);
  }
  return {};
}

std::optional<Interpreter::Generator> Interpreter::generator_in(NodeId iterable) {
  if (generators_.empty() || tree_[iterable].kind != NodeKind::kCall) return std::nullopt;
  const Value callee = callee_of(iterable);
  if (callee.is(kIsExternal)) {
    const std::string& path = names_.text(callee.text);
    const bool counts = path == "builtins.enumerate";
    if ((!counts && path.find("tqdm") == std::string::npos) || tree_.items(iterable).empty()) {
      return std::nullopt;
    }
    auto inner = generator_in(tree_.items(iterable)[0]);
    if (inner && counts) inner->counted = true;
    return inner;
  }
  if (callee.object == 0 || heap_[callee.object].kind != ObjectKind::kFunction ||
      heap_[callee.object].context_manager || generators_.count(heap_[callee.object].node) == 0) {
    return std::nullopt;
  }
  return Generator{callee, iterable, false};
}

// The body runs where the generator yields: what it does is done in the generator's loops.
Interpreter::Flow Interpreter::for_each_yielded(NodeId id, const Generator& generator) {
  Frame* const mine = frame_;
  const GradMode grad = grad_;
  int times = 0;
  const std::function<void()> body = [&] {
    ++times;
    Frame* const theirs = frame_;
    std::vector<Heap::Changes>* const left_before = left_early_;
    std::vector<Heap::Changes> left;
    const GradMode grad_there = grad_;
    frame_ = mine;
    left_early_ = &left;
    grad_ = grad;
    frame_->statement = id;
    Value value = theirs->latest;
    if (generator.counted) value = tuple_of({number(), value}, id);
    assign(tree_[id].a, value, id);
    block(tree_[id].c);
    for (const Heap::Changes& changes : left) {
      for (const Heap::Change& change : changes) {
        if (change.value) heap_.widen(change.object, change.key, *change.value);
      }
    }
    grad_ = grad_there;
    left_early_ = left_before;
    frame_ = theirs;
  };
  run_loop(id, LoopRun{}, [&] {
    Arguments given = arguments(generator.call);
    const int before = times;
    const Value yielded = call_value(generator.callee, given, generator.call, &body);
    if (times == before) {  // too deep to be entered
      assign(tree_[id].a, element_of(yielded), id);
      return block(tree_[id].c);
    }
    // Its own loop has shown what one iteration finds of the other.
    return times - before > 1 ? Flow::kStopped : Flow::kNormal;
  });
  for (const NodeId item : tree_.items(id)) block(item);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::for_statement(NodeId id) {
  const Node& node = tree_[id];
  if (const auto generator = generator_in(node.b)) return for_each_yielded(id, *generator);
  const Value iterable = evaluate(node.b);
  LoopRun run;
  run.over_data = is_loader(iterable);
  run.evaluates = run.over_data && words_.like_evaluation(iterable.hint);
  if (iterable.object != 0) {
    const Object& object = heap_[iterable.object];
    run.over_parameters = object.is_module || is_module(iterable);
    if (const Value* element = heap_.find(iterable.object, n_.element)) {
      const auto part_of_model = [&](const Value& value) {
        return value.has(kLeaf) || value.has(kStateDict) || is_module(value);
      };
      if (part_of_model(*element)) run.over_parameters = true;
      if (element->object != 0 && heap_[element->object].kind == ObjectKind::kTuple) {
        for (const Value& field : heap_[element->object].fields) {
          if (part_of_model(field)) run.over_parameters = true;
        }
      }
    }
    if (const Value* length = heap_.find(iterable.object, names_.intern("$length"));
        length != nullptr && length->has(kKnownNumber)) {
      run.trips = length->number;
    }
  }
  run_loop(id, run, [&] {
    frame_->statement = id;
    assign(node.a, iterated(iterable), id);
    return block(node.c);
  });
  for (const NodeId item : tree_.items(id)) block(item);
  return Flow::kNormal;
}

// What a loop over it gives: of a dict its keys.
Value Interpreter::iterated(const Value& iterable) {
  const bool dict = iterable.history == 0 && iterable.object != 0 && iterable.other == 0 &&
                    heap_[iterable.object].kind == ObjectKind::kDict;
  return dict ? key_of(iterable.object) : element_of(iterable);
}

Interpreter::Flow Interpreter::while_statement(NodeId id) {
  const Node& node = tree_[id];
  evaluate(node.a);
  run_loop(id, LoopRun{}, [&] {
    frame_->statement = id;
    evaluate(node.a);
    return block(node.b);
  });
  return block(node.c);
}

std::optional<GradMode> Interpreter::grad_context(const Value& value) {
  std::optional<GradMode> out;
  for (const ObjectId id : {value.object, value.other}) {
    if (id == 0 || heap_[id].kind != ObjectKind::kLibrary) continue;
    const std::string path = path_of(id);
    GradMode mode;
    if (path == "$off") {
      mode = GradMode::kOff;
    } else if (path == "$on") {
      mode = GradMode::kOn;
    } else if (path == "$either") {
      mode = GradMode::kEither;
    } else {
      continue;
    }
    out = !out || *out == mode ? mode : GradMode::kEither;
  }
  // One of several contexts: with grad mode off in some runs.
  if (out && value.other != 0) {
    const bool both = grad_context(object_value(value.object)).has_value() &&
                      grad_context(object_value(value.other)).has_value();
    if (!both) out = GradMode::kEither;
  }
  return out;
}

Interpreter::Flow Interpreter::with_statement(NodeId id, std::size_t index) {
  const auto items = tree_.items(id);
  if (index >= items.size()) return block(tree_[id].a);
  const Node& item = tree_[items[index]];
  const NodeId expression = item.kind == NodeKind::kAsPattern ? item.a : items[index];
  const NodeId target = item.kind == NodeKind::kAsPattern ? item.b : 0;

  // A generator of the file as a context manager: the body runs where it yields.
  if (tree_[expression].kind == NodeKind::kCall) {
    const Value callee = callee_of(expression);
    if (callee.object != 0 && heap_[callee.object].kind == ObjectKind::kFunction &&
        heap_[callee.object].context_manager) {
      Arguments given = arguments(expression);
      Frame* const mine = frame_;
      Flow flow = Flow::kNormal;
      bool ran = false;
      const std::function<void()> body = [&] {
        if (ran) return;
        ran = true;
        Frame* const theirs = frame_;
        frame_ = mine;
        if (target != 0) {
          assign(target, theirs->yielded ? *theirs->yielded : none(), id);
        }
        flow = with_statement(id, index + 1);
        frame_ = theirs;
      };
      const GradMode saved = grad_;
      call_value(callee, given, expression, &body);
      grad_ = saved;
      if (!ran) flow = with_statement(id, index + 1);
      return flow;
    }
  }

  const GradMode saved = grad_;
  const Value context = evaluate(expression);
  if (const auto mode = grad_context(context)) {
    if (*mode != GradMode::kEither || grad_ != GradMode::kOff) grad_ = *mode;
    const Flow flow = with_statement(id, index + 1);
    grad_ = saved;
    return flow;
  }
  // One of another file that is named for evaluation, or for no_grad, does what it is named for.
  if (context.object == 0 || heap_[context.object].kind != ObjectKind::kInstance) {
    const Name called = tree_[expression].kind == NodeKind::kCall ? tree_[tree_[expression].a].name
                                                                  : tree_[expression].name;
    const std::string& text = names_.text(called);
    if (words_.like_evaluation(called) || text.find("no_grad") != std::string::npos ||
        text.find("inference") != std::string::npos) {
      grad_ = GradMode::kOff;
      if (target != 0) assign(target, context, id);
      const Flow flow = with_statement(id, index + 1);
      grad_ = saved;
      return flow;
    }
  }
  Value entered = context;
  const Value* exit = nullptr;
  if (context.object != 0 && heap_[context.object].kind == ObjectKind::kInstance) {
    const ObjectId cls = heap_[context.object].parent;
    exit = find_in_class(cls, n_.exit);
    if (find_in_class(cls, n_.enter) != nullptr) {
      Arguments nothing;
      entered = call_method(context, n_.enter, nothing, expression);
    }
  }
  if (target != 0) assign(target, entered, id);
  const Flow flow = with_statement(id, index + 1);
  if (exit != nullptr) {
    Arguments nothing;
    nothing.spread = true;
    call_method(context, n_.exit, nothing, expression);
    grad_ = saved;
  }
  return flow;
}

Interpreter::Flow Interpreter::try_statement(NodeId id) {
  const Node& node = tree_[id];
  std::vector<std::function<Flow()>> all;
  Flow body = Flow::kNormal;
  all.emplace_back([&] {
    body = block(node.a);
    return body == Flow::kNormal ? block(node.b) : body;
  });
  for (const NodeId handler : tree_.items(id)) {
    all.emplace_back([&, handler] {
      if (tree_[handler].a != 0) evaluate(tree_[handler].a);
      if (tree_[handler].name != 0) {
        heap_.write(frame_->scope, tree_[handler].name, opaque(handler, tree_[handler].name));
      }
      return block(tree_[handler].b);
    });
  }
  // The body of a try nearly always runs: it is no branch.
  Flow flow;
  if (all.size() == 1) {
    flow = all[0]();
  } else {
    flow = all[0]();
    // What a handler leaves is joined to what the body left.
    const std::vector<std::function<Flow()>> handlers(all.begin() + 1, all.end());
    std::vector<std::function<Flow()>> choices = handlers;
    choices.insert(choices.begin(), [&] { return flow; });
    const Flow joined = branches(choices);
    flow = joined;
  }
  const Flow last = block(node.c);
  return last != Flow::kNormal ? last : flow;
}

Interpreter::Flow Interpreter::match_statement(NodeId id) {
  const Value subject = tree_[id].a != 0 ? evaluate(tree_[id].a) : none();
  std::vector<std::function<Flow()>> all;
  const std::function<void(NodeId)> capture = [&](NodeId pattern) {
    const Node& node = tree_[pattern];
    if (node.kind == NodeKind::kName && names_.text(node.name).find('.') == std::string::npos) {
      if (heap_.find(frame_->scope, node.name) == nullptr) {
        Value part = element_of(subject);
        if (part.history == 0) part.history = subject.history;
        heap_.write(frame_->scope, node.name, part);
      }
      return;
    }
    if (node.a != 0) capture(node.a);
    if (node.b != 0) capture(node.b);
    for (const NodeId item : tree_.items(pattern)) capture(item);
  };
  for (const NodeId one : tree_.items(id)) {
    all.emplace_back([&, one] {
      for (const NodeId pattern : tree_.items(one)) capture(pattern);
      if (tree_[one].a != 0) {
        for (const NodeId part : tree_.items(tree_[one].a)) evaluate(part);
        if (tree_[tree_[one].a].a != 0) evaluate(tree_[tree_[one].a].a);
      }
      return block(tree_[one].b);
    });
  }
  all.emplace_back([] { return Flow::kNormal; });
  return branches(all);
}

void Interpreter::return_statement(NodeId id) {
  const Value value = tree_[id].a != 0 ? evaluate(tree_[id].a) : none();
  frame_->returned = frame_->returned ? heap_.joined(*frame_->returned, value, where_) : value;
}

void Interpreter::delete_statement(NodeId id) {
  const NodeId target = tree_[id].a;
  if (target == 0) return;
  const std::vector<NodeId> targets =
      tree_[target].kind == NodeKind::kTuple
          ? std::vector<NodeId>(tree_.items(target).begin(), tree_.items(target).end())
          : std::vector<NodeId>{target};
  for (const NodeId one : targets) {
    const Node& node = tree_[one];
    if (node.kind == NodeKind::kName || node.kind == NodeKind::kAttribute) {
      bind(one, none());
    } else if (node.kind == NodeKind::kSubscript) {
      const Value whole = evaluate(node.a);
      if (whole.object == 0) continue;
      const auto indices = tree_.items(one);
      if (indices.size() == 1 && tree_[indices[0]].kind == NodeKind::kSlice) {
        clear_container(whole.object);
      } else {
        heap_[whole.object].bounded = true;
      }
    }
  }
}

void Interpreter::augmented(NodeId id) {
  const Node& node = tree_[id];
  const Value old = evaluate(node.a);
  const Value added = evaluate(node.b);
  if (old.has(kLeaf) && old.history != 0 && grad_ == GradMode::kOn && !added.only(kIsNumber)) {
    note_update(id);
    return;
  }
  if (old.object != 0 && old.history == 0) {
    const ObjectKind kind = heap_[old.object].kind;
    if (kind == ObjectKind::kList && names_.text(node.name) == "+") {
      store_into(old.object, element_of(added), id, false);
      return;
    }
  }
  const Value sum = binary(node.name, old, added, id);
  if (tree_[node.a].kind == NodeKind::kSubscript) {
    const Value whole = evaluate(tree_[node.a].a);
    // In place into a tensor, or an entry of a container: the sum above has been noted.
    if (whole.object != 0) {
      const auto indices = tree_.items(node.a);
      const NodeId key = indices.empty() ? 0 : indices[0];
      if (key != 0 && tree_[key].kind == NodeKind::kString) {
        heap_.write(whole.object, tree_[key].name, sum);
      } else if (const Value index = key != 0 ? evaluate(key) : Value{}; index.has(kKnownNumber)) {
        heap_.write(whole.object, index_key(index.number), sum);
      } else {
        heap_.widen(whole.object, n_.element, sum);
      }
      return;
    }
    assign(node.a, sum, id);
    return;
  }
  bind(node.a, sum);
  if (tree_[node.a].kind == NodeKind::kAttribute) mark_escaped(sum);
}

// ---------------------------------------------------------------- targets

void Interpreter::assign(NodeId target, const Value& value, NodeId site) {
  if (target == 0) return;
  const Node& node = tree_[target];
  switch (node.kind) {
    case NodeKind::kName: {
      Value named = without_unlikely_history(value, node.name);
      if (named.hint == 0 || named.is(kIsUnknown)) named.hint = node.name;
      if (named.object != 0 && heap_[named.object].kind == ObjectKind::kLibrary &&
          named.hint == 0) {
        named.hint = node.name;
      }
      bind(target, named);
      break;
    }
    case NodeKind::kAttribute:
      set_attribute(target, value, site);
      break;
    case NodeKind::kSubscript:
      store_item(target, value, site);
      break;
    case NodeKind::kTuple:
    case NodeKind::kList:
      destructure(target, value, site);
      break;
    case NodeKind::kStar:
      assign(node.a, list_of(value, site), site);
      break;
    default:
      break;
  }
}

// What unknown code returned as a model, an optimizer or a number for the log is no tensor to
// follow.
Value Interpreter::without_unlikely_history(Value value, Name name) {
  if (value.history == 0) return value;
  const GraphOp op = graph_[value.history].op;
  if (op != GraphOp::kCall && op != GraphOp::kForward) return value;
  const bool thing = words_.like_optimizer(name) || words_.like_loader(name) ||
                     (words_.like_module(name) && !words_.like_loss(name));
  const bool unknown_code = op == GraphOp::kCall;
  if ((unknown_code && thing) ||
      (words_.like_metric(name) && !graph_[value.history].inputs.empty() && value.object == 0 &&
       words_.like_loss(name))) {
    value.history = 0;
  }
  return value;
}

void Interpreter::bind(NodeId target, const Value& value) {
  const Node& node = tree_[target];
  ObjectId holder = 0;
  if (node.kind == NodeKind::kName) {
    holder = frame_->scope;
    const auto& outer = frame_->outer_names;
    if (std::find(outer.begin(), outer.end(), node.name) != outer.end()) {
      for (ObjectId scope = heap_[frame_->scope].parent; scope != 0; scope = heap_[scope].parent) {
        if (heap_.find(scope, node.name) != nullptr || heap_[scope].parent == 0) {
          holder = scope;
          break;
        }
      }
    }
  } else if (node.kind == NodeKind::kAttribute) {
    const Value whole = evaluate(node.a);
    holder = whole.object;
  }
  if (holder == 0) return;
  // A fresh container or nothing in place of a full one empties it.
  if (const Value* old = heap_.find(holder, node.name);
      old != nullptr && old->object != 0 && old->object != value.object && value.history == 0 &&
      (heap_[old->object].kind == ObjectKind::kList ||
       heap_[old->object].kind == ObjectKind::kDict)) {
    const ObjectId full = old->object;
    const bool empty = value.object == 0 || heap_.find(value.object, n_.element) == nullptr;
    if (empty) clear_container(full);
  }
  heap_.write(holder, node.name, value);
}

void Interpreter::destructure(NodeId target, const Value& value, NodeId site) {
  const auto parts = tree_.items(target);
  const bool exact = value.object != 0 && heap_[value.object].fields.size() == parts.size();
  const std::vector<Value> fields = exact ? heap_[value.object].fields : std::vector<Value>();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (exact) {
      assign(parts[i], fields[i], site);
    } else {
      Value part = element_of(value);
      if (part.history != 0 && graph_[part.history].op == GraphOp::kCall) {
        // Each part of what unknown code returned has history, or not, for itself.
        GraphNode node;
        node.op = GraphOp::kCall;
        node.inputs = {part.history};
        node.where = where_;
        node.origin = site;
        part.history = graph_.add(std::move(node));
      }
      if (tree_[parts[i]].kind == NodeKind::kName && words_.like_metric(tree_[parts[i]].name) &&
          !words_.like_loss(tree_[parts[i]].name) && part.history != 0 && part.object == 0) {
        part.history = 0;  // a count or score beside the loss
      }
      // Prefer a fresh unknown for each name of a batch, so that names can speak.
      if (part.is(kIsUnknown) && part.history == 0 && tree_[parts[i]].kind == NodeKind::kName) {
        part = opaque(site, tree_[parts[i]].name);
        if (value.has(kLoaderValue)) part.flags |= kLoaderValue;
      }
      assign(parts[i], part, site);
    }
  }
}

void Interpreter::set_attribute(NodeId target, const Value& value, NodeId site) {
  const Node& node = tree_[target];
  const Value whole = evaluate(node.a);
  if (node.name == n_.requires_grad) {
    const bool on = value.has(kKnownNumber) ? value.number != 0 : true;
    if (whole.has(kLeaf) && whole.history != 0) {
      const ObjectId owner = graph_[whole.history].module;
      if (owner != 0) {
        heap_.widen(owner, n_.frozen, on ? none() : constant(1));
        if (branch_depth_ == 0 || !on) heap_.write(owner, n_.frozen, on ? none() : constant(1));
      }
    } else if (on) {
      Value leaf = parameter_of(0, site);
      leaf.hint = whole.hint;
      const NodeKind kind = tree_[node.a].kind;
      if (kind == NodeKind::kName || kind == NodeKind::kAttribute) bind(node.a, leaf);
    }
    return;
  }
  const bool of_program =
      whole.history == 0 && whole.object != 0 && heap_[whole.object].kind == ObjectKind::kInstance;
  if (node.name == n_.grad && !of_program) {
    note_zeroed();
    return;
  }
  if (node.name == n_.data && !of_program) {
    return;
  }
  Value named = without_unlikely_history(value, node.name);
  if (named.hint == 0 || named.is(kIsUnknown)) named.hint = node.name;
  if (whole.object == 0) {
    mark_escaped(value);
    return;
  }
  if (branch_depth_ > 0) {
    for (const GraphId history : histories(named)) graph_[history].kept_on_condition = true;
  }
  bind(target, named);
  mark_escaped(value);
}

void Interpreter::store_item(NodeId target, const Value& value, NodeId site) {
  const Node& node = tree_[target];
  const Value whole = evaluate(node.a);
  const auto indices = tree_.items(target);
  Value key;
  for (const NodeId index : indices) key = evaluate(index);
  const NodeId first = indices.empty() ? 0 : indices[0];
  if (whole.history != 0 && whole.object == 0 && key.only(kIsString) && key.text != 0) {
    // A dict of results: this entry is known from here on, the others are as they came.
    Value results = object_value(make(ObjectKind::kDict, site));
    heap_.write(results.object, n_.element, whole);
    heap_.write(results.object, key.text, value);
    results.history = whole.history;
    results.hint = whole.hint;
    if (tree_[node.a].kind == NodeKind::kName || tree_[node.a].kind == NodeKind::kAttribute) {
      bind(node.a, results);
    }
    return;
  }
  if (whole.is(kIsTensor) && whole.object == 0) {
    // Written into a tensor, which takes the history over.
    if (value.history == 0) return;
    if (whole.has(kLeaf)) {
      if (grad_ == GradMode::kOn) note_update(site);
      return;
    }
    Value filled = tensor(GraphOp::kAlias, {whole, value}, site);
    if (filled.history != 0) {
      Stored stored{};
      stored.aliases = {filled.history};
      stored.site = site;
      stored.function = frame_->node;
      stored.root = root_method_;
      // A tensor lives where its first value was made; the slot's own iteration is unknown, so all
      // loops are asked whether an earlier iteration's history reaches into this one.
      if (whole.history != 0) {
        if (const LoopId loop = graph_.crossed(graph_[whole.history].where, where_)) {
          stored.loops.push_back(loop);
        }
      }
      if (!stored.loops.empty()) seen_.stored.push_back(std::move(stored));
    }
    if (tree_[node.a].kind == NodeKind::kName || tree_[node.a].kind == NodeKind::kAttribute) {
      filled.hint = whole.hint;
      bind(node.a, filled);
    }
    return;
  }
  ObjectId container = whole.object;
  if (container == 0) {
    mark_escaped(value);
    return;
  }
  const bool constant_key = first != 0 && (tree_[first].kind == NodeKind::kString ||
                                           tree_[first].kind == NodeKind::kNumber);
  if (first != 0 && tree_[first].kind == NodeKind::kSlice) {
    if (heap_.find(value.object, n_.element) == nullptr && value.history == 0) {
      clear_container(container);
      return;
    }
  }
  if (constant_key) {
    const Value kept = store_into(container, value, site, true);
    heap_.write(container, key.only(kIsString) ? key.text : index_key(key.number), kept);
    return;
  }
  if (key.has(kKeyOf) && key.number == container) {
    // for key in d: d[key] = ... replaces all that was there.
    const std::vector<Slot> slots = heap_[container].slots;
    for (const Slot& slot : slots) {
      if (slot.key == n_.element || names_.text(slot.key)[0] != '$') {
        heap_.write(container, slot.key, value);
      }
    }
    return;
  }
  const ObjectKind kind = heap_[container].kind;
  if (kind == ObjectKind::kDict || kind == ObjectKind::kOpaque) {
    CacheStore cache{};
    cache.site = site;
    cache.function = frame_->node;
    cache.container = node.a;
    cache.tensor_key = key.has(kTensorKey);
    cache.key = key.history;
    cache.value = value.history;
    cache.holds_tensor = value.is(kIsTensor);
    cache.from_module = value.has(kModuleOutput);
    if (!key.has(kFromSize) && frame_->node != 0) seen_.caches.push_back(cache);
  }
  // An empty container in place of an entry empties it.
  if (value.object != 0 && value.history == 0 && heap_[value.object].slots.empty() &&
      heap_[value.object].fields.empty() &&
      (heap_[value.object].kind == ObjectKind::kDict ||
       heap_[value.object].kind == ObjectKind::kList)) {
    if (const Value* element = heap_.find(container, n_.element); element && element->object != 0) {
      heap_[element->object].emptied = true;
    }
  }
  // Under each key of another dict, it is the same entries each time.
  store_into(container, value, site, key.has(kKeyOf) || (first != 0 && is_fixed(first)));
}

// An index made of attributes of `self` and of numbers: the same entry each time.
bool Interpreter::is_fixed(NodeId index) const {
  const Node& node = tree_[index];
  switch (node.kind) {
    case NodeKind::kNumber:
    case NodeKind::kString:
      return true;
    case NodeKind::kAttribute:
      return tree_[node.a].kind == NodeKind::kName && tree_[node.a].name == n_.self;
    case NodeKind::kBinary:
      return is_fixed(node.a) && is_fixed(node.b);
    case NodeKind::kUnary:
      return is_fixed(node.a);
    default:
      return false;
  }
}

// ---------------------------------------------------------------- objects

ObjectId Interpreter::make(ObjectKind kind, NodeId id, Name path) {
  Object object;
  object.kind = kind;
  object.node = id;
  object.path = path;
  object.birth = where_;
  return heap_.add(std::move(object));
}

Value Interpreter::object_value(ObjectId id) {
  Value value;
  value.kinds = kIsObject;
  value.object = id;
  return value;
}

Value Interpreter::opaque(NodeId id, Name hint, ObjectId parent) {
  Value value;
  value.kinds = kIsUnknown;
  value.hint = hint;
  value.object = make(ObjectKind::kOpaque, id);
  heap_[value.object].parent = parent;
  return value;
}

Value Interpreter::external(std::string_view path) {
  Value value;
  value.kinds = kIsExternal;
  value.text = names_.intern(path);
  const std::size_t dot = path.rfind('.');
  value.hint = names_.intern(dot == std::string_view::npos ? path : path.substr(dot + 1));
  return value;
}

Value Interpreter::list_of(const Value& element, NodeId id) {
  Value value = object_value(make(ObjectKind::kList, id));
  heap_.write(value.object, n_.element, element);
  return value;
}

Name Interpreter::index_key(std::int64_t index) { return names_.intern(concat("#", index)); }

Value Interpreter::key_of(ObjectId dict) {
  Value key;
  key.kinds = kIsString;
  key.flags = kKeyOf;
  key.number = dict;
  return key;
}

Value Interpreter::tuple_of(std::vector<Value> fields, NodeId id) {
  Value value = object_value(make(ObjectKind::kTuple, id));
  heap_[value.object].fields = std::move(fields);
  return value;
}

Value Interpreter::number() {
  Value value;
  value.kinds = kIsNumber;
  return value;
}

Value Interpreter::none() {
  Value value;
  value.kinds = kIsNone;
  return value;
}

Value Interpreter::constant(std::int64_t of) {
  Value value = number();
  value.flags = kKnownNumber;
  value.number = of;
  return value;
}

Value Interpreter::parameter_of(ObjectId module, NodeId id) {
  GraphNode node;
  node.op = GraphOp::kParameter;
  node.certain = true;
  node.module = module;
  node.origin = id;
  Value value;
  value.kinds = kIsTensor;
  value.flags = kLeaf;
  value.history = graph_.add(std::move(node));
  return value;
}

Value Interpreter::parameters_container(ObjectId module, NodeId id, bool named) {
  const Name key = names_.intern("$parameter");
  Value parameter;
  if (const Value* known = heap_.find(module, key)) {
    parameter = *known;
  } else {
    parameter = parameter_of(module, id);
    heap_.write(module, key, parameter);
  }
  heap_[module].is_module = true;
  if (!named) return list_of(parameter, id);
  Value name;
  name.kinds = kIsString;
  return list_of(tuple_of({name, parameter}, id), id);
}

const Value* Interpreter::find_in_class(ObjectId cls, Name name, int depth) {
  if (cls == 0 || depth > 8 || heap_[cls].kind != ObjectKind::kClass) return nullptr;
  if (const Value* found = heap_.find(cls, name)) return found;
  for (const Value& base : heap_[cls].fields) {
    if (const Value* found = find_in_class(base.object, name, depth + 1)) return found;
  }
  return nullptr;
}

bool Interpreter::class_derives(ObjectId cls, std::string_view word, int depth) {
  if (cls == 0 || depth > 8 || heap_[cls].kind != ObjectKind::kClass) return false;
  for (const Value& base : heap_[cls].fields) {
    if (base.is(kIsExternal) && names_.text(base.text).find(word) != std::string::npos) return true;
    if (base.object != 0 && class_derives(base.object, word, depth + 1)) return true;
  }
  return false;
}

bool Interpreter::class_is_module(ObjectId cls, int depth) {
  if (cls == 0 || depth > 8 || heap_[cls].kind != ObjectKind::kClass) return false;
  for (const Value& base : heap_[cls].fields) {
    if (base.is(kIsExternal)) {
      const std::string& path = names_.text(base.text);
      const std::size_t dot = path.rfind('.');
      const std::string last = dot == std::string::npos ? path : path.substr(dot + 1);
      if (last.find("Module") != std::string::npos ||
          last.find("PreTrainedModel") != std::string::npos || path.rfind("torch.nn.", 0) == 0) {
        return true;
      }
      if (last.size() > 3 && words_.like_module(names_.intern(last)) &&
          last.find("Trainer") == std::string::npos) {
        return true;
      }
    }
    if (base.object != 0 && class_is_module(base.object, depth + 1)) return true;
  }
  return false;
}

bool Interpreter::has_unknown_base(ObjectId cls, int depth) {
  if (cls == 0 || depth > 8) return false;
  for (const Value& base : heap_[cls].fields) {
    if (base.is(kIsExternal)) {
      const std::string& path = names_.text(base.text);
      if (path != "builtins.object" && path.rfind("torch.nn.", 0) != 0 &&
          path.rfind("abc.", 0) != 0 && path.rfind("typing.", 0) != 0) {
        return true;
      }
    } else if (base.object != 0 && heap_[base.object].kind == ObjectKind::kClass) {
      if (has_unknown_base(base.object, depth + 1)) return true;
    } else {
      return true;
    }
  }
  return false;
}

bool Interpreter::is_module(const Value& value) {
  if (value.history != 0) return false;
  if (value.object == 0) return false;
  Object& object = heap_[value.object];
  switch (object.kind) {
    case ObjectKind::kInstance:
      return class_is_module(object.parent) || object.is_module;
    case ObjectKind::kLibrary:
      return object.is_module;
    case ObjectKind::kOpaque:
      return object.is_module || module_names_.count(value.hint) != 0 ||
             (words_.like_module(value.hint) && !words_.like_optimizer(value.hint) &&
              !words_.like_loader(value.hint));
    default:
      return false;
  }
}

bool Interpreter::is_optimizer(const Value& value) {
  if (value.object == 0) return false;
  const Object& object = heap_[value.object];
  if (object.kind == ObjectKind::kLibrary) {
    return path_of(value.object).rfind("torch.optim.", 0) == 0 ||
           words_.like_optimizer(object.path);
  }
  return object.kind == ObjectKind::kOpaque && words_.like_optimizer(value.hint) &&
         !object.is_module;
}

bool Interpreter::is_loader(const Value& value) {
  if (value.has(kLoaderValue) && value.object != 0 &&
      heap_[value.object].kind == ObjectKind::kList) {
    return true;
  }
  if (value.object == 0) return false;
  const Object& object = heap_[value.object];
  if (object.kind == ObjectKind::kLibrary) {
    const std::string path = path_of(value.object);
    return path.find("DataLoader") != std::string::npos || path.find("Loader") != std::string::npos;
  }
  if (object.kind == ObjectKind::kOpaque) return words_.like_loader(value.hint);
  return false;
}

bool Interpreter::is_record(ObjectId id) {
  const Object& object = heap_[id];
  if (object.kind != ObjectKind::kInstance || class_is_module(object.parent)) return false;
  const NodeId body = tree_[heap_[object.parent].node].a;
  if (body == 0 || tree_[body].kind != NodeKind::kBlock) return false;
  const bool made_by_init = find_in_class(object.parent, n_.init) != nullptr;
  bool fields = false;
  for (const NodeId item : tree_.items(body)) {
    const Node& member = tree_[item];
    if (member.kind == NodeKind::kAssign && member.c != 0) fields = true;
    if (made_by_init && member.kind == NodeKind::kFunction &&
        names_.text(member.name).rfind("__", 0) != 0) {
      return false;
    }
  }
  return made_by_init || fields;
}

bool Interpreter::is_frozen(ObjectId module) {
  for (int depth = 0; module != 0 && depth < 6; ++depth) {
    const Value* frozen = heap_.find(module, n_.frozen);
    if (frozen != nullptr && frozen->has(kKnownNumber) && frozen->number == 1) return true;
    if (heap_[module].kind == ObjectKind::kInstance) break;
    module = heap_[module].parent;
  }
  return false;
}

bool Interpreter::is_optimized(ObjectId module) {
  // A part, the module itself, or a whole that it belongs to.
  std::vector<ObjectId> open{module};
  std::unordered_set<ObjectId> seen;
  const auto reaches_optimized = [&](ObjectId from) {
    std::vector<ObjectId> stack{from};
    std::unordered_set<ObjectId> been;
    while (!stack.empty()) {
      const ObjectId at = stack.back();
      stack.pop_back();
      if (at == 0 || !been.insert(at).second || been.size() > 200) continue;
      if (heap_[at].optimized) return true;
      for (const Slot& slot : heap_[at].slots) {
        if (slot.value.object != 0) stack.push_back(slot.value.object);
      }
    }
    return false;
  };
  if (reaches_optimized(module)) return true;
  for (ObjectId id = 1; id < static_cast<ObjectId>(heap_.size()); ++id) {
    if (!heap_[id].optimized) continue;
    std::vector<ObjectId> stack{id};
    std::unordered_set<ObjectId> been;
    while (!stack.empty()) {
      const ObjectId at = stack.back();
      stack.pop_back();
      if (at == 0 || !been.insert(at).second || been.size() > 500) continue;
      if (at == module) return true;
      for (const Slot& slot : heap_[at].slots) {
        if (slot.value.object != 0) stack.push_back(slot.value.object);
      }
    }
  }
  return false;
}

// ---------------------------------------------------------------- the graph

void Interpreter::collect(const Value& value, std::vector<GraphId>& out, int depth) {
  if (value.history != 0 && !graph_[value.history].detached) {
    if (std::find(out.begin(), out.end(), value.history) == out.end()) out.push_back(value.history);
  }
  if (depth >= 3) return;
  for (const ObjectId id : {value.object, value.other}) {
    if (id == 0) continue;
    const ObjectKind kind = heap_[id].kind;
    if (kind != ObjectKind::kList && kind != ObjectKind::kTuple && kind != ObjectKind::kDict &&
        !is_record(id)) {
      continue;
    }
    for (std::size_t i = 0; i < heap_[id].fields.size(); ++i) {
      collect(Value(heap_[id].fields[i]), out, depth + 1);
    }
    for (std::size_t i = 0; i < heap_[id].slots.size(); ++i) {
      collect(Value(heap_[id].slots[i].value), out, depth + 1);
    }
  }
}

std::vector<GraphId> Interpreter::histories(const Value& value) {
  std::vector<GraphId> out;
  collect(value, out);
  return out;
}

Value Interpreter::tensor(GraphOp op, const std::vector<Value>& inputs, NodeId id, bool certain) {
  Value out;
  out.kinds = kIsTensor;
  if (grad_ == GradMode::kOff) return out;
  GraphNode node;
  for (const Value& input : inputs) collect(input, node.inputs);
  if (node.inputs.empty() && !certain && op != GraphOp::kCall) return out;
  node.op = op;
  node.certain = certain;
  node.where = where_;
  node.origin = id;
  out.history = graph_.add(std::move(node));
  if (op != GraphOp::kAlias && op != GraphOp::kJoin) note_carried(out.history, op, id, false);
  return out;
}

Value Interpreter::tensor_from(GraphOp op, const Arguments& given, const Value* receiver, NodeId id,
                               bool certain) {
  std::vector<Value> inputs;
  if (receiver != nullptr) inputs.push_back(*receiver);
  inputs.insert(inputs.end(), given.positional.begin(), given.positional.end());
  for (const auto& [name, value] : given.keywords) inputs.push_back(value);
  return tensor(op, inputs, id, certain);
}

NodeId Interpreter::site_for(GraphId carried, GraphId fresh) {
  const Frame* frame = frame_;
  const auto came_in = [&](GraphId id) {
    return id != 0 && std::find(frame->arguments.begin(), frame->arguments.end(), id) !=
                          frame->arguments.end();
  };
  const auto made_from_arguments = [&](GraphId id) {
    return id != 0 && std::any_of(frame->arguments.begin(), frame->arguments.end(),
                                  [&](GraphId argument) { return graph_.reaches(argument, id); });
  };
  const auto has_caller = [&] { return frame->caller != nullptr && !frame->is_root; };
  while (has_caller() && came_in(carried)) frame = frame->caller;
  // A meter adds what it is given, a memory keeps it: that is mended where it is given.
  const bool stores = carried == 0;
  while (has_caller() && frame->self != 0 && frame->self != frame->caller->self &&
         !(frame->owner != 0 && class_is_module(frame->owner)) &&
         !(frame->by_hook && !frame->caller->by_hook) &&
         (stores ? came_in(fresh) : made_from_arguments(fresh))) {
    frame = frame->caller;
  }
  return frame->statement;
}

void Interpreter::note_carried(GraphId result, GraphOp op, NodeId, bool joins_up) {
  const std::vector<GraphId> inputs = graph_[result].inputs;
  for (const GraphId input : inputs) {
    const GraphNode& carried = graph_[input];
    if (carried.op == GraphOp::kParameter) continue;
    const LoopId loop = graph_.crossed(carried.where, where_);
    if (loop == 0) continue;
    GraphId fresh = 0;
    for (const GraphId other : inputs) {
      if (other != input) fresh = other;
    }
    CarriedOver event{};
    event.result = result;
    event.carried = input;
    event.loop = loop;
    const bool freed = carried.freed || (carried.view && graph_[carried.inputs[0]].freed);
    event.was_freed = freed;
    event.function = frame_->node;
    event.root = root_method_;
    if (joins_up) {
      event.by = CarriedOver::By::kJoiningUp;
    } else if (op == GraphOp::kArithmetic) {
      event.by = CarriedOver::By::kArithmetic;
    } else if (freed || carried.retained) {
      event.by = CarriedOver::By::kUse;
      fresh = 0;
    } else {
      continue;
    }
    event.site = site_for(input, fresh);
    seen_.carried.push_back(event);
  }
}

void Interpreter::count(int LoopRun::* counter) {
  for (WhereId at = where_; at != 0; at = graph_.where(at).parent) {
    ++(graph_.loop(graph_.where(at).loop).*counter);
  }
}

void Interpreter::note_step() {
  count(&LoopRun::steps);
  if (where_ != 0 && graph_.loop(graph_.where(where_).loop).implicit) {
    graph_.loop(graph_.where(where_).loop).step_roots.push_back(root_method_);
  }
}

void Interpreter::backward(const Value& target, Arguments& given, NodeId id, bool supposed) {
  const auto is_true = [&](Name name) {
    const Value* value = given.keyword(name);
    return value != nullptr && value->has(kKnownNumber) && value->number == 1;
  };
  const bool retain = is_true(n_.retain_graph);
  const bool create = is_true(n_.create_graph);
  count(&LoopRun::backwards);
  if (where_ != 0) {
    LoopRun& innermost = graph_.loop(graph_.where(where_).loop);
    ++innermost.own_backwards;
    if (innermost.implicit) innermost.backward_roots.push_back(root_method_);
  }
  for (WhereId at = where_; at != 0; at = graph_.where(at).parent) {
    LoopRun& loop = graph_.loop(graph_.where(at).loop);
    if (loop.first_backward == 0) loop.first_backward = frame_->statement;
  }
  for (const GraphId history : histories(target)) {
    graph_.run_backward(history, id, where_, retain, !retain && !create, /*trains=*/true, supposed);
  }
}

void Interpreter::note_update(NodeId) {
  seen_.updates.push_back({frame_->statement, frame_->node});
}

void Interpreter::mark_escaped(const Value& value, int) {
  for (const GraphId id : histories(value)) graph_[id].escaped = true;
}

void Interpreter::mark_dropped(const Value& value) {
  for (const GraphId id : histories(value)) graph_[id].dropped = true;
}

Value Interpreter::without_history(Value value, bool mark) {
  if (mark) mark_dropped(value);
  value.history = 0;
  value.flags &= static_cast<std::uint16_t>(~kLeaf);
  return value;
}

Value Interpreter::stored_alias(const Value& value, std::vector<GraphId>& aliases, int depth) {
  Value out = value;
  if (value.history != 0 && !graph_[value.history].detached) {
    GraphNode node;
    node.inputs = {value.history};
    node.op = GraphOp::kAlias;
    node.where = where_;
    node.origin = frame_->statement;
    out.history = graph_.add(std::move(node));
    out.flags &= static_cast<std::uint16_t>(~kLeaf);
    aliases.push_back(out.history);
  }
  if (value.object == 0 || depth >= 2) return out;
  const ObjectKind kind = heap_[value.object].kind;
  if (kind != ObjectKind::kTuple && kind != ObjectKind::kList && kind != ObjectKind::kDict &&
      !is_record(value.object)) {
    return out;
  }
  if (histories(value).empty()) return out;
  const ObjectId copy = make(kind, heap_[value.object].node);
  heap_[copy].parent = heap_[value.object].parent;
  const std::vector<Value> fields = heap_[value.object].fields;
  const std::vector<Slot> slots = heap_[value.object].slots;
  for (const Value& field : fields) {
    const Value alias = stored_alias(field, aliases, depth + 1);
    heap_[copy].fields.push_back(alias);
  }
  for (const Slot& slot : slots) {
    heap_.write(copy, slot.key, stored_alias(slot.value, aliases, depth + 1));
  }
  out.object = copy;
  return out;
}

Value Interpreter::store_into(ObjectId container, const Value& value, NodeId, bool overwrites) {
  Stored stored{};
  const Value alias = stored_alias(value, stored.aliases);
  const bool copy = value.has(kModelCopy);
  if (!stored.aliases.empty() || copy) {
    stored.container = container;
    stored.function = frame_->node;
    stored.root = root_method_;
    stored.model_copy = copy;
    stored.by_hook = frame_->by_hook;
    stored.site = site_for(0, stored.aliases.empty() ? 0 : graph_[stored.aliases[0]].inputs[0]);
    const WhereId birth = heap_[container].birth;
    for (WhereId at = where_; at != 0; at = graph_.where(at).parent) {
      const LoopId loop = graph_.where(at).loop;
      const int pass = graph_.pass_of(birth, loop);
      if (pass != 0 && pass >= graph_.where(at).pass) continue;
      if (copy && !takes_rounds(graph_.loop(loop))) continue;
      stored.loops.push_back(loop);
    }
    const ObjectKind kind = heap_[container].kind;
    if (kind == ObjectKind::kOpaque) {
      for (const GraphId id : stored.aliases) graph_[id].escaped = true;
    }
    if ((!overwrites || frame_->by_hook) && !stored.loops.empty()) {
      for (const GraphId id : stored.aliases) graph_[id].kept = true;
      seen_.stored.push_back(std::move(stored));
    }
  }
  if (!overwrites) {
    // What is put in is one of many: short lists lose the order of their parts.
    std::vector<Value> fields;
    std::swap(fields, heap_[container].fields);
    for (const Value& field : fields) heap_.widen(container, n_.element, field);
    heap_.widen(container, n_.element, alias);
  }
  return alias;
}

// Whether the loop's iterations are rounds of training, by what stands in it: copies of a layer in
// a loop are how a deep model is made.
bool Interpreter::takes_rounds(const LoopRun& loop) const {
  static const auto* const rounds = new std::unordered_set<std::string_view>{
      "epoch", "epochs",     "train",    "training", "step",     "steps",      "backward",
      "fit",   "round",      "rounds",   "learn",    "update",   "cycle",      "cycles",
      "save",  "checkpoint", "snapshot", "swa",      "ensemble", "checkpoints"};
  const bool method = loop.implicit && root_method_ != 0;
  const std::vector<std::string> words = words_of(
      method ? std::string_view(names_.text(tree_[root_method_].name)) : tree_.text(loop.node));
  return std::any_of(words.begin(), words.end(),
                     [](const std::string& word) { return rounds->count(word) != 0; });
}

void Interpreter::clear_container(ObjectId container) {
  if (container == 0) return;
  heap_[container].fields.clear();
  if (heap_.find(container, n_.element) != nullptr) {
    Value nothing = none();
    heap_.write(container, n_.element, nothing);
  }
  if (where_ != 0) heap_[container].emptied = true;
  for (WhereId at = where_; at != 0; at = graph_.where(at).parent) {
    const LoopId loop = graph_.where(at).loop;
    if (branch_depth_ > graph_.loop(loop).branch_depth) continue;
    // What a framework calls once an epoch empties nothing between the steps.
    if (graph_.loop(loop).implicit && root_method_ != 0 &&
        names_.text(tree_[root_method_].name).find("epoch") != std::string::npos) {
      continue;
    }
    for (Stored& stored : seen_.stored) {
      if (stored.container == container) std::erase(stored.loops, loop);
    }
  }
  if (branch_depth_ == 0 || where_ == 0 ||
      branch_depth_ <= graph_.loop(graph_.where(where_).loop).branch_depth) {
    heap_[container].birth = where_;
  }
}

void Interpreter::run_hooks(const Value& output) {
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const Value hook = hooks_[i];
    if (hook.object == 0 || heap_[hook.object].kind != ObjectKind::kFunction) continue;
    const NodeId node = heap_[hook.object].node;
    if (active_[node] > 0) continue;
    hooks_run_.insert(node);
    Arguments given;
    given.positional = {opaque(node, n_.self), output, output};
    heap_[given.positional[0].object].is_module = true;
    ++in_hook_;
    call_value(hook, given, node);
    --in_hook_;
  }
}

}  // namespace lowtide::lint
