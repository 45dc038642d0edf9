#pragma once
// Reads a file as Python would run it, over values that only know their kind and their history.
//
// Functions of the file are entered at each call, with the values that they are given; loops run
// two or three times, so that what an iteration finds of the one before is seen; both branches of a
// condition run, and what they leave is joined. Where code is not in the file, names decide
// (vocabulary.h). docs/design/0010-lint.md has the whole of it.

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "src/lint/heap.h"
#include "src/lint/observations.h"
#include "src/lint/syntax_tree.h"
#include "src/lint/vocabulary.h"

namespace lowtide::lint {

enum class GradMode : std::uint8_t { kOn, kOff, kEither };

class Interpreter {
 public:
  Interpreter(const SyntaxTree& tree, Names& names, Vocabulary& vocabulary);

  // Runs the module, then every function and class that it did not reach.
  void run();

  GradientGraph& graph() { return graph_; }
  Heap& heap() { return heap_; }
  const Observations& observations() const { return seen_; }
  // Whether the parameters of `module`, or of a part or whole of it, are an optimizer's.
  bool is_optimized(ObjectId module);

 private:
  struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<Name, Value>> keywords;
    bool spread = false;  // *x or **x of unknown length among them
    const Value* keyword(Name name) const {
      for (const auto& [key, value] : keywords) {
        if (key == name) return &value;
      }
      return nullptr;
    }
  };
  struct Frame {
    ObjectId function = 0;
    NodeId node = 0;
    ObjectId scope = 0;
    ObjectId self = 0;
    ObjectId owner = 0;  // the class whose method this is
    Frame* caller = nullptr;
    NodeId statement = 0;
    std::vector<GraphId> arguments;
    std::optional<Value> returned;
    std::optional<Value> yielded;  // by all yields so far
    Value latest;                  // by the one that runs
    const std::function<void()>* on_yield = nullptr;
    std::vector<Name> outer_names;  // global, nonlocal
    std::vector<Heap::Changes> exits;
    bool is_module_run = false;
    bool by_hook = false;
    bool is_root = false;  // nobody in the file calls it here
  };
  enum class Flow : std::uint8_t { kNormal, kStopped, kContinued };

  // statements
  Flow block(NodeId id);
  Flow statement(NodeId id);
  void imports(NodeId id);
  void import_from(NodeId id);
  void define_function(NodeId id);
  void define_class(NodeId id);
  Value decorated(NodeId id, Value function);
  Flow if_statement(NodeId id);
  Flow branches(const std::vector<std::function<Flow()>>& all);
  Flow for_statement(NodeId id);
  struct Generator {
    Value callee;
    NodeId call;
    bool counted;  // within enumerate()
  };
  std::optional<Generator> generator_in(NodeId iterable);
  Flow for_each_yielded(NodeId id, const Generator& generator);
  Value callee_of(NodeId call);
  Flow while_statement(NodeId id);
  Flow run_loop(NodeId id, LoopRun run, const std::function<Flow()>& body);
  Flow with_statement(NodeId id, std::size_t item);
  Flow try_statement(NodeId id);
  Flow match_statement(NodeId id);
  void augmented(NodeId id);
  void return_statement(NodeId id);
  void delete_statement(NodeId id);
  void assign(NodeId target, const Value& value, NodeId site);
  void bind(NodeId target, const Value& value);  // a name or attribute, in place
  void destructure(NodeId target, const Value& value, NodeId site);
  void store_item(NodeId target, const Value& value, NodeId site);
  bool is_fixed(NodeId index) const;
  void set_attribute(NodeId target, const Value& value, NodeId site);
  std::optional<bool> truth(NodeId condition);
  void refine(NodeId condition, bool truth);

