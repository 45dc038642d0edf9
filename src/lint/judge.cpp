// Each rule is one question to the graph, asked when the whole file has been read: whether a sum
// ever went into a backward cannot be known where it is made.

#include "src/lint/judge.h"

#include <algorithm>
#include <map>
#include <set>

#include "src/base/text.h"

namespace lowtide::lint {
namespace {

class Judge {
 public:
  Judge(Interpreter& interpreter, const SyntaxTree& tree, Names& names, Vocabulary& words)
      : in_(interpreter),
        tree_(tree),
        names_(names),
        words_(words),
        graph_(interpreter.graph()),
        seen_(interpreter.observations()) {}

  std::vector<RawFinding> run() {
    for (const Direct& direct : seen_.direct) {
      if (direct.note) {
        out_.push_back({direct.rule, direct.site, direct.message, Cost::kPeak, false, true});
        continue;
      }
      add(direct.rule, direct.site, direct.message,
          direct.rule == "cycle-caches-loader" ? Cost::kLeak : Cost::kPeak);
    }
    caches();
    forwards();
    carried();
    stored();
    updates();
    retained();
    not_cleared();
    unrolled();
    return std::move(out_);
  }

 private:
  void add(std::string_view rule, NodeId site, std::string message, Cost cost,
           bool detach_is_safe = false) {
    for (RawFinding& known : out_) {
      if (known.rule == rule && tree_[known.site].line == tree_[site].line) {
        known.cost = std::min(known.cost, cost);
        known.detach_is_safe = known.detach_is_safe && detach_is_safe;
        return;
      }
    }
    out_.push_back({std::string(rule), site, std::move(message), cost, detach_is_safe});
  }
  bool reported(std::string_view rule, NodeId site) const {
    return std::any_of(out_.begin(), out_.end(), [&](const RawFinding& known) {
      return known.rule == rule && tree_[known.site].line == tree_[site].line;
    });
  }

  // Whether a backward ran on the value, or on what was made of it, in any iteration.
  Cost cost_of(GraphId value) const {
    return graph_.activations_freed(value) ? Cost::kCreep : Cost::kLeak;
  }

  // A loop whose iterations are training steps: one in which a backward runs.
  bool is_training(LoopId id, NodeId root) const {
    const LoopRun& loop = graph_.loop(id);
    if (!loop.implicit) return loop.backwards > 0 || loop.steps > 0 || loop.gradients > 0;
    return std::find(loop.backward_roots.begin(), loop.backward_roots.end(), root) !=
           loop.backward_roots.end();
  }
  bool is_pass_over_data(LoopId id) const {
    const LoopRun& loop = graph_.loop(id);
    return loop.over_data && loop.forwards > 0;
  }

  void carried() {
    for (const CarriedOver& event : seen_.carried) {
      // What unknown code made of it has history if backward ran through it in a loop that is
      // there.
      const bool seen_backward =
          graph_[event.result].backwarded && !graph_.loop(event.loop).implicit;
      if (!graph_.has_history(event.result) && !seen_backward) continue;
      if (resets_itself(event.loop)) continue;
      // A class that keeps a state on a condition only does so when it is told to, as in decoding.
      if (graph_.loop(event.loop).implicit && kept_on_condition(event.carried)) continue;
      const bool training = is_training(event.loop, event.root);
      if (event.by == CarriedOver::By::kUse) {
        if (!training || !graph_.has_history(event.carried)) continue;
        if (graph_.from_parameters_only(event.carried)) continue;
        hidden(event);
        continue;
      }
      const GraphNode& result = graph_[event.result];
      const bool parameters_only = graph_.from_parameters_only(event.result);
      if (parameters_only) {
        // A penalty over all weights is summed in a loop over them, and goes into backward.
        if (graph_.loop(event.loop).over_parameters) continue;
        if ((result.backwarded && !event.was_freed) || result.trained) continue;
        if (!training) continue;
        add("update-with-grad", event.site,
            "weights are updated with grad mode on: each update joins the graph of the one before; "
            "do it under torch.no_grad()",
            Cost::kCreep, true);
        continue;
      }
      if (result.backwarded && !event.was_freed) continue;
      if (graph_.from_parameters_only(event.carried)) continue;
      if (event.by == CarriedOver::By::kArithmetic && !result.backwarded &&
          !graph_.loop(event.loop).comprehension && !is_sum_of_itself(event)) {
        continue;  // compared with, or subtracted, and gone with its iteration
      }
      if (result.backwarded && training && (!is_sum_of_itself(event) || is_gated(event))) {
        hidden(event);
        continue;
      }
      if (!training) {
        if (!is_pass_over_data(event.loop) || (result.escaped && !evaluating(event.function)) ||
            result.backwarded) {
          continue;
        }
        if (evaluated_loops_.count(graph_.loop(event.loop).node) ||
            evaluated_functions_.count(event.function)) {
          raise_evaluation(event.function);
          continue;
        }
      }
      const bool joins = event.by == CarriedOver::By::kJoiningUp;
      add(joins ? "history-stored" : "history-accumulated", event.site,
          joins
              ? "each iteration's tensor is joined to those before with its history: detach it "
                "first"
              : "the sum outlives the iteration and keeps the history of every value added to it: "
                "add loss.item(), or loss.detach() to stay on the device",
          cost_of_inputs(event.result, event.carried), tensors_for_certain(event));
    }
  }

