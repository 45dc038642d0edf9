// How a sequence is run again, a block at a time, so that the sums come out as in one go.
//
// The first pass runs each step with a graph, as the unroll would, looks at the graph and lets it
// go: which of the state's tensors need grad, and which edges lead out of the step to what it
// captures. (Grad mode is on because kernels and programs read it.) From two steps it knows the
// bytes of a state and of a step's graph, and plans (revolve.h). The node that stands for the scan
// in the user's graph has an edge for each input, each tensor of the first state, and each captured
// edge.
//
// Its backward takes the blocks from the last to the first. It runs from the nearest kept state to
// the block, keeps states on the way as the schedule says, runs the block with its graph, cuts the
// graph where it leaves the block, and runs the block's backward alone. Sums go on from block to
// block: see Note [The order of additions] in src/hook/gradient_graph.h. What has been added so far
// to a weight's gradient is the first thing that the cut graph's end for that weight receives; the
// first of all is what the rest of the user's graph has added before.
//
// Two cases where a tensor of one block is the same variable in the unroll as one of the next:
//   - A state tensor at the end of a block is the leaf at the start of the next. If it is an output
//     as well (an LSTM's h), the output's gradient comes before the next step's contributions, so
//     it is given to the next block's leaf and not to this block's end.
//   - Autocast casts a weight once and keeps the cast; the unroll adds all steps' contributions to
//     the cast's gradient, in bfloat16, and casts the sum. So the cast of the first pass is
//     captured like a tensor from outside, and a session of replays has one cast for all blocks
//     (hook::CastCache) that stands for it.
//
// Not done: gradients of gradients. The replays would have to be replayed.
//
// Tested by tests/sequence/scan_test.cpp and tests/python/sequence_test.py, against the loop.

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lowtide/error.h"
#include "lowtide/sequence.h"
#include "src/base/assert.h"
#include "src/base/checksum.h"
#include "src/base/text.h"
#include "src/checkpoint/region_trace.h"
#include "src/hook/ambient_state.h"
#include "src/hook/generator_state.h"
#include "src/hook/gradient_graph.h"
#include "src/hook/saved_tensor_hooks.h"
#include "src/sequence/revolve.h"

namespace lowtide {
namespace sequence {
namespace {

using hook::GradientEdge;
using Tensors = std::vector<at::Tensor>;
using Node = torch::autograd::Node;
using WeakNode = c10::weak_intrusive_ptr<Node>;

// Objects beside tensors' bytes: a node with its edges, a tensor with its storage.
constexpr std::uint64_t kNodeBytes = 512;
constexpr std::uint64_t kTensorBytes = 512;
constexpr std::uint64_t kGeneratorBytes = 2560;

[[noreturn]] void refuse(const char* id, const std::string& message, ErrorDetails details = {}) {
  throw UsageError(id, message, std::move(details));
}

// ---- Tensors kept and compared ----

// The same values at the same place in a cache line, with the same strides, and no more bytes than
// that takes. Kernels choose by such things, so what is read from the copy has the original's bits.
at::Tensor copy_with_geometry(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.is_conj() || tensor.is_neg()) return tensor.clone();
  std::int64_t span = 1;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) span += (tensor.size(d) - 1) * tensor.stride(d);
  const auto item = static_cast<std::int64_t>(tensor.element_size());
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  const std::int64_t before = static_cast<std::int64_t>(address % 64) / item;
  at::Tensor bytes = at::empty({before + span}, tensor.options().requires_grad(false));
  bytes.narrow(0, before, span).copy_(tensor.as_strided({span}, {1}, tensor.storage_offset()));
  return bytes.as_strided(tensor.sizes(), tensor.strides(), before);
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  const std::uint64_t both[2] = {hash, value};
  return checksum(both, sizeof(both));
}

std::uint64_t bits_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  const at::Tensor dense =
      tensor.is_conj() || tensor.is_neg() || !tensor.is_non_overlapping_and_dense()
          ? tensor.clone(at::MemoryFormat::Contiguous)
          : tensor;
  if (!dense.is_cpu()) return 0;
  return checksum(dense.const_data_ptr(), dense.nbytes());
}

std::uint64_t bits_of(const Tensors& tensors) {
  std::uint64_t hash = tensors.size();
  for (const at::Tensor& tensor : tensors) hash = mix(hash, bits_of(tensor));
  return hash;
}

// The same variable has one number, that of its first place.
std::vector<std::size_t> first_places(const Tensors& tensors) {
  std::vector<std::size_t> first(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    first[i] = i;
    for (std::size_t j = 0; j < i; ++j) {
      if (tensors[i].defined() && tensors[i].is_same(tensors[j])) {
        first[i] = j;
        break;
      }
    }
  }
  return first;
}

// What makes each variable another: the same bytes, no history.
Tensors cut_from_history(const Tensors& tensors) {
  const std::vector<std::size_t> first = first_places(tensors);
  Tensors cut(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    cut[i] = first[i] < i ? cut[first[i]] : tensors[i].tensor_data();
  }
  return cut;
}

std::vector<char> need_grad(const Tensors& tensors) {
  std::vector<char> need(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    need[i] = tensors[i].defined() && tensors[i].requires_grad();
  }
  return need;
}

using Draws = std::vector<std::shared_ptr<const hook::GeneratorState>>;

// A state with what it takes to go on from it.
struct State {
  Tensors tensors;
  std::vector<char> needs;
  Draws draws;  // empty where nothing is drawn
};

struct KeptState {
  std::int64_t block = 0;
  State state;
};

// ---- The bytes that a step's graph keeps ----

// Takes note of the tensors that a step saves and made itself.
class CountingProvider final : public hook::SavedTensorProvider {
 public:
  explicit CountingProvider(const hook::GraphMark& mark) : mark_(mark) {}
  std::unique_ptr<hook::SavedTensorHooks> make_hooks() override;

  // Parameters, what autocast made of them, the state that was given, and views of these are there
  // with or without this step's graph.
  bool is_from_outside(const at::Tensor& tensor) const {
    const at::Tensor& base = hook::base_of(tensor);
    if (!base.requires_grad()) return false;
    return base.is_leaf() || !mark_.made_since(*base.grad_fn());
  }
  void note(const at::Tensor& held) { seen_.push_back(held); }
  Tensors& seen() noexcept { return seen_; }

