#include "tests/fit/random_graphs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "lowtide/error.h"
#include "lowtide/memory_meter.h"
#include "tests/fit/random_graph_ops.h"

namespace lowtide {
namespace {

using at::Tensor;
using Kind = GraphOp::Kind;
using Mode = GraphInstruction::Mode;
using SlotKind = GraphSlot::Kind;

constexpr std::int64_t kMostBytes = 256 * 1024;

// Hashes what a tensor shows, without an op.
class Hash {
 public:
  void add(std::uint64_t word) {
    value_ = std::rotl((value_ ^ word) * 0x9e3779b97f4a7c15u, 29) * 0xbf58476d1ce4e5b9u;
  }
  void add(const void* data, std::size_t size_bytes) {
    const auto* bytes = static_cast<const char*>(data);
    for (; size_bytes >= 8; bytes += 8, size_bytes -= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes, 8);
      add(word);
    }
    std::uint64_t tail = size_bytes;
    std::memcpy(&tail, bytes, size_bytes);
    if (size_bytes > 0) add(tail);
  }
  void add(const Tensor& tensor) {
    add(static_cast<std::uint64_t>(tensor.scalar_type()));
    for (const auto size : tensor.sizes()) add(static_cast<std::uint64_t>(size));
    if (tensor.numel() == 0) return;
    const auto item = static_cast<std::int64_t>(tensor.element_size());
    const auto* data = static_cast<const char*>(tensor.const_data_ptr());
    if (tensor.is_contiguous()) {
      add(data, tensor.nbytes());
      return;
    }
    // Rows of the last dimension, one piece each where they can be.
    const std::int64_t width = tensor.size(-1);
    const std::int64_t piece = tensor.stride(-1) == 1 ? width : 1;
    std::vector<std::int64_t> place(static_cast<std::size_t>(tensor.dim()), 0);
    for (std::int64_t i = 0; i < tensor.numel(); i += width) {
      std::int64_t offset = 0;
      for (std::size_t d = 0; d < place.size(); ++d) {
        offset += place[d] * tensor.stride(static_cast<std::int64_t>(d));
      }
      for (std::int64_t j = 0; j < width; j += piece) {
        add(data + (offset + j * tensor.stride(-1)) * item, static_cast<std::size_t>(piece * item));
      }
      for (std::size_t d = place.size() - 1; d-- > 0;) {
        if (++place[d] < tensor.size(static_cast<std::int64_t>(d))) break;
        place[d] = 0;
      }
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0x94d049bb133111ebu;
};

std::uint64_t hash_of(const Tensor& tensor) {
  Hash hash;
  if (tensor.defined()) hash.add(tensor);
  return hash.value();
}

// One thing that must not change, with its name.
struct Seen {
  std::string what;
  std::uint64_t bits;
  bool operator==(const Seen&) const = default;
};

// Runs a program's instructions.
class Machine {
 public:
  explicit Machine(const GraphProgram& program) : program_(program) {
    at::manual_seed(program.seed);
    state_.generator = at::detail::createCPUGenerator(program.seed + 1);
    for (const GraphSlot& slot : program.slots) make_slot(slot);
  }

  void make_slot(const GraphSlot& slot) {
    Tensor& tensor = at(slot.result);
    const auto options = at::TensorOptions().dtype(slot.dtype);
    switch (slot.kind) {
      case SlotKind::kLeaf:
        tensor = slot.sizes.size() == 1
                     ? at::randn(slot.sizes, options) * 0.1 + 0.75
                     : at::randn(slot.sizes, options) /
                           std::sqrt(static_cast<double>(c10::multiply_integers(slot.sizes)) /
                                     static_cast<double>(slot.sizes[0]));
        tensor.requires_grad_(true);
        break;
      case SlotKind::kBuffer:
        tensor = at::rand(slot.sizes, options) + 0.5;
        break;
      case SlotKind::kInput:
        for (int step = 0; step < program_.steps; ++step) {
          const auto count = c10::multiply_integers(slot.sizes);
          data_[{slot.result, step}] =
              at::sin(at::arange(count, at::kDouble) * 0.37 + step + slot.result)
                  .to(slot.dtype)
                  .view(slot.sizes);
        }
        break;
    }
  }

  void begin_step(int step) {
    if (!program_.keep_registers) {
      std::vector<bool> stays(registers_.size(), false);
      for (const GraphSlot& slot : program_.slots) stays[index(slot.result)] = true;
      for (std::size_t i = 0; i < registers_.size(); ++i) {
        if (!stays[i]) registers_[i] = Tensor();
      }
    }
    for (const GraphSlot& slot : program_.slots) {
      if (slot.kind != SlotKind::kInput) continue;
      // As a loader does it: no op sees the bytes arrive.
      const Tensor& from = data_.at({slot.result, step});
      at(slot.result) = at::empty(slot.sizes, slot.dtype);
      std::memcpy(at(slot.result).mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    }
  }

  void execute(const GraphInstruction& instruction) {
    std::vector<Tensor> operands;
    for (const int r : instruction.operands) {
      operands.push_back(at(r));
      if (!operands.back().defined()) return;
    }
    if (instruction.op->kind == Kind::kRelease) {
      at(instruction.operands[0]) = Tensor();
      return;
    }
    if (instruction.mode == Mode::kData) operands[0] = operands[0].data();
    if (instruction.mode == Mode::kDetach) operands[0] = operands[0].detach();
    std::optional<c10::NoGradGuard> no_grad;
    if (instruction.mode == Mode::kNoGrad) no_grad.emplace();
    auto results = instruction.op->run(state_, operands, instruction.numbers);
    for (std::size_t i = 0; i < results.size() && i < instruction.results.size(); ++i) {
      at(instruction.results[i]) = std::move(results[i]);
    }
  }

  // Notes everything visible.
  void look(int step, std::vector<Seen>& seen) {
    const std::string at_step = "step " + std::to_string(step) + " ";
    for (std::size_t i = 0; i < registers_.size(); ++i) {
      const Tensor& t = registers_[i];
      const std::string name = at_step + "r" + std::to_string(i);
      seen.push_back({name, hash_of(t)});
      if (t.defined() && (t.is_leaf() ? t.requires_grad() : t.retains_grad())) {
        seen.push_back({name + ".grad", hash_of(t.grad())});
      }
    }
  }

  void train(int step) {
    if ((step + 1) % program_.update_every != 0) return;
    const c10::NoGradGuard no_grad;
    for (const GraphSlot& slot : program_.slots) {
      if (slot.kind != SlotKind::kLeaf) continue;
      Tensor& leaf = at(slot.result);
      Tensor& grad = leaf.mutable_grad();
      if (!grad.defined()) continue;
      leaf.add_(at::tanh(grad), -0.01);
      if (program_.zero_in_place) {
        grad.zero_();
      } else {
        grad = Tensor();
      }
    }
  }

  // Runs a whole step; `where` follows the instruction that runs. Null `seen`: nothing is noted.
  void step(int number, std::vector<Seen>* seen, std::size_t& where) {
    begin_step(number);
    for (where = 0; where < program_.instructions.size(); ++where) {
      execute(program_.instructions[where]);
    }
    if (seen != nullptr) look(number, *seen);
    train(number);
  }

  Tensor& at(int r) {
    if (registers_.size() <= index(r)) registers_.resize(index(r) + 1);
    return registers_[index(r)];
  }
  int register_count() const { return static_cast<int>(registers_.size()); }
  GraphRunState& state() { return state_; }

 private:
  static std::size_t index(int r) { return static_cast<std::size_t>(r); }

  const GraphProgram& program_;
  GraphRunState state_;
  std::map<std::pair<int, int>, Tensor> data_;  // by register and step
  std::vector<Tensor> registers_;
};

struct Outcome {
  std::vector<Seen> seen;
  std::vector<double> losses;
  Bytes start_bytes = 0;
  Bytes peak_bytes = 0;
  Bytes limit_bytes = 0;
  BudgetReport report;
  bool refused = false;
  std::string refusal;
  std::string error;      // of something else than a refusal
  std::size_t where = 0;  // the instruction that threw
};

// A backward that was stopped leaves tasks in this thread's queue, with their gradients; the next
// backward drops them.
void clear_stopped_backward() { at::ones({1}).requires_grad_(true).sum().backward(); }

// `limit` gives the budget from the bytes that are live before the first step; nullopt: plain.
template <class Limit>
Outcome run(const GraphProgram& program, const std::optional<Limit>& limit,
            const BudgetOptions& options = {}) {
  Outcome outcome;
  {
    Machine machine(program);
    const MemoryMeter start_meter;
    outcome.start_bytes = start_meter.live_bytes();
    std::optional<MemoryBudget> budget;
    if (limit.has_value()) {
      outcome.limit_bytes = (*limit)(outcome.start_bytes);
      budget.emplace(outcome.limit_bytes, options);
    }
    MemoryMeter meter;
    meter.reset_peak();
    try {
      for (int step = 0; step < program.steps; ++step) {
        machine.step(step, &outcome.seen, outcome.where);
      }
    } catch (const BudgetError& error) {
      outcome.refused = true;
      outcome.refusal = error.what_without_backtrace();
      if (error.id() != "LT0301" && error.id() != "LT0303") outcome.error = error.what();
    } catch (const std::exception& error) {
      outcome.error = error.what();
      if (outcome.error.empty()) outcome.error = "an exception without a message";
    }
    outcome.peak_bytes = meter.peak_bytes();
    if (budget.has_value()) outcome.report = budget->report();
    outcome.losses = machine.state().losses;
    budget.reset();
    const auto generator_bits = [&](const char* name, const at::Generator& generator) {
      outcome.seen.push_back({name, hash_of(generator.get_state())});
    };
    generator_bits("default generator", at::detail::getDefaultCPUGenerator());
    generator_bits("own generator", machine.state().generator);
    for (std::size_t i = 0; i < outcome.losses.size(); ++i) {
      outcome.seen.push_back(
          {"loss " + std::to_string(i), std::bit_cast<std::uint64_t>(outcome.losses[i])});
    }
  }
  if (outcome.refused || !outcome.error.empty()) clear_stopped_backward();
  return outcome;
}

using NoLimit = std::optional<Bytes (*)(Bytes)>;

Outcome run_plain(const GraphProgram& program) { return run(program, NoLimit()); }

std::string first_difference(const Outcome& a, const Outcome& b) {
  const std::size_t count = std::min(a.seen.size(), b.seen.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (a.seen[i] != b.seen[i]) return a.seen[i].what;
  }
  return a.seen.size() == b.seen.size() ? "" : "another number of things";
}

// ---- generation ----

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {
    state_ = next() ^ 0x2545f4914f6cdd1du;  // else one seed's numbers were its neighbour's, shifted
  }
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::int64_t between(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }
  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(
        between(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

 private:
  std::uint64_t state_;
};

// Builds a program while running it, so that operands can be chosen by what they are.
class Builder final : public GraphChooser {
 public:
  explicit Builder(std::uint64_t seed) : random_(seed) {
    program_.seed = seed;
    program_.steps = random_.chance(25) ? 3 : 2;
    program_.update_every = random_.chance(30) ? static_cast<int>(random_.between(2, 3)) : 1;
    program_.zero_in_place = random_.chance(40);
    program_.keep_registers = random_.chance(30);
  }

  GraphProgram build() {
    const auto width = random_.one_of<std::int64_t>({16, 32, 32, 64, 64, 64, 128});
    const auto rows = random_.one_of<std::int64_t>({1024, 2048, 2048, 4096, 4096, 16384}) / width;
    usual_elements_ = rows * width;
    const at::ScalarType dtype = random_.chance(12) ? at::kDouble : at::kFloat;
    new_slot(SlotKind::kLeaf, {width, std::min<std::int64_t>(width, 32)}, dtype);
    new_slot(SlotKind::kLeaf, {width}, dtype);
    if (random_.chance(40)) new_slot(SlotKind::kLeaf, {rows, width}, dtype);
    new_slot(SlotKind::kBuffer, {rows, width}, dtype);
    new_slot(SlotKind::kBuffer, {width}, dtype);
    for (int i = 0; i < 2; ++i) new_slot(SlotKind::kInput, {rows, width}, dtype);

    restart();
    const auto parts = random_.chance(60) ? 1 : random_.between(2, 3);
    for (std::int64_t part = 0; part < parts; ++part) {
      const auto count = random_.between(part == 0 ? 10 : 3, part == 0 ? 40 : 10);
      for (std::int64_t i = 0; i < count; ++i) add_instruction();
      for (int tries = 0; tries < 10 && !add_backward(); ++tries) {
      }
    }
    // Later steps start from other leaves and buffers: what plain rejects there goes too.
    while (!settle(program_.steps)) {
    }
    return program_;
  }

  const Tensor* pick(const std::function<bool(const Tensor&)>& fits) override {
    // Most ops go on from where the last one was, as in a deep network.
    if (draft_.operands.empty() && head_ >= 0 && random_.chance(70) &&
        machine_->at(head_).defined() && fits(machine_->at(head_))) {
      return use(head_);
    }
    std::vector<int> candidates;
    std::vector<int> graded;
    for (int r = 0; r < machine_->register_count(); ++r) {
      const Tensor& t = machine_->at(r);
      if (!t.defined() || !fits(t)) continue;
      candidates.push_back(r);
      if (t.requires_grad()) graded.push_back(r);
    }
    if (candidates.empty()) return nullptr;
    std::vector<int> ends;  // that nothing was made from yet
    for (const int r : graded) {
      if (!used_.contains(r)) ends.push_back(r);
    }
    const auto& from = !ends.empty() && random_.chance(prefer_ends_percent_) ? ends
                       : !graded.empty() && random_.chance(60)               ? graded
                                                                             : candidates;
    const auto draw = [&] {
      const auto count = static_cast<std::int64_t>(from.size());
      const auto place = random_.chance(60)
                             ? count - random_.between(1, std::min<std::int64_t>(count, 5))
                             : random_.between(0, count - 1);
      return from[static_cast<std::size_t>(place)];
    };
    int chosen = draw();
    // The larger of two, mostly: else views and reductions soon leave nothing worth dropping.
    const int other = draw();
    if (machine_->at(other).nbytes() > machine_->at(chosen).nbytes() && random_.chance(80)) {
      chosen = other;
    }
    return use(chosen);
  }

  const Tensor* slot(SlotKind kind, std::vector<std::int64_t> sizes,
                     at::ScalarType dtype) override {
    std::vector<int> old;
    for (const GraphSlot& s : program_.slots) {
      const bool used = std::find(draft_.operands.begin(), draft_.operands.end(), s.result) !=
                        draft_.operands.end();
      if (s.kind == kind && s.sizes == sizes && s.dtype == dtype && !used) old.push_back(s.result);
    }
    int chosen = 0;
    if (!old.empty() && random_.chance(60)) {
      chosen = random_.one_of(old);
    } else {
      chosen = new_slot(kind, std::move(sizes), dtype);
      machine_->make_slot(program_.slots.back());
    }
    return use(chosen);
  }

  std::int64_t number(std::int64_t low, std::int64_t high) override {
    draft_.numbers.push_back(random_.between(low, high));
    return draft_.numbers.back();
  }

 private:
  const Tensor* use(int r) {
    draft_.operands.push_back(r);
    picked_.push_back(std::make_unique<Tensor>(machine_->at(r)));
    return picked_.back().get();
  }

  int new_slot(SlotKind kind, std::vector<std::int64_t> sizes, at::ScalarType dtype) {
    const int r = next_register_++;
    program_.slots.push_back({r, kind, dtype, std::move(sizes)});
    return r;
  }

  void restart() {
    machine_ = std::make_unique<Machine>(program_);
    machine_->begin_step(0);
    for (const GraphInstruction& instruction : program_.instructions) {
      machine_->execute(instruction);
    }
  }

  bool draft(const GraphOp& op) {
    draft_ = GraphInstruction{&op, Mode::kPlain, {}, {}, {}};
    picked_.clear();
    return op.choose(*this);
  }

  void add_instruction() {
    static const auto by_kind = [] {
      std::vector<std::vector<const GraphOp*>> kinds(3);
      for (const GraphOp& op : graph_ops()) {
        const auto kind = static_cast<std::size_t>(op.kind);
        if (kind < kinds.size()) kinds[kind].push_back(&op);
      }
      return kinds;
    }();
    for (int tries = 0; tries < 20; ++tries) {
      const auto kind = static_cast<std::size_t>(random_.chance(60)   ? Kind::kMake
                                                 : random_.chance(40) ? Kind::kView
                                                                      : Kind::kWrite);
      const GraphOp& op = *random_.one_of(by_kind[kind]);
      if (!draft(op)) continue;
      if (op.kind == Kind::kWrite) {
        draft_.mode = random_.one_of<Mode>({Mode::kPlain, Mode::kPlain, Mode::kPlain, Mode::kData,
                                            Mode::kData, Mode::kDetach, Mode::kNoGrad});
      } else if (random_.chance(4)) {
        draft_.mode = Mode::kNoGrad;
      }
      if (try_draft()) break;
    }
    if (random_.chance(80)) release_one();
  }

  std::vector<int> held() {
    std::vector<int> registers;
    for (int r = 0; r < machine_->register_count(); ++r) {
      if (machine_->at(r).defined() && !is_slot(r)) registers.push_back(r);
    }
    return registers;
  }
  std::int64_t held_count() { return static_cast<std::int64_t>(held().size()); }

  // Mostly what something was made from: what only the graph needs then.
  void release_one(int but = -1) {
    std::vector<int> candidates = held();
    std::erase(candidates, but);
    if (but < 0) std::erase(candidates, head_);
    if (but >= 0 || random_.chance(90)) {
      std::erase_if(candidates, [&](int r) { return !used_.contains(r); });
    }
    if (candidates.empty()) return;
    draft_ = GraphInstruction{find_graph_op("release"), Mode::kPlain, {}, {}, {}};
    draft_.operands.push_back(random_.one_of(candidates));
    machine_->execute(draft_);
    program_.instructions.push_back(draft_);
  }

  bool is_slot(int r) const {
    return std::any_of(program_.slots.begin(), program_.slots.end(),
                       [&](const GraphSlot& slot) { return slot.result == r; });
  }

  // Runs the draft and appends it when it made something usable.
  bool try_draft() {
    std::vector<Tensor> results;
    try {
      std::vector<Tensor> operands;
      for (const int r : draft_.operands) operands.push_back(machine_->at(r));
      if (draft_.mode == Mode::kData) operands[0] = operands[0].data();
      if (draft_.mode == Mode::kDetach) operands[0] = operands[0].detach();
      std::optional<c10::NoGradGuard> no_grad;
      if (draft_.mode == Mode::kNoGrad) no_grad.emplace();
      results = draft_.op->run(machine_->state(), operands, draft_.numbers);
    } catch (const std::exception&) {
      return false;
    }
    for (const Tensor& t : results) {
      if (!t.defined()) return false;
      if (t.numel() == 0 || static_cast<std::int64_t>(t.nbytes()) > kMostBytes) return false;
      if (at::isFloatingType(t.scalar_type())) {
        const c10::NoGradGuard no_grad;
        const double most = t.abs().max().item<double>();
        if (!(most < 1e3)) return false;
      }
    }
    for (Tensor& t : results) {
      draft_.results.push_back(next_register_++);
      if (t.requires_grad() && t.numel() * 2 >= usual_elements_) head_ = draft_.results.back();
      machine_->at(draft_.results.back()) = std::move(t);
    }
    if (draft_.op->kind != Kind::kWrite) {
      used_.insert(draft_.operands.begin(), draft_.operands.end());
    }
    program_.instructions.push_back(draft_);
    return true;
  }

  bool add_backward() {
    static const std::vector<std::string> kLosses{"loss1", "loss2", "loss3", "loss4", "loss6"};
    prefer_ends_percent_ = 85;
    const bool found = draft(*find_graph_op(random_.one_of(kLosses))) && try_draft();
    prefer_ends_percent_ = kUsualPreference;
    if (!found) return false;
    const int loss = draft_.results[0];
    // As functions do when they return: what only backward needs is no longer the program's.
    if (random_.chance(75)) {
      const auto stay = random_.between(0, 4);
      for (int tries = 0; tries < 100 && held_count() > stay + 1; ++tries) release_one(loss);
    }
    draft_ = GraphInstruction{find_graph_op("backward"), Mode::kPlain, {loss}, {}, {}};
    draft_.numbers.push_back(random_.chance(40) ? 1 : 0);
    program_.instructions.push_back(draft_);
    if (draft_.numbers[0] == 1 && random_.chance(30)) {
      draft_.numbers[0] = 0;
      program_.instructions.push_back(draft_);
    }
    const auto backwards = [&] {
      return std::count_if(program_.instructions.begin(), program_.instructions.end(),
                           [](const auto& i) { return i.op->kind == Kind::kBackward; });
    };
    const auto before = backwards();
    while (!settle(1)) {
    }
    restart();
    return backwards() == before;
  }

  // Runs plain; takes out what made it throw. False: something was taken out.
  bool settle(int steps) {
    std::size_t where = 0;
    std::string message;
    {
      Machine machine(program_);
      try {
        for (int step = 0; step < steps; ++step) machine.step(step, nullptr, where);
        return true;
      } catch (const c10::Error& error) {
        message = error.what_without_backtrace();
      } catch (const std::exception& error) {
        message = error.what();
      }
    }
    clear_stopped_backward();
    auto& list = program_.instructions;
    std::size_t culprit = where;
    if (message.find("modified by an inplace operation") != std::string::npos) {
      std::vector<std::size_t> writes;
      for (std::size_t i = 0; i < where; ++i) {
        if (list[i].op->kind == Kind::kWrite) writes.push_back(i);
      }
      if (!writes.empty()) culprit = random_.one_of(writes);
    } else if (message.find("a second time") != std::string::npos) {
      for (std::size_t i = 0; i < where; ++i) {
        if (list[i].op->kind == Kind::kBackward && list[i].numbers[0] == 0 && random_.chance(50)) {
          list[i].numbers[0] = 1;
          return false;
        }
      }
    }
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(culprit));
    return false;
  }

  static constexpr int kUsualPreference = 40;

  Random random_;
  GraphProgram program_;
  std::set<int> used_;  // registers that something was made from
  int head_ = -1;       // the last result of some size
  std::int64_t usual_elements_ = 0;
  int prefer_ends_percent_ = kUsualPreference;
  int next_register_ = 0;
  std::unique_ptr<Machine> machine_;
  GraphInstruction draft_;
  std::vector<std::unique_ptr<Tensor>> picked_;
};

bool has_backward(const GraphProgram& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const auto& i) { return i.op->kind == Kind::kBackward; });
}

}  // namespace

GraphProgram random_program(std::uint64_t seed) {
  for (std::uint64_t salt = 0;; ++salt) {
    GraphProgram program = Builder(seed + salt * 1'000'003).build();
    if (has_backward(program)) return program;
  }
}

GraphFault find_fault(const GraphProgram& program, const std::vector<double>& fractions,
                      GraphStatistics& statistics, const BudgetOptions& options) {
  using FaultKind = GraphFault::Kind;
  const Outcome plain = run_plain(program);
  const auto& list = program.instructions;
  if (!plain.error.empty()) return {FaultKind::kPlainFails, 0, plain.error};
  statistics.programs += 1;
  statistics.instructions += list.size();
  for (const GraphInstruction& i : list) {
    statistics.writes += i.op->kind == Kind::kWrite ? 1 : 0;
    statistics.backwards += i.op->kind == Kind::kBackward ? 1 : 0;
  }
  statistics.losses += plain.losses.size();
  for (const double loss : plain.losses) statistics.finite_losses += std::isfinite(loss) ? 1 : 0;

  const auto fault = [&](FaultKind kind, double fraction, const std::string& text) -> GraphFault {
    const std::string differs = first_difference(plain, run_plain(program));
    if (!differs.empty()) return {FaultKind::kPlainDiffers, 0, differs};
    return {kind, fraction, text};
  };
  bool any_refused = false;
  GraphFault refused_at_one;
  for (const double fraction : fractions) {
    const auto limit = [&](Bytes start) {
      const auto above = static_cast<double>(plain.peak_bytes - plain.start_bytes);
      return start + static_cast<Bytes>(fraction * above);
    };
    const Outcome budgeted = run(program, std::optional(limit), options);
    statistics.drops += budgeted.report.drops;
    statistics.recomputed_ops += budgeted.report.recomputed_ops;
    statistics.spilled_tensors += budgeted.report.spilled_tensors;
    statistics.packed_tensors += budgeted.report.packed_tensors;
    if (!budgeted.error.empty()) {
      std::string at = budgeted.where < list.size() ? list[budgeted.where].op->name : "the end";
      return fault(
          FaultKind::kThrew, fraction,
          "at instruction " + std::to_string(budgeted.where) + " (" + at + "): " + budgeted.error);
    }
    if (budgeted.peak_bytes > budgeted.limit_bytes) {
      return fault(FaultKind::kOverLimit, fraction,
                   std::to_string(budgeted.peak_bytes - budgeted.limit_bytes) + " bytes over");
    }
    if (budgeted.refused) {
      statistics.refused += 1;
      any_refused = true;
      if (fraction >= 1) {
        statistics.refused_at_one += 1;
        refused_at_one = {
            FaultKind::kRefusedAtOne, fraction,
            "at instruction " + std::to_string(budgeted.where) + ": " + budgeted.refusal};
      }
      continue;
    }
    statistics.finished += 1;
    const std::string differs = first_difference(plain, budgeted);
    if (!differs.empty()) return fault(FaultKind::kDiffers, fraction, differs);
  }
  if (any_refused) {
    const std::string differs = first_difference(plain, run_plain(program));
    if (!differs.empty()) return {FaultKind::kDiffersAfter, 0, differs};
  }
  return refused_at_one;
}

GraphProgram shrink(const GraphProgram& program, const GraphFault& fault,
                    const BudgetOptions& options) {
  const std::vector<double> fractions{1,   0.9, 0.8,  0.75, 0.7,  0.65, 0.6, 0.55,
                                      0.5, 0.4, 0.45, 0.35, 0.25, 0.3,  0.15};
  const auto still_fails = [&](const GraphProgram& candidate) {
    GraphStatistics ignored;
    return find_fault(candidate, fractions, ignored, options).kind == fault.kind;
  };
  GraphProgram best = program;
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (std::size_t width = std::max<std::size_t>(1, best.instructions.size() / 2); width > 0;
         width /= 2) {
      for (std::size_t end = best.instructions.size(); end >= width; end -= 1) {
        if (end > best.instructions.size()) continue;
        GraphProgram candidate = best;
        const auto first =
            candidate.instructions.begin() + static_cast<std::ptrdiff_t>(end - width);
        candidate.instructions.erase(first, first + static_cast<std::ptrdiff_t>(width));
        if (!still_fails(candidate)) continue;
        best = std::move(candidate);
        smaller = true;
      }
    }
    const auto simplify = [&](auto change) {
      GraphProgram candidate = best;
      change(candidate);
      if (candidate.to_text() == best.to_text() || !still_fails(candidate)) return;
      best = std::move(candidate);
      smaller = true;
    };
    simplify([](GraphProgram& p) { p.steps = std::max(1, p.steps - 1); });
    simplify([](GraphProgram& p) { p.keep_registers = false; });
    simplify([](GraphProgram& p) { p.zero_in_place = false; });
    simplify([](GraphProgram& p) { p.update_every = 1; });
  }
  std::set<int> used;
  for (const GraphInstruction& i : best.instructions)
    used.insert(i.operands.begin(), i.operands.end());
  GraphProgram without = best;
  std::erase_if(without.slots, [&](const GraphSlot& s) { return !used.contains(s.result); });
  return still_fails(without) ? without : best;
}