  void hidden(const CarriedOver& event) {
    // What a method keeps on self is one state, of however many parts, and is detached where it is
    // kept.
    const auto parameters = tree_.items(event.function);
    const bool method = event.function != 0 && !parameters.empty() &&
                        names_.text(tree_[parameters[0]].name) == "self";
    if (method && !stateful_methods_.emplace(event.function, event.site).second &&
        stateful_methods_[event.function] != event.site) {
      return;
    }
    add("hidden-not-detached", event.site,
        "this uses a state of the iteration before, whose backward has run: detach it between the "
        "iterations, or every step drags the graphs of all steps before it along",
        Cost::kLeak);
  }

  // Whether what is carried over was made by the very operation that it now goes into.
  bool is_sum_of_itself(const CarriedOver& event) const {
    std::vector<GraphId> open{event.carried};
    std::set<GraphId> seen;
    while (!open.empty()) {
      const GraphId at = open.back();
      open.pop_back();
      if (!seen.insert(at).second) continue;
      const GraphNode& node = graph_[at];
      // The same expression, or one that it is a part of: 0.9 * mean + 0.1 * loss.
      const NodeId made_by = graph_[event.result].origin;
      const bool whole = event.by == CarriedOver::By::kArithmetic && node.origin != 0 &&
                         node.op == GraphOp::kArithmetic && encloses(node.origin, made_by);
      if (node.op != GraphOp::kJoin && (node.origin == made_by || whole)) {
        return true;
      }
      if (node.op == GraphOp::kJoin || node.op == GraphOp::kAlias ||
          node.op == GraphOp::kArithmetic || node.op == GraphOp::kFunction) {
        open.insert(open.end(), node.inputs.begin(), node.inputs.end());
      }
    }
    return false;
  }

  bool kept_on_condition(GraphId id) const {
    const GraphNode& node = graph_[id];
    if (node.kept_on_condition) return true;
    const bool alias = node.op == GraphOp::kJoin || node.op == GraphOp::kAlias;
    return alias && std::any_of(node.inputs.begin(), node.inputs.end(),
                                [&](GraphId input) { return graph_[input].kept_on_condition; });
  }

  // A state that is multiplied by what the network computed, as the cell of an LSTM is.
  bool is_gated(const CarriedOver& event) {
    const GraphNode& result = graph_[event.result];
    const Node& expression = tree_[result.origin];
    if (expression.kind != NodeKind::kBinary || names_.text(expression.name) != "*") return false;
    return std::any_of(result.inputs.begin(), result.inputs.end(), [&](GraphId input) {
      return input != event.carried && graph_.has_history(input) &&
             !graph_.from_parameters_only(input);
    });
  }

  // A class that has a method to reset its state between sequences expects to be told when.
  bool resets_itself(LoopId id) const {
    const LoopRun& loop = graph_.loop(id);
    if (!loop.implicit || tree_[loop.node].kind != NodeKind::kClass || tree_[loop.node].a == 0) {
      return false;
    }
    for (const NodeId item : tree_.items(tree_[loop.node].a)) {
      if (tree_[item].kind != NodeKind::kFunction) continue;
      const std::string& name = names_.text(tree_[item].name);
      for (const char* word :
           {"reset", "init_hidden", "init_state", "clear", "detach", "repackage"}) {
        if (name.find(word) != std::string::npos) return true;
      }
    }
    return false;
  }

