// Expressions other than calls.

#include <algorithm>
#include <charconv>

#include "src/lint/interpreter.h"

namespace lowtide::lint {
namespace {

constexpr int kMaxDepth = 200;

std::optional<std::int64_t> integer(std::string_view text) {
  std::string digits;
  for (const char c : text) {
    if (c != '_') digits += c;
  }
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, problem] = std::from_chars(digits.data(), end, value);
  if (problem == std::errc() && stopped == end) return value;
  if (digits.find_first_of(".eE") != std::string::npos) {
    double real = 0;
    const auto [at, trouble] = std::from_chars(digits.data(), end, real);
    if (trouble == std::errc() && at == end && real > -1e15 && real < 1e15 &&
        real == static_cast<double>(static_cast<std::int64_t>(real))) {
      return static_cast<std::int64_t>(real);
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> folded(std::string_view op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &out) ? std::nullopt : std::optional(out);
  if (op == "-") return __builtin_sub_overflow(a, b, &out) ? std::nullopt : std::optional(out);
  if (op == "*") return __builtin_mul_overflow(a, b, &out) ? std::nullopt : std::optional(out);
  if ((op == "//" || op == "/") && b > 0 && a >= 0) return a / b;
  if (op == "%" && b > 0 && a >= 0) return a % b;
  if (op == "<<" && b >= 0 && b < 40 && a >= 0 && a < (1 << 20)) return a << b;
  if (op == "**" && b >= 0 && b < 60) {
    std::int64_t power = 1;
    for (std::int64_t i = 0; i < b; ++i) {
      if (__builtin_mul_overflow(power, a, &power)) return std::nullopt;
    }
    return power;
  }
  return std::nullopt;
}

bool is_builtin(std::string_view name) {
  static const auto* const names = new std::unordered_set<std::string_view>{"print",
                                                                            "len",
                                                                            "range",
                                                                            "enumerate",
                                                                            "zip",
                                                                            "map",
                                                                            "filter",
                                                                            "sum",
                                                                            "max",
                                                                            "min",
                                                                            "abs",
                                                                            "float",
                                                                            "int",
                                                                            "str",
                                                                            "bool",
                                                                            "list",
                                                                            "tuple",
                                                                            "dict",
                                                                            "set",
                                                                            "sorted",
                                                                            "reversed",
                                                                            "iter",
                                                                            "next",
                                                                            "isinstance",
                                                                            "getattr",
                                                                            "setattr",
                                                                            "hasattr",
                                                                            "round",
                                                                            "any",
                                                                            "all",
                                                                            "open",
                                                                            "super",
                                                                            "type",
                                                                            "id",
                                                                            "hash",
                                                                            "repr",
                                                                            "format",
                                                                            "property",
                                                                            "staticmethod",
                                                                            "classmethod",
                                                                            "object",
                                                                            "divmod",
                                                                            "pow",
                                                                            "callable",
                                                                            "vars",
                                                                            "dir",
                                                                            "input",
                                                                            "frozenset",
                                                                            "bytes",
                                                                            "slice",
                                                                            "complex",
                                                                            "issubclass",
                                                                            "Exception",
                                                                            "RuntimeError",
                                                                            "ValueError",
                                                                            "KeyError",
                                                                            "StopIteration",
                                                                            "NotImplementedError",
                                                                            "MemoryError",
                                                                            "AssertionError",
                                                                            "KeyboardInterrupt",
                                                                            "exit",
                                                                            "quit",
                                                                            "globals",
                                                                            "locals"};
  return names->count(name) != 0;
}

}  // namespace

Value Interpreter::evaluate(NodeId id) {
  if (id == 0) return Value{};
  ++steps_;
  if (expression_depth_ >= kMaxDepth || spent()) return Value{};
  ++expression_depth_;
  const Value value = evaluate_inner(id);
  --expression_depth_;
  return value;
}

Value Interpreter::evaluate_inner(NodeId id) {
  const Node& node = tree_[id];
  switch (node.kind) {
    case NodeKind::kName:
      return name_value(id);
    case NodeKind::kAttribute:
      return attribute(evaluate(node.a), node.name, id);
    case NodeKind::kCall:
      return call(id);
    case NodeKind::kSubscript:
      return subscript(id);
    case NodeKind::kBinary:
      return binary(node.name, evaluate(node.a), evaluate(node.b), id);
    case NodeKind::kUnary: {
      const Value value = evaluate(node.a);
      const std::string& op = names_.text(node.name);
      if (op == "not") {
        mark_dropped(value);
        return number();
      }
      if (value.history != 0) return tensor(GraphOp::kFunction, {value}, id);
      if (op == "-" && value.has(kKnownNumber)) return constant(-value.number);
      Value out = value;
      out.flags &= static_cast<std::uint16_t>(~kKnownNumber);
      return out;
    }
    case NodeKind::kBoolean: {
      const Value a = evaluate(node.a);
      const Value b = evaluate(node.b);
      return heap_.joined(a, b, where_);
    }
    case NodeKind::kCompare: {
      for (const NodeId item : tree_.items(id)) mark_dropped(evaluate(item));
      Value out;
      out.kinds = kIsNumber | kIsTensor;
      return out;
    }
    case NodeKind::kTuple:
      return sequence(id, ObjectKind::kTuple);
    case NodeKind::kList:
    case NodeKind::kSet:
      return sequence(id, ObjectKind::kList);
    case NodeKind::kDict:
      return dictionary(id);
    case NodeKind::kListComp:
    case NodeKind::kSetComp:
    case NodeKind::kDictComp:
    case NodeKind::kGenerator:
      return comprehension(id);
    case NodeKind::kLambda: {
      const ObjectId function = make(ObjectKind::kFunction, id);
      heap_[function].parent = heap_[frame_->scope].kind == ObjectKind::kClass
                                   ? heap_[frame_->scope].parent
                                   : frame_->scope;
      return object_value(function);
    }
    case NodeKind::kConditional: {
      evaluate(node.a);
      if (const auto known = truth(node.a)) return evaluate(*known ? node.b : node.c);
      const Value a = evaluate(node.b);
      const Value b = evaluate(node.c);
      return heap_.joined(a, b, where_);
    }
    case NodeKind::kAwait:
    case NodeKind::kStar:
    case NodeKind::kDoubleStar:
      return evaluate(node.a);
    case NodeKind::kYield: {
      Value value = node.a != 0 ? evaluate(node.a) : none();
      if (node.flag == 1) value = element_of(value);
      frame_->latest = value;
      frame_->yielded = frame_->yielded ? heap_.joined(*frame_->yielded, value, where_) : value;
      if (frame_->on_yield != nullptr) (*frame_->on_yield)();
      return Value{};
    }
    case NodeKind::kNamedExpr: {
      const Value value = evaluate(node.b);
      assign(node.a, value, id);
      return value;
    }
    case NodeKind::kNumber: {
      if (const auto value = integer(names_.text(node.name))) return constant(*value);
      return number();
    }
    case NodeKind::kString: {
      Value value;
      value.kinds = kIsString;
      value.text = node.name;
      return value;
    }
    case NodeKind::kFString: {
      bool key = false;
      for (const NodeId item : tree_.items(id)) {
        const Value part = evaluate(item);
        mark_dropped(part);
        key = key || part.has(kTensorKey) || part.only(kIsTensor);
      }
      Value value;
      value.kinds = kIsString;
      if (key) value.flags |= kTensorKey;
      return value;
    }
    case NodeKind::kTrue:
      return constant(1);
    case NodeKind::kFalse:
      return constant(0);
    case NodeKind::kNoneValue:
      return none();
    case NodeKind::kSlice:
    case NodeKind::kOther:
      for (const NodeId item : tree_.items(id)) evaluate(item);
      return number();
    case NodeKind::kKeyword:
      return evaluate(node.a);
    default:
      return Value{};
  }
}

Value Interpreter::name_value(NodeId id) { return look_up(tree_[id].name); }

Value Interpreter::look_up(Name name) {
  for (ObjectId scope = frame_->scope; scope != 0; scope = heap_[scope].parent) {
    if (const Value* found = heap_.find(scope, name)) return *found;
  }
  const std::string& text = names_.text(name);
  if (is_builtin(text)) return external("builtins." + text);
  // Out of a star import, as everybody calls them.
  if (text == "torch") return external("torch");
  if (text == "nn") return external("torch.nn");
  if (text == "F") return external("torch.nn.functional");
  // Comes from a star import, or is defined later: the same unknown each time.
  const Value value = opaque(0, name);
  heap_[value.object].birth = 0;
  if (module_scope_ != 0) heap_.write(module_scope_, name, value);
  return value;
}

Value Interpreter::attribute(const Value& whole, Name name, NodeId id) {
  const std::string& text = names_.text(name);
  if (whole.is(kIsExternal)) {
    return external(names_.text(whole.text) + "." + text);
  }
  if (whole.history != 0 || whole.only(kIsTensor)) {
    if (name == n_.data) {
      Value out = without_history(whole);
      return out;
    }
    if (name == n_.grad) {
      Value out;
      out.kinds = kIsTensor;
      out.hint = n_.grad;
      return out;
    }
    if (text == "shape" || text == "ndim" || text == "dtype" || text == "device" ||
        text == "is_cuda" || text == "requires_grad" || text == "grad_fn" || text == "is_leaf" ||
        text == "layout" || text == "names" || text == "nbytes" || text == "itemsize") {
      mark_dropped(whole);
      Value out = number();
      out.flags = kFromSize;
      out.shape = text == "shape" ? whole.shape : 0;
      return out;
    }
    if (whole.history != 0) {
      if (whole.object != 0) {
        if (const Value* slot = heap_.find(whole.object, name)) return *slot;
      }
      // A field of what a model returned, or a view.
      Value out = whole;
      out.flags &= static_cast<std::uint16_t>(~(kLeaf | kModuleOutput));
      out.object = out.other = 0;
      out.shape = 0;
      if (words_.like_loss(name)) out.flags |= kReduced;
      out.hint = name;
      return out;
    }
    Value out = whole;
    return out;
  }
  if (whole.object == 0) {
    Value out;
    out.hint = name;
    if (text == "shape") out.flags |= kFromSize;
    if (whole.is(kIsUnknown)) return opaque(id, name);
    return out;
  }
  const ObjectId object = whole.object;
  if (const Value* slot = heap_.find(object, name)) {
    return *slot;
  }
  const ObjectKind kind = heap_[object].kind;
  if (kind == ObjectKind::kTuple && heap_[object].fields.size() == 2) {
    if (text == "values") return heap_[object].fields[0];
    if (text == "indices") return heap_[object].fields[1];
  }
  if (kind == ObjectKind::kInstance || kind == ObjectKind::kClass) {
    const ObjectId cls = kind == ObjectKind::kInstance ? heap_[object].parent : object;
    if (const Value* found = find_in_class(cls, name)) {
      const Value member = *found;
      if (member.object == 0 || heap_[member.object].kind != ObjectKind::kFunction ||
          kind == ObjectKind::kClass || heap_[member.object].is_static) {
        return member;
      }
      const Object copy = heap_[member.object];
      const ObjectId bound = make(ObjectKind::kFunction, copy.node);
      heap_[bound] = copy;
      heap_[bound].self = object;
      if (copy.is_property) {
        Arguments nothing;
        return call_function(bound, nothing, id);
      }
      Value out = object_value(bound);
      out.hint = name;
      return out;
    }
    if (kind == ObjectKind::kClass) return Value{};
  }
  if (text == "shape") {
    Value out = number();
    out.flags = kFromSize;
    out.shape = whole.shape;
    return out;
  }
  if (name == n_.data || text == "grad") {
    Value out = whole;
    if (name != n_.data) out = opaque(id, name);
    return out;
  }
  if (kind == ObjectKind::kOpaque || kind == ObjectKind::kLibrary ||
      kind == ObjectKind::kInstance) {
    Value part = opaque(id, name, object);
    heap_[part.object].birth = heap_[object].birth;
    heap_.write(object, name, part);
    return part;
  }
  Value out;
  out.hint = name;
  return out;
}

Value Interpreter::element_of(const Value& container) {
  if (container.history != 0) {
    Value out = container;
    out.object = out.other = 0;
    out.shape = 0;
    out.flags &= static_cast<std::uint16_t>(~(kLeaf | kReduced));
    if (container.has(kLeaf)) out.flags |= 0;
    return out;
  }
  if (container.only(kIsTensor)) {
    Value out;
    out.kinds = kIsTensor;
    return out;
  }
  if (container.only(kIsNumber) && container.has(kFromSize)) return container;
  if (container.object == 0) return Value{};
  Object& object = heap_[container.object];
  if (object.kind == ObjectKind::kLibrary || object.kind == ObjectKind::kOpaque ||
      object.kind == ObjectKind::kInstance) {
    if (object.kind == ObjectKind::kInstance) {
      if (const Value* iterate = find_in_class(object.parent, names_.intern("__iter__"))) {
        const ObjectId cls_method = iterate->object;
        if (cls_method != 0 && heap_[cls_method].kind == ObjectKind::kFunction) {
          const Object copy = heap_[cls_method];
          const ObjectId bound = make(ObjectKind::kFunction, copy.node);
          heap_[bound] = copy;
          heap_[bound].self = container.object;
          Arguments nothing;
          const Value result = call_function(bound, nothing, container.object != 0 ? copy.node : 0);
          if (result.object != 0 && heap_[result.object].kind == ObjectKind::kList) {
            return element_of(result);
          }
        }
      }
    }
    if (const Value* element = heap_.find(container.object, n_.element)) return *element;
    if (const Value* modules = heap_.find(container.object, n_.modules)) return *modules;
    const bool loader = is_loader(container);
    const bool module = is_module(container);
    Value element = opaque(heap_[container.object].node, container.hint, container.object);
    element.hint = 0;
    if (loader) element.flags |= kLoaderValue;
    if (module) heap_[element.object].is_module = true;
    heap_[element.object].birth = heap_[container.object].birth;
    if (!loader) heap_.write(container.object, n_.element, element);
    return element;
  }
  std::optional<Value> out;
  const std::vector<Value> fields = object.fields;
  for (const Value& field : fields) out = out ? heap_.joined(*out, field, where_) : field;
  const std::vector<Slot> slots = heap_[container.object].slots;
  const bool dict = heap_[container.object].kind == ObjectKind::kDict;
  for (const Slot& slot : slots) {
    const char mark = names_.text(slot.key)[0];
    if (slot.key == n_.element || mark == '#' || (dict && mark != '$')) {
      out = out ? heap_.joined(*out, slot.value, where_) : slot.value;
    }
  }
  if (out) out->flags &= static_cast<std::uint16_t>(~kModelCopy);
  return out ? *out : Value{};
}

Value Interpreter::subscript(NodeId id) {
  const Node& node = tree_[id];
  const Value whole = evaluate(node.a);
  const auto indices = tree_.items(id);
  Value key;
  for (const NodeId index : indices) {
    key = evaluate(index);
  }
  if (whole.history != 0) {
    Value out = whole;
    // (values, indices)[1] of a max is without history.
    if (whole.object != 0 && !heap_[whole.object].fields.empty() && key.has(kKnownNumber)) {
      const auto& fields = heap_[whole.object].fields;
      const std::int64_t at =
          key.number < 0 ? key.number + static_cast<std::int64_t>(fields.size()) : key.number;
      if (at >= 0 && at < static_cast<std::int64_t>(fields.size())) {
        return fields[static_cast<std::size_t>(at)];
      }
    }
    if (key.only(kIsString) && whole.object != 0) {
      if (const Value* slot = heap_.find(whole.object, key.text)) return *slot;
    }
    out.flags &= static_cast<std::uint16_t>(~kLeaf);
    out.shape = 0;
    const bool picked = !indices.empty() && tree_[indices[0]].kind != NodeKind::kSlice &&
                        !key.has(kKnownNumber) && !key.is(kIsString);
    if (picked && whole.only(kIsTensor)) {
      // Rows picked out of it are not the tensor itself, but as old as it is.
      GraphNode rows;
      rows.op = GraphOp::kFunction;
      rows.inputs = {whole.history};
      rows.where = graph_[whole.history].where;
      rows.origin = id;
      rows.view = true;
      out.history = graph_.add(std::move(rows));
    }
    if (key.only(kIsString) && words_.like_loss(key.text)) out.flags |= kReduced;
    return out;
  }
  if (whole.only(kIsNumber) && whole.has(kFromSize)) {
    if (whole.shape != 0 && key.has(kKnownNumber)) {
      const auto& sizes = shapes_[static_cast<std::size_t>(whole.shape)];
      const std::int64_t at =
          key.number < 0 ? key.number + static_cast<std::int64_t>(sizes.size()) : key.number;
      if (at >= 0 && at < static_cast<std::int64_t>(sizes.size())) {
        Value out = constant(sizes[static_cast<std::size_t>(at)]);
        out.flags |= kFromSize;
        return out;
      }
    }
    return whole;
  }
  if (whole.only(kIsTensor)) {
    Value out;
    out.kinds = kIsTensor;
    return out;
  }
  if (whole.object == 0) return Value{};
  const ObjectKind kind = heap_[whole.object].kind;
  const bool loaders = kind == ObjectKind::kOpaque && is_loader(whole) &&
                       names_.text(whole.hint).find("oaders") != std::string::npos;
  if (key.only(kIsString) && key.text != 0) {
    if (const Value* slot = heap_.find(whole.object, key.text)) return *slot;
    if (kind == ObjectKind::kOpaque || kind == ObjectKind::kLibrary) {
      Value part = attribute(whole, key.text, id);
      if (loaders) part.hint = names_.intern(names_.text(key.text) + "_loader");
      return part;
    }
  }
  if (loaders) return opaque(id, names_.intern("loader"), whole.object);
  if (key.has(kKnownNumber)) {
    if (const Value* slot = heap_.find(whole.object, index_key(key.number))) return *slot;
    const auto& fields = heap_[whole.object].fields;
    const std::int64_t at =
        key.number < 0 ? key.number + static_cast<std::int64_t>(fields.size()) : key.number;
    if (at >= 0 && at < static_cast<std::int64_t>(fields.size())) {
      return fields[static_cast<std::size_t>(at)];
    }
  }
  if (!indices.empty() && tree_[indices[0]].kind == NodeKind::kSlice) {
    if (kind == ObjectKind::kList || kind == ObjectKind::kTuple)
      return list_of(element_of(whole), id);
    return whole;
  }
  // A dict that makes its entries: each key holds the same kind of thing.
  if (kind == ObjectKind::kDict) {
    if (const Value* factory = heap_.find(whole.object, names_.intern("$factory"))) {
      if (heap_.find(whole.object, n_.element) == nullptr) {
        const Value maker = *factory;
        Arguments nothing;
        Value made = call_value(maker, nothing, id);
        if (made.object != 0) heap_[made.object].birth = heap_[whole.object].birth;
        if (key.only(kIsString) && key.text != 0) {
          heap_.write(whole.object, key.text, made);
        } else {
          heap_.write(whole.object, n_.element, made);
        }
        return made;
      }
    }
  }
  return element_of(whole);
}

Value Interpreter::binary(Name op_name, const Value& a, const Value& b, NodeId id) {
  const std::string& op = names_.text(op_name);
  if (a.has(kKnownNumber) && b.has(kKnownNumber)) {
    if (const auto value = folded(op, a.number, b.number)) {
      Value out = constant(*value);
      out.flags |= (a.flags | b.flags) & kSupposed;
      return out;
    }
  }
  const auto is_list = [&](const Value& value) {
    return value.object != 0 && (heap_[value.object].kind == ObjectKind::kList ||
                                 heap_[value.object].kind == ObjectKind::kTuple);
  };
  if (op == "+" && is_list(a) && (is_list(b) || b.is(kIsUnknown))) {
    Value sum = list_of(element_of(a), id);
    heap_.widen(sum.object, n_.element, element_of(b));
    return sum;
  }
  if (op == "*" && is_list(a)) return a;
  if (op == "%" && a.is(kIsString)) {
    mark_dropped(b);
    return a;
  }
  if (a.history == 0 && b.history == 0) {
    Value out;
    out.kinds = a.kinds | b.kinds;
    if (out.kinds & kIsTensor) out.kinds = kIsTensor;
    if (a.only(kIsNumber) && b.only(kIsNumber)) {
      out.flags = (a.flags | b.flags) & kFromSize;
    } else if ((a.kinds | b.kinds) & kIsUnknown) {
      out.kinds = kIsUnknown;
      if (a.is(kIsTensor) || b.is(kIsTensor)) out.kinds = kIsTensor;
    }
    if (a.hint == n_.grad || b.hint == n_.grad) out.hint = n_.grad;
    out.shape = a.shape != 0 ? a.shape : b.shape;
    return out;
  }
  Value out = tensor(GraphOp::kArithmetic, {a, b}, id);
  if ((a.has(kReduced) || a.history == 0) && (b.has(kReduced) || b.history == 0) &&
      (a.has(kReduced) || b.has(kReduced))) {
    out.flags |= kReduced;
  }
  if (op == "//" || op == "&" || op == "|" || op == "^") {
    return without_history(out);
  }
  return out;
}

Value Interpreter::sequence(NodeId id, ObjectKind kind) {
  std::vector<Value> fields;
  bool spread = false;
  const auto items = tree_.items(id);
  for (const NodeId item : items) {
    if (tree_[item].kind == NodeKind::kStar) {
      const Value whole = evaluate(tree_[item].a);
      if (whole.object != 0 && !heap_[whole.object].fields.empty()) {
        const std::vector<Value> parts = heap_[whole.object].fields;
        fields.insert(fields.end(), parts.begin(), parts.end());
      } else {
        fields.push_back(element_of(whole));
        spread = true;
      }
    } else {
      fields.push_back(evaluate(item));
    }
  }
  const ObjectId object = make(kind, id);
  if (spread || fields.size() > 16) {
    for (const Value& field : fields) heap_.widen(object, n_.element, field);
  } else {
    heap_[object].fields = std::move(fields);
  }
  return object_value(object);
}

Value Interpreter::dictionary(NodeId id) {
  const ObjectId object = make(ObjectKind::kDict, id);
  for (const NodeId item : tree_.items(id)) {
    const Node& entry = tree_[item];
    if (entry.kind == NodeKind::kPair) {
      const Value key = evaluate(entry.a);
      const Value value = evaluate(entry.b);
      if (key.only(kIsString) && key.text != 0) {
        heap_.write(object, key.text, value);
      } else {
        heap_.widen(object, n_.element, value);
      }
    } else if (entry.kind == NodeKind::kDoubleStar) {
      const Value whole = evaluate(entry.a);
      if (whole.object != 0) {
        const std::vector<Slot> slots = heap_[whole.object].slots;
        for (const Slot& slot : slots) {
          if (names_.text(slot.key)[0] != '$' || slot.key == n_.element) {
            heap_.write(object, slot.key, slot.value);
          }
        }
        if (slots.empty() && whole.history != 0) heap_.widen(object, n_.element, element_of(whole));
      }
    }
  }
  return object_value(object);
}

Value Interpreter::comprehension(NodeId id) {
  const Node& node = tree_[id];
  Value element;
  bool copies = false;
  std::vector<LoopId> loops;
  // A scope of its own, so that its names do not leak.
  const ObjectId scope = make(ObjectKind::kScope, id);
  heap_[scope].parent = frame_->scope;
  const ObjectId outer = frame_->scope;
  frame_->scope = heap_[outer].kind == ObjectKind::kClass ? outer : scope;
  const auto clauses = tree_.items(id);
  const std::function<void(std::size_t)> clause = [&](std::size_t index) {
    if (index == clauses.size()) {
      if (node.kind == NodeKind::kDictComp && node.a != 0) {
        evaluate(tree_[node.a].a);
        element = evaluate(tree_[node.a].b);
      } else {
        element = evaluate(node.a);
      }
      copies = element.has(kModelCopy);
      return;
    }
    const Node& one = tree_[clauses[index]];
    if (one.kind == NodeKind::kCompIf) {
      evaluate(one.a);
      refine(one.a, true);
      clause(index + 1);
      return;
    }
    const Value iterable = evaluate(one.b);
    LoopRun run;
    run.over_data = is_loader(iterable);
    run.node = clauses[index];
    run.comprehension = true;
    run.function = frame_->node;
    run.branch_depth = branch_depth_;
    const LoopId loop = graph_.begin_loop(run);
    if (index == 0 || loops.empty()) loops.push_back(loop);
    const WhereId before = where_;
    // Once is enough to see what it makes; a training step needs what it finds of the one before.
    for (int pass = 1; pass == 1 || (pass <= 3 && graph_.loop(loop).backwards > 0); ++pass) {
      where_ = graph_.enter(before, loop, pass);
      heap_.now = where_;
      assign(one.a, iterated(iterable), id);
      clause(index + 1);
    }
    where_ = before;
    heap_.now = before;
  };
  clause(0);
  frame_->scope = outer;
  const ObjectId out =
      make(node.kind == NodeKind::kDictComp ? ObjectKind::kDict : ObjectKind::kList, id);
  if (node.kind == NodeKind::kGenerator) {
    heap_[out].made_by = loops.empty() ? 0 : loops[0];
  } else if (!histories(element).empty() && !loops.empty()) {
    Stored stored{};
    element = stored_alias(element, stored.aliases);
    stored.loops = loops;
    stored.container = out;
    stored.site = frame_->statement;
    stored.function = frame_->node;
    stored.root = root_method_;
    seen_.stored.push_back(std::move(stored));
  }
  heap_.write(out, n_.element, element);
  Value value = object_value(out);
  if (copies) value.flags |= kModelCopy;
  return value;
}

}  // namespace lowtide::lint
