// Calls: into functions of the file, into torch, into Python's own, and into what nobody can see.

#include <algorithm>
#include <sstream>

#include "src/base/text.h"
#include "src/lint/interpreter.h"

namespace lowtide::lint {
namespace {

constexpr std::int64_t kHugeWeights = std::int64_t{1} << 27;  // 512 MiB in float32; with Adam 2 GiB

std::string_view last_word(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_capital(std::string_view word) { return !word.empty() && word[0] >= 'A' && word[0] <= 'Z'; }

// "scaled_backward", "do_backward_pass"; not "require_backward", "register_backward_hook".
bool runs_backward(std::string_view name) {
  static const auto* const other = new std::unordered_set<std::string_view>{
      "require", "requires", "register", "hook",  "hooks",  "set",   "enable",
      "disable", "is",       "has",      "needs", "before", "after", "pre",
      "post",    "on",       "skip",     "no",    "get",    "check", "can"};
  bool found = false;
  for (const std::string& word : words_of(name)) {
    if (other->count(word) != 0) return false;
    found = found || word == "backward";
  }
  return found;
}

std::string with_thousands(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace

Interpreter::Arguments Interpreter::arguments(NodeId id) {
  Arguments out;
  for (const NodeId item : tree_.items(id)) {
    const Node& node = tree_[item];
    if (node.kind == NodeKind::kKeyword) {
      out.keywords.emplace_back(node.name, evaluate(node.a));
    } else if (node.kind == NodeKind::kStar) {
      const Value whole = evaluate(node.a);
      if (whole.object != 0 && !heap_[whole.object].fields.empty()) {
        const std::vector<Value> fields = heap_[whole.object].fields;
        out.positional.insert(out.positional.end(), fields.begin(), fields.end());
      } else {
        out.spread = true;
        out.positional.push_back(element_of(whole));
      }
    } else if (node.kind == NodeKind::kDoubleStar) {
      const Value whole = evaluate(node.a);
      out.spread = true;
      if (whole.object != 0) {
        const std::vector<Slot> slots = heap_[whole.object].slots;
        for (const Slot& slot : slots) {
          if (slot.key != n_.element && names_.text(slot.key)[0] == '$') continue;
          out.keywords.emplace_back(slot.key, slot.value);
        }
      }
      if (whole.history != 0) out.keywords.emplace_back(n_.element, whole);
    } else {
      out.positional.push_back(evaluate(item));
    }
  }
  return out;
}

Value Interpreter::call(NodeId id) {
  const Node& node = tree_[id];
  const Node& callee = tree_[node.a];
  if (callee.kind == NodeKind::kAttribute) {
    const Node& whole = tree_[callee.a];
    if (whole.kind == NodeKind::kCall && tree_[whole.a].kind == NodeKind::kName &&
        names_.text(tree_[whole.a].name) == "super") {
      Arguments given = arguments(id);
      return super_call(callee.name, given, id);
    }
    const Value receiver = evaluate(callee.a);
    // In-place cuts change what the name stands for.
    if (words_.method(callee.name) == MethodRole::kDetachInPlace) {
      for (const GraphId history : histories(receiver)) {
        graph_[history].detached = true;
        graph_[history].dropped = true;
        if (receiver.has(kLeaf) && graph_[history].module != 0) {
          heap_.write(graph_[history].module, n_.frozen, constant(1));
        }
      }
      if (whole.kind == NodeKind::kName || whole.kind == NodeKind::kAttribute) {
        bind(callee.a, without_history(receiver));
      }
      return without_history(receiver);
    }
    if (names_.text(callee.name) == "requires_grad_" && receiver.history == 0 &&
        !is_module(receiver)) {
      Arguments given = arguments(id);
      const bool off = !given.positional.empty() && given.positional[0].has(kKnownNumber) &&
                       given.positional[0].number == 0;
      if (off) return receiver;
      Value leaf = parameter_of(0, id);
      leaf.hint = receiver.hint;
      if (whole.kind == NodeKind::kName || whole.kind == NodeKind::kAttribute) bind(callee.a, leaf);
      return leaf;
    }
    Arguments given = arguments(id);
    const Value result = call_method(receiver, callee.name, given, id);
    // Writing in place gives the tensor the history of what was written.
    if (words_.method(callee.name) == MethodRole::kInPlace && !receiver.has(kLeaf) &&
        result.history != 0 &&
        (whole.kind == NodeKind::kName || whole.kind == NodeKind::kAttribute)) {
      Value kept = result;
      kept.hint = receiver.hint;
      bind(callee.a, kept);
    }
    return result;
  }
  const Value function = evaluate(node.a);
  Arguments given = arguments(id);
  return call_value(function, given, id);
}

Value Interpreter::call_value(const Value& callee, Arguments& given, NodeId id,
                              const std::function<void()>* on_yield) {
  if (spent() || call_depth_ >= kMaxCalls) return Value{};
  struct Depth {
    int& depth;
    explicit Depth(int& counter) : depth(counter) { ++depth; }
    ~Depth() { --depth; }
  } const guard(call_depth_);
  if (callee.is(kIsExternal)) return call_external(names_.text(callee.text), given, id);
  if (callee.object != 0) {
    switch (heap_[callee.object].kind) {
      case ObjectKind::kFunction: {
        if (!heap_[callee.object].bound.empty()) {
          Arguments all;
          all.positional = heap_[callee.object].bound;
          all.positional.insert(all.positional.end(), given.positional.begin(),
                                given.positional.end());
          all.keywords = given.keywords;
          all.spread = given.spread;
          if (heap_[callee.object].node == 0) {
            const Value inner = *heap_.find(callee.object, n_.call);
            return call_value(inner, all, id, on_yield);
          }
        } else if (heap_[callee.object].node == 0) {
          if (const Value* inner = heap_.find(callee.object, n_.call)) {
            const Value copy = *inner;
            return call_value(copy, given, id, on_yield);
          }
          return Value{};
        }
        return call_function(callee.object, given, id, on_yield);
      }
      case ObjectKind::kClass:
        return instantiate(callee.object, given, id);
      case ObjectKind::kInstance: {
        if (is_module(callee)) return call_module(callee, given, id, 0);
        const ObjectId cls = heap_[callee.object].parent;
        if (find_in_class(cls, n_.call) != nullptr) {
          return call_method(callee, n_.call, given, id);
        }
        break;
      }
      case ObjectKind::kLibrary: {
        if (heap_[callee.object].is_module) return call_module(callee, given, id, 0);
        break;
      }
      default:
        break;
    }
  }
  return call_unknown(callee.hint, callee, given, id);
}

Value Interpreter::parameter_default(NodeId parameter, Frame& frame) {
  const Node& node = tree_[parameter];
  (void)frame;
  // Who calls it with another number is not in the file.
  if (node.a != 0 && tree_[node.a].kind == NodeKind::kNumber) {
    Value number = evaluate(node.a);
    number.flags |= kSupposed;
    return number;
  }
  if (node.b != 0) {
    const std::string_view type = tree_.text(node.b);
    if (type == "Tensor" || type == "torch.Tensor") {
      Value value;
      value.kinds = kIsTensor;
      value.flags = kTensorKey;
      value.hint = node.name;
      return value;
    }
    if (type == "int" || type == "float" || type == "bool") return number();
    if (type == "str") {
      Value value;
      value.kinds = kIsString;
      return value;
    }
  }
  Value value = opaque(parameter, node.name);
  if (const ObjectId cls = class_meant_by(parameter); cls != 0 && meant_depth_ < 3) {
    Arguments unknown;
    unknown.spread = true;
    ++meant_depth_;
    value = instantiate(cls, unknown, parameter);
    --meant_depth_;
    value.hint = node.name;
    heap_[value.object].birth = 0;
  }
  if (node.a != 0 && tree_[node.a].kind == NodeKind::kNoneValue) value.kinds |= kIsNone;
  if (node.a != 0 &&
      (tree_[node.a].kind == NodeKind::kTrue || tree_[node.a].kind == NodeKind::kFalse)) {
    return number();
  }
  return value;
}

// The class of the file that a parameter without a known value is an instance of: its annotation
// says so, or it has its name (`bank` for the one class Bank, `memory` for ReplayMemory).
ObjectId Interpreter::class_meant_by(NodeId parameter) {
  const Node& node = tree_[parameter];
  const auto class_called = [&](Name name) -> ObjectId {
    const Value* type = heap_.find(module_scope_, name);
    const bool is_class = type != nullptr && type->only(kIsObject) && type->object != 0 &&
                          heap_[type->object].kind == ObjectKind::kClass;
    return is_class ? type->object : 0;
  };
  if (node.b != 0) {
    const NodeKind kind = tree_[node.b].kind;
    const ObjectId cls = kind == NodeKind::kName ? class_called(tree_[node.b].name) : 0;
    // What is configured elsewhere need not be as its defaults are.
    const bool configured =
        cls != 0 && has_unknown_base(cls) && ends_with(names_.text(tree_[node.b].name), "Config");
    return configured ? 0 : cls;
  }
  const std::vector<std::string> wanted = words_of(names_.text(node.name));
  if (wanted.empty()) return 0;
  ObjectId found = 0;
  for (const ObjectId cls : classes_) {
    if (class_derives(cls, "Function") || class_derives(cls, "Dataset")) continue;
    const std::string& name = names_.text(tree_[heap_[cls].node].name);
    const std::vector<std::string> words = words_of(name);
    std::string joined;
    for (const std::string& word : words) joined += word;
    std::string whole;
    for (const std::string& word : wanted) whole += word;
    if (words.empty() || (words.back() != wanted.back() && joined != whole)) continue;
    if (found != 0) return 0;
    found = cls;
  }
  return found;
}

void Interpreter::bind_parameters(ObjectId function, Frame& frame, Arguments& given) {
  const NodeId node = heap_[function].node;
  const auto parameters = tree_.items(node);
  std::size_t next = 0;
  bool first = true;
  std::vector<bool> used(given.keywords.size());
  for (const NodeId parameter : parameters) {
    const Node& p = tree_[parameter];
    if (first && frame.self != 0) {
      first = false;
      if (p.flag == 0) {
        Value self = object_value(frame.self);
        self.hint = n_.self;
        heap_.write(frame.scope, p.name, self);
        continue;
      }
    }
    first = false;
    if (p.flag == 3) continue;
    if (p.flag == 1) {
      std::vector<Value> rest(given.positional.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                             next, given.positional.size())),
                              given.positional.end());
      next = given.positional.size();
      Value all = rest.empty() ? list_of(Value{}, parameter) : tuple_of(std::move(rest), parameter);
      heap_.write(frame.scope, p.name, all);
      continue;
    }
    if (p.flag == 2) {
      const ObjectId rest = make(ObjectKind::kDict, parameter);
      for (std::size_t i = 0; i < given.keywords.size(); ++i) {
        if (!used[i]) heap_.write(rest, given.keywords[i].first, given.keywords[i].second);
      }
      heap_.write(frame.scope, p.name, object_value(rest));
      continue;
    }
    std::optional<Value> value;
    for (std::size_t i = 0; i < given.keywords.size(); ++i) {
      if (given.keywords[i].first == p.name) {
        value = given.keywords[i].second;
        used[i] = true;
      }
    }
    if (!value && next < given.positional.size()) value = given.positional[next++];
    if (!value && p.a != 0 && !given.spread) {
      const ObjectId scope = frame_->scope;
      frame_->scope = heap_[function].parent != 0 ? heap_[function].parent : module_scope_;
      value = evaluate(p.a);
      frame_->scope = scope;
      // One default for all calls: what is put into it stays.
      if (value->object != 0) heap_[value->object].birth = 0;
    }
    if (!value) value = parameter_default(parameter, frame);
    if (value->hint == 0) value->hint = p.name;
    heap_.write(frame.scope, p.name, *value);
  }
}

Value Interpreter::call_function(ObjectId function, Arguments& given, NodeId id,
                                 const std::function<void()>* on_yield) {
  const NodeId node = heap_[function].node;
  const Name name = tree_[node].name;
  if (frame_depth_ >= kMaxFrames || active_[node] >= 2 || spent()) {
    Value callee;
    callee.hint = name;
    return call_unknown(name, callee, given, id);
  }
  entered_.insert(node);
  Frame frame;
  frame.function = function;
  frame.node = node;
  frame.caller = frame_;
  frame.self = heap_[function].self;
  frame.on_yield = on_yield;
  frame.by_hook = in_hook_ > 0;
  frame.statement = node;
  frame.is_root = next_is_root_;
  next_is_root_ = false;
  if (const auto owner = method_owners_.find(node); owner != method_owners_.end()) {
    frame.owner = owner->second;
  }
  frame.scope = make(ObjectKind::kScope, node);
  heap_[frame.scope].parent = heap_[function].parent;
  for (const Value& value : given.positional) collect(value, frame.arguments);
  for (const auto& [key, value] : given.keywords) collect(value, frame.arguments);
  bind_parameters(function, frame, given);

  const GradMode grad = grad_;
  const bool no_grad = heap_[function].no_grad;
  if (no_grad) grad_ = GradMode::kOff;
  const int branch_depth = branch_depth_;
  std::vector<Heap::Changes>* const left_early = left_early_;
  left_early_ = nullptr;
  ++active_[node];
  ++frame_depth_;
  frame_ = &frame;
  Value result = none();
  if (tree_[node].kind == NodeKind::kLambda) {
    result = evaluate(tree_[node].a);
  } else {
    block(tree_[node].a);
    if (frame.returned) result = *frame.returned;
  }
  frame_ = frame.caller;
  --frame_depth_;
  --active_[node];
  left_early_ = left_early;
  branch_depth_ = branch_depth;
  if (no_grad) grad_ = grad;
  // What branches that ended early had done to objects that live on.
  for (const Heap::Changes& changes : frame.exits) {
    for (const Heap::Change& change : changes) {
      if (change.value && change.object != frame.scope) {
        heap_.widen(change.object, change.key, *change.value);
      }
    }
  }
  if (result.history != 0 && graph_[result.history].op == GraphOp::kCall &&
      names_.text(name).find("detach") != std::string::npos) {
    result.history = 0;
  }
  if (frame.yielded) {
    result = list_of(*frame.yielded, id);
    if (heap_[function].context_manager) result = *frame.yielded;
  }
  return result;
}

Value Interpreter::super_call(Name method, Arguments& given, NodeId id) {
  if (frame_->owner == 0 || frame_->self == 0) return Value{};
  for (const Value& base : heap_[frame_->owner].fields) {
    if (const Value* found = find_in_class(base.object, method)) {
      const ObjectId function = found->object;
      if (function == 0 || heap_[function].kind != ObjectKind::kFunction) continue;
      const Object copy = heap_[function];
      const ObjectId bound = make(ObjectKind::kFunction, copy.node);
      heap_[bound] = copy;
      heap_[bound].self = frame_->self;
      return call_function(bound, given, id);
    }
  }
  if (method == n_.forward) {
    return tensor_from(GraphOp::kForward, given, nullptr, id, true);
  }
  return Value{};
}

Value Interpreter::instantiate(ObjectId cls, Arguments& given, NodeId id) {
  Value value = object_value(make(ObjectKind::kInstance, id));
  heap_[value.object].parent = cls;
  value.hint = tree_[heap_[cls].node].name;
  // autograd.Function is used by its class.
  const Value* init = find_in_class(cls, n_.init);
  if (init != nullptr && init->object != 0 && heap_[init->object].kind == ObjectKind::kFunction) {
    const Object copy = heap_[init->object];
    const ObjectId bound = make(ObjectKind::kFunction, copy.node);
    heap_[bound] = copy;
    heap_[bound].self = value.object;
    call_function(bound, given, id);
    return value;
  }
  // A dataclass or a named tuple: annotated names in order.
  std::size_t next = 0;
  const NodeId body = tree_[heap_[cls].node].a;
  if (body != 0 && tree_[body].kind == NodeKind::kBlock) {
    for (const NodeId item : tree_.items(body)) {
      const Node& field = tree_[item];
      if (field.kind != NodeKind::kAssign || field.c == 0) continue;
      const Name name = tree_[field.a].name;
      if (const Value* keyword = given.keyword(name)) {
        heap_.write(value.object, name, *keyword);
      } else if (next < given.positional.size()) {
        heap_.write(value.object, name, given.positional[next++]);
      } else if (field.b != 0) {
        Value made = evaluate(field.b);
        if (const Value* factory = heap_.find(made.object, names_.intern("$factory"));
            made.object != 0 && factory != nullptr) {
          Arguments nothing;
          const Value maker = *factory;
          made = call_value(maker, nothing, id);
        }
        heap_.write(value.object, name, made);
      }
    }
  }
  return value;
}

// ---------------------------------------------------------------- methods

Value Interpreter::call_method(const Value& receiver, Name method, Arguments& given, NodeId id) {
  const MethodRole role = words_.method(method);
  const std::string& name = names_.text(method);
  if (receiver.is(kIsExternal)) {
    return call_external(names_.text(receiver.text) + "." + name, given, id);
  }
  if (role == MethodRole::kBackward || name == "backward_step" || name.find("backward") == 0) {
    // loss.backward(), or accelerator.backward(loss)
    if (receiver.history != 0 || given.positional.empty()) {
      backward(receiver, given, id);
    } else {
      const bool of_instance = receiver.object != 0 &&
                               heap_[receiver.object].kind == ObjectKind::kInstance &&
                               find_in_class(heap_[receiver.object].parent, method) != nullptr;
      if (!of_instance) {
        const bool argument_is_gradient = histories(given.positional[0]).empty() &&
                                          receiver.is(kIsUnknown) &&
                                          words_.like_loss(receiver.hint);
        backward(argument_is_gradient ? receiver : given.positional[0], given, id);
        return none();
      }
    }
    if (receiver.object == 0 || heap_[receiver.object].kind != ObjectKind::kInstance) return none();
  }
  if (receiver.object != 0) {
    const ObjectKind kind = heap_[receiver.object].kind;
    if (kind == ObjectKind::kInstance || kind == ObjectKind::kClass) {
      const Value member = attribute(receiver, method, id);
      if (member.object != 0 && heap_[member.object].kind == ObjectKind::kFunction) {
        if (kind == ObjectKind::kClass && heap_[member.object].is_class_method) {
          const Object copy = heap_[member.object];
          const ObjectId bound = make(ObjectKind::kFunction, copy.node);
          heap_[bound] = copy;
          heap_[bound].self = receiver.object;
          return call_function(bound, given, id);
        }
        if (kind == ObjectKind::kInstance && class_is_module(heap_[receiver.object].parent) &&
            method == n_.forward && module_depth_ == 0) {
          return call_module(receiver, given, id, method);
        }
        return call_value(member, given, id);
      }
      if (kind == ObjectKind::kClass) {
        // Function.apply of the file: the result has history.
        if (name == "apply") return tensor_from(GraphOp::kFunction, given, nullptr, id);
        return call_unknown(method, member, given, id);
      }
      const bool quiet = role == MethodRole::kModuleQuiet && is_module(receiver);
      if (!quiet && role != MethodRole::kModuleQuiet && member.object != 0 &&
          heap_[member.object].kind != ObjectKind::kOpaque) {
        return call_value(member, given, id);
      }
      if (role == MethodRole::kModuleQuiet) return module_method(receiver, method, given, id);
      if (name == "log" || name == "log_dict") {
        check_logged(name, given, id);
        return none();
      }
      Value unknown = member;
      unknown.hint = method;
      // What a module of the file calls is a part of it, unless its name says otherwise.
      if (member.object != 0 && heap_[member.object].kind == ObjectKind::kOpaque &&
          heap_[member.object].parent != receiver.object &&
          class_is_module(heap_[receiver.object].parent) && !words_.like_metric(method) &&
          !words_.like_loss(method)) {
        heap_[member.object].is_module = true;
      }
      return call_unknown(method, unknown, given, id);
    }
  }
  if (receiver.history == 0) {
    bool handled = false;
    const Value result = container_method(receiver, method, role, given, id, handled);
    if (handled) return result;
  }
  if (name == "step") {
    if (is_optimizer(receiver)) {
      note_step();
      note_optimizer(receiver);
      if (!given.positional.empty() && given.positional[0].object != 0 &&
          heap_[given.positional[0].object].kind == ObjectKind::kFunction) {
        Arguments nothing;
        call_value(given.positional[0], nothing, id);
      }
    } else if (!given.positional.empty() && is_optimizer(given.positional[0])) {
      note_step();  // scaler.step(optimizer)
    } else if (is_module(receiver)) {
      note_step();  // an engine that clears gradients itself
      note_zeroed();
    } else if (where_ != 0 && words_.like_environment(receiver.hint)) {
      graph_.loop(graph_.where(where_).loop).over_data = true;
    }
    return opaque(id, method);
  }
  if (name == "zero_grad" || name == "zero_grads" || name == "clear_gradients" ||
      name == "reset_grad" || name == "clear_grads") {
    note_zeroed();
    note_optimizer(receiver);
    return none();
  }
  if (receiver.hint == n_.grad && (name == "zero_" || name == "detach_")) {
    note_zeroed();
    return receiver;
  }
  if (receiver.history != 0 || receiver.only(kIsTensor) || receiver.has(kStateDict)) {
    return tensor_method(receiver, method, role, given, id);
  }
  if (role == MethodRole::kModuleQuiet) return module_method(receiver, method, given, id);
  // scaler.scale(loss), accelerator.gather(x): what is given comes back.
  if (name == "scale" || name == "scale_loss" || name == "unscale_") {
    if (!given.positional.empty() && given.positional[0].history != 0) {
      return tensor(GraphOp::kFunction, {given.positional[0]}, id);
    }
    if (name == "unscale_") return none();
    if (!given.positional.empty()) return given.positional[0];
  }
  if (name == "add_argument") {
    if (const Value* fallback = given.keyword(names_.intern("default"));
        fallback != nullptr && fallback->has(kKnownNumber)) {
      for (const Value& option : given.positional) {
        if (!option.only(kIsString) || option.text == 0) continue;
        std::string word = names_.text(option.text);
        word.erase(0, word.find_first_not_of('-'));
        std::replace(word.begin(), word.end(), '-', '_');
        if (!word.empty()) options_.emplace_back(names_.intern(word), *fallback);
      }
    }
    return none();
  }
  if (name == "parse_args") {
    Value out = opaque(id, names_.intern("args"));
    for (const auto& [option, value] : options_) heap_.write(out.object, option, value);
    return out;
  }
  if (name == "prepare" || name == "setup") {
    if (given.positional.size() == 1) return given.positional[0];
    if (!given.positional.empty()) return tuple_of(given.positional, id);
  }
  if (role == MethodRole::kCut || role == MethodRole::kDetach) {
    mark_dropped(receiver);
    Value out;
    out.kinds = role == MethodRole::kCut ? kIsNumber | kIsTensor : kIsTensor;
    if (name == "data_ptr" || name == "tobytes") out.flags |= kTensorKey;
    if (name == "size" || name == "numel" || name == "dim") {
      out.kinds = kIsNumber;
      out.flags |= kFromSize;
      out.shape = receiver.shape;
      if (!given.positional.empty() && given.positional[0].has(kKnownNumber) &&
          receiver.shape != 0) {
        const auto& sizes = shapes_[static_cast<std::size_t>(receiver.shape)];
        std::int64_t at = given.positional[0].number;
        if (at < 0) at += static_cast<std::int64_t>(sizes.size());
        if (at >= 0 && at < static_cast<std::int64_t>(sizes.size())) {
          out = constant(sizes[static_cast<std::size_t>(at)]);
          out.flags |= kFromSize;
        }
      }
    }
    return out;
  }
  if (is_module(receiver) && (role == MethodRole::kModuleRun || method == n_.call)) {
    return call_module(receiver, given, id, method);
  }
  if (receiver.object != 0) {
    const Value member = attribute(receiver, method, id);
    if (member.object != 0 && heap_[member.object].kind != ObjectKind::kOpaque) {
      return call_value(member, given, id);
    }
    // An imported meter keeps the sum of what it is given.
    const Object& object = heap_[receiver.object];
    if (object.kind == ObjectKind::kLibrary && name == "update") {
      const std::string path = path_of(receiver.object);
      if (ends_with(path, "AverageMeter") || ends_with(path, "RunningAverage") ||
          ends_with(path, "SmoothedValue")) {
        for (const Value& value : given.positional) {
          const Value* sum = heap_.find(receiver.object, n_.element);
          const Value old = sum != nullptr ? *sum : constant(0);
          if (histories(value).empty()) continue;
          const Value added = tensor(GraphOp::kArithmetic, {old, value}, id);
          heap_.write(receiver.object, n_.element, added);
        }
        return none();
      }
    }
    if (member.object != 0 && is_module(member) && role != MethodRole::kModuleRun &&
        ends_like_module(method)) {
      return call_module(member, given, id, 0);
    }
  }
  // Methods that give the same thing back in another place or shape.
  static const auto* const same = new std::unordered_set<std::string_view>{
      "to",      "cuda",    "cpu",       "float",      "double",     "half",      "view",
      "reshape", "permute", "transpose", "contiguous", "squeeze",    "unsqueeze", "clone",
      "flatten", "expand",  "repeat",    "type",       "pin_memory", "t",         "requires_grad_"};
  if (same->count(name) && given.keywords.size() < 3) {
    Value out = receiver;
    return out;
  }
  check_logged(name, given, id);
  Value callee;
  callee.hint = method;
  return call_unknown(method, callee, given, id, /*method=*/true);
}

Value Interpreter::container_method(const Value& receiver, Name method, MethodRole role,
                                    Arguments& given, NodeId id, bool& handled) {
  handled = true;
  const std::string& name = names_.text(method);
  const ObjectId object = receiver.object;
  const ObjectKind kind = object != 0 ? heap_[object].kind : ObjectKind::kOpaque;
  const bool container =
      kind == ObjectKind::kList || kind == ObjectKind::kDict || kind == ObjectKind::kTuple;
  const bool grows = role == MethodRole::kAppend || role == MethodRole::kExtend ||
                     role == MethodRole::kClear || role == MethodRole::kRemove ||
                     role == MethodRole::kLookUp;
  if (!container) {
    // An unknown thing that is appended to is a list; add, update and put may be anything.
    const bool list_like = name == "append" || name == "extend" || name == "appendleft" ||
                           name == "setdefault" || name == "clear" || name == "popleft" ||
                           name == "pop" || name == "items" || name == "values";
    const bool plain = object != 0 && kind == ObjectKind::kOpaque && !is_module(receiver) &&
                       !is_optimizer(receiver);
    const bool queue = object != 0 && kind == ObjectKind::kLibrary && role == MethodRole::kAppend &&
                       path_of(object).find("ueue") != std::string::npos;
    if (!(plain && list_like) && !queue) {
      if (object != 0 && (name == "items" || name == "values") && !heap_[object].slots.empty() &&
          is_module(receiver)) {
        const Value element = element_of(receiver);
        return name == "values" ? list_of(element, id)
                                : list_of(tuple_of({Value{}, element}, id), id);
      }
      handled = false;
      return {};
    }
  } else if (!grows && name != "items" && name != "values" && name != "keys" && name != "copy" &&
             name != "index" && name != "count" && name != "sort" && name != "reverse" &&
             name != "join" && name != "elements" && name != "most_common") {
    handled = false;
    return {};
  }
  switch (role) {
    case MethodRole::kAppend: {
      const Value item = given.positional.empty() ? Value{} : given.positional.back();
      store_into(object, item, id, false);
      return none();
    }
    case MethodRole::kExtend: {
      for (const Value& item : given.positional) {
        if (kind == ObjectKind::kDict && item.object != 0 &&
            heap_[item.object].kind == ObjectKind::kDict) {
          const std::vector<Slot> slots = heap_[item.object].slots;
          for (const Slot& slot : slots) {
            if (slot.key == n_.element) {
              store_into(object, slot.value, id, false);
            } else if (names_.text(slot.key)[0] != '$') {
              heap_.write(object, slot.key, store_into(object, slot.value, id, true));
            }
          }
        } else {
          store_into(object, element_of(item), id, false);
        }
      }
      for (const auto& [key, item] : given.keywords) {
        heap_.write(object, key, store_into(object, item, id, true));
      }
      return none();
    }
    case MethodRole::kClear:
      clear_container(object);
      return none();
    case MethodRole::kRemove: {
      heap_[object].bounded = true;
      for (const Value& key : given.positional) {
        if (key.only(kIsString)) {
          if (const Value* slot = heap_.find(object, key.text)) {
            const Value out = *slot;
            heap_.write(object, key.text, none());
            return out;
          }
        }
      }
      return element_of(receiver);
    }
    case MethodRole::kLookUp: {
      if (!given.positional.empty() && given.positional[0].only(kIsString)) {
        if (const Value* slot = heap_.find(object, given.positional[0].text)) return *slot;
      }
      const Value fallback = given.positional.size() > 1 ? given.positional[1] : none();
      if (name == "setdefault") {
        if (fallback.object != 0) heap_[fallback.object].birth = heap_[object].birth;
        if (const Value* element = heap_.find(object, n_.element)) {
          if (element->object != 0) return *element;
        }
        if (!given.positional.empty() && given.positional[0].only(kIsString)) {
          heap_.write(object, given.positional[0].text, fallback);
        } else {
          heap_.widen(object, n_.element, fallback);
        }
        return fallback;
      }
      if (kind == ObjectKind::kOpaque && heap_[object].slots.empty()) {
        const Name key = !given.positional.empty() ? given.positional[0].text : 0;
        return key != 0 ? attribute(receiver, key, id) : opaque(id, 0);
      }
      const Value found = element_of(receiver);
      if (found.only(kIsUnknown) && found.object == 0) return fallback;
      return heap_.joined(found, fallback, where_);
    }
    default:
      break;
  }
  if (name == "items") {
    return list_of(tuple_of({key_of(object), element_of(receiver)}, id), id);
  }
  if (name == "values") return list_of(element_of(receiver), id);
  if (name == "copy") return receiver;
  if (name == "keys") return list_of(key_of(object), id);
  return number();
}

Value Interpreter::tensor_method(const Value& receiver, Name method, MethodRole role,
                                 Arguments& given, NodeId id) {
  const std::string& name = names_.text(method);
  if (receiver.has(kStateDict)) {
    Value out = receiver;
    if (name == "clone" || name == "cpu" || name == "copy") out.flags |= kModelCopy;
    out.history = 0;
    return out;
  }
  switch (role) {
    case MethodRole::kCut: {
      mark_dropped(receiver);
      Value out;
      out.kinds = kIsNumber | kIsTensor;
      if (name == "item" || name == "tolist" || name == "numpy") out.kinds = kIsNumber;
      if (name == "size" || name == "numel" || name == "dim") {
        out.kinds = kIsNumber;
        out.flags |= kFromSize;
        if (receiver.shape != 0 && !given.positional.empty() &&
            given.positional[0].has(kKnownNumber)) {
          const auto& sizes = shapes_[static_cast<std::size_t>(receiver.shape)];
          std::int64_t at = given.positional[0].number;
          if (at < 0) at += static_cast<std::int64_t>(sizes.size());
          if (at >= 0 && at < static_cast<std::int64_t>(sizes.size())) {
            out = constant(sizes[static_cast<std::size_t>(at)]);
            out.flags |= kFromSize;
          }
        }
        if (given.positional.empty()) out.shape = receiver.shape;
      }
      if (name == "tolist" || name == "data_ptr") out.flags |= kTensorKey;
      return out;
    }
    case MethodRole::kDetach: {
      for (const GraphId history : histories(receiver)) graph_[history].cut = true;
      Value out = without_history(receiver);
      return out;
    }
    case MethodRole::kPair: {
      const Value values = tensor_from(GraphOp::kFunction, given, &receiver, id);
      Value indices;
      indices.kinds = kIsTensor;
      Value out = tuple_of({values, indices}, id);
      return out;
    }
    case MethodRole::kInPlace: {
      if (receiver.has(kLeaf) && receiver.history != 0) {
        bool tensors = name == "copy_" || name == "lerp_" || name == "add_" || name == "sub_" ||
                       name == "mul_" || name == "addcmul_" || name == "addcdiv_" || name == "div_";
        bool history = false;
        for (const Value& value : given.positional) history = history || value.history != 0;
        // A frozen one that is written numbers to needs no graph.
        const ObjectId owner = graph_[receiver.history].module;
        const bool harmless = owner != 0 && is_frozen(owner) && !history;
        if (tensors && grad_ == GradMode::kOn && !harmless) note_update(id);
        return receiver;
      }
      Value out = tensor_from(GraphOp::kArithmetic, given, &receiver, id);
      return out;
    }
    case MethodRole::kModuleQuiet:
      if (name == "requires_grad_") {
        const bool off = !given.positional.empty() && given.positional[0].has(kKnownNumber) &&
                         given.positional[0].number == 0;
        if (off && receiver.has(kLeaf) && receiver.history != 0) {
          const ObjectId owner = graph_[receiver.history].module;
          if (owner != 0) heap_.write(owner, n_.frozen, constant(1));
          return without_history(receiver, false);
        }
        return receiver;
      }
      break;
    default:
      break;
  }
  if (name == "register_hook" || name == "retain_grad") {
    for (const GraphId history : histories(receiver)) graph_[history].backwarded = true;
    return name == "register_hook" ? none() : receiver;
  }
  // A distribution's: rsample is the one that gradients pass.
  if (name == "sample") return without_history(receiver);
  if ((name == "max" || name == "min" || name == "median") &&
      (!given.positional.empty() || !given.keywords.empty()) &&
      (given.positional.empty() || given.positional[0].only(kIsNumber))) {
    const Value values = tensor(GraphOp::kFunction, {receiver}, id);
    Value indices;
    indices.kinds = kIsTensor;
    Value out = tuple_of({values, indices}, id);
    return out;
  }
  if (name == "backward") {
    backward(receiver, given, id);
    return none();
  }
  const bool arithmetic = name == "add" || name == "sub" || name == "mul" || name == "div" ||
                          name == "lerp" || name == "addcmul";
  Value out =
      tensor_from(arithmetic ? GraphOp::kArithmetic : GraphOp::kFunction, given, &receiver, id);
  if (receiver.has(kLeaf) && name == "clone") out.flags |= kModelCopy;
  if (role == MethodRole::kReduce && given.positional.empty()) out.flags |= kReduced;
  if (receiver.has(kReduced) &&
      (name == "to" || name == "cpu" || name == "cuda" || name == "float")) {
    out.flags |= kReduced;
  }
  if (receiver.has(kModuleOutput) && name != "get") out.flags |= kModuleOutput;
  if (name == "view" || name == "reshape" || name == "flatten") out.flags |= 0;
  if (name == "to" || name == "cuda" || name == "cpu" || name == "float" || name == "clone") {
    out.shape = receiver.shape;
    out.hint = receiver.hint;
  }
  return out;
}

Value Interpreter::module_method(const Value& receiver, Name method, Arguments& given, NodeId id) {
  const std::string& name = names_.text(method);
  const ObjectId object = receiver.object;
  if (name == "register_forward_hook" || name == "register_forward_pre_hook") {
    if (object != 0) heap_[object].is_module = true;
    if (!given.positional.empty()) hooks_.push_back(given.positional[0]);
    return opaque(id, names_.intern("handle"));
  }
  if (object == 0) return receiver;
  if (name == "train" || name == "eval") {
    heap_[object].is_module = true;
    const bool eval =
        name == "eval" || (!given.positional.empty() && given.positional[0].has(kKnownNumber) &&
                           given.positional[0].number == 0);
    const bool known =
        name == "eval" || given.positional.empty() || given.positional[0].has(kKnownNumber);
    heap_.write(object, n_.mode, known ? constant(eval ? 1 : 0) : number());
    return receiver;
  }
  if (name == "parameters" || name == "named_parameters") {
    const Value all = parameters_container(object, id, name[0] == 'n');
    if (receiver.other != 0 && is_module(object_value(receiver.other))) {
      const Value others = parameters_container(receiver.other, id, name[0] == 'n');
      if (name[0] != 'n') {
        heap_.widen(all.object, n_.element, *heap_.find(others.object, n_.element));
      }
    }
    return all;
  }
  if (name == "buffers" || name == "named_buffers") {
    Value buffer;
    buffer.kinds = kIsTensor;
    if (name == "buffers") return list_of(buffer, id);
    return list_of(tuple_of({Value{}, buffer}, id), id);
  }
  if (name == "state_dict") {
    Value element;
    element.kinds = kIsTensor;
    element.flags = kStateDict;
    Value out = object_value(make(ObjectKind::kDict, id));
    heap_.write(out.object, n_.element, element);
    out.flags = kStateDict;
    return out;
  }
  if (name == "zero_grad") {
    note_zeroed();
    return none();
  }
  if (name == "requires_grad_" || name == "freeze") {
    const bool off =
        name == "freeze" || (!given.positional.empty() && given.positional[0].has(kKnownNumber) &&
                             given.positional[0].number == 0);
    heap_.write(object, n_.frozen, off ? constant(1) : none());
    return receiver;
  }
  if (name == "children" || name == "modules" || name == "named_children" ||
      name == "named_modules") {
    Value part = opaque(id, names_.intern("module"), object);
    heap_[part.object].is_module = true;
    if (name[0] != 'n') return list_of(part, id);
    return list_of(tuple_of({Value{}, part}, id), id);
  }
  if (name == "register_buffer") {
    if (given.positional.size() > 1 && given.positional[0].only(kIsString)) {
      heap_.write(object, given.positional[0].text, given.positional[1]);
    }
    return none();
  }
  if (name == "load_state_dict" || name == "save" || name == "save_pretrained" ||
      name == "push_to_hub" || name == "save_checkpoint") {
    return none();
  }
  if (name == "generate") {
    for (const Value& value : given.positional) mark_dropped(value);
    Value out;
    out.kinds = kIsTensor;
    return out;
  }
  return receiver;
}

// ---------------------------------------------------------------- modules

Value Interpreter::call_module(const Value& module, Arguments& given, NodeId id, Name method) {
  const ObjectId object = module.object;
  const bool frozen = is_frozen(object);
  Value result;
  const ObjectKind kind = heap_[object].kind;
  const Name hint = module.hint != 0 ? module.hint : heap_[object].path;
  if (kind == ObjectKind::kInstance) {
    const ObjectId cls = heap_[object].parent;
    const bool loss = words_.like_loss(tree_[heap_[cls].node].name) ||
                      (words_.like_loss(hint) && !words_.like_module(hint));
    const Value* forward = find_in_class(cls, method != 0 ? method : n_.forward);
    if (forward == nullptr) forward = find_in_class(cls, n_.forward);
    if (forward == nullptr || forward->object == 0 ||
        heap_[forward->object].kind != ObjectKind::kFunction) {
      result = tensor_from(GraphOp::kForward, given, nullptr, id, !frozen && frozen_depth_ == 0);
    } else {
      const Value member = *forward;
      const Object copy = heap_[member.object];
      const ObjectId bound = make(ObjectKind::kFunction, copy.node);
      heap_[bound] = copy;
      heap_[bound].self = object;
      ++module_depth_;
      if (frozen) ++frozen_depth_;
      result = call_function(bound, given, id);
      if (frozen) --frozen_depth_;
      --module_depth_;
      if (loss) {
        result.flags |= kReduced;
        return result;
      }
      if (!frozen && frozen_depth_ == 0) {
        for (const GraphId history : histories(result)) {
          if (graph_[history].op != GraphOp::kParameter) graph_[history].certain = true;
        }
      }
      if (result.history != 0) {
        const Value inner = result;
        result = tensor(GraphOp::kForward, {inner}, id, !frozen && frozen_depth_ == 0);
        result.object = inner.object;
      }
    }
  } else if (kind == ObjectKind::kLibrary) {
    result = call_library_module(object, given, id);
  } else {
    const bool certain = !frozen && frozen_depth_ == 0;
    result = tensor_from(GraphOp::kForward, given, nullptr, id, certain);
  }
  if (result.is(kIsTensor)) result.flags |= kModuleOutput;
  if (result.history != 0) {
    result.flags |= kModuleOutput;
    if (graph_[result.history].op == GraphOp::kForward) graph_[result.history].module = object;
  }
  const std::string path = kind == ObjectKind::kLibrary ? path_of(object) : std::string();
  if (!ends_with(path, "Loss")) note_forward(result, module, given, id);
  run_hooks(result);
  return result;
}

// Whether a part of the sequence is of a class of the file, whose forward is there to be run.
bool Interpreter::has_own_code(ObjectId sequence) {
  const std::vector<Value>& parts = heap_[sequence].fields;
  return std::any_of(parts.begin(), parts.end(), [&](const Value& part) {
    if (part.object == 0) return false;
    const Object& object = heap_[part.object];
    return object.kind == ObjectKind::kInstance ||
           (object.kind == ObjectKind::kLibrary && has_own_code(part.object));
  });
}

Value Interpreter::call_library_module(ObjectId module, Arguments& given, NodeId id) {
  const std::string path = path_of(module);
  const std::string_view last = last_word(path);
  if (ends_with(last, "Loss")) {
    Value out = tensor_from(GraphOp::kFunction, given, nullptr, id);
    out.flags |= kReduced;
    return out;
  }
  if (last == "Sequential" && given.positional.size() == 1 && has_own_code(module)) {
    const std::vector<Value> parts = heap_[module].fields;
    Value passed = given.positional[0];
    if (is_frozen(module)) ++frozen_depth_;
    ++module_depth_;
    for (const Value& part : parts) {
      Arguments one;
      one.positional = {passed};
      passed = call_value(part, one, id);
    }
    --module_depth_;
    if (is_frozen(module)) --frozen_depth_;
    return passed.history != 0 ? tensor(GraphOp::kForward, {passed}, id) : passed;
  }
  static const auto* const without_parameters = new std::unordered_set<std::string_view>{
      "ReLU",      "GELU",       "Sigmoid",     "Tanh",
      "Softmax",   "LogSoftmax", "Dropout",     "Dropout2d",
      "Flatten",   "MaxPool2d",  "AvgPool2d",   "AdaptiveAvgPool2d",
      "Identity",  "LeakyReLU",  "ELU",         "SiLU",
      "Upsample",  "MaxPool1d",  "AvgPool1d",   "AdaptiveMaxPool2d",
      "Unflatten", "Softplus",   "PixelShuffle"};
  const bool certain =
      !is_frozen(module) && frozen_depth_ == 0 && without_parameters->count(last) == 0;
  const Value out = tensor_from(GraphOp::kForward, given, nullptr, id, certain);
  if ((last == "LSTM" || last == "GRU" || last == "RNN") && !given.positional.empty() &&
      given.positional[0].shape != 0 && out.history != 0) {
    const auto& sizes = shapes_[static_cast<std::size_t>(given.positional[0].shape)];
    // Batch and steps, in either order.
    if (sizes.size() == 3) {
      seen_.unrolled.push_back({frame_->statement, out.history, std::max(sizes[0], sizes[1])});
    }
  }
  if (last == "LSTM" || last == "GRU" || last == "RNN" || last == "LSTMCell" ||
      last == "MultiheadAttention") {
    const Value pair = last == "LSTM" ? tuple_of({out, out}, id) : out;
    Value result = tuple_of({out, pair}, id);
    result.kinds |= kIsTensor;
    return result;
  }
  return out;
}

void Interpreter::note_forward(const Value& result, const Value& module, const Arguments& given,
                               NodeId id) {
  if (module_depth_ == 0 && module.object != 0) count(&LoopRun::forwards);
  if (grad_ != GradMode::kOn) return;
  const std::vector<GraphId> outputs = histories(result);
  if (outputs.empty()) return;
  ForwardRun run{};
  run.inner = module_depth_ > 0;
  run.result = outputs[0];
  run.call = id;
  run.site = frame_->statement;
  run.function = frame_->node;
  run.where = where_;
  run.root = root_method_;
  run.module = module.object;
  run.hint = module.hint;
  if (module.object != 0) {
    for (ObjectId at = module.object, depth = 0; at != 0 && depth < 5; ++depth) {
      if (const Value* mode = heap_.find(at, n_.mode)) {
        run.eval_mode = mode->has(kKnownNumber) && mode->number == 1;
        break;
      }
      if (heap_[at].kind != ObjectKind::kOpaque) break;
      at = heap_[at].parent;
    }
    run.frozen = is_frozen(module.object);
    run.known_module =
        module.other == 0 && (heap_[module.object].kind != ObjectKind::kOpaque ||
                              tree_[heap_[module.object].node].kind == NodeKind::kParam);
  }
  for (const Frame* frame = frame_; frame != nullptr && frame->node != 0; frame = frame->caller) {
    const Name name = tree_[frame->node].name;
    if (words_.like_evaluation(name) && !run.in_evaluation) run.in_evaluation = true;
    if (names_.text(name).rfind("test", 0) == 0) {
      // A unit test asserts.
      const std::string_view text = tree_.text(frame->node);
      if (text.find("assert") != std::string_view::npos) run.in_test = true;
    }
    if (frame->owner != 0 && class_derives(frame->owner, "TestCase")) run.in_test = true;
    if (frame->owner != 0 && has_unknown_base(frame->owner)) run.in_base_class = true;
    // Training in between: what it calls is not evaluation by its caller's name.
    if (!words_.like_evaluation(name) && names_.text(name).find("train") != std::string::npos)
      break;
  }
  // A file that asserts in its own statements tries itself out.
  run.in_test = run.in_test || is_test_ || (frame_->node == 0 && asserts_);
  for (const Value& value : given.positional) collect(value, run.inputs);
  for (const auto& [key, value] : given.keywords) collect(value, run.inputs);
  seen_.forwards.push_back(run);
}

// A vocabulary is as large as it is: that is said, and is no mistake.
void Interpreter::note_weight(NodeId id, const std::string& shape, std::int64_t weights,
                              bool table) {
  bool vocabulary = table;
  for (const NodeId item : tree_.items(id)) {
    std::string text(tree_.text(item));
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const char* word : {"vocab", "num_tokens", "ntoken", "n_token"}) {
      vocabulary = vocabulary || text.find(word) != std::string::npos;
    }
  }
  const std::string size = concat(
      "a weight of ", shape, " is ", with_thousands(weights / (1 << 18)), " MiB in float32, and ",
      with_thousands(weights / (1 << 16)), " MiB with its gradient and Adam's two moments");
  seen_.direct.push_back(
      {"huge-linear", id,
       size + (vocabulary ? "; as large as its vocabulary, and no mistake: tied weights, sparse "
                            "gradients or an adaptive softmax make it cheaper"
                          : "; pool the features first, or factor it"),
       vocabulary});
}

bool Interpreter::is_product(NodeId id) const {
  if (id == 0) return false;
  const Node& node = tree_[id];
  if (node.kind == NodeKind::kKeyword) return is_product(node.a);
  if (node.kind != NodeKind::kBinary) return false;
  const std::string& op = names_.text(node.name);
  return op == "*" || op == "**" || is_product(node.a) || is_product(node.b);
}

void Interpreter::check_linear(const std::string& path, const Arguments& given, NodeId id) {
  const std::string_view kind = last_word(path);
  const auto at = [&](std::size_t index, std::string_view word) -> std::optional<Value> {
    if (const Value* value = given.keyword(names_.intern(word))) return *value;
    if (index < given.positional.size()) return given.positional[index];
    return std::nullopt;
  };
  std::int64_t weights = 0;
  std::string shape;
  if (kind == "Linear") {
    const auto in = at(0, "in_features"), out = at(1, "out_features");
    if (!in || !out || !in->has(kKnownNumber) || !out->has(kKnownNumber)) return;
    // A width that is only supposed is nobody's mistake; a map that is flattened is.
    if (in->has(kSupposed) && !is_product(tree_.items(id).empty() ? 0 : tree_.items(id)[0])) return;
    if (__builtin_mul_overflow(in->number, out->number, &weights)) return;
    shape = concat(with_thousands(in->number), " x ", with_thousands(out->number));
  } else if (kind == "Bilinear") {
    const auto a = at(0, "in1_features"), b = at(1, "in2_features"), c = at(2, "out_features");
    if (!a || !b || !c || !a->has(kKnownNumber) || !b->has(kKnownNumber) || !c->has(kKnownNumber)) {
      return;
    }
    if (__builtin_mul_overflow(a->number, b->number, &weights)) return;
    if (__builtin_mul_overflow(weights, c->number, &weights)) return;
    shape = concat(with_thousands(a->number), " x ", with_thousands(b->number), " x ",
                   with_thousands(c->number));
  }
  if (kind == "Embedding" || kind == "EmbeddingBag") {
    const auto rows = at(0, "num_embeddings"), columns = at(1, "embedding_dim");
    if (!rows || !columns || !rows->has(kKnownNumber) || !columns->has(kKnownNumber)) return;
    if (__builtin_mul_overflow(rows->number, columns->number, &weights)) return;
    shape = concat(with_thousands(rows->number), " x ", with_thousands(columns->number));
    if (weights >= kHugeWeights) note_weight(id, shape, weights, /*table=*/true);
    return;
  }
  if (kind.rfind("Conv", 0) == 0 && kind.size() >= 6) {
    // A kernel as large as the map is a Linear.
    const auto in = at(0, "in_channels"), out = at(1, "out_channels"), size = at(2, "kernel_size");
    const auto groups = at(6, "groups");
    if (!in || !out || !size || !in->has(kKnownNumber) || !out->has(kKnownNumber) || groups) return;
    const std::int64_t dimensions = kind.find('3') != std::string_view::npos   ? 3
                                    : kind.find('2') != std::string_view::npos ? 2
                                                                               : 1;
    std::vector<std::int64_t> sides;
    if (size->has(kKnownNumber)) {
      sides.assign(static_cast<std::size_t>(dimensions), size->number);
    } else if (size->object != 0) {
      for (const Value& side : heap_[size->object].fields) {
        if (!side.has(kKnownNumber)) return;
        sides.push_back(side.number);
      }
    }
    std::int64_t area = 1;
    for (const std::int64_t side : sides) {
      if (__builtin_mul_overflow(area, side, &area)) return;
    }
    if (area < 64) return;  // no more than convolutions have
    if (sides.empty() || __builtin_mul_overflow(in->number, out->number, &weights)) return;
    shape = concat(with_thousands(in->number), " x ", with_thousands(out->number));
    for (const std::int64_t side : sides) {
      if (__builtin_mul_overflow(weights, side, &weights)) return;
      shape += concat(" x ", side);
    }
  }
  if (weights < kHugeWeights) return;
  note_weight(id, shape, weights);
}

// One that came from elsewhere, as an argument, may update any module.
void Interpreter::note_optimizer(const Value& used) {
  const bool made_here = used.object != 0 && heap_[used.object].kind == ObjectKind::kLibrary;
  if (!made_here && !is_module(used)) seen_.unknown_optimizer = true;
}

// A log that is given a whole output holds it, or copies it, each step.
void Interpreter::check_logged(std::string_view method, const Arguments& given, NodeId id) {
  if (method != "log" && method != "log_metrics" && method != "log_dict" && method != "track") {
    return;
  }
  for (const Value& value : given.positional) {
    if (value.object == 0 || heap_[value.object].kind != ObjectKind::kDict) continue;
    for (const Slot& slot : heap_[value.object].slots) {
      if (!slot.value.has(kModuleOutput) || slot.value.has(kReduced)) continue;
      const auto is_number = [&](Name name) {
        return words_.like_loss(name) || words_.like_metric(name);
      };
      if (is_number(slot.key) || is_number(slot.value.hint)) continue;
      seen_.direct.push_back({"tensor-held", id,
                              concat("the whole of \"", names_.text(slot.key),
                                     "\", a module's output, is handed to the log; log a number "
                                     "or a small sample of it")});
    }
  }
}

Value Interpreter::optimizer_made(Arguments& given, NodeId id, const std::string& path) {
  seen_.any_optimizer = true;
  std::vector<GraphId> open;
  for (const Value& value : given.positional) collect(value, open);
  for (const auto& [key, value] : given.keywords) collect(value, open);
  bool found = false;
  std::vector<bool> seen(static_cast<std::size_t>(graph_.size()));
  while (!open.empty()) {
    const GraphId at = open.back();
    open.pop_back();
    if (seen[static_cast<std::size_t>(at)]) continue;
    seen[static_cast<std::size_t>(at)] = true;
    const GraphNode& node = graph_[at];
    if (node.op == GraphOp::kParameter && node.module != 0) {
      heap_[node.module].optimized = true;
      found = true;
    }
    open.insert(open.end(), node.inputs.begin(), node.inputs.end());
  }
  if (!found) seen_.unknown_optimizer = true;
  return object_value(make(ObjectKind::kLibrary, id, names_.intern(path)));
}

// ---------------------------------------------------------------- torch, Python, the rest

Value Interpreter::call_builtin(std::string_view name, Arguments& given, NodeId id) {
  const Value first = given.positional.empty() ? Value{} : given.positional[0];
  if (name == "range") {
    Value out = list_of(number(), id);
    Value length = number();
    if (given.positional.size() == 1) length = first;
    if (given.positional.size() >= 2 && given.positional[0].has(kKnownNumber) &&
        given.positional[1].has(kKnownNumber)) {
      length = constant(given.positional[1].number - given.positional[0].number);
      if (given.positional.size() == 3) {
        const Value& step = given.positional[2];
        length = step.has(kKnownNumber) && step.number > 0 ? constant(length.number / step.number)
                                                           : number();
      }
    }
    heap_.write(out.object, names_.intern("$length"), length);
    return out;
  }
  if (name == "enumerate") {
    Value out = list_of(tuple_of({number(), element_of(first)}, id), id);
    if (is_loader(first)) out.flags |= kLoaderValue;
    out.hint = first.hint;
    return out;
  }
  if (name == "zip") {
    std::vector<Value> parts;
    bool loader = false;
    for (const Value& value : given.positional) {
      parts.push_back(element_of(value));
      loader = loader || is_loader(value);
    }
    Value out = list_of(tuple_of(std::move(parts), id), id);
    if (loader) out.flags |= kLoaderValue;
    return out;
  }
  if (name == "len") {
    Value out = number();
    out.flags |= kFromSize;
    if (first.shape != 0) {
      out = constant(shapes_[static_cast<std::size_t>(first.shape)][0]);
      out.flags |= kFromSize;
    }
    return out;
  }
  if (name == "sum") {
    const Value element = element_of(first);
    if (element.history != 0) {
      Value out = tensor(GraphOp::kArithmetic, {element}, id);
      out.flags |= element.flags & kReduced;
      const LoopId loop = first.object != 0 ? heap_[first.object].made_by : 0;
      if (loop != 0 && out.history != 0) {
        CarriedOver event{};
        event.by = CarriedOver::By::kArithmetic;
        event.result = out.history;
        event.carried = element.history;
        event.loop = loop;
        event.site = frame_->statement;
        event.function = frame_->node;
        event.root = root_method_;
        event.was_freed = graph_[element.history].freed;
        seen_.carried.push_back(event);
      }
      return out;
    }
    Value out;
    out.kinds = element.kinds;
    return out;
  }
  if (name == "max" || name == "min" || name == "abs" || name == "pow") {
    std::vector<Value> values = given.positional;
    if (values.size() == 1 && name[0] == 'm') values = {element_of(first)};
    const bool history = std::any_of(values.begin(), values.end(),
                                     [](const Value& value) { return value.history != 0; });
    // One of many things that are no tensors: max(population, key=fitness).
    if (!history && values.size() == 1 && values[0].object != 0) return values[0];
    return tensor(GraphOp::kFunction, values, id);
  }
  if (name == "list" || name == "tuple" || name == "sorted" || name == "reversed" ||
      name == "set" || name == "iter" || name == "frozenset") {
    if (given.positional.empty()) return object_value(make(ObjectKind::kList, id));
    if (first.object != 0 && heap_[first.object].kind == ObjectKind::kTuple) {
      const std::vector<Value> fields = heap_[first.object].fields;
      if (name == "list" || name == "tuple") {
        const ObjectId copy = make(name == "list" ? ObjectKind::kList : ObjectKind::kTuple, id);
        heap_[copy].fields = fields;
        if (const Value* element = heap_.find(first.object, n_.element)) {
          heap_.write(copy, n_.element, Value(*element));
        }
        return object_value(copy);
      }
    }
    Value out = list_of(element_of(first), id);
    if (is_loader(first)) out.flags |= kLoaderValue;
    if (first.has(kModelCopy)) out.flags |= kModelCopy;
    return out;
  }
  if (name == "next") return element_of(first);
  if (name == "dict") {
    Value out = object_value(make(ObjectKind::kDict, id));
    for (const auto& [key, value] : given.keywords) heap_.write(out.object, key, value);
    if (first.object != 0) {
      const std::vector<Slot> slots = heap_[first.object].slots;
      const bool dict = heap_[first.object].kind == ObjectKind::kDict;
      for (const Slot& slot : slots) {
        if (dict) heap_.write(out.object, slot.key, slot.value);
      }
    }
    return out;
  }
  if (name == "map" || name == "filter") {
    if (given.positional.size() < 2) return Value{};
    if (name == "filter") return list_of(element_of(given.positional[1]), id);
    Arguments each;
    for (std::size_t i = 1; i < given.positional.size(); ++i) {
      each.positional.push_back(element_of(given.positional[i]));
    }
    return list_of(call_value(given.positional[0], each, id), id);
  }
  if (name == "getattr") {
    if (given.positional.size() >= 2 && given.positional[1].only(kIsString) &&
        given.positional[1].text != 0) {
      return attribute(first, given.positional[1].text, id);
    }
    return opaque(id, 0);
  }
  if (name == "setattr") {
    if (given.positional.size() == 3) {
      mark_escaped(given.positional[2]);
      if (given.positional[1].only(kIsString) && given.positional[1].text != 0 &&
          first.object != 0) {
        heap_.write(first.object, given.positional[1].text, given.positional[2]);
      }
    }
    return none();
  }
  if (name == "id" || name == "hash" || name == "str" || name == "repr") {
    mark_dropped(first);
    Value out;
    out.kinds = name == "id" || name == "hash" ? kIsNumber : kIsString;
    if (first.only(kIsTensor)) out.flags |= kTensorKey;
    return out;
  }
  if (name == "super") return frame_->self != 0 ? object_value(frame_->self) : Value{};
  if (name == "isinstance" || name == "hasattr" || name == "callable" || name == "issubclass") {
    return number();
  }
  // print, float, int, round, ...: nothing of the history comes out.
  for (const Value& value : given.positional) mark_dropped(value);
  Value out;
  out.kinds = name == "input" || name == "format" ? kIsString : kIsNumber;
  if (name == "type") out.kinds = kIsUnknown;
  if (name == "int" && first.has(kKnownNumber)) return first;
  if (name == "int" && first.has(kFromSize)) out.flags |= kFromSize;
  return out;
}

Value Interpreter::call_torch(const std::string& path, std::string_view last, Arguments& given,
                              NodeId id) {
  const Value first = given.positional.empty() ? Value{} : given.positional[0];
  const auto context = [&](std::string_view mode) {
    return object_value(make(ObjectKind::kLibrary, id, names_.intern(mode)));
  };
  if (last == "no_grad" || last == "inference_mode") {
    if (first.has(kKnownNumber) && first.number == 0) return context("$on");
    if (!given.positional.empty() && !first.has(kKnownNumber) &&
        !(first.object != 0 && heap_[first.object].kind == ObjectKind::kFunction)) {
      return context("$either");
    }
    if (first.object != 0 && heap_[first.object].kind == ObjectKind::kFunction) {
      // torch.no_grad()(function)
      const Object copy = heap_[first.object];
      const ObjectId wrapped = make(ObjectKind::kFunction, copy.node);
      heap_[wrapped] = copy;
      heap_[wrapped].no_grad = true;
      return object_value(wrapped);
    }
    return context("$off");
  }
  if (last == "enable_grad") return context("$on");
  if (last == "set_grad_enabled") {
    const bool known = first.has(kKnownNumber);
    const GradMode mode =
        !known ? GradMode::kEither : (first.number != 0 ? GradMode::kOn : GradMode::kOff);
    if (tree_[frame_->statement].kind == NodeKind::kExprStatement) {
      grad_ = mode;
      return none();
    }
    return context(mode == GradMode::kOn ? "$on" : (mode == GradMode::kOff ? "$off" : "$either"));
  }
  if (ends_with(path, "autograd.grad")) {
    const Value* outputs = given.keyword(names_.intern("outputs"));
    const Value target = outputs != nullptr ? *outputs : first;
    // Gradients of these are asked for, so they are needed with their graph.
    const Value* inputs = given.keyword(names_.intern("inputs"));
    if (inputs == nullptr && given.positional.size() > 1) inputs = &given.positional[1];
    if (inputs != nullptr) {
      for (const GraphId history : histories(*inputs)) graph_[history].backwarded = true;
    }
    const Value* create = given.keyword(n_.create_graph);
    const Value* retain = given.keyword(n_.retain_graph);
    const bool graph = create != nullptr && !(create->has(kKnownNumber) && create->number == 0);
    const bool keep =
        graph || (retain != nullptr && retain->has(kKnownNumber) && retain->number == 1);
    for (const GraphId history : histories(target)) {
      graph_.run_backward(history, id, where_, /*retain=*/false, !keep, /*trains=*/false);
    }
    if (!graph) {
      count(&LoopRun::gradients);
      Value out;
      out.kinds = kIsTensor;
      return out;
    }
    return tensor(GraphOp::kFunction, {target}, id);
  }
  if (ends_with(path, "autograd.backward")) {
    const Value* tensors = given.keyword(names_.intern("tensors"));
    backward(tensors != nullptr ? *tensors : first, given, id);
    return none();
  }
  if (starts_with(path, "torch.optim.") && is_capital(last)) {
    if (path.find("lr_scheduler") != std::string::npos ||
        path.find("swa_utils") != std::string::npos) {
      if (last == "AveragedModel") {
        Value out = object_value(make(ObjectKind::kLibrary, id, names_.intern(path)));
        heap_[out.object].is_module = true;
        return out;
      }
      return opaque(id, names_.intern("scheduler"));
    }
    return optimizer_made(given, id, path);
  }
  if (last == "DataParallel" || last == "DistributedDataParallel" || last == "compile" ||
      last == "script" || last == "FullyShardedDataParallel" || last == "convert_sync_batchnorm" ||
      last == "spectral_norm" || last == "weight_norm") {
    if (first.object != 0) return first;
  }
  if (starts_with(path, "torch.nn.functional.") || starts_with(path, "torch.nn.init.")) {
    if (starts_with(path, "torch.nn.init.")) return first;
    if (last == "one_hot") {
      Value out;
      out.kinds = kIsTensor;
      return out;
    }
    Value out = tensor_from(GraphOp::kFunction, given, nullptr, id);
    if (ends_with(last, "loss") || last.find("cross_entropy") != std::string_view::npos ||
        last == "kl_div") {
      out.flags |= kReduced;
    }
    return out;
  }
  if (starts_with(path, "torch.nn.utils.")) {
    if (starts_with(last, "clip_grad")) {
      Value out;
      out.kinds = kIsTensor;
      return out;
    }
    return tensor_from(GraphOp::kFunction, given, nullptr, id);
  }
  if (path == "torch.nn.Parameter" || path == "torch.nn.parameter.Parameter") {
    if (first.shape != 0) {
      std::int64_t weights = 1;
      const auto& sizes = shapes_[static_cast<std::size_t>(first.shape)];
      for (const std::int64_t size : sizes) {
        if (__builtin_mul_overflow(weights, size, &weights)) weights = 0;
      }
      if (sizes.size() == 2 && weights >= kHugeWeights) {
        const std::string_view line = tree_.line_text(tree_[id].line);
        note_weight(id, concat(with_thousands(sizes[0]), " x ", with_thousands(sizes[1])), weights,
                    line.find("emb") != std::string_view::npos ||
                        line.find("vocab") != std::string_view::npos);
      }
    }
    return parameter_of(frame_->self, id);
  }
  if (starts_with(path, "torch.nn.") && is_capital(last)) {
    check_linear(path, given, id);
    Value out = object_value(make(ObjectKind::kLibrary, id, names_.intern(path)));
    heap_[out.object].is_module = true;
    if (last == "Sequential" || last == "ModuleList" || last == "ModuleDict" ||
        last == "ParameterList" || last == "ParameterDict") {
      std::optional<Value> part;
      for (const Value& value : given.positional) {
        const Value element = value.object != 0 && (heap_[value.object].kind == ObjectKind::kList ||
                                                    heap_[value.object].kind == ObjectKind::kDict ||
                                                    heap_[value.object].kind == ObjectKind::kTuple)
                                  ? element_of(value)
                                  : value;
        part = part ? heap_.joined(*part, element, where_) : element;
      }
      if (part) heap_.write(out.object, n_.modules, *part);
      if (last == "Sequential" && !given.spread) heap_[out.object].fields = given.positional;
    }
    return out;
  }
  if (path.find("DataLoader") != std::string::npos && is_capital(last)) {
    return object_value(make(ObjectKind::kLibrary, id, names_.intern(path)));
  }
  if (last == "GradScaler")
    return object_value(make(ObjectKind::kLibrary, id, names_.intern(path)));
  if (path == "torch.save") {
    for (const Value& value : given.positional) mark_dropped(value);
    return none();
  }
  if (last == "checkpoint" && !given.positional.empty()) {
    Arguments rest = given;
    rest.positional.erase(rest.positional.begin());
    return call_value(first, rest, id);
  }
  if (last == "vmap" || last == "grad" || last == "jacrev" || last == "functional_call") {
    return tensor_from(GraphOp::kCall, given, nullptr, id);
  }
  if (path == "torch.hub.load" || path == "torch.jit.load" || path == "torch.jit.trace" ||
      path == "torch.export.load") {
    Value out = object_value(make(ObjectKind::kLibrary, id, names_.intern(path)));
    heap_[out.object].is_module = true;
    return out;
  }
  switch (words_.torch_function(last)) {
    case FunctionRole::kCreate: {
      for (const Value& value : given.positional) mark_dropped(value);
      const Value* wanted = given.keyword(n_.requires_grad);
      if (wanted != nullptr && wanted->has(kKnownNumber) && wanted->number == 1) {
        return parameter_of(0, id);
      }
      Value out;
      out.kinds = kIsTensor;
      std::vector<std::int64_t> sizes;
      std::vector<Value> given_sizes = given.positional;
      if (given_sizes.size() == 1 && given_sizes[0].object != 0) {
        given_sizes = heap_[given_sizes[0].object].fields;
      }
      for (const Value& size : given_sizes) {
        if (!size.has(kKnownNumber)) {
          sizes.clear();
          break;
        }
        sizes.push_back(size.number);
      }
      const bool by_size = last == "zeros" || last == "ones" || last == "randn" || last == "rand" ||
                           last == "empty" || last == "Tensor" || last == "FloatTensor";
      if (by_size && !sizes.empty()) {
        shapes_.push_back(sizes);
        out.shape = static_cast<std::int32_t>(shapes_.size() - 1);
      }
      if (ends_with(last, "_like")) out.shape = first.shape;
      return out;
    }
    case FunctionRole::kCut: {
      for (const Value& value : given.positional) mark_dropped(value);
      Value out;
      out.kinds = kIsTensor;
      return out;
    }
    case FunctionRole::kPair: {
      const Value values = tensor_from(GraphOp::kFunction, given, nullptr, id);
      Value indices;
      indices.kinds = kIsTensor;
      return tuple_of({values, indices}, id);
    }
    case FunctionRole::kJoinUp: {
      // What is joined is a sequence: where the name may also stand for a tensor, it does not here.
      if (!given.positional.empty() && first.object != 0 && first.is(kIsObject)) {
        given.positional[0].history = 0;
        // A list made anew in this iteration is the one, where a branch might have left another.
        if (first.other != 0 && heap_[first.object].birth != heap_[first.other].birth) {
          const bool fresh = graph_.crossed(heap_[first.object].birth, where_) == 0;
          if (!fresh) given.positional[0].object = first.other;
          given.positional[0].other = 0;
        }
      }
      const Value out = tensor_from(GraphOp::kFunction, given, nullptr, id);
      if (out.history != 0) note_carried(out.history, GraphOp::kFunction, id, true);
      return out;
    }
    case FunctionRole::kArithmetic:
      return tensor_from(GraphOp::kArithmetic, given, nullptr, id);
    default:
      break;
  }
  if ((last == "max" || last == "min" || last == "median") &&
      (given.positional.size() > 1 || !given.keywords.empty()) &&
      (given.positional.size() < 2 || given.positional[1].only(kIsNumber))) {
    const Value values = tensor(GraphOp::kFunction, {first}, id);
    Value indices;
    indices.kinds = kIsTensor;
    return tuple_of({values, indices}, id);
  }
  Value out = tensor_from(GraphOp::kFunction, given, nullptr, id);
  if (last == "mean" || last == "sum" || last == "norm") out.flags |= kReduced;
  return out;
}

Value Interpreter::call_external(const std::string& path, Arguments& given, NodeId id) {
  const std::string_view last = last_word(path);
  const Value first = given.positional.empty() ? Value{} : given.positional[0];
  if (starts_with(path, "builtins.")) {
    const std::string_view name = std::string_view(path).substr(9);
    if (name == "dict.fromkeys") return object_value(make(ObjectKind::kDict, id));
    return call_builtin(name, given, id);
  }
  if (last == "no_grad" || last == "inference_mode" || last == "set_grad_enabled" ||
      last == "enable_grad") {
    return call_torch(path, last, given, id);
  }
  if (path.find("cycle") != std::string::npos && path == "itertools.cycle") {
    bool loader = is_loader(first);
    if (loader) {
      // A dataset or data kept in a list is there anyway; a loader makes its batches anew.
      const bool certain =
          first.object != 0 && (heap_[first.object].kind == ObjectKind::kLibrary ||
                                names_.text(first.hint).find("oader") != std::string::npos ||
                                names_.text(first.hint).find("dl") != std::string::npos);
      if (certain) {
        seen_.direct.push_back({"cycle-caches-loader", id,
                                "itertools.cycle keeps every batch of the loader to give it out "
                                "again; loop over the loader anew instead"});
      }
    }
    Value out = list_of(element_of(first), id);
    if (loader) out.flags |= kLoaderValue;
    return out;
  }
  if (starts_with(path, "itertools.") || path == "more_itertools.chunked") {
    if (last == "chain" || last == "from_iterable") {
      std::optional<Value> element;
      for (const Value& value : given.positional) {
        const Value one = last == "chain" ? element_of(value) : element_of(element_of(value));
        element = element ? heap_.joined(*element, one, where_) : one;
      }
      return list_of(element ? *element : Value{}, id);
    }
    if (last == "count" || last == "product") return list_of(number(), id);
    if (last == "repeat") return list_of(first, id);
    Value out = list_of(element_of(first), id);
    if (is_loader(first)) out.flags |= kLoaderValue;
    return out;
  }
  if (path == "functools.partial" && !given.positional.empty()) {
    const ObjectId partial = make(ObjectKind::kFunction, 0);
    heap_.write(partial, n_.call, first);
    heap_[partial].bound.assign(given.positional.begin() + 1, given.positional.end());
    Value out = object_value(partial);
    out.hint = first.hint;
    return out;
  }
  if (path == "functools.reduce" && given.positional.size() >= 2) {
    Arguments both;
    both.positional = {element_of(given.positional[1]), element_of(given.positional[1])};
    return call_value(first, both, id);
  }
  if (starts_with(path, "operator.")) return tensor_from(GraphOp::kArithmetic, given, nullptr, id);
  if (starts_with(path, "collections.") || last == "deque" || last == "defaultdict" ||
      last == "OrderedDict" || last == "Counter") {
    if (last == "deque") {
      Value out = object_value(make(ObjectKind::kList, id));
      if (given.keyword(n_.maxlen) != nullptr || given.positional.size() > 1) {
        heap_[out.object].bounded = true;
      }
      if (!given.positional.empty()) {
        const Value element = element_of(first);
        if (element.history != 0) heap_.write(out.object, n_.element, element);
      }
      return out;
    }
    if (last == "namedtuple") {
      const ObjectId maker = make(ObjectKind::kLibrary, id, names_.intern("$namedtuple"));
      if (given.positional.size() > 1) {
        const Value& names = given.positional[1];
        if (names.only(kIsString) && names.text != 0) {
          std::string text = names_.text(names.text);
          std::replace(text.begin(), text.end(), ',', ' ');
          std::istringstream words(text);
          for (std::string word; words >> word;) {
            Value field;
            field.kinds = kIsString;
            field.text = names_.intern(word);
            heap_[maker].fields.push_back(field);
          }
        } else if (names.object != 0) {
          const std::vector<Value> fields = heap_[names.object].fields;
          heap_[maker].fields = fields;
        }
      }
      return object_value(maker);
    }
    Value out = object_value(make(ObjectKind::kDict, id));
    if (last == "defaultdict" && !given.positional.empty()) {
      if (first.object != 0 ||
          (first.is(kIsExternal) && names_.text(first.text) != "builtins.int" &&
           names_.text(first.text) != "builtins.float")) {
        heap_.write(out.object, names_.intern("$factory"), first);
      }
    }
    return out;
  }
  if (path == "dataclasses.field") {
    Value out = object_value(make(ObjectKind::kOpaque, id));
    if (const Value* factory = given.keyword(names_.intern("default_factory"))) {
      heap_.write(out.object, names_.intern("$factory"), *factory);
    }
    return out;
  }
  if (last == "tqdm" || last == "trange" || last == "track" || ends_with(path, "tqdm.auto.tqdm") ||
      last == "progress_bar") {
    if (given.positional.empty()) return opaque(id, names_.intern("bar"));
    if (last == "trange") return call_builtin("range", given, id);
    return first;
  }
  if (path == "copy.deepcopy" || path == "copy.copy") {
    Value out = first;
    if (first.object != 0 && (is_module(first) || first.has(kStateDict))) {
      if (path == "copy.deepcopy") out.flags |= kModelCopy;
      if (is_module(first)) {
        const Object original = heap_[first.object];
        const ObjectId copy = make(original.kind, id, original.path);
        heap_[copy] = original;
        heap_[copy].birth = where_;
        heap_[copy].optimized = false;
        heap_[copy].is_module = true;
        std::erase_if(heap_[copy].slots,
                      [&](const Slot& slot) { return names_.text(slot.key) == "$parameter"; });
        out.object = copy;
      }
      return out;
    }
    return path == "copy.deepcopy" ? without_history(first) : first;
  }
  if (starts_with(path, "torch.")) return call_torch(path, last, given, id);
  if (starts_with(path, "numpy.") || starts_with(path, "np.") || starts_with(path, "math.") ||
      starts_with(path, "random.") || starts_with(path, "os.") || starts_with(path, "time.") ||
      starts_with(path, "logging.") || starts_with(path, "json.") || starts_with(path, "sys.") ||
      starts_with(path, "pandas.") || starts_with(path, "matplotlib.") ||
      starts_with(path, "wandb.") || starts_with(path, "mlflow.") ||
      starts_with(path, "sklearn.") || starts_with(path, "scipy.")) {
    for (const Value& value : given.positional) mark_dropped(value);
    if (path == "wandb.init") return opaque(id, names_.intern("logger"));
    check_logged(last, given, id);
    Value out = number();
    if (starts_with(path, "numpy.") || starts_with(path, "pandas.")) out = Value{};
    return out;
  }
  // Models of other packages.
  if (starts_with(path, "torchvision.models.") || path == "timm.create_model" ||
      ((last == "from_pretrained" || last == "from_config") &&
       (path.find("Model") != std::string::npos || path.find("For") != std::string::npos ||
        path.find("Net") != std::string::npos || path.find("Pipeline") == std::string::npos))) {
    if (path.find("Tokenizer") != std::string::npos ||
        path.find("Processor") != std::string::npos ||
        path.find("FeatureExtractor") != std::string::npos ||
        path.find("Config") != std::string::npos || path.find("Scheduler") != std::string::npos) {
      return opaque(id, names_.intern("processor"));
    }
    Value out = object_value(make(ObjectKind::kLibrary, id, names_.intern(path)));
    heap_[out.object].is_module = true;
    if (last == "from_pretrained") heap_.write(out.object, n_.mode, constant(1));
    return out;
  }
  if (is_capital(last)) {
    const Name name = names_.intern(last);
    if (words_.like_optimizer(name) || starts_with(path, "transformers.AdamW")) {
      return optimizer_made(given, id, path);
    }
    Value out = object_value(make(ObjectKind::kLibrary, id, names_.intern(path)));
    const std::string_view words = last;
    const bool parallel = ends_with(words, "DataParallel") || ends_with(words, "DDP");
    if (parallel && first.object != 0) return first;
    if (ends_with(last, "Loss") || ends_with(last, "Criterion")) {
      heap_[out.object].is_module = true;
      heap_[out.object].path = names_.intern(std::string(path) + "Loss");
      return out;
    }
    static const auto* const users = new std::unordered_set<std::string_view>{
        "agent",   "trainer", "runner",  "buffer",    "memory",   "dataset", "env",
        "worker",  "learner", "manager", "collector", "storage",  "config",  "args",
        "wrapper", "sampler", "player",  "pipeline",  "callback", "logger",  "optimizer"};
    const std::vector<std::string> parts = words_of(last);
    if (words_.like_module(name) && !parts.empty() && users->count(parts.back()) == 0) {
      heap_[out.object].is_module = true;
    }
    out.hint = name;
    return out;
  }
  Value callee;
  callee.hint = names_.intern(last);
  return call_unknown(callee.hint, callee, given, id);
}

// "resnet", "teacher_model", but not "model_summary".
bool Interpreter::ends_like_module(Name name) {
  const std::vector<std::string> words = words_of(names_.text(name));
  if (words.empty()) return true;  // G, D
  const std::size_t last =
      words.back().size() == 1 && words.size() > 1 ? words.size() - 2 : words.size() - 1;
  return words_.like_module(names_.intern(words[last])) ||
         words_.like_teacher(names_.intern(words[last])) || names_.text(name).size() == 1;
}

Value Interpreter::call_unknown(Name hint, const Value& callee, Arguments& given, NodeId id,
                                bool method) {
  if (callee.object != 0 && heap_[callee.object].kind == ObjectKind::kLibrary &&
      path_of(callee.object) == "$namedtuple") {
    const std::vector<Value> names = heap_[callee.object].fields;
    std::vector<Value> values = given.positional;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const Value* keyword = given.keyword(names[i].text);
      if (i >= values.size()) values.push_back(keyword != nullptr ? *keyword : Value{});
    }
    Value out = tuple_of(values, id);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i].text != 0) heap_.write(out.object, names[i].text, values[i]);
    }
    return out;
  }
  bool has_optimizer = false, has_module = false, has_loader = false;
  std::vector<GraphId> inputs;
  const auto look = [&](const Value& value) {
    has_optimizer = has_optimizer || (value.history == 0 && is_optimizer(value));
    has_module = has_module || is_module(value);
    has_loader = has_loader || is_loader(value);
    collect(value, inputs);
    // A function of the file that is handed over may be called.
    if (value.object != 0 && heap_[value.object].kind == ObjectKind::kFunction &&
        heap_[value.object].node != 0 && entered_.count(heap_[value.object].node) == 0) {
      called_names_.insert(0);
    }
  };
  for (const Value& value : given.positional) look(value);
  for (const auto& [key, value] : given.keywords) look(value);
  if (has_module && !inputs.empty()) {
    for (const Value& value : given.positional) {
      if (is_module(value)) heap_[value.object].touched = true;
    }
  }
  const std::string& name = names_.text(hint);
  const bool detaches =
      std::any_of(given.positional.begin(), given.positional.end(), [&](const Value& value) {
        return value.is(kIsExternal) &&
               names_.text(value.text).find(".detach") != std::string::npos;
      });
  const auto is_loss = [&](const Value& value) {
    return value.history != 0 && words_.like_loss(value.hint);
  };
  if (has_optimizer && std::any_of(given.positional.begin(), given.positional.end(), is_loss)) {
    // loss_scaler(loss, optimizer, ...): backward, step and all.
    for (const Value& value : given.positional) {
      Arguments nothing;
      if (is_loss(value)) backward(value, nothing, id);
    }
    note_step();
    if (name.find("scale") == std::string::npos && name.find("backward") == std::string::npos) {
      note_zeroed();
    }
    return Value{};
  }
  if (has_optimizer) {
    if (name.find("step") != std::string::npos) note_step();
    note_zeroed();
  }
  if (name.find("zero_grad") != std::string::npos || name.find("clear_grad") != std::string::npos ||
      name.find("reset_grad") != std::string::npos) {
    note_zeroed();
    return none();
  }
  if (detaches || name.find("detach") != std::string::npos ||
      name.find("repackage") != std::string::npos || name.find("stop_grad") != std::string::npos) {
    for (const Value& value : given.positional) mark_dropped(value);
    const bool tensor = !given.positional.empty() && given.positional[0].object == 0;
    return tensor ? without_history(given.positional[0]) : opaque(id, 0);
  }
  if (runs_backward(name) && !given.positional.empty()) {
    backward(given.positional[0], given, id);
    return none();
  }
  const bool module_like =
      callee.object != 0
          ? is_module(callee) || words_.like_teacher(callee.hint)
          : (!method && hint != 0 && words_.like_module(hint) && ends_like_module(hint) &&
             !words_.like_metric(hint) && !words_.like_loader(hint) && name.rfind("get", 0) != 0 &&
             name.rfind("build", 0) != 0 && name.rfind("make", 0) != 0 &&
             name.rfind("create", 0) != 0 && name.rfind("load", 0) != 0 &&
             name.rfind("init", 0) != 0 && name.rfind("save", 0) != 0 && name.rfind("set", 0) != 0);
  if (module_like && callee.object != 0) return call_module(callee, given, id, 0);
  const bool factory = name.rfind("build", 0) == 0 || name.rfind("make", 0) == 0 ||
                       name.rfind("create", 0) == 0 || name.rfind("load", 0) == 0 ||
                       name.rfind("prepare", 0) == 0 || name.rfind("setup", 0) == 0 ||
                       name.rfind("init", 0) == 0 || name.rfind("parse", 0) == 0;
  if (factory && inputs.empty()) return opaque(id, 0);
  if (hint != 0 && words_.like_loss(hint) && !words_.like_metric(hint)) {
    if (grad_ == GradMode::kOff) {
      Value out;
      out.kinds = kIsTensor;
      return out;
    }
    Value out =
        tensor_from(inputs.empty() ? GraphOp::kCall : GraphOp::kFunction, given, nullptr, id);
    out.flags |= kReduced;
    return out;
  }
  if (hint != 0 && words_.like_metric(hint)) {
    for (const GraphId history : inputs) graph_[history].dropped = true;
    return opaque(id, hint);
  }
  if (name.rfind("get_", 0) == 0 && inputs.empty()) return opaque(id, 0);
  for (const GraphId history : inputs) graph_[history].escaped = true;
  if (has_loader && inputs.empty()) {
    Value out = opaque(id, names_.intern("loader"));
    return out;
  }
  Value out = opaque(id, 0);
  if (grad_ != GradMode::kOff) {
    const Value made = tensor_from(GraphOp::kCall, given, nullptr, id);
    out.history = made.history;
    const bool given_something =
        std::any_of(given.positional.begin(), given.positional.end(), [](const Value& value) {
          return (value.kinds & (kIsTensor | kIsUnknown | kIsObject)) != 0;
        });
    if (inputs.empty() && given_something && !has_module && (method || callee.object != 0)) {
      Value what;
      what.hint = hint;
      note_forward(out, what, given, id);
      if (!seen_.forwards.empty() && seen_.forwards.back().result == out.history) {
        seen_.forwards.back().unknown = true;
      }
    }
    // It may give back what it was given; nobody knows its history before backward is called on it.
  }
  return out;
}

}  // namespace lowtide::lint