  // expressions
  Value evaluate(NodeId id);
  Value evaluate_inner(NodeId id);
  Value name_value(NodeId id);
  Value look_up(Name name);
  Value attribute(const Value& whole, Name name, NodeId id);
  Value subscript(NodeId id);
  Value binary(Name op, const Value& a, const Value& b, NodeId id);
  Value comprehension(NodeId id);
  Value sequence(NodeId id, ObjectKind kind);
  Value dictionary(NodeId id);
  Value element_of(const Value& container);
  Value without_unlikely_history(Value value, Name name);
  Value without_history(Value value, bool mark = true);

  // calls
  Value call(NodeId id);
  Arguments arguments(NodeId id);
  Value call_value(const Value& callee, Arguments& given, NodeId id,
                   const std::function<void()>* on_yield = nullptr);
  Value call_function(ObjectId function, Arguments& given, NodeId id,
                      const std::function<void()>* on_yield = nullptr);
  Value call_method(const Value& receiver, Name method, Arguments& given, NodeId id);
  Value call_external(const std::string& path, Arguments& given, NodeId id);
  Value call_builtin(std::string_view name, Arguments& given, NodeId id);
  Value call_torch(const std::string& path, std::string_view last, Arguments& given, NodeId id);
  Value call_module(const Value& module, Arguments& given, NodeId id, Name method);
  Value call_library_module(ObjectId module, Arguments& given, NodeId id);
  bool has_own_code(ObjectId sequence);
  // `method`: the name is that of a method, which does not make it a module.
  Value call_unknown(Name hint, const Value& callee, Arguments& given, NodeId id,
                     bool method = false);
  Value instantiate(ObjectId cls, Arguments& given, NodeId id);
  Value container_method(const Value& receiver, Name method, MethodRole role, Arguments& given,
                         NodeId id, bool& handled);
  Value tensor_method(const Value& receiver, Name method, MethodRole role, Arguments& given,
                      NodeId id);
  Value module_method(const Value& receiver, Name method, Arguments& given, NodeId id);
  Value optimizer_made(Arguments& given, NodeId id, const std::string& path);
  void note_optimizer(const Value& used);
  Value super_call(Name method, Arguments& given, NodeId id);
  void bind_parameters(ObjectId function, Frame& frame, Arguments& given);
  Value parameter_default(NodeId parameter, Frame& frame);
  ObjectId class_meant_by(NodeId parameter);

  // what it means for the graph
  Value tensor(GraphOp op, const std::vector<Value>& inputs, NodeId id, bool certain = false);
  Value tensor_from(GraphOp op, const Arguments& given, const Value* receiver, NodeId id,
                    bool certain = false);
  void collect(const Value& value, std::vector<GraphId>& out, int depth = 0);
  std::vector<GraphId> histories(const Value& value);
  void note_carried(GraphId result, GraphOp op, NodeId id, bool joins_up);
  void backward(const Value& target, Arguments& given, NodeId id, bool supposed = false);
  void count(int LoopRun::* counter);
  void note_zeroed() { count(&LoopRun::zeroed); }
  void note_step();
  bool takes_rounds(const LoopRun& loop) const;
  void note_forward(const Value& result, const Value& module, const Arguments& given, NodeId id);
  void note_update(NodeId id);
  Value stored_alias(const Value& value, std::vector<GraphId>& aliases, int depth = 0);
  Value store_into(ObjectId container, const Value& value, NodeId id, bool overwrites);
  void clear_container(ObjectId container);
  void mark_escaped(const Value& value, int depth = 0);
  void mark_dropped(const Value& value);
  NodeId site_for(GraphId carried, GraphId fresh);
  void check_logged(std::string_view method, const Arguments& given, NodeId id);
  void note_weight(NodeId id, const std::string& shape, std::int64_t weights, bool table = false);
  bool is_product(NodeId id) const;
  void check_linear(const std::string& path, const Arguments& given, NodeId id);
  void run_hooks(const Value& output);