 private:
  const hook::GraphMark& mark_;
  Tensors seen_;
};

class CountingHooks final : public hook::SavedTensorHooks {
 public:
  explicit CountingHooks(CountingProvider& provider) : provider_(&provider) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    held_ = tensor.requires_grad() && tensor.is_leaf() ? tensor : tensor.tensor_data();
    if (!provider_->is_from_outside(tensor)) provider_->note(held_);
  }
  at::Tensor call_unpack_hook() override { return held_; }

 private:
  CountingProvider* provider_;  // valid while packing
  at::Tensor held_;
};

std::unique_ptr<hook::SavedTensorHooks> CountingProvider::make_hooks() {
  return std::make_unique<CountingHooks>(*this);
}

std::uint64_t storage_bytes(const Tensors& tensors, std::unordered_set<const void*>& counted) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    if (counted.insert(tensor.storage().unsafeGetStorageImpl()).second) {
      bytes += tensor.storage().nbytes();
    }
  }
  return bytes;
}

std::uint64_t tensor_bytes(const Tensors& tensors) {
  std::uint64_t bytes = 0;
  const std::vector<std::size_t> first = first_places(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && first[i] == i) bytes += tensors[i].nbytes() + kTensorBytes;
  }
  return bytes;
}

// ---- The scan ----

struct EdgeHash {
  std::size_t operator()(const std::pair<const Node*, std::uint32_t>& key) const noexcept {
    return std::hash<const void*>()(key.first) * 31 + key.second;
  }
};
using EdgeNumbers =
    std::unordered_map<std::pair<const Node*, std::uint32_t>, std::size_t, EdgeHash>;

std::pair<const Node*, std::uint32_t> key_of(const GradientEdge& edge) {
  return {edge.function.get(), edge.input_nr};
}

class Session;

class Scan final : public hook::GraphFunction, public std::enable_shared_from_this<Scan> {
 public:
  Scan(std::shared_ptr<detail::ScanBody> body, Tensors state, Tensors inputs, std::int64_t length,
       const ScanOptions& options);

  detail::ScanTensors run();

  std::string name() const override { return "lowtide::Scan"; }
  Tensors backward(Tensors gradients, const std::vector<GradientEdge>& edges,
                   const std::vector<bool>& wanted) override;
  void release() override;

 private:
  struct Captured {
    GradientEdge edge;
    hook::TensorVersion version;  // of a leaf
    at::Tensor leaf;
  };
  friend class Session;

  // First pass.
  detail::ScanTensors unroll();
  void first_step(std::int64_t t, State& state);
  [[noreturn]] void diverged(std::int64_t t, const std::string& how) const;
  void check_results(std::int64_t t, const Tensors& next, const Tensors& outputs);
  void capture(const GradientEdge& edge);
  void note_graph(std::int64_t t, std::vector<GradientEdge>& roots, const hook::GraphMark& mark,
                  const hook::GradientSinks& sinks);
  void note_outputs(std::int64_t t, const Tensors& next, const Tensors& outputs);
  void note_draws(State& state);
  void check_nothing_kept(std::int64_t t);
  void make_plan();
  void fold(std::int64_t t, std::uint64_t outputs, std::uint64_t state);
  bool ends_block(std::int64_t t) const {
    return (t + 1) % plan_.block_steps == 0 || t + 1 == length_;
  }
  std::int64_t first_of(std::int64_t block) const { return block * plan_.block_steps; }
  std::int64_t end_of(std::int64_t block) const {
    return std::min(length_, (block + 1) * plan_.block_steps);
  }

  // What a step gets: variables of its own over the state's bytes, whose histories end in `sinks`.
  Tensors leaves_of(const State& state, hook::GradientSinks& sinks,
                    std::vector<GradientEdge>* edges) const;
  Tensors parts_at(std::int64_t t, const Tensors& inputs, hook::GradientSinks& sinks,
                   std::vector<GradientEdge>* edges) const;
  State keep(const State& state) const;

  const std::shared_ptr<detail::ScanBody> body_;
  const std::int64_t length_;
  const ScanOptions options_;
  const std::shared_ptr<ScanReport> report_;
  const hook::AmbientState ambient_;
  const hook::CastCache::State cast_cache_;
  const hook::GraphMark mark_;
  std::vector<at::Generator> generators_;

  Tensors given_state_, given_inputs_;  // while the first pass runs
  std::vector<std::size_t> given_first_;
  std::vector<hook::SavedTensor> saved_state_, saved_inputs_;
  std::vector<char> inputs_need_;
  Tensors outputs_;
  std::vector<char> outputs_need_;
  // For each output the place of the state tensor that it is, or -1.
  std::vector<int> alias_;
  std::vector<Captured> captured_;
  EdgeNumbers captured_numbers_;
  std::vector<hook::CastCache::Cast> casts_;
  std::vector<std::size_t> cast_captured_;  // beside casts_: its number in captured_
  std::size_t num_state_ = 0;

  bool draws_ = false;
  Draws last_draws_;
  bool writes_state_ = false;
  std::vector<std::vector<WeakNode>> early_nodes_;
  Tensors seen_first_;
  std::uint64_t graph_bytes_ = 0, state_bytes_ = 0;
  std::size_t step_nodes_ = 0;
  BlockPlan plan_;
  std::uint64_t hash_ = 0;
  std::vector<std::uint64_t> block_hashes_;
  std::vector<char> last_needs_;
  std::vector<std::size_t> last_first_;

  std::vector<KeptState> kept_;
  bool released_ = false;
};

Scan::Scan(std::shared_ptr<detail::ScanBody> body, Tensors state, Tensors inputs,
           std::int64_t length, const ScanOptions& options)
    : body_(std::move(body)),
      length_(length),
      options_(options),
      report_(options.report != nullptr ? options.report : std::make_shared<ScanReport>()),
      cast_cache_(hook::CastCache::now()),
      given_state_(std::move(state)),
      given_inputs_(std::move(inputs)),
      given_first_(first_places(given_state_)),
      inputs_need_(need_grad(given_inputs_)),
      num_state_(given_state_.size()) {
  *report_ = ScanReport();
  report_->steps = length_;
  generators_.push_back(hook::default_generator());
  for (const at::Generator& generator : options.generators) generators_.push_back(generator);
  for (const at::Tensor& tensor : given_state_) {
    if (tensor.defined() && tensor.layout() != at::kStrided) {
      refuse("LT0220", concat("cannot scan with a state of layout ", tensor.layout(),
                              ": states are kept and compared as strided tensors; make it dense"));
    }
  }
}

