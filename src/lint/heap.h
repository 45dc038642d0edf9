#pragma once
// The values of the program that is read, and the objects that they stand for.
//
// A Value is what one expression may give: a set of kinds, the history that it carries, and up to
// two objects. Objects have slots: attributes, entries under constant keys, variables of a scope,
// and
// "$element" for all that a container holds. Every write goes through Heap::write, so that a branch
// can be taken back (checkpoint, take_back) and two branches joined.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "src/lint/gradient_graph.h"
#include "src/lint/names.h"

namespace lowtide::lint {

using ObjectId = std::int32_t;  // 0: none

enum ValueKind : std::uint16_t {
  kIsNone = 1,
  kIsNumber = 2,
  kIsString = 4,
  kIsTensor = 8,
  kIsObject = 16,
  kIsExternal = 32,  // something imported: `text` is its dotted path
  kIsUnknown = 64,
};

enum ValueFlag : std::uint16_t {
  kLeaf = 1,           // the parameter itself, not something made from it
  kKnownNumber = 2,    // `number` holds it
  kModelCopy = 4,      // a copy of all weights
  kFromSize = 8,       // made from sizes, shapes, lengths
  kReduced = 16,       // a loss, a mean, a sum: small
  kStateDict = 32,     // a state_dict, or values of one: without history
  kModuleOutput = 64,  // what a module returned, not reduced
  kTensorKey = 128,    // an identity made from a tensor: id(x), str(x), x.data_ptr()
  kLoaderValue = 256,  // a batch out of a loader
  kSupposed = 1024,    // the default of a parameter that somebody may give another value
  kKeyOf = 512,        // each key of the dict whose object id `number` holds, one after the other
};

struct Value {
  std::uint16_t kinds = kIsUnknown;
  std::uint16_t flags = 0;
  GraphId history = 0;
  ObjectId object = 0, other = 0;
  std::int64_t number = 0;
  Name text = 0;           // a string's content, an external's path
  Name hint = 0;           // the name under which the program knows it
  std::int32_t shape = 0;  // of tensors whose sizes are known; see Interpreter::shapes

  bool is(ValueKind kind) const { return (kinds & kind) != 0; }
  bool only(ValueKind kind) const { return kinds == kind; }
  bool has(ValueFlag flag) const { return (flags & flag) != 0; }
};

enum class ObjectKind : std::uint8_t {
  kScope,
  kFunction,  // def, lambda, bound method, partial
  kClass,
  kInstance,  // of a class of the file
  kLibrary,   // of an imported class, `path` says which
  kOpaque,    // of nobody knows what
  kList,      // and sets, deques, iterators
  kTuple,
  kDict,
};

struct Slot {
  Name key = 0;
  Value value;
};

struct Object {
  ObjectKind kind = ObjectKind::kOpaque;
  NodeId node = 0;       // definition, or where it was made
  Name path = 0;         // of libraries and externals
  ObjectId parent = 0;   // scope: the enclosing one; instance: its class; part: its whole
  ObjectId self = 0;     // bound methods
  WhereId birth = 0;     // where it was made, or last emptied
  LoopId made_by = 0;    // of a generator expression: its loop
  bool no_grad = false;  // functions: decorated so
  bool context_manager = false;
  bool optimized = false;  // its parameters are an optimizer's
  bool bounded = false;    // containers: cannot grow without limit
  bool emptied = false;    // somewhere in a loop, perhaps on a condition
  bool is_module = false;  // seen used as a module
  bool touched = false;    // unknown code was given it together with a tensor that needs gradients
  bool is_property = false;
  bool is_static = false, is_class_method = false;
  std::vector<Slot> slots;
  std::vector<Value> fields;  // tuples and short lists, in order
  std::vector<Value> bound;   // partial: arguments in front
};

class Heap {
 public:
  explicit Heap(GradientGraph& graph) : graph_(graph), objects_(1) {}

  ObjectId add(Object object) {
    objects_.push_back(std::move(object));
    return static_cast<ObjectId>(objects_.size() - 1);
  }
  Object& operator[](ObjectId id) { return objects_[static_cast<std::size_t>(id)]; }
  std::size_t size() const { return objects_.size(); }

  const Value* find(ObjectId id, Name key) const;
  void write(ObjectId id, Name key, const Value& value);
  // Adds to what the slot may hold.
  void widen(ObjectId id, Name key, const Value& value);

  struct Change {
    ObjectId object;
    Name key;
    std::optional<Value> value;  // none: the slot was not there
  };
  using Changes = std::vector<Change>;

  // Writes after a checkpoint can be taken back. An object that is made after it is not there for
  // whoever goes on from the checkpoint, so writes to it are left alone.
  void checkpoint();
  // Undoes all writes since the last checkpoint and returns what they had made of the slots.
  Changes take_back();
  void redo(const Changes& changes);
  // What two branches, both taken back, leave together: each slot may hold what either left in it.
  // What a backward freed in one of them is not freed for what the other left.
  struct Runs {
    int begin, end;  // backward runs (begin, end]
  };
  Changes merged(const Changes& first, const Changes& second, Runs of_first, Runs of_second);

  Value joined(const Value& a, const Value& b, WhereId where);
  WhereId now = 0;

 private:
  void set(ObjectId id, Name key, const std::optional<Value>& value);
  Value unfreed(const Value& value, Runs elsewhere);

  GradientGraph& graph_;
  std::deque<Object> objects_;  // never moves what it holds
  Changes journal_;             // what each write replaced
  struct Mark {
    std::size_t journal, objects;
  };
  std::vector<Mark> marks_;
};

}  // namespace lowtide::lint