  // A function of torch or arithmetic made it: no dict of a model's, no number.
  bool is_tensor(GraphId id) const {
    return graph_[id].op == GraphOp::kArithmetic || graph_[id].op == GraphOp::kFunction;
  }
  bool tensors_for_certain(const CarriedOver& event) const {
    const auto& inputs = graph_[event.result].inputs;
    return std::all_of(inputs.begin(), inputs.end(),
                       [&](GraphId input) { return input == event.carried || is_tensor(input); });
  }

  Cost cost_of_inputs(GraphId result, GraphId carried) const {
    bool freed = false, other = false;
    for (const GraphId input : graph_[result].inputs) {
      if (input == carried) continue;
      other = true;
      freed = freed || graph_.activations_freed(input);
    }
    if (!other) return cost_of(carried);
    return freed ? Cost::kCreep : Cost::kLeak;
  }

  bool evaluating(NodeId function) const {
    return function != 0 && words_.like_evaluation(tree_[function].name);
  }

  void raise_evaluation(NodeId function) {
    for (RawFinding& finding : out_) {
      if (finding.rule == "eval-with-grad") {
        const auto found = evaluation_sites_.find(finding.site);
        if (found != evaluation_sites_.end() && found->second == function)
          finding.cost = Cost::kLeak;
      }
    }
  }

  void stored() {
    // Features that a hook catches may be what the model goes on with.
    std::set<NodeId> used_with_gradient;
    for (GraphId id = 1; id < graph_.size(); ++id) {
      const GraphNode& node = graph_[id];
      if (node.op == GraphOp::kAlias && node.backwarded) used_with_gradient.insert(node.origin);
    }
    for (const Stored& event : seen_.stored) {
      if (event.by_hook && in_.heap()[event.container].emptied) continue;
      if (event.by_hook && !event.aliases.empty() &&
          used_with_gradient.count(graph_[event.aliases[0]].origin) != 0) {
        continue;
      }
      if (event.model_copy) {
        bool over = false;
        for (const LoopId loop : event.loops) {
          const LoopRun& run = graph_.loop(loop);
          over = over || (!run.over_parameters && (!run.implicit || run.own_backwards > 0));
        }
        if (!over || in_.heap()[event.container].bounded) continue;
        add("copies-accumulate", event.site,
            "a copy of all weights is kept for each round: keep the best one only, or save them to "
            "disk",
            Cost::kLeak);
        continue;
      }
      GraphId value = 0;
      for (const GraphId alias : event.aliases) {
        if (graph_.has_history(alias) && !graph_[alias].backwarded) value = alias;
      }
      // One part of a tuple in a backward means that the container is what backward is called on,
      // unless it was called in the same iteration and nothing takes the part out after it.
      for (const GraphId alias : event.aliases) {
        if (!graph_[alias].backwarded) continue;
        value = stays_after_backward(event, alias) ? alias : 0;
        if (value == 0) break;
      }
      if (value == 0) continue;
      // In the branch in which backward ran it was detached; this is what the other one left.
      if (graph_[graph_[value].inputs[0]].other_branch) continue;
      for (const GraphId input : graph_[graph_[value].inputs[0]].inputs) {
        if (graph_[input].other_branch) value = 0;
      }
      if (value == 0) continue;
      bool training = false, over_data = false;
      LoopId at = 0;
      for (const LoopId loop : event.loops) {
        if (is_training(loop, event.root)) training = true;
        if (is_pass_over_data(loop)) {
          over_data = true;
          if (at == 0) at = loop;
        }
      }
      if (event.by_hook && !training) training = true;
      if (reported("history-accumulated", event.site) || reported("cache-unbounded", event.site)) {
        continue;
      }
      if (graph_.from_parameters_only(value)) {
        if (!training) continue;
        bool over_parameters = false;
        for (const GraphId alias : event.aliases) {
          over_parameters =
              over_parameters || graph_[graph_[alias].inputs[0]].op == GraphOp::kArithmetic;
        }
        if (over_parameters) {
          add("update-with-grad", event.site,
              "a running average of weights is made with grad mode on and keeps their graph: make "
              "it "
              "under torch.no_grad()",
              Cost::kCreep, true);
        }
        continue;
      }
      if (!training) {
        if (!over_data) continue;
        if (evaluated_functions_.count(event.function) ||
            (at != 0 && evaluated_loops_.count(graph_.loop(at).node))) {
          raise_evaluation(event.function);
          continue;
        }
        if (graph_[value].escaped && !evaluating(event.function)) continue;
      }
      add("history-stored", event.site,
          "what is put here outlives the iteration and keeps its history: store x.detach(), or "
          "x.item() if a number is enough",
          cost_of(graph_[value].inputs[0]), is_tensor(graph_[value].inputs[0]));
    }
  }

