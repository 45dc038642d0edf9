// Live bytes of the step as it ran, less what checkpointed layers do not hold between their forward
// and their backward, and at the begin of each one's backward the most that its forward had live.
//
// Tested by tests/plan/num_cp_test.cpp, against tapes of steps that were made checkpointed.

#include "src/plan/num_cp.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

namespace lowtide {
namespace {

using Kind = TapeEvent::Kind;

// "encoder.layers.2.linear1" -> "encoder.layers", 2, at each number in the path.
template <typename Found>
void for_each_layer(std::string_view module, Found&& found) {
  std::size_t begin = 0;
  while (begin <= module.size()) {
    std::size_t end = module.find('.', begin);
    if (end == std::string_view::npos) end = module.size();
    std::uint32_t number = 0;
    const auto [stopped, problem] =
        std::from_chars(module.data() + begin, module.data() + end, number);
    if (begin > 0 && problem == std::errc() && stopped == module.data() + end && number < 4096) {
      found(module.substr(0, begin - 1), number);
    }
    begin = end + 1;
  }
}

struct Layer {
  std::size_t forward_begin = 0;
  std::size_t forward_end = 0;  // after its last forward op
  std::size_t backward_begin = 0;
  std::uint64_t forward_ns = 0;
  Bytes forward_peak = 0;  // of what its forward made and its ops needed inside
  std::vector<std::uint32_t> dropped;
};

class Layers {
 public:
  explicit Layers(const Tape& tape) : tape_(tape), lifetimes_(lifetimes(tape)) {
    made_by_.assign(tape.storages.size(), TapeOp::kNoName);
    run_at_.assign(tape.ops.size(), tape.events.size());
    backward_ = tape.events.size();
    for (std::size_t at = 0; at < tape.events.size(); ++at) {
      const TapeEvent& event = tape.events[at];
      if (event.kind == Kind::kUnpack && backward_ == tape.events.size()) backward_ = at;
      if (event.kind != Kind::kRun) continue;
      run_at_[event.index] = at;
      for (const StorageId id : tape.writes(OpId{event.index})) {
        if (lifetimes_[id.index()].made == at) made_by_[id.index()] = event.index;
      }
    }
  }