Tensors Scan::leaves_of(const State& state, hook::GradientSinks& sinks,
                        std::vector<GradientEdge>* edges) const {
  Tensors leaves = cut_from_history(state.tensors);
  const std::vector<std::size_t> first = first_places(state.tensors);
  if (edges != nullptr) edges->assign(leaves.size(), GradientEdge());
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (state.needs[i] == 0 || first[i] != i) continue;
    const GradientEdge edge = sinks.end_at(leaves[i]);
    if (edges != nullptr) (*edges)[i] = edge;
  }
  return leaves;
}

Tensors Scan::parts_at(std::int64_t t, const Tensors& inputs, hook::GradientSinks& sinks,
                       std::vector<GradientEdge>* edges) const {
  const at::NoGradGuard no_grad;
  Tensors parts(inputs.size());
  if (edges != nullptr) edges->assign(inputs.size(), GradientEdge());
  for (std::size_t j = 0; j < inputs.size(); ++j) {
    parts[j] = inputs[j].select(0, t).tensor_data();
    if (inputs_need_[j] == 0) continue;
    const GradientEdge edge = sinks.end_at(parts[j]);
    if (edges != nullptr) (*edges)[j] = edge;
  }
  return parts;
}

State Scan::keep(const State& state) const {
  const at::NoGradGuard no_grad;
  State kept{Tensors(state.tensors.size()), state.needs, state.draws};
  const std::vector<std::size_t> first = first_places(state.tensors);
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (!state.tensors[i].defined()) continue;
    kept.tensors[i] = first[i] < i ? kept.tensors[first[i]] : copy_with_geometry(state.tensors[i]);
  }
  return kept;
}

// ---- First pass ----

void Scan::check_results(std::int64_t t, const Tensors& next, const Tensors& outputs) {
  if (next.size() != num_state_) {
    refuse("LT0222",
           concat("cannot scan: step ", t, " returned a state of ", next.size(),
                  " tensors, and was given one of ", num_state_,
                  ". The next state must be a nest like the one before"),
           {{"step", t}});
  }
  for (const at::Tensor& tensor : next) {
    if (tensor.defined() && tensor.layout() != at::kStrided) {
      refuse("LT0222",
             concat("cannot scan: step ", t, " returned a state of layout ", tensor.layout(),
                    ". Make it dense"),
             {{"step", t}});
    }
  }
  if (t > 0 && outputs.size() != outputs_.size()) {
    refuse("LT0222",
           concat("cannot scan: step ", t, " returned ", outputs.size(), " output tensors, and ",
                  outputs_.size(), " before. Outputs are stacked: give the same in each step"),
           {{"step", t}});
  }
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    if (!outputs[j].defined()) {
      refuse("LT0222", concat("cannot scan: output ", j, " of step ", t, " is undefined"),
             {{"step", t}});
    }
    if (t == 0) continue;
    const at::Tensor& whole = outputs_[j];
    if (outputs[j].sizes() != whole.sizes().slice(1) ||
        outputs[j].scalar_type() != whole.scalar_type()) {
      refuse("LT0222",
             concat("cannot scan: output ", j, " of step ", t, " is ", outputs[j].scalar_type(),
                    " of shape ", outputs[j].sizes(), ", and was ", whole.scalar_type(), " ",
                    whole.sizes().slice(1),
                    " before. Outputs are stacked: give the same shape in each step"),
             {{"step", t}});
    }
  }
}

void Scan::note_outputs(std::int64_t t, const Tensors& next, const Tensors& outputs) {
  const at::NoGradGuard no_grad;
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    const at::Tensor& output = outputs[j];
    if (t == 0) {
      std::vector<std::int64_t> sizes = output.sizes().vec();
      sizes.insert(sizes.begin(), length_);
      outputs_.push_back(at::empty(sizes, output.options().requires_grad(false).memory_format(
                                              at::MemoryFormat::Contiguous)));
      outputs_need_.push_back(0);
      alias_.push_back(-1);
    }
    outputs_[j].select(0, t).copy_(output);
    if (output.requires_grad()) outputs_need_[j] = 1;
    int same = -1;
    for (std::size_t i = 0; i < next.size() && same < 0; ++i) {
      if (next[i].defined() && next[i].is_same(output)) same = static_cast<int>(i);
    }
    if (t == 0) {
      alias_[j] = same;
    } else if (alias_[j] != same) {
      alias_[j] = -1;
    }
  }
}

void Scan::capture(const GradientEdge& edge) {
  if (!captured_numbers_.emplace(key_of(edge), captured_.size()).second) return;
  Captured captured{edge, {}, hook::leaf_of(edge)};
  if (captured.leaf.defined()) captured.version = hook::TensorVersion(captured.leaf);
  if (cast_cache_.enabled && cast_cache_.nesting > 0) {
    if (auto cast = hook::CastCache::cast_at(edge)) {
      casts_.push_back(std::move(*cast));
      cast_captured_.push_back(captured_.size());
    }
  }
  captured_.push_back(std::move(captured));
}

void Scan::note_graph(std::int64_t t, std::vector<GradientEdge>& roots, const hook::GraphMark& mark,
                      const hook::GradientSinks& sinks) {
  const bool early = t < 3;
  std::vector<WeakNode> nodes;
  const auto leave = [&](GradientEdge& edge) {
    if (sinks.has(edge)) return;
    // Made in an earlier step: a cast that autocast keeps, or something that the step does.
    if (mark_.made_since(*edge.function)) {
      const auto cast = hook::CastCache::cast_at(edge);
      if (cast.has_value() && cast_cache_.enabled && cast_cache_.nesting > 0) {
        capture(edge);
        return;
      }
      refuse("LT0223",
             concat("cannot scan: step ", t, " uses a tensor (of ", edge.function->name(),
                    ") that an earlier step made and that did not come through the state. Its "
                    "gradient would be lost: return it as part of the state"),
             {{"step", t}});
    }
    capture(edge);
  };
  const auto visit = [&](Node& node) {
    if (!early && !nodes.empty()) return;
    const GradientEdge edge(node.getptr(), 0);
    if (hook::CastCache::cast_at(edge).has_value()) return;
    nodes.emplace_back(edge.function);
  };
  step_nodes_ = std::max(step_nodes_, hook::cut_graph(roots, mark, leave, visit));
  early_nodes_.push_back(std::move(nodes));
}

