#pragma once
// What the interpreter saw while it read a file; judge.h makes findings of it.

#include <string>
#include <vector>

#include "src/lint/heap.h"

namespace lowtide::lint {

// A value with history of an earlier iteration went into the making of another.
struct CarriedOver {
  enum class By : std::uint8_t { kArithmetic, kJoiningUp, kUse };
  By by;
  GraphId result;
  GraphId carried;
  LoopId loop;
  NodeId site;
  NodeId function;
  NodeId root;     // the method of a class from which it was reached; 0 otherwise
  bool was_freed;  // a backward had run through `carried` by then
};

// A value went into a container or tensor that was there before.
struct Stored {
  std::vector<GraphId> aliases;  // of the parts with history
  std::vector<LoopId> loops;     // that the container outlives, innermost first
  ObjectId container;
  NodeId site;
  NodeId function;
  NodeId root;
  bool model_copy;
  bool bounded;
  bool by_hook;
};

struct ForwardRun {
  GraphId result;
  std::vector<GraphId> inputs;
  NodeId call;
  NodeId site;
  NodeId function;  // in which it stands; 0: the module
  NodeId root;
  WhereId where;
  ObjectId module;
  Name hint;           // what the program calls the module
  bool eval_mode;      // module.eval() was called before
  bool in_evaluation;  // in a function named so
  bool in_test;        // a unit test
  bool frozen;         // parameters do not require grad
  bool known_module;   // one thing, and no wrapper that unknown code returned
  bool unknown;        // nobody knows what was called, only that its result is detached later
  bool inner;          // a part, run by the forward of a whole
  bool in_base_class;  // a method that a base class outside the file calls
};

// A parameter was written to, or smoothed into a shadow, with grad mode on.
struct ParameterUpdate {
  NodeId site;
  NodeId function;
};

struct CacheStore {
  NodeId site;
  NodeId function;
  NodeId container;  // the expression
  bool tensor_key;
  GraphId value, key;  // their history
  bool holds_tensor;
  bool from_module;  // made by a module
};

// A recurrent layer over a series of known length.
struct Unrolled {
  NodeId site;
  GraphId result;
  std::int64_t steps;
};

struct Direct {
  std::string rule;
  NodeId site;
  std::string message;
  bool note = false;  // said, but no finding
};

struct Observations {
  std::vector<CarriedOver> carried;
  std::vector<Stored> stored;
  std::vector<ForwardRun> forwards;
  std::vector<ParameterUpdate> updates;
  std::vector<CacheStore> caches;
  std::vector<Unrolled> unrolled;
  std::vector<Direct> direct;
  bool unknown_optimizer = false;  // one whose parameters could not be seen
  bool any_optimizer = false;
};

}  // namespace lowtide::lint