  std::string choose_prefix() const {
    std::map<std::string, std::pair<bool, Bytes>> candidates;  // an encoder's; bytes saved
    for (const TapeSaved& saved : tape_.saved) {
      const std::uint32_t op = made_by_[saved.storage.index()];
      if (op == TapeOp::kNoName || tape_.ops[op].module == TapeOp::kNoName) continue;
      for_each_layer(tape_.names[tape_.ops[op].module],
                     [&](std::string_view prefix, std::uint32_t) {
                       auto& [is_encoder, bytes] = candidates[std::string(prefix)];
                       is_encoder = prefix.find("encoder") != std::string_view::npos;
                       bytes += tape_.storages[saved.storage.index()].bytes;
                     });
    }
    const auto best =
        std::max_element(candidates.begin(), candidates.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return best == candidates.end() ? std::string() : best->first;
  }

  void find(const std::string& prefix) {
    std::map<std::uint32_t, Layer> found;
    std::vector<std::uint32_t> layer_of(tape_.ops.size(), TapeOp::kNoName);
    for (std::size_t op = 0; op < tape_.ops.size(); ++op) {
      if (tape_.ops[op].module == TapeOp::kNoName) continue;
      for_each_layer(tape_.names[tape_.ops[op].module],
                     [&](std::string_view path, std::uint32_t number) {
                       if (path == prefix) layer_of[op] = number;
                     });
      if (layer_of[op] == TapeOp::kNoName) continue;
      const std::size_t at = run_at_[op];
      Layer& layer = found[layer_of[op]];
      if (at < backward_) {
        if (layer.forward_end == 0) layer.forward_begin = at;
        layer.forward_end = at + 1;
        layer.forward_ns += tape_.ops[op].cost_ns;
      } else if (layer.backward_begin == 0) {
        layer.backward_begin = at;
      }
    }
    for (auto& [number, layer] : found) {
      if (layer.forward_end == 0 || layer.backward_begin == 0) continue;
      // The backward begins where it asks for the first of what was saved.
      const auto asks = [&](const TapeEvent& event) {
        return event.kind == Kind::kUnpack || event.kind == Kind::kHold;
      };
      while (layer.backward_begin > backward_ && asks(tape_.events[layer.backward_begin - 1])) {
        --layer.backward_begin;
      }
      find_dropped(layer, number, layer_of);
      layers_.push_back(std::move(layer));
    }
  }

  bool empty() const { return layers_.empty(); }

  LayerPeaks peaks() const {
    LayerPeaks answer;
    for (std::size_t count = 0; count <= layers_.size(); ++count) {
      answer.peaks.push_back(peak(count));
      answer.extra_ns.push_back(
          count == 0 ? 0 : answer.extra_ns.back() + layers_[count - 1].forward_ns);
    }
    return answer;
  }

 private:
  void find_dropped(Layer& layer, std::uint32_t number,
                    const std::vector<std::uint32_t>& layer_of) {
    std::vector<bool> read_outside(tape_.storages.size());
    for (std::size_t op = 0; op < tape_.ops.size(); ++op) {
      if (layer_of[op] == number || run_at_[op] >= backward_) continue;
      for (const StorageId id : tape_.reads(OpId{static_cast<std::uint32_t>(op)})) {
        read_outside[id.index()] = true;
      }
    }
    std::vector<std::int64_t> change(layer.forward_end - layer.forward_begin + 1);
    for (std::uint32_t storage = 0; storage < tape_.storages.size(); ++storage) {
      const Lifetime& life = lifetimes_[storage];
      if (life.made < layer.forward_begin || life.made >= layer.forward_end) continue;
      const auto bytes = static_cast<std::int64_t>(tape_.storages[storage].bytes);
      change[life.made - layer.forward_begin] += bytes;
      const std::size_t until = std::min<std::size_t>(life.freed, layer.forward_end);
      change[until - layer.forward_begin] -= bytes;
      if (life.freed > layer.forward_end && !read_outside[storage])
        layer.dropped.push_back(storage);
    }
    std::int64_t live = 0;
    for (std::size_t at = layer.forward_begin; at < layer.forward_end; ++at) {
      live += change[at - layer.forward_begin];
      const TapeEvent& event = tape_.events[at];
      const Bytes working = event.kind == Kind::kRun ? tape_.ops[event.index].working_bytes : 0;
      layer.forward_peak = std::max(layer.forward_peak, static_cast<Bytes>(live) + working);
    }
  }

  Bytes peak(std::size_t count) const {
    std::vector<std::int64_t> change(tape_.events.size() + 1);
    const auto lives = [&](std::size_t from, std::size_t to, std::uint32_t storage, int sign) {
      if (from >= to) return;
      const auto bytes = static_cast<std::int64_t>(tape_.storages[storage].bytes) * sign;
      change[from] += bytes;
      change[to] -= bytes;
    };
    for (std::uint32_t storage = 0; storage < tape_.storages.size(); ++storage) {
      lives(lifetimes_[storage].made, lifetimes_[storage].freed, storage, 1);
    }
    std::map<std::size_t, Bytes> again;  // at the begin of a layer's backward
    for (std::size_t i = 0; i < count; ++i) {
      const Layer& layer = layers_[i];
      again[layer.backward_begin] = layer.forward_peak;
      for (const std::uint32_t storage : layer.dropped) {
        const std::size_t freed =
            std::min<std::size_t>(lifetimes_[storage].freed, layer.backward_begin);
        lives(layer.forward_end, freed, storage, -1);
      }
    }
    Bytes highest = 0;
    std::int64_t live = 0;
    for (std::size_t at = 0; at < tape_.events.size(); ++at) {
      const auto before = static_cast<Bytes>(live);
      live += change[at];
      const auto run_again = again.find(at);
      if (run_again != again.end()) highest = std::max(highest, before + run_again->second);
      const TapeEvent& event = tape_.events[at];
      const Bytes working = event.kind == Kind::kRun ? tape_.ops[event.index].working_bytes : 0;
      highest = std::max(highest, static_cast<Bytes>(live) + working);
    }
    return highest;
  }

  const Tape& tape_;
  std::vector<Lifetime> lifetimes_;
  std::vector<std::uint32_t> made_by_;  // op, by storage
  std::vector<std::size_t> run_at_;     // by op
  std::size_t backward_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace

std::optional<LayerPeaks> checkpoint_layers(const Tape& tape, std::string_view prefix) {
  Layers layers(tape);
  const std::string chosen = prefix.empty() ? layers.choose_prefix() : std::string(prefix);
  if (chosen.empty()) return std::nullopt;
  layers.find(chosen);
  if (layers.empty()) return std::nullopt;
  LayerPeaks answer = layers.peaks();
  answer.layers = chosen;
  return answer;
}

std::optional<std::size_t> smallest_num_cp(const LayerPeaks& layers, Bytes budget) {
  for (std::size_t count = 0; count < layers.peaks.size(); ++count) {
    if (layers.peaks[count] <= budget) return count;
  }
  return std::nullopt;
}

}  // namespace lowtide