// A step's graph must be gone two steps later: what still holds a part of it expects gradients
// through it, or only wastes memory.
void Scan::check_nothing_kept(std::int64_t t) {
  if (early_nodes_.size() < 3) return;
  for (const WeakNode& node : early_nodes_.front()) {
    if (node.expired()) continue;
    refuse("LT0223",
           concat("cannot scan: after step ", t,
                  " something still holds a part of the graph of step ", t - 2,
                  ". Gradients through it would end there: return what is needed later as an "
                  "output or as part of the state, or keep a detached copy"),
           {{"step", t}});
  }
  early_nodes_.erase(early_nodes_.begin());
}

void Scan::note_draws(State& state) {
  Draws now(generators_.size());
  for (std::size_t g = 0; g < generators_.size(); ++g) {
    auto taken = std::make_shared<hook::GeneratorState>(generators_[g]);
    if (!last_draws_.empty() && last_draws_[g]->same_as(*taken)) {
      now[g] = last_draws_[g];
    } else {
      if (!last_draws_.empty()) draws_ = true;
      now[g] = std::move(taken);
    }
  }
  last_draws_ = now;
  state.draws = std::move(now);
}

void Scan::fold(std::int64_t t, std::uint64_t outputs, std::uint64_t state) {
  hash_ = mix(hash_, outputs);
  if (!ends_block(t)) return;
  block_hashes_.push_back(mix(hash_, state));
  hash_ = 0;
}

// Runs step t from `state`, which becomes the next.
void Scan::first_step(std::int64_t t, State& state) {
  const bool measure = t < 2;
  hook::GradientSinks sinks;
  Tensors leaves = leaves_of(state, sinks, nullptr);
  Tensors parts = parts_at(t, given_inputs_, sinks, nullptr);
  std::vector<std::uint32_t> versions;
  for (const at::Tensor& leaf : leaves) {
    versions.push_back(
        leaf.defined() && !leaf.is_inference() ? static_cast<std::uint32_t>(leaf._version()) : 0);
  }

  Tensors next, outputs;
  const hook::GraphMark mark;
  CountingProvider counting(mark);
  {
    std::optional<hook::SavedTensorScope> count;
    if (measure) count.emplace(counting);
    if (t == std::min<std::int64_t>(1, length_ - 1)) {
      checkpoint_impl::RegionTrace trace;
      checkpoint_impl::FirstRunObserver observer(trace, options_.generators);
      {
        const hook::OpInterception intercept(observer, hook::OpInterception::Outer::kShare);
        body_->step(leaves, parts, next, outputs);
        observer.finish();
      }
      for (const checkpoint_impl::OutsideTensor& outside : trace.outside) {
        if (!outside.bytes_before.defined()) continue;
        const auto storage = outside.storage.lock();
        const auto is_it = [&](const at::Tensor& tensor) {
          return tensor.defined() && storage != nullptr &&
                 tensor.storage().unsafeGetStorageImpl() == storage.get();
        };
        if (std::any_of(leaves.begin(), leaves.end(), is_it)) continue;
        refuse("LT0223",
               concat("cannot scan: step ", t, " changes a captured tensor in place (",
                      outside.description(),
                      "), which would happen again in each replay. Carry it in the state"),
               {{"step", t}});
      }
      for (const checkpoint_impl::Draws& draws : trace.draws) {
        const bool known =
            std::any_of(generators_.begin(), generators_.end(),
                        [&](const at::Generator& g) { return g == draws.generator; });
        if (known) continue;
        refuse("LT0223",
               concat("cannot scan: step ", t,
                      " draws from a generator of its own. List it in options.generators"),
               {{"step", t}});
      }
    } else {
      body_->step(leaves, parts, next, outputs);
    }
  }
  ++report_->forward_runs;
  check_results(t, next, outputs);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].defined() && !leaves[i].is_inference() &&
        static_cast<std::uint32_t>(leaves[i]._version()) != versions[i]) {
      writes_state_ = true;
    }
  }

  std::vector<GradientEdge> roots;
  for (const Tensors* results : {&next, &outputs}) {
    for (const at::Tensor& tensor : *results) {
      if (tensor.defined() && tensor.requires_grad()) roots.push_back(hook::gradient_edge(tensor));
    }
  }
  note_graph(t, roots, mark, sinks);
  note_outputs(t, next, outputs);
  if (measure) {
    // What both steps saved is not the step's own: inputs, masks, tables.
    std::unordered_set<const void*> counted;
    storage_bytes(given_inputs_, counted);
    storage_bytes(seen_first_, counted);
    graph_bytes_ = storage_bytes(counting.seen(), counted) + storage_bytes(next, counted) +
                   storage_bytes(outputs, counted);
    state_bytes_ = std::max(state_bytes_, tensor_bytes(next));
    seen_first_ = std::move(counting.seen());
    if (t == 1 || length_ == 1) seen_first_.clear();
  }
  state.needs = need_grad(next);
  state.tensors = cut_from_history(next);
  state.draws.clear();
}

void Scan::make_plan() {
  if (draws_) state_bytes_ += generators_.size() * kGeneratorBytes;
  graph_bytes_ += step_nodes_ * kNodeBytes;
  const std::uint64_t bytes =
      options_.memory != 0
          ? options_.memory
          : bytes_for_one_repeat(length_, state_bytes_, graph_bytes_) + state_bytes_;
  plan_ = plan_blocks(length_, bytes, state_bytes_, graph_bytes_);
  if (plan_.block_steps == 0) {
    const std::uint64_t least = graph_bytes_ + state_bytes_;
    refuse(
        "LT0221",
        concat("cannot scan in ", format_bytes(bytes), ": the graph of one step takes ",
               format_bytes(graph_bytes_), " and a state ", format_bytes(state_bytes_),
               ". Give options.memory of at least ", format_bytes(least), " (", least, " bytes)"),
        {{"memory_bytes", static_cast<std::int64_t>(bytes)},
         {"least_bytes", static_cast<std::int64_t>(least)}});
  }
  report_->block_steps = plan_.block_steps;
  report_->states = plan_.states;
  report_->state_bytes = state_bytes_;
  report_->step_bytes = graph_bytes_;
  report_->memory = bytes;
  report_->planned_runs = plan_.runs;
}

