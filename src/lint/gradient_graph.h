#pragma once
// What autograd would record while a program runs, as far as reading the program tells.
//
// A GraphNode is a value with history. It knows its inputs, where in the loops it was made, and
// what later happened to it: whether backward ran through it, and whether it was freed by that. The
// rules are questions to this graph: "was this sum ever an input of backward?", "does this value
// reach into the iteration after the one in which it was made?".

#include <cstdint>
#include <vector>

#include "src/lint/syntax_tree.h"

namespace lowtide::lint {

using GraphId = std::int32_t;  // 0: a value without history
using WhereId = std::int32_t;  // 0: outside all loops
using LoopId = std::int32_t;

// One run of a loop statement, or of a method that its framework calls again and again.
struct LoopRun {
  NodeId node = 0;       // the statement; the function for an implicit loop
  NodeId function = 0;   // in which it stands
  int branch_depth = 0;  // of the body
  bool implicit = false;
  bool comprehension = false;
  bool over_data = false;        // iterates a data loader, or what is named as one
  bool evaluates = false;        // over a loader that is named so: val_loader
  bool over_parameters = false;  // iterates a module's parameters or layers
  std::int64_t trips = -1;       // when known
  int backwards = 0, own_backwards = 0, gradients = 0, steps = 0, zeroed = 0, forwards = 0,
      detaches = 0;
  NodeId first_backward = 0;
  // Of a loop over the methods of a class: in which of them a backward and a step ran.
  std::vector<NodeId> backward_roots, step_roots;
};

// A place in the loops: iteration `pass` of `loop`, inside `parent`.
struct Where {
  WhereId parent = 0;
  LoopId loop = 0;
  int pass = 0;
};

enum class GraphOp : std::uint8_t {
  kParameter,   // a leaf that requires grad
  kForward,     // a module ran
  kCall,        // a function of unknown kind
  kArithmetic,  // + - * / and their like
  kFunction,    // a torch function or method: history passes through
  kAlias,       // put into a container
  kJoin,        // one or the other branch
};

struct GraphNode {
  std::vector<GraphId> inputs;
  WhereId where = 0;
  NodeId origin = 0;
  std::int32_t module = 0;  // the object that ran, or that owns the parameter
  GraphOp op = GraphOp::kFunction;
  bool certain = false;            // has history whatever its inputs are
  bool confirmed = false;          // backward was called on it
  bool backwarded = false;         // backward ran through it
  bool trained = false;            // by backward(), not by autograd.grad
  bool freed = false;              // and freed its graph
  bool retained = false;           // a backward with retain_graph=True did
  bool detached = false;           // detach_() cut it off
  bool escaped = false;            // handed to code that is not here
  bool cut = false;                // used through detach()
  bool dropped = false;            // used through detach, item, a comparison
  bool view = false;               // rows of its input
  bool kept_on_condition = false;  // as an attribute, in one branch only
  bool kept = false;               // sits in a container that lives on
  bool other_branch = false;       // kJoin: its input as a branch left it in which it was not freed
  int backward = 0;                // the backward run that marked it, from 1
};

struct BackwardRun {
  NodeId origin = 0;
  WhereId where = 0;
  GraphId target = 0;
  bool retain = false;
  bool needed_again = false;  // a later one in the same iteration shares its graph
  bool reaches_back = false;  // a later one in a later iteration does
};

class GradientGraph {
 public:
  GradientGraph() : nodes_(1), wheres_(1), loops_(1), strength_(1) {}

  GraphNode& operator[](GraphId id) { return nodes_[static_cast<std::size_t>(id)]; }
  const GraphNode& operator[](GraphId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  GraphId size() const { return static_cast<GraphId>(nodes_.size()); }
  GraphId add(GraphNode node);

  LoopRun& loop(LoopId id) { return loops_[static_cast<std::size_t>(id)]; }
  const LoopRun& loop(LoopId id) const { return loops_[static_cast<std::size_t>(id)]; }
  const Where& where(WhereId id) const { return wheres_[static_cast<std::size_t>(id)]; }
  LoopId begin_loop(LoopRun run);
  WhereId enter(WhereId parent, LoopId loop, int pass);
  LoopId loop_count() const { return static_cast<LoopId>(loops_.size()); }

  // The innermost loop around `now` of which `then` is an earlier iteration; 0 when there is none.
  LoopId crossed(WhereId then, WhereId now) const;
  // Whether `place` lies inside `loop` (in any iteration).
  bool inside(WhereId place, LoopId loop) const;
  // The iteration of `loop` in which `place` lies; 0 when outside.
  int pass_of(WhereId place, LoopId loop) const;

  // backward() on `target`, which marks everything that it is made from.
  // `retain`: retain_graph=True was asked for; `frees`: the graph is gone afterwards.
  // `supposed`: it stands for one in code that is not here, and says nothing about the target.
  void run_backward(GraphId target, NodeId origin, WhereId where, bool retain, bool frees,
                    bool trains = true, bool supposed = false);
  const std::vector<BackwardRun>& backward_runs() const { return backward_runs_; }

  // Whether the value has history for certain, given everything that happened.
  bool has_history(GraphId id);
  // Whether all that it is made from are parameters and numbers: no module ran.
  bool from_parameters_only(GraphId id) const;
  // The same, where functions of unknown kind may have worked on them.
  bool from_parameters_by_calls(GraphId id) const;
  bool reaches(GraphId from, GraphId to) const;
  // Whether the activations behind the value are gone: of itself, or of what it was computed from.
  bool activations_freed(GraphId id) const;
  // Whether the value, and all that is made from it, was thrown away: never in a backward, never
  // handed to unknown code. Call index_uses() after the last add().
  bool thrown_away(GraphId id) const;
  bool dropped_somewhere(GraphId id) const;
  bool cut_somewhere(GraphId id) const;
  void index_uses();

 private:
  bool has_history(GraphId id, int depth);

  std::vector<GraphNode> nodes_;
  std::vector<Where> wheres_;
  std::vector<LoopRun> loops_;
  std::vector<BackwardRun> backward_runs_;
  std::vector<std::int8_t> strength_;  // memo of has_history: 0 unknown, 1 no, 2 yes
  std::vector<std::vector<GraphId>> uses_;
};

}  // namespace lowtide::lint