  bool stays_after_backward(const Stored& event, GraphId alias) {
    const Object& container = in_.heap()[event.container];
    const int run = graph_[alias].backward;
    if (event.container == 0 || event.by_hook || container.emptied || container.bounded ||
        run == 0) {
      return false;
    }
    const WhereId place = graph_.backward_runs()[static_cast<std::size_t>(run - 1)].where;
    return std::any_of(event.loops.begin(), event.loops.end(), [&](LoopId loop) {
      const LoopRun& around = graph_.loop(loop);
      return !around.implicit && graph_.inside(place, loop) &&
             graph_.pass_of(place, loop) == graph_.pass_of(graph_[alias].where, loop);
    });
  }

  void updates() {
    NodeId last = 0;
    for (const ParameterUpdate& update : seen_.updates) {
      // Statement after statement of one update: mended at once.
      const bool next = last != 0 && tree_[update.site].line == tree_[last].line + 1 &&
                        tree_[update.site].column == tree_[last].column;
      last = update.site;
      if (next) continue;
      add("update-with-grad", update.site,
          "weights are written to with grad mode on: do it under torch.no_grad()", Cost::kCreep,
          true);
    }
  }

  // The innermost loop around `where` that is the statement of a program; 0: none.
  LoopId innermost(WhereId where) const { return where != 0 ? graph_.where(where).loop : 0; }

  void forwards() {
    std::set<NodeId> functions_done;
    // A call that serves training too is no mistake where another caller evaluates with it.
    std::set<NodeId> trained;
    std::set<ObjectId> trained_modules;
    for (const ForwardRun& run : seen_.forwards) {
      if (!graph_[run.result].backwarded) continue;
      trained.insert(run.call);
      trained_modules.insert(run.module);
    }
    for (const ForwardRun& run : seen_.forwards) {
      if (run.unknown) {
        unknown_not_needed(run);
        continue;
      }
      if (!graph_.has_history(run.result)) continue;
      if (!graph_[run.result].backwarded && trained.count(run.call) != 0) continue;
      if (graph_[run.result].backwarded || graph_[run.result].confirmed) {
        if (!run.inner) not_optimized(run);
        continue;
      }
      bool in_training = false, over_data = false, looped = false, around_training = false;
      bool over_evaluation_data = false;
      NodeId loop_node = 0;
      const LoopId closest = innermost(run.where);
      if (closest != 0) {
        const LoopRun& loop = graph_.loop(closest);
        in_training = loop.implicit ? is_training(closest, run.root) : loop.own_backwards > 0;
      }
      for (WhereId at = run.where; at != 0; at = graph_.where(at).parent) {
        const LoopRun& loop = graph_.loop(graph_.where(at).loop);
        if (loop.implicit) continue;
        looped = true;
        if (loop.backwards > 0) {
          around_training = true;
        } else if (loop.over_data) {
          over_data = true;
          over_evaluation_data = over_evaluation_data || loop.evaluates;
          if (loop_node == 0) loop_node = loop.node;
        }
      }
      if (run.inner) {
        if (in_training || around_training) part_not_needed(run);
        continue;
      }
      const bool thrown_away = graph_.thrown_away(run.result);
      // A function that evaluates may be called right among the training steps.
      const bool evaluates_among_steps =
          thrown_away &&
          (run.in_evaluation || (run.eval_mode && trained_modules.count(run.module) != 0));
      if (in_training && !evaluates_among_steps) {
        not_needed(run);
        continue;
      }
      if (run.in_test) continue;
      const bool evaluation = run.eval_mode || run.in_evaluation || over_evaluation_data;
      if (!evaluation) {
        if (around_training) not_needed(run);
        continue;
      }
      if (run.in_base_class && !(run.eval_mode && over_data)) continue;
      if (!run.eval_mode && !(over_data || (thrown_away && graph_.dropped_somewhere(run.result))))
        continue;
      if (run.eval_mode && input_has_history(run) && !run.in_evaluation) continue;
      // The function hands its result on with its graph, and is no evaluation by name.
      if (run.eval_mode && !run.in_evaluation && !looped && !thrown_away) continue;
      const NodeId function = run.function;
      if (!functions_done.insert(function != 0 ? function : loop_node).second) {
        if (loop_node != 0) evaluated_loops_.insert(loop_node);
        continue;
      }
      if (loop_node != 0) evaluated_loops_.insert(loop_node);
      if (function != 0) evaluated_functions_.insert(function);
      evaluation_sites_[run.site] = function;
      add("eval-with-grad", run.site,
          "this evaluation records a graph that no backward will use: run it under torch.no_grad() "
          "or torch.inference_mode()",
          Cost::kPeak);
    }
  }