detail::ScanTensors Scan::unroll() {
  report_->unrolled = true;
  report_->planned_runs = 0;
  Tensors state = given_state_;
  std::vector<Tensors> parts;
  for (const at::Tensor& input : given_inputs_) parts.push_back(input.unbind(0));
  std::vector<Tensors> outputs;
  for (std::int64_t t = 0; t < length_; ++t) {
    Tensors part, next, out;
    for (const Tensors& all : parts) part.push_back(all[static_cast<std::size_t>(t)]);
    body_->step(state, part, next, out);
    ++report_->graph_runs;
    if (t == 0) {
      outputs_.clear();
      outputs_.resize(out.size());
      outputs.resize(out.size());
    }
    if (next.size() != num_state_ || out.size() != outputs.size()) {
      outputs_.resize(outputs.size());
      check_results(t, next, out);
    }
    state = std::move(next);
    for (std::size_t j = 0; j < out.size(); ++j) outputs[j].push_back(std::move(out[j]));
  }
  detail::ScanTensors result;
  result.state = std::move(state);
  for (const Tensors& all : outputs) result.outputs.push_back(at::stack(all));
  return result;
}

detail::ScanTensors Scan::run() {
  if (!c10::GradMode::is_enabled()) {
    // The loop, with outputs written where they are to be.
    State state{given_state_, std::vector<char>(num_state_), {}};
    for (std::int64_t t = 0; t < length_; ++t) {
      Tensors parts, next, outputs;
      for (const at::Tensor& input : given_inputs_) parts.push_back(input.select(0, t));
      body_->step(state.tensors, parts, next, outputs);
      ++report_->forward_runs;
      check_results(t, next, outputs);
      note_outputs(t, next, outputs);
      state.tensors = std::move(next);
    }
    return {std::move(state.tensors), std::move(outputs_)};
  }

  for (const at::Tensor& tensor : given_state_) saved_state_.emplace_back(tensor);
  for (const at::Tensor& tensor : given_inputs_) saved_inputs_.emplace_back(tensor);
  State state{cut_from_history(given_state_), need_grad(given_state_), {}};
  note_draws(state);
  const Draws at_start = state.draws;
  KeptState start{0, State{{}, state.needs, state.draws}};
  // Needed where the first step writes to the state that it is given, as the loop would.
  State before = keep(state);

  std::optional<State> early;  // the state after step 0
  std::vector<std::pair<std::uint64_t, std::uint64_t>> early_hashes;
  std::int64_t next_kept = -1;  // the block before which the next state is kept
  const auto plan_next = [&] {
    const std::int64_t block = kept_.back().block;
    const std::int64_t left = plan_.blocks - block;
    const std::int64_t free = plan_.states - static_cast<std::int64_t>(kept_.size());
    next_kept = left >= 2 && free >= 1 ? block + steps_to_next_state(left, free + 1) : -1;
  };
  const auto keep_here = [&](std::int64_t block, const State& here) {
    kept_.push_back(KeptState{block, keep(here)});
    plan_next();
  };

  for (std::int64_t t = 0; t < length_; ++t) {
    first_step(t, state);
    if (t == 0 && writes_state_) start.state.tensors = std::move(before.tensors);
    if (t == 0) before.tensors.clear();
    check_nothing_kept(t);
    note_draws(state);
    const std::int64_t planned_at = std::min<std::int64_t>(1, length_ - 1);
    const bool hash_state = t <= planned_at || ends_block(t);
    std::uint64_t outputs_hash = outputs_.size();
    for (const at::Tensor& whole : outputs_) {
      outputs_hash = mix(outputs_hash, bits_of(whole.select(0, t)));
    }
    const std::uint64_t state_hash = hash_state ? bits_of(state.tensors) : 0;

    if (t < planned_at) {
      early = keep(state);
      early_hashes.emplace_back(outputs_hash, state_hash);
      continue;
    }
    if (t == planned_at) {
      make_plan();
      if (plan_.blocks == 1) {
        for (std::size_t g = 0; g < generators_.size(); ++g) at_start[g]->put_into(generators_[g]);
        early_nodes_.clear();
        return unroll();
      }
      kept_.push_back(std::move(start));
      plan_next();
      if (early.has_value() && plan_.block_steps == 1 && next_kept == 1) {
        kept_.push_back(KeptState{1, std::move(*early)});
        plan_next();
      }
      early.reset();
      for (std::size_t i = 0; i < early_hashes.size(); ++i) {
        fold(static_cast<std::int64_t>(i), early_hashes[i].first, early_hashes[i].second);
      }
    }
    fold(t, outputs_hash, state_hash);
    if (ends_block(t) && (t + 1) / plan_.block_steps == next_kept && t + 1 < length_) {
      keep_here(next_kept, state);
    }
  }
  early_nodes_.clear();
  last_draws_.clear();
  if (!draws_) {
    for (KeptState& kept : kept_) kept.state.draws.clear();
  }

  detail::ScanTensors result;
  result.state = state.tensors;
  result.outputs = std::move(outputs_);
  outputs_.clear();
  last_needs_ = state.needs;

  // One edge an input, a variable of the first state, and a captured edge.
  std::vector<GradientEdge> edges;
  for (const at::Tensor& input : given_inputs_) edges.push_back(hook::gradient_edge(input));
  for (std::size_t i = 0; i < num_state_; ++i) {
    edges.push_back(given_first_[i] == i ? hook::gradient_edge(given_state_[i]) : GradientEdge());
  }
  for (const Captured& captured : captured_) edges.push_back(captured.edge);
  given_state_.clear();
  given_inputs_.clear();

  if (std::none_of(edges.begin(), edges.end(), [](const auto& e) { return e.is_valid(); })) {
    kept_.clear();
    return result;
  }
  Tensors with_history;
  last_first_ = first_places(result.state);
  for (std::size_t i = 0; i < num_state_; ++i) {
    const bool needs = last_needs_[i] != 0 && last_first_[i] == i;
    with_history.push_back(needs ? result.state[i] : at::Tensor());
  }
  for (std::size_t j = 0; j < result.outputs.size(); ++j) {
    with_history.push_back(outputs_need_[j] != 0 ? result.outputs[j] : at::Tensor());
  }
  hook::attach(shared_from_this(), std::move(edges), with_history);
  return result;
}

