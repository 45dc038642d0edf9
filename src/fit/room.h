#pragma once
// Gives bytes back: drops what the policy picks, as far as only the runtime holds it.
//
//   StorageTable::Trash trash;
//   const StorageTable::Lock lock = table.lock();
//   Bytes freed = room.make(needed, trash);    // less than needed: nothing more can go
//
// The bytes are free once the trash is. What can be dropped only once the trash is free is left for
// another call: has_more() says so. All calls need the table's lock.

#include <memory>
#include <optional>
#include <vector>

#include "src/fit/budget_journal.h"
#include "src/fit/stash.h"
#include "src/fit/storage_table.h"
#include "src/observe/tape_recorder.h"

namespace lowtide {

class Room {
 public:
  Room(StorageTable& table, Stash& stash, BudgetJournal& journal, TapeRecorder& recorder)
      : table_(table), stash_(stash), journal_(journal), recorder_(recorder) {}

  // Drops until `needed` bytes are freed, or on their way to the spill file, or nothing is left;
  // what is held softly goes last. When drops are not enough, gives up sources that are kept for
  // recipes alone. Returns what is free once the trash is; see Stash::wait_for_write().
  Bytes make(Bytes needed, StorageTable::Trash& trash);
  // Whether the last call let go of tensors (Note [Exchanged data]), so that another may drop more.
  bool has_more() const { return has_more_; }
  // All that can be dropped and is not held, softly or hard.
  void drop_all(StorageTable::Trash& trash);

  // Take a checksum of what is dropped, for Replayer to compare.
  void set_check(bool check) { check_ = check; }
  void set_step(std::uint64_t step) { step_ = step; }

 private:
  // The bytes that it frees; 0: a write is under way. nullopt: it cannot be dropped now.
  std::optional<Bytes> drop(const std::shared_ptr<StorageRecord>& record, Way way,
                            StorageTable::Trash& trash);
  bool may_drop(StorageRecord& record, StorageTable::Trash& trash);
  void write_ahead(StorageTable::Trash& trash);
  bool let_go_of_variables(StorageRecord& record, StorageTable::Trash& trash);
  Bytes discard_packed(Bytes needed, StorageTable::Trash& trash);
  Bytes release_sources(Bytes needed, StorageTable::Trash& trash);

  StorageTable& table_;
  Stash& stash_;
  BudgetJournal& journal_;
  TapeRecorder& recorder_;
  bool check_ = true;
  bool has_more_ = false;
  struct LetGo {
    StorageId id;
    int calls;
  };
  std::vector<LetGo> let_go_;
  std::uint64_t step_ = 0;
};

// Of all bytes of the storage.
std::uint64_t checksum_of(const c10::StorageImpl& storage);

// Nanoseconds of the steady clock.
std::uint64_t now_ns();

}  // namespace lowtide