// ---- text ----

namespace {

constexpr std::array<std::pair<Mode, std::string_view>, 4> kModes{{{Mode::kPlain, ""},
                                                                   {Mode::kNoGrad, "no_grad"},
                                                                   {Mode::kData, "data"},
                                                                   {Mode::kDetach, "detach"}}};
constexpr std::array<std::pair<SlotKind, std::string_view>, 3> kSlotKinds{
    {{SlotKind::kLeaf, "leaf"}, {SlotKind::kBuffer, "buffer"}, {SlotKind::kInput, "input"}}};

template <class Names, class T>
std::string_view name_of(const Names& names, T value) {
  for (const auto& [v, name] : names) {
    if (v == value) return name;
  }
  return "";
}

}  // namespace

std::string GraphProgram::to_text() const {
  std::ostringstream out;
  out << "seed " << seed << " steps " << steps << " update_every " << update_every
      << " zero_in_place " << zero_in_place << " keep_registers " << keep_registers << "\n";
  for (const GraphSlot& slot : slots) {
    out << "r" << slot.result << " = " << name_of(kSlotKinds, slot.kind) << " "
        << (slot.dtype == at::kDouble ? "double" : "float");
    for (const auto size : slot.sizes) out << " " << size;
    out << "\n";
  }
  for (const GraphInstruction& i : instructions) {
    if (i.mode != Mode::kPlain) out << name_of(kModes, i.mode) << " ";
    for (const int r : i.results) out << "r" << r << " ";
    out << "= " << i.op->name;
    for (const int r : i.operands) out << " r" << r;
    for (const auto n : i.numbers) out << " " << n;
    out << "\n";
  }
  return out.str();
}