// ---- Backward ----

// One backward through the scan: the sums so far, and the runs that it takes.
class Session {
 public:
  Session(Scan& scan, Tensors& gradients, const std::vector<GradientEdge>& edges,
          const std::vector<bool>& wanted);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void run(std::vector<KeptState> kept);
  Tensors results();

 private:
  void begin_from(const State& state) const;
  // Runs steps [begin, end) from `state`, which becomes the state at `end`.
  void advance(State& state, std::int64_t begin, std::int64_t end);
  void run_block(std::int64_t block, const State& start);
  GradientEdge end_for(const GradientEdge& edge, hook::GradientSinks& sinks);
  void seed_and_want(std::vector<GradientEdge>& roots, Tensors& gradients,
                     std::vector<GradientEdge>& ends);
  void take_sums(Tensors& arrived, std::size_t from);
  std::size_t num_inputs() const { return scan_.saved_inputs_.size(); }
  bool state_wanted(std::size_t i) const { return wanted_[num_inputs() + i]; }
  bool captured_wanted(std::size_t c) const { return wanted_[num_inputs() + scan_.num_state_ + c]; }

  Scan& scan_;
  const std::vector<GradientEdge>& edges_;
  const std::vector<bool>& wanted_;
  std::optional<hook::CastCache> casts_;
  std::vector<hook::GeneratorState> generators_before_;

  Tensors inputs_;
  Tensors state_gradients_;  // at the end of the block to do next, one a variable
  Tensors output_gradients_;
  Tensors input_gradients_;
  Tensors sums_;         // of captured edges
  EdgeNumbers numbers_;  // in sums_, of the session's casts
  // The ends of the block under way, beside the number of their sum.
  std::vector<std::pair<std::size_t, GradientEdge>> ends_;
};

Session::Session(Scan& scan, Tensors& gradients, const std::vector<GradientEdge>& edges,
                 const std::vector<bool>& wanted)
    : scan_(scan), edges_(edges), wanted_(wanted) {
  for (const hook::SavedTensor& input : scan_.saved_inputs_) {
    inputs_.push_back(input.unpack().tensor_data());
  }
  input_gradients_.resize(inputs_.size());

  // What arrived, for the variables of the last state and for the outputs.
  std::size_t next = 0;
  state_gradients_.resize(scan_.num_state_);
  for (std::size_t i = 0; i < scan_.num_state_; ++i) {
    if (scan_.last_needs_[i] != 0 && scan_.last_first_[i] == i) {
      state_gradients_[i] = std::move(gradients.at(next++));
    }
  }
  for (const char needs : scan_.outputs_need_) {
    output_gradients_.push_back(needs != 0 ? std::move(gradients.at(next++)) : at::Tensor());
  }
  gradients.clear();

  if (scan_.draws_) {
    for (const at::Generator& generator : scan_.generators_) {
      generators_before_.emplace_back(generator);
    }
  }
  sums_.resize(scan_.captured_.size());
  for (std::size_t c = 0; c < scan_.captured_.size(); ++c) {
    if (captured_wanted(c)) {
      sums_[c] = hook::take_pending_gradient(edges_[num_inputs() + scan_.num_state_ + c]);
    }
  }
  {
    const hook::AmbientScope ambient(scan_.ambient_);
    casts_.emplace(scan_.cast_cache_, scan_.casts_);
  }
  for (std::size_t i = 0; i < scan_.casts_.size(); ++i) {
    numbers_.emplace(key_of(casts_->cast(i)), scan_.cast_captured_[i]);
  }
}

Session::~Session() {
  for (std::size_t g = 0; g < generators_before_.size(); ++g) {
    generators_before_[g].put_into(scan_.generators_[g]);
  }
}

void Session::begin_from(const State& state) const {
  for (std::size_t g = 0; g < state.draws.size(); ++g) {
    state.draws[g]->put_into(scan_.generators_[g]);
  }
}

void Session::advance(State& state, std::int64_t begin, std::int64_t end) {
  begin_from(state);
  if (scan_.writes_state_) state = scan_.keep(state);
  const hook::AmbientScope ambient(scan_.ambient_);
  casts_->use_here();
  for (std::int64_t t = begin; t < end; ++t) {
    hook::GradientSinks sinks;
    Tensors next, outputs;
    scan_.body_->step(scan_.leaves_of(state, sinks, nullptr),
                      scan_.parts_at(t, inputs_, sinks, nullptr), next, outputs);
    ++scan_.report_->backward_runs;
    if (next.size() != scan_.num_state_) scan_.diverged(t, "returned another number of tensors");
    state.needs = need_grad(next);
    state.tensors = cut_from_history(next);
  }
  if (!scan_.draws_) return;
  state.draws.clear();
  for (const at::Generator& generator : scan_.generators_) {
    state.draws.push_back(std::make_shared<hook::GeneratorState>(generator));
  }
}

GradientEdge Session::end_for(const GradientEdge& edge, hook::GradientSinks& sinks) {
  auto found = numbers_.find(key_of(edge));
  if (found == numbers_.end()) {
    found = scan_.captured_numbers_.find(key_of(edge));
    if (found == scan_.captured_numbers_.end()) {
      throw DivergenceError(
          "LT0224", concat("cannot replay a scan: a step uses a tensor that needs grad (of ",
                           edge.function->name(),
                           "), which it did not use the first time. The step must do the same when "
                           "it runs again: does it depend on something that changed in between?"));
    }
  }
  for (const auto& [number, end] : ends_) {
    if (number == found->second) return end;
  }
  ends_.emplace_back(found->second, sinks.end_like(edge));
  return ends_.back().second;
}