  bool input_has_history(const ForwardRun& run) const {
    return std::any_of(run.inputs.begin(), run.inputs.end(),
                       [&](GraphId input) { return graph_.has_history(input); });
  }

  // A forward whose backward reaches parameters that no optimizer updates.
  void not_optimized(const ForwardRun& run) {
    if (run.frozen || input_has_history(run) || run.in_test || run.module == 0) return;
    if (in_.heap()[run.module].touched) return;
    if (innermost(run.where) == 0 || !is_training(innermost(run.where), run.root)) return;
    const bool by_name = words_.like_teacher(run.hint);
    const bool by_optimizer = seen_.any_optimizer && !seen_.unknown_optimizer;
    if (by_optimizer ? !run.known_module || in_.is_optimized(run.module) : !by_name) return;
    if (by_optimizer) {
      // Without a module that is optimized, the optimizer is for something else.
      const bool other =
          std::any_of(seen_.forwards.begin(), seen_.forwards.end(), [&](const ForwardRun& one) {
            return one.module != 0 && one.module != run.module && in_.is_optimized(one.module);
          });
      if (!other) return;
    }
    add("graph-not-needed", run.site,
        "no optimizer updates this module, and its input needs no gradient, yet backward runs "
        "through it: run it under torch.no_grad()",
        Cost::kPeak, by_optimizer);
  }

  void caches() {
    const std::string& source = tree_.source;
    for (const CacheStore& cache : seen_.caches) {
      const bool keyed = cache.tensor_key || graph_.has_history(cache.key);
      const bool holds =
          graph_.has_history(cache.value) || (cache.holds_tensor && cache.from_module);
      if (!keyed && !holds) continue;
      if (!keyed && cache.value != 0 && graph_.from_parameters_by_calls(cache.value)) continue;
      const std::string_view line = tree_.text(cache.site);
      const std::string_view target = line.substr(0, line.find('='));
      if (target.find("device") != std::string_view::npos ||
          target.find("[ctx]") != std::string_view::npos ||
          target.find("dtype") != std::string_view::npos ||
          target.find("shape") != std::string_view::npos) {
        continue;
      }
      const std::string name(tree_.text(cache.container));
      const std::string_view function = tree_.text(cache.function);
      if (is_local(name, cache.function)) continue;
      const auto in_file = [&](const std::string& text) {
        return source.find(text) != std::string::npos;
      };
      if (in_file(name + ".pop") || in_file(name + ".clear(") || in_file("del " + name + "[") ||
          in_file("len(" + name + ")") || in_file(name + ".move_to_end")) {
        continue;
      }
      const bool asks = function.find("not in " + name) != std::string_view::npos ||
                        function.find(name + ".get(") != std::string_view::npos ||
                        function.find("KeyError") != std::string_view::npos ||
                        asks_if_in(function, name);
      if (!asks) continue;
      add("cache-unbounded", cache.site,
          concat(name,
                 " holds a tensor for every input ever seen: bound it, or key it by sizes only"),
          Cost::kLeak);
    }
  }