GraphProgram GraphProgram::parse(std::string_view text) {
  GraphProgram program;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word)) continue;
    if (word == "seed") {
      std::string name;
      words >> program.seed >> name >> program.steps >> name >> program.update_every >> name >>
          program.zero_in_place >> name >> program.keep_registers;
      continue;
    }
    GraphInstruction instruction;
    for (const auto& [mode, name] : kModes) {
      if (word == name) instruction.mode = mode;
    }
    if (instruction.mode != Mode::kPlain) words >> word;
    for (; word != "="; words >> word) instruction.results.push_back(std::stoi(word.substr(1)));
    words >> word;
    bool is_slot = false;
    for (const auto& [kind, name] : kSlotKinds) {
      if (word != name) continue;
      is_slot = true;
      GraphSlot slot{instruction.results.at(0), kind, at::kFloat, {}};
      words >> word;
      if (word == "double") slot.dtype = at::kDouble;
      for (std::int64_t size = 0; words >> size;) slot.sizes.push_back(size);
      program.slots.push_back(std::move(slot));
    }
    if (is_slot) continue;
    instruction.op = find_graph_op(word);
    if (instruction.op == nullptr) throw std::invalid_argument("no such instruction: " + word);
    while (words >> word) {
      if (word[0] == 'r') {
        instruction.operands.push_back(std::stoi(word.substr(1)));
      } else {
        instruction.numbers.push_back(std::stoll(word));
      }
    }
    program.instructions.push_back(std::move(instruction));
  }
  return program;
}

}  // namespace lowtide