// Adds the sums so far of the ends that the block has, and asks for what arrives there.
void Session::seed_and_want(std::vector<GradientEdge>& roots, Tensors& gradients,
                            std::vector<GradientEdge>& ends) {
  std::vector<GradientEdge> first_roots;
  Tensors first_gradients;
  for (const auto& [number, end] : ends_) {
    if (!captured_wanted(number)) continue;
    ends.push_back(end);
    if (!sums_[number].defined()) continue;
    first_roots.push_back(end);
    first_gradients.push_back(std::move(sums_[number]));
  }
  roots.insert(roots.begin(), first_roots.begin(), first_roots.end());
  gradients.insert(gradients.begin(), std::make_move_iterator(first_gradients.begin()),
                   std::make_move_iterator(first_gradients.end()));
}

void Session::take_sums(Tensors& arrived, std::size_t from) {
  for (const auto& [number, end] : ends_) {
    if (!captured_wanted(number)) continue;
    sums_[number] = std::move(arrived.at(from++));
  }
  ends_.clear();
}

void Session::run_block(std::int64_t block, const State& start) {
  const std::int64_t begin = scan_.first_of(block), end = scan_.end_of(block);
  begin_from(start);
  hook::GradientSinks sinks;
  std::vector<GradientEdge> leaf_ends;
  std::vector<std::vector<GradientEdge>> part_ends(static_cast<std::size_t>(end - begin));
  std::vector<GradientEdge> roots, outputs_roots;
  Tensors gradients, outputs_gradients;
  std::uint64_t hash = 0;

  const hook::GraphMark mark;
  Tensors state;
  {
    const hook::AmbientScope ambient(scan_.ambient_);
    casts_->use_here();
    state = scan_.leaves_of(scan_.writes_state_ ? scan_.keep(start) : start, sinks, &leaf_ends);
    for (std::int64_t t = begin; t < end; ++t) {
      Tensors next, outputs;
      scan_.body_->step(
          state, scan_.parts_at(t, inputs_, sinks, &part_ends[static_cast<std::size_t>(t - begin)]),
          next, outputs);
      ++scan_.report_->graph_runs;
      if (next.size() != scan_.num_state_ || outputs.size() != output_gradients_.size()) {
        scan_.diverged(t, "returned another number of tensors");
      }
      hash = mix(hash, bits_of(outputs));
      for (std::size_t j = outputs.size(); j-- > 0;) {
        if (!output_gradients_[j].defined() || !outputs[j].requires_grad()) continue;
        if (t + 1 == end && end < scan_.length_ && scan_.alias_[j] >= 0) continue;
        outputs_roots.push_back(hook::gradient_edge(outputs[j]));
        outputs_gradients.push_back(output_gradients_[j].select(0, t));
      }
      state = std::move(next);
    }
  }
  if (mix(hash, bits_of(state)) != scan_.block_hashes_[static_cast<std::size_t>(block)]) {
    scan_.diverged(end - 1, concat("and the steps from ", begin, " on gave other bits"));
  }

  // A variable that is an output of the last step before: that output's gradient comes first.
  const std::vector<std::size_t> start_first = first_places(start.tensors);
  for (std::size_t j = output_gradients_.size(); j-- > 0;) {
    if (begin == 0 || scan_.alias_[j] < 0 || !output_gradients_[j].defined()) continue;
    const GradientEdge& leaf = leaf_ends[start_first[static_cast<std::size_t>(scan_.alias_[j])]];
    if (!leaf.is_valid()) continue;
    roots.push_back(leaf);
    gradients.push_back(output_gradients_[j].select(0, begin - 1));
  }
  if (block == 0) {
    for (std::size_t i = 0; i < leaf_ends.size(); ++i) {
      if (!leaf_ends[i].is_valid() || !state_wanted(i)) continue;
      at::Tensor pending = hook::take_pending_gradient(edges_[num_inputs() + i]);
      if (!pending.defined()) continue;
      roots.push_back(leaf_ends[i]);
      gradients.push_back(std::move(pending));
    }
  }
  const std::vector<std::size_t> end_first = first_places(state);
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (!state_gradients_[i].defined() || end_first[i] != i) continue;
    const GradientEdge edge = hook::gradient_edge(state[i]);
    if (!edge.is_valid()) continue;
    roots.push_back(edge);
    gradients.push_back(std::move(state_gradients_[i]));
  }
  roots.insert(roots.end(), outputs_roots.begin(), outputs_roots.end());
  gradients.insert(gradients.end(), outputs_gradients.begin(), outputs_gradients.end());
  outputs_roots.clear();
  outputs_gradients.clear();
  state.clear();

  hook::cut_graph(roots, mark, [&](GradientEdge& edge) {
    if (!sinks.has(edge)) edge = end_for(edge, sinks);
  });

  // What is asked for: the block's leaves, its parts of the inputs, and the sums.
  std::vector<GradientEdge> ends;
  std::vector<std::size_t> leaf_places;
  for (std::size_t i = 0; i < leaf_ends.size(); ++i) {
    if (!leaf_ends[i].is_valid() || (block == 0 && !state_wanted(i))) continue;
    leaf_places.push_back(i);
    ends.push_back(leaf_ends[i]);
  }
  std::vector<std::pair<std::size_t, std::int64_t>> part_places;
  for (std::int64_t t = begin; t < end; ++t) {
    const auto& at_t = part_ends[static_cast<std::size_t>(t - begin)];
    for (std::size_t j = 0; j < at_t.size(); ++j) {
      if (!at_t[j].is_valid() || !wanted_[j]) continue;
      part_places.emplace_back(j, t);
      ends.push_back(at_t[j]);
    }
  }
  seed_and_want(roots, gradients, ends);
  Tensors arrived = hook::run_backward(std::move(roots), std::move(gradients), ends);

  std::size_t next = 0;
  state_gradients_.assign(scan_.num_state_, at::Tensor());
  for (const std::size_t i : leaf_places) state_gradients_[i] = std::move(arrived[next++]);
  for (const auto& [j, t] : part_places) {
    const at::Tensor part = std::move(arrived[next++]);
    if (!part.defined()) continue;
    at::Tensor& whole = input_gradients_[j];
    if (!whole.defined()) {
      whole = at::zeros(inputs_[j].sizes(), inputs_[j].options().requires_grad(false));
    }
    whole.select(0, t).copy_(part);
  }
  take_sums(arrived, next);
}