  // objects
  ObjectId make(ObjectKind kind, NodeId id, Name path = 0);
  Value object_value(ObjectId id);
  Value opaque(NodeId id, Name hint, ObjectId parent = 0);
  Value external(std::string_view path);
  Value list_of(const Value& element, NodeId id);
  Name index_key(std::int64_t index);
  Value key_of(ObjectId dict);
  Value iterated(const Value& iterable);
  Value tuple_of(std::vector<Value> fields, NodeId id);
  Value number();
  Value none();
  Value constant(std::int64_t value);
  Value parameter_of(ObjectId module, NodeId id);
  Value parameters_container(ObjectId module, NodeId id, bool named);
  const Value* find_in_class(ObjectId cls, Name name, int depth = 0);
  bool class_is_module(ObjectId cls, int depth = 0);
  bool class_derives(ObjectId cls, std::string_view word, int depth = 0);
  bool has_unknown_base(ObjectId cls, int depth = 0);
  bool is_module(const Value& value);
  bool ends_like_module(Name name);
  bool is_optimizer(const Value& value);
  bool is_loader(const Value& value);
  bool is_frozen(ObjectId module);
  // An instance that only holds values: a dataclass, a named tuple, a class of nothing but
  // __init__.
  bool is_record(ObjectId object);
  std::string path_of(ObjectId id) { return names_.text(heap_[id].path); }
  std::optional<GradMode> grad_context(const Value& value);
  Name dotted_name(NodeId id);

  // roots
  void run_function_root(ObjectId function);
  void run_class_root(ObjectId cls);
  bool spent() const { return steps_ > kMaxSteps; }

  static constexpr std::int64_t kMaxSteps = 400'000;
  static constexpr int kMaxFrames = 10;
  static constexpr int kMaxCalls = 60;  // calls of calls: an object may be its own __call__

  const SyntaxTree& tree_;
  Names& names_;
  Vocabulary& words_;
  GradientGraph graph_;
  Heap heap_;
  Observations seen_;
  Frame* frame_ = nullptr;
  ObjectId module_scope_ = 0;
  WhereId where_ = 0;
  GradMode grad_ = GradMode::kOn;
  GradMode module_grad_ = GradMode::kOn;  // as the module's own statements left it
  int branch_depth_ = 0;
  int frame_depth_ = 0;
  int expression_depth_ = 0;
  int call_depth_ = 0;
  int meant_depth_ = 0;   // instances of classes_ that stand for arguments nobody gives
  int module_depth_ = 0;  // inside the forward of a module
  int frozen_depth_ = 0;
  std::int64_t steps_ = 0;
  std::unordered_map<NodeId, int> active_;  // functions being run
  std::unordered_set<NodeId> entered_;      // functions that ran
  std::unordered_set<NodeId> generators_;   // functions with a yield of their own
  std::unordered_set<Name> called_names_;   // of functions, anywhere in the file
  std::unordered_set<Name> handed_over_;    // methods that are mentioned without being called
  std::unordered_set<Name> module_names_;   // on which .parameters(), .train(), .eval() is called
  std::unordered_map<NodeId, ObjectId> method_owners_;
  std::vector<Heap::Changes>* left_early_ = nullptr;  // states at continue and break
  struct Defined {
    NodeId node;
    ObjectId function;  // with its decorators
  };
  std::vector<Defined> functions_;
  std::vector<ObjectId> classes_;
  bool is_test_ = false, asserts_ = false;       // the file, as a whole and in its own statements
  std::vector<std::pair<Name, Value>> options_;  // of the command line, by add_argument()
  bool next_is_root_ = false;
  NodeId root_method_ = 0;  // of the class that is being run
  std::vector<Value> hooks_;
  int in_hook_ = 0;
  std::unordered_set<NodeId> hooks_run_;
  std::vector<std::vector<std::int64_t>> shapes_{{}};
  struct {
    Name element, mode, frozen, modules, self, forward, init, call, enter, exit, requires_grad,
        grad, data, backward, step, retain_graph, create_graph, maxlen, wildcard;
  } n_;
};

}  // namespace lowtide::lint