  // `if key in name`, which is not `for key in name`.
  static bool asks_if_in(std::string_view function, const std::string& name) {
    for (std::size_t at = 0;;) {
      at = function.find(" in " + name, at);
      if (at == std::string_view::npos) return false;
      const std::size_t line = function.rfind('\n', at);
      const std::string_view before =
          function.substr(line == std::string_view::npos ? 0 : line,
                          at - (line == std::string_view::npos ? 0 : line));
      if (before.find("if ") != std::string_view::npos &&
          before.find("for ") == std::string_view::npos) {
        return true;
      }
      ++at;
    }
  }

  // Whether the function itself makes the thing called `name`.
  bool is_local(const std::string& name, NodeId function) const {
    for (const NodeId parameter : tree_.items(function)) {
      if (names_.text(tree_[parameter].name) == name) return true;
    }
    for (NodeId id = 1; id < tree_.nodes.size(); ++id) {
      const Node& node = tree_[id];
      if (node.kind != NodeKind::kAssign || node.b == 0) continue;
      if (node.begin < tree_[function].begin || node.end > tree_[function].end) continue;
      if (tree_[node.a].kind == NodeKind::kName && tree_.text(node.a) == name) return true;
    }
    return false;
  }

  void not_needed(const ForwardRun& run) {
    if (run.in_test || run.frozen) return;
    if (!graph_.thrown_away(run.result) || !graph_.dropped_somewhere(run.result)) return;
    add("graph-not-needed", run.site,
        "the graph of this forward is thrown away, for only detached values of it are used: run it "
        "under torch.no_grad()",
        Cost::kPeak, true);
  }

  // Whoever detaches a result, and uses it in no other way, says himself that it has a graph.
  void unknown_not_needed(const ForwardRun& run) {
    if (run.inner || run.in_evaluation || graph_[run.result].confirmed) return;
    bool training = false;
    for (WhereId at = run.where; at != 0; at = graph_.where(at).parent) {
      const LoopId loop = graph_.where(at).loop;
      training = training || is_training(loop, run.root);
    }
    if (training && graph_.cut_somewhere(run.result)) not_needed(run);
  }

  // A forward that another forward runs: its own module must be one that nobody trains.
  void part_not_needed(const ForwardRun& run) {
    const bool by_optimizer = seen_.any_optimizer && !seen_.unknown_optimizer;
    if (by_optimizer ? in_.is_optimized(run.module) : !words_.like_teacher(run.hint)) return;
    not_needed(run);
  }

  void retained() {
    std::map<NodeId, std::pair<bool, bool>> sites;  // needed again, reaches back
    std::set<NodeId> retaining;
    std::map<NodeId, GraphId> targets;
    std::set<NodeId> followed;
    const std::vector<BackwardRun>& runs = graph_.backward_runs();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const BackwardRun& run = runs[i];
      if (!run.retain) continue;
      auto& [needed, back] = sites[run.origin];
      needed = needed || run.needed_again;
      back = back || run.reaches_back;
      retaining.insert(run.origin);
      targets[run.origin] = run.target;
      for (std::size_t later = i + 1; later < runs.size(); ++later) {
        const bool same_iteration = graph_.crossed(run.where, runs[later].where) == 0 &&
                                    same_outermost(run.where, runs[later].where);
        if (same_iteration && runs[later].target != run.target) followed.insert(run.origin);
      }
    }
    for (const auto& [site, flags] : sites) {
      const auto [needed, back] = flags;
      if (needed && !back) continue;
      if (!graph_.has_history(targets[site])) continue;
      // What unknown code computed may share its graph with the backward after this one.
      if (!back && followed.count(site) != 0 && unknown_inputs(targets[site])) continue;
      if (tree_[site].kind != NodeKind::kCall) continue;
      add("retain-graph", site,
          back ? "retain_graph=True lets a later iteration run through this one's graph: detach "
                 "what "
                 "is carried over and leave it out"
               : "no later backward uses this graph: without retain_graph=True it is freed as "
                 "backward goes",
          back ? Cost::kLeak : Cost::kPeak, !back);
    }
  }

  // Whether both places are in the same run of the outermost loop, or outside of all.
  bool same_outermost(WhereId a, WhereId b) const {
    const auto outermost = [&](WhereId at) {
      while (at != 0 && graph_.where(at).parent != 0) at = graph_.where(at).parent;
      return at != 0 ? graph_.where(at).loop : 0;
    };
    return outermost(a) == outermost(b);
  }