void Session::run(std::vector<KeptState> kept) {
  const at::NoGradGuard no_grad;
  std::int64_t end = scan_.plan_.blocks;
  while (end > 0) {
    const std::int64_t begin = kept.back().block;
    const std::int64_t left = end - begin;
    const std::int64_t free = scan_.plan_.states - static_cast<std::int64_t>(kept.size());
    if (left == 1) {
      const KeptState last = std::move(kept.back());
      kept.pop_back();
      run_block(begin, last.state);
      end = begin;
      continue;
    }
    State state = kept.back().state;
    if (free >= 1) {
      const std::int64_t to = begin + steps_to_next_state(left, free + 1);
      advance(state, scan_.first_of(begin), scan_.first_of(to));
      kept.push_back(KeptState{to, scan_.keep(state)});
    } else {
      advance(state, scan_.first_of(begin), scan_.first_of(end - 1));
      run_block(end - 1, state);
      --end;
    }
  }
}

Tensors Session::results() {
  Tensors results = std::move(input_gradients_);
  for (at::Tensor& gradient : state_gradients_) results.push_back(std::move(gradient));
  for (std::size_t c = 0; c < scan_.captured_.size(); ++c) results.push_back(std::move(sums_[c]));
  return results;
}

void Scan::release() {
  released_ = true;
  kept_.clear();
  saved_state_.clear();
  saved_inputs_.clear();
}

void Scan::diverged(std::int64_t t, const std::string& how) const {
  throw DivergenceError(
      "LT0224",
      concat("cannot replay a scan: step ", t, " ran again, ", how,
             ". The step must do the same when it runs again: does it depend on something that "
             "changed in between?"),
      {{"step", t}});
}

Tensors Scan::backward(Tensors gradients, const std::vector<GradientEdge>& edges,
                       const std::vector<bool>& wanted) {
  if (c10::GradMode::is_enabled()) {
    refuse("LT0225",
           "cannot differentiate the gradients of lowtide::scan: it has no double backward. Leave "
           "out create_graph=True, or give memory that holds the whole graph, with which the scan "
           "is unrolled");
  }
  // In PyTorch's own words, so that who looks for them finds them.
  TORCH_CHECK(
      !released_,
      "Trying to backward through the graph a second time (or directly access saved tensors "
      "after they have already been freed). Saved intermediate values of the graph are freed "
      "when you call .backward() or autograd.grad(). Specify retain_graph=True if you need "
      "to backward through the graph a second time or if you need to access saved tensors "
      "after calling backward.");
  for (const Captured& captured : captured_) {
    if (!captured.version.changed()) continue;
    throw DivergenceError("LT0224",
                          concat("cannot replay a scan: a captured tensor that needs grad, ",
                                 captured.leaf.scalar_type(), " of shape ", captured.leaf.sizes(),
                                 ", was changed in place since the scan ran (version ",
                                 captured.version.recorded(), " then, ", captured.version.current(),
                                 " now). Call backward() before the optimizer's step"));
  }

  Tensors first_state;
  for (std::size_t i = 0; i < num_state_ && kept_.front().state.tensors.empty(); ++i) {
    if (given_first_[i] < i) {
      first_state.push_back(first_state[given_first_[i]]);
    } else {
      const at::Tensor given = saved_state_[i].unpack();
      first_state.push_back(given.defined() ? given.tensor_data() : at::Tensor());
    }
  }
  std::vector<KeptState> kept;
  if (hook::current_backward_keeps_graph()) {
    kept = kept_;
  } else {
    kept = std::move(kept_);
  }
  if (kept.front().state.tensors.empty()) kept.front().state.tensors = std::move(first_state);

  Session session(*this, gradients, edges, wanted);
  session.run(std::move(kept));
  return session.results();
}

}  // namespace

}  // namespace sequence

std::string ScanReport::to_text() const {
  return concat(steps, " steps in blocks of ", block_steps, ", at most ", states,
                " states kept, in ", format_bytes(memory), " (a state ", format_bytes(state_bytes),
                ", a step's graph ", format_bytes(step_bytes), "): ", forward_runs,
                " runs forward, ", backward_runs, " again, ", graph_runs, " with a graph",
                unrolled ? ", unrolled" : "");
}

namespace detail {

ScanBody::~ScanBody() = default;

ScanTensors scan(std::shared_ptr<ScanBody> body, std::vector<at::Tensor> state,
                 std::vector<at::Tensor> inputs, std::int64_t length, const ScanOptions& options) {
  if (length < 1) {
    throw UsageError("LT0220", concat("cannot scan ", length, " steps: give at least one"),
                     {{"steps", length}});
  }
  const auto scan = std::make_shared<sequence::Scan>(std::move(body), std::move(state),
                                                     std::move(inputs), length, options);
  return scan->run();
}

std::int64_t scan_length(const std::vector<at::Tensor>& inputs) {
  std::int64_t length = -1;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || input.dim() == 0) {
      throw UsageError(
          "LT0220", concat("cannot scan: an input is ", input.defined() ? "a scalar" : "undefined",
                           ", but inputs are split into steps along their first dimension. "
                           "Capture what is the same in each step"));
    }
    if (length >= 0 && input.size(0) != length) {
      throw UsageError("LT0220", concat("cannot scan: inputs have ", length, " and ", input.size(0),
                                        " steps along their first dimension"));
    }
    length = input.size(0);
  }
  if (length < 0) {
    throw UsageError("LT0220",
                     "cannot scan without inputs and without a number of steps: use scan_steps, or "
                     "length in Python");
  }
  return length;
}

void check_window(std::int64_t window) {
  if (window >= 1) return;
  throw UsageError("LT0226",
                   concat("cannot run truncated backpropagation with a window of ", window,
                          " steps: give at least one"),
                   {{"window", window}});
}

at::Tensor part_of_sequence(const at::Tensor& input, std::int64_t index) {
  return input.select(0, index);
}

std::vector<at::Tensor> stack_steps(const std::vector<std::vector<at::Tensor>>& steps) {
  std::vector<at::Tensor> stacked;
  for (std::size_t j = 0; j < steps.front().size(); ++j) {
    std::vector<at::Tensor> column;
    for (const std::vector<at::Tensor>& step : steps) column.push_back(step.at(j));
    stacked.push_back(at::stack(column));
  }
  return stacked;
}

at::Tensor detached(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach() : tensor;
}

}  // namespace detail
}  // namespace lowtide
