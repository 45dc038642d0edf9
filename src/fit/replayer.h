#pragma once
// Brings dropped storages back: reads those whose bytes were put elsewhere, runs the recipes of the
// others again.
//
//   auto storages = replayer.bring_back({record});   // one for each target
//
// One request takes at most two rounds, so it cannot thrash:
//   1. What is there is used, and held softly until its turn: when room must be made, it goes last.
//   2. If something that was counted on went all the same, or the room was too little, all that can
//      be dropped is dropped, and the whole chain is run from what is always there. This needs the
//      least room of all ways; if it is refused, the budget is too small (smallest_budget.h).
//
// An explicit list of ops, no recursion. One thread at a time; takes its own lock first and the
// table's for moments.

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "src/fit/budget_journal.h"
#include "src/fit/room.h"
#include "src/fit/static_memory.h"
#include "src/fit/storage_table.h"
#include "src/observe/tape_recorder.h"
#include "src/plan/bring_back.h"

namespace lowtide {

class Replayer {
 public:
  Replayer(StorageTable& table, Room& room, Stash& stash, StaticMemory& static_memory,
           BudgetJournal& journal, TapeRecorder& recorder)
      : table_(table),
        room_(room),
        stash_(stash),
        static_(static_memory),
        journal_(journal),
        recorder_(recorder) {}

  // All targets, in their order, there and kept from being dropped while the result lives. None of
  // Lowtide's locks may be held. Throws BudgetError (LT0301) when the limit is too small,
  // DivergenceError (LT0304) when a tensor came back with other contents, or what an op throws.
  std::vector<c10::Storage> bring_back(const StorageTable::Records& targets);

  // Whether this thread is in a round that another may follow: a refusal is not final then.
  static bool is_trying() noexcept;

  void set_check(bool check) { check_ = check; }
  void set_step(std::uint64_t step) { step_ = step; }
  ForkableMutex<std::recursive_mutex>& mutex() { return mutex_; }

 private:
  class Round;

  StorageTable& table_;
  Room& room_;
  Stash& stash_;
  StaticMemory& static_;
  BudgetJournal& journal_;
  TapeRecorder& recorder_;
  ForkableMutex<std::recursive_mutex> mutex_;
  BringBackPlanner planner_;
  std::atomic<bool> check_{true};
  std::atomic<std::uint64_t> step_{0};
};

}  // namespace lowtide
