#pragma once
// Bytes of dropped storages that are kept elsewhere: in the spill file, or packed in memory.
//
//   stash.configure({.store = std::make_shared<SpillStore>(SpillOptions{"/scratch"}), .pack =
//   true}); graph.set_copy_cost(record->id, stash.cost(*record));
//   ...
//   if (stash.put_away(record, trash)) graph.dropped(record->id, Way::kCopy);
//   ...
//   c10::Storage storage = stash.fetch(*record->copy, bytes, MemoryKind::kSaved);
//
// Note [Writes under way]
// The spill file is written by a thread of its own. A storage that goes there stays where it is,
// and counts, until its write has ended; then reap() gives it to the trash. Who needs room waits
// for that (wait_for_write()), and has some more written meanwhile, so that the next one finds its
// room made. A storage that is asked for while it is being written is taken back as it is. Where a
// write fails (the disk is full) nothing is lost: the storage is there again, and is not spilled
// from then on.
//
// Note [Reads ahead]
// Backward asks for saved tensors in nearly the reverse of the order in which they were saved. When
// one is unpacked, those saved just before it are read ahead, as far as there is room to spare.
// What was read ahead and is in the way is given up first: it still is in the file.
//
// All calls need the table's lock, but for those of StashedBytes, and where said.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "src/fit/storage_table.h"
#include "src/hook/device_memory.h"
#include "src/stash/byte_rate.h"
#include "src/stash/packed_array.h"
#include "src/stash/spill_file.h"
#include "src/stash/spill_queue.h"

namespace lowtide {

// One storage's bytes, kept elsewhere. Destroyed without any of Lowtide's locks.
class StashedBytes {
 public:
  virtual ~StashedBytes();

  // A storage with the bytes, if there is one: not yet written, or read ahead; none otherwise.
  virtual c10::Storage take() = 0;
  // Writes them to `to`, which has room for all. Throws IoError when they cannot be read, or are
  // not what was written.
  virtual void restore(void* to) = 0;
  // Whether they stay here once they have been restored.
  virtual bool stays() const = 0;
};

// A spill file and the thread that writes and reads it.
struct SpillStore {
  // Throws UsageError (LT0311) when no file can be made.
  explicit SpillStore(const SpillOptions& options) : file(options), queue(file) {}
  SpillFile file;
  SpillQueue queue;
};

struct StashOptions {
  std::shared_ptr<SpillStore> store;  // null: nothing is spilled
  bool pack = false;
  // For tests: whatever can be put away is, rather than recomputed.
  bool always = false;
};

// What was put away, and what that took.
struct StashCounts {
  std::uint64_t spilled_tensors = 0;
  Bytes spilled_bytes = 0;
  std::uint64_t packed_tensors = 0;
  Bytes packed_bytes = 0;       // before
  Bytes packed_into_bytes = 0;  // and after
  std::uint64_t pack_ns = 0;    // packing and unpacking
  std::uint64_t wait_ns = 0;    // the program waited for the spill file, either way
};

class Stash {
 public:
  explicit Stash(StorageTable& table) : table_(table) {}

  // What is away stays where it is.
  void configure(const StashOptions& options);
  bool is_on() const { return options_.pack || is_spilling(); }
  bool is_spilling() const { return options_.store != nullptr; }
  // Nothing is known against it.
  bool can_spill() const { return is_spilling() && problem_.empty(); }

  // What putting the record's bytes away would cost; nullopt: it cannot be done. Looks at a few of
  // them.
  std::optional<CopyCost> cost(const StorageRecord& record) const;

  // The record, which alone holds its storage, gives it up for a copy. Returns what is free once
  // the trash is: 0 where a write is under way. nullopt: it cannot be done, and all is as it was.
  std::optional<Bytes> put_away(const std::shared_ptr<StorageRecord>& record,
                                StorageTable::Trash& trash);

  // Puts any storage of nobody else's into the file; `copy` is its copy from an earlier time, or
  // null, and is the new one afterwards. The storage is moved from unless this throws. If the write
  // fails, `give_back` is called with the storage, under the table's lock; it returns false when
  // nobody wants it any more. Returns what is free once the trash is: 0 where a write is under way.
  using GiveBack = std::function<bool(const c10::Storage&)>;
  Bytes spill(c10::Storage& storage, std::shared_ptr<StashedBytes>& copy,
              StorageTable::Trash& trash, GiveBack give_back);

  // Storages whose writes have ended go to the trash; returns their bytes. Where a write failed the
  // record has its storage again.
  Bytes reap(StorageTable::Trash& trash);
  // What the record's packed form takes; 0: it has none.
  static Bytes packed_bytes(const StorageRecord& record);
  // Gives up what was read ahead; returns its bytes.
  Bytes give_up_reads(StorageTable::Trash& trash);
  Bytes bytes_being_written() const { return being_written_; }
  // So many may be under way when somebody had to wait.
  static Bytes bytes_to_write_ahead();

  // A storage of the kind with the copy's bytes. Takes the table's lock, at the end. Throws what
  // StashedBytes::restore() does, or what refuses the memory.
  c10::Storage fetch(StashedBytes& copy, Bytes bytes, MemoryKind kind);

  // Returns when the oldest write has ended; false: none is under way. Takes the table's lock.
  bool wait_for_write();

  // A saved tensor over `record` was unpacked: what was saved before it is read ahead, as far as
  // there is room. Takes the table's lock, and lets it go where it allocates.
  void read_ahead(const StorageRecord& record);
  // Whether this thread allocates for that: no room is to be made for it.
  static bool is_reading_ahead() noexcept;

  // Why nothing more can be spilled; "" when nothing is known against it.
  const std::string& problem() const { return problem_; }

  const StashCounts& counts() const { return counts_; }

  void before_fork();
  void after_fork(bool in_child);

 private:
  class Spilled;
  class Packed;
  struct Writing {
    std::weak_ptr<Spilled> copy;
    Bytes bytes;
    GiveBack give_back;
  };
  enum class Form : std::uint8_t { kNone, kPacked, kSpilled };
  struct Choice {
    Form form = Form::kNone;
    CopyCost cost;
  };
  // A pass over bytes in memory, before one was measured.
  static constexpr double kPassNsPerByte = 0.3;

  Choice choose(const StorageRecord& record) const;
  std::optional<Bytes> pack(const std::shared_ptr<StorageRecord>& record,
                            StorageTable::Trash& trash);
  Bytes spill(const std::shared_ptr<StorageRecord>& record, StorageTable::Trash& trash);

  StorageTable& table_;
  StashOptions options_;
  std::deque<Writing> writing_;
  Bytes being_written_ = 0;
  std::map<std::uint64_t, std::weak_ptr<StorageRecord>> spilled_;  // by StorageRecord::saved_at
  std::deque<std::weak_ptr<Spilled>> read_ahead_;
  std::string problem_;
  StashCounts counts_;
  ByteRate pack_rate_{2 * kPassNsPerByte};  // looks for the best form, then writes it
  ByteRate unpack_rate_{kPassNsPerByte};
};

}  // namespace lowtide
