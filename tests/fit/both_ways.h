#pragma once
// The same program plain and under a budget that gives back all it may, whenever the program says.
//
//   same_both_ways([](Held& held) {
//     const Tensor w = parameter();
//     const Tensor loss = at::exp(w * 2).sum();
//     held.drop_all();  // plain: does nothing
//     loss.backward();
//     return Tensors{loss, w.grad()};
//   });
//
// drop_all() makes a case independent of what the budget would choose to drop, and when. What is
// dropped is made again; in further runs it is packed or spilled instead, wherever it can be.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "lowtide/budget.h"
#include "lowtide/error.h"
#include "tests/fit/spill_directory.h"

namespace lowtide::testing {

using at::Tensor;
using Tensors = std::vector<Tensor>;

inline constexpr std::int64_t kSide = 64;
inline constexpr Bytes kBlock = kSide * kSide * sizeof(float);

// Where what is dropped comes back from; no budget at all when kPlain.
enum class From { kPlain, kRecipe, kPackedForm, kSpillFile };

inline BudgetOptions options_for(From from) {
  BudgetOptions options;
  options.pack = from == From::kPackedForm;
  options.always_put_away = from != From::kRecipe;
  if (from == From::kSpillFile) options.spill_directory = spill_directory();
  return options;
}

// A budget with room to spare, or none: what a case runs under.
class Held {
 public:
  explicit Held(From from) : start_bytes_(meter_.live_bytes()) {
    if (from != From::kPlain) budget_.emplace(start_bytes_ + 256 * kBlock, options_for(from));
  }

  // Leaves no room, so that all goes that may be dropped; then gives the room back.
  void drop_all() {
    if (!budget_.has_value()) return;
    Tensors fill;
    try {
      for (;;) fill.push_back(at::empty({kSide, kSide}));
    } catch (const BudgetError& error) {
      REQUIRE(error.id() == "LT0301");
    }
  }

  // The same for one block.
  void drop_one() {
    if (!budget_.has_value()) return;
    Tensors fill(256 - added_bytes() / kBlock);
    for (Tensor& t : fill) t = at::empty({kSide, kSide});
  }

  bool budgeted() const { return budget_.has_value(); }
  BudgetReport report() const { return budget_->report(); }
  // What is live beside what was there at the start.
  Bytes added_bytes() const { return meter_.live_bytes() - start_bytes_; }

 private:
  MemoryMeter meter_;
  Bytes start_bytes_;
  std::optional<MemoryBudget> budget_;
};

inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() &&
         std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(),
                     a.nbytes()) == 0;
}

struct Ran {
  Tensors results;
  BudgetReport report;
};

template <class Program>
Ran run(Program& program, From from) {
  at::manual_seed(7);
  Held held(from);
  Ran ran;
  ran.results = program(held);
  if (held.budgeted()) ran.report = held.report();
  for (Tensor& t : ran.results) t = t.defined() ? t.detach().resolve_conj().resolve_neg() : t;
  ran.results.push_back(at::detail::getDefaultCPUGenerator().get_state());
  return ran;
}

inline void check_same(const Ran& plain, const Ran& budgeted) {
  REQUIRE(plain.results.size() == budgeted.results.size());
  REQUIRE(plain.results.size() > 1);
  for (std::size_t i = 0; i < plain.results.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(plain.results[i], budgeted.results[i]));
  }
}

// The program's results are the plain run's bits. Returns the report of the run with recipes.
template <class Program>
BudgetReport same_results(Program program) {
  at::set_num_threads(1);
  const Ran plain = run(program, From::kPlain);
  for (const From from : {From::kPackedForm, From::kSpillFile}) {
    CAPTURE(static_cast<int>(from));
    check_same(plain, run(program, from));
  }
  const Ran budgeted = run(program, From::kRecipe);
  check_same(plain, budgeted);
  return budgeted.report;
}

// The same; something was dropped and made again.
template <class Program>
BudgetReport same_both_ways(Program program) {
  const BudgetReport report = same_results(program);
  CHECK(report.drops > 0);
  CHECK(report.recomputed_ops > 0);
  return report;
}

// For changes that nobody announces: the plain run's bits, or an error that says so.
template <class Program>
void same_or_divergence(Program program) {
  at::set_num_threads(1);
  const Ran plain = run(program, From::kPlain);
  for (const From from : {From::kRecipe, From::kPackedForm, From::kSpillFile}) {
    CAPTURE(static_cast<int>(from));
    try {
      check_same(plain, run(program, from));
    } catch (const DivergenceError& error) {
      CHECK(error.id() == "LT0304");
      at::ones({1}).requires_grad_(true).sum().backward();  // clears what the stopped one left
    }
  }
}

inline Tensor parameter() { return (at::randn({kSide, kSide}) * 0.2).requires_grad_(true); }
inline Tensor batch() {
  return at::sin(at::arange(kSide * kSide, at::kFloat) * 0.37).view({kSide, kSide});
}

}  // namespace lowtide::testing