  // Whether something of unknown kind went into the value.
  bool unknown_inputs(GraphId target) const {
    std::vector<GraphId> open{target};
    std::set<GraphId> seen;
    bool forward = false;
    while (!open.empty()) {
      const GraphId at = open.back();
      open.pop_back();
      if (!seen.insert(at).second) continue;
      const GraphNode& node = graph_[at];
      if (node.op == GraphOp::kCall && node.inputs.empty()) return true;
      if (node.op == GraphOp::kForward) forward = true;
      open.insert(open.end(), node.inputs.begin(), node.inputs.end());
    }
    return !forward;
  }

  void not_cleared() {
    // Any mention of clearing in the file may be called from where nobody sees.
    const bool mentioned = tree_.source.find("zero_grad") != std::string::npos ||
                           tree_.source.find("grad = None") != std::string::npos ||
                           tree_.source.find("grad=None") != std::string::npos;
    std::set<LoopId> covered;
    for (LoopId id = graph_.loop_count() - 1; id > 0; --id) {
      const LoopRun& loop = graph_.loop(id);
      if (loop.backwards == 0 || loop.steps == 0 || loop.zeroed > 0) continue;
      if (loop.implicit) {
        if (mentioned || loop.own_backwards == 0) continue;
        const bool both = std::any_of(loop.step_roots.begin(), loop.step_roots.end(),
                                      [&](NodeId root) { return is_training(id, root); });
        if (!both) continue;
      }
      if (covered.count(id)) continue;
      // Inner loops have higher numbers: those around them are explained by them.
      for (LoopId outer = 1; outer < id; ++outer) {
        if (graph_.loop(outer).backwards > 0 && encloses(graph_.loop(outer).node, loop.node)) {
          covered.insert(outer);
        }
      }
      add("zero-grad-missing", loop.first_backward,
          "nothing clears the gradients between the steps of this loop, so each step adds to all "
          "before it: call optimizer.zero_grad() before backward",
          Cost::kPeak);
    }
  }

  bool encloses(NodeId outer, NodeId inner) const {
    return tree_[outer].begin <= tree_[inner].begin && tree_[inner].end <= tree_[outer].end;
  }

  void unrolled() {
    // One backward after a long loop that carries history from step to step.
    constexpr std::int64_t kLongSeries = 1000;
    for (const Unrolled& layer : seen_.unrolled) {
      if (layer.steps < kLongSeries || !graph_[layer.result].backwarded) continue;
      add("long-unroll", layer.site,
          concat(
              "one backward goes through all ", layer.steps,
              " steps of this series: give it to the layer in windows, with a backward each, and "
              "detach the state between them"),
          Cost::kPeak);
    }
    for (LoopId id = 1; id < graph_.loop_count(); ++id) {
      const LoopRun& loop = graph_.loop(id);
      if (loop.trips < kLongSeries || loop.backwards > 0 || loop.forwards == 0) continue;
      bool carries = false;
      for (GraphId node = 1; node < graph_.size() && !carries; ++node) {
        if (graph_[node].op != GraphOp::kForward || !graph_[node].backwarded) continue;
        if (graph_.pass_of(graph_[node].where, id) != 2) continue;
        for (const GraphId input : graph_[node].inputs) {
          if (graph_.pass_of(graph_[input].where, id) == 1) carries = true;
        }
      }
      if (!carries) continue;
      add("long-unroll", loop.node,
          concat("one backward goes through all ", loop.trips,
                 " steps of this loop, and memory grows with each: run backward on windows of the "
                 "series and detach the state between them"),
          Cost::kPeak);
    }
  }

  Interpreter& in_;
  const SyntaxTree& tree_;
  Names& names_;
  Vocabulary& words_;
  GradientGraph& graph_;
  const Observations& seen_;
  std::vector<RawFinding> out_;
  std::set<NodeId> evaluated_loops_, evaluated_functions_;
  std::map<NodeId, NodeId> evaluation_sites_;
  std::map<NodeId, NodeId> stateful_methods_;
};

}  // namespace

std::vector<RawFinding> judge(Interpreter& interpreter, const SyntaxTree& tree, Names& names,
                              Vocabulary& words) {
  return Judge(interpreter, tree, names, words).run();
}

}  // namespace lowtide::lint
