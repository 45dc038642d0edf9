#pragma once
// Writes down a step as a Tape while it runs, under a budget or not.
//
//   TapeRecorder recorder;
//   recorder.begin(live_bytes);            // a step begins
//   hook::cpu_memory().set_block_listener(&recorder);
//   ...
//   recorder.op_begins(reads, writes);
//   ...the op runs, blocks come and go...
//   recorder.op_ended(name, line, cost_ns, flags, results);
//   ...
//   Tape tape = recorder.end();
//
// What it is told: each block made and freed, by the allocator; the leaf ops; saved tensors; and
// when the program let go of a storage that is saved (`let_go`). Blocks that are made and freed
// inside one op become its working bytes; those that outlive it, its outputs. What lived before the
// step is one storage until something reads it. The module of an op and the batch size are what
// ModulePlaces says.
//
// A step under a budget also drops and brings back. The tape does not show that: a block that is
// about to be dropped is set aside() with a tag and taken up again by resume(), and blocks of a
// replay are made inside a Pause.
//
// Threads: all calls may come from any thread. An op's blocks are those of its own thread; what
// kernels allocate on their workers counts as the program's.
//
// Cost: a lock and some 50 ns a call. Nothing when no tape is being written.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/forkable_mutex.h"
#include "src/hook/device_memory.h"
#include "src/tape/tape.h"

namespace lowtide {

// What a tape calls a kind of memory.
StorageKind storage_kind_of(MemoryKind kind) noexcept;

class TapeRecorder final : public hook::BlockListener {
 public:
  // Hides this thread's blocks from the recorder while it lives.
  class Pause {
   public:
    Pause() noexcept;
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    bool before_;
  };

  // `live_bytes`: all that is there already. May be called inside an op, which then is the first of
  // the step; arm() before that op, so that its blocks are known.
  void begin(Bytes live_bytes);
  void arm();
  // The tape since begin(); nothing is written down any more.
  Tape end();
  bool is_on() const noexcept { return state_.load(std::memory_order_acquire) == State::kOn; }
  bool is_off() const noexcept { return state_.load(std::memory_order_acquire) == State::kOff; }

  ForkableMutex<std::mutex>& mutex() { return mutex_; }

  // hook::BlockListener
  void block_made(hook::MemoryBlock& block) noexcept override;
  void block_gone(hook::MemoryBlock& block) noexcept override;

  // An op on this thread; ops within are part of it. It reads and writes blocks that are there.
  void op_begins(std::span<hook::MemoryBlock* const> reads,
                 std::span<hook::MemoryBlock* const> writes);
  // `results` are the blocks of what it returned; others that it made and left (a copy that
  // autograd saved inside it) are no part of what running it again gives, and are written down as
  // sources. `flags` are of OpFlag; `line` is the program's, or ""; both texts must live for ever.
  void op_ended(const char* name, const char* line, std::uint64_t cost_ns, std::uint8_t flags,
                std::span<hook::MemoryBlock* const> results);

  // A tensor over `block` is saved. The tag goes to unpacked() and forgotten(); 0 stands for none.
  std::uint64_t packed(hook::MemoryBlock& block);
  void unpacked(std::uint64_t saved_tag);
  void forgotten(std::uint64_t saved_tag);

  // Nobody but the runtime holds the block's storage any more; it was held from the moment an op
  // made it, or since unpacked().
  void let_go(std::uint64_t block_tag);

  // See the head of this file. The tag is in MemoryBlock::tag meanwhile.
  void set_aside(hook::MemoryBlock& block) noexcept;
  void resume(hook::MemoryBlock& block, std::uint64_t tag) noexcept;
  // What was set aside will not come back.
  void gone(std::uint64_t tag) noexcept;

 private:
  enum class State : std::uint8_t { kOff, kArmed, kOn };
  StorageId id_of(std::uint64_t tag) const noexcept;
  StorageId known(hook::MemoryBlock& block);
  std::uint32_t name_index(const char* name);
  void add_pack(hook::MemoryBlock& block, std::uint32_t saved);
  void make(hook::MemoryBlock& block);
  void let_go_locked(StorageId id);
  void free_locked(StorageId id);
  std::uint64_t tag_of(std::uint32_t index) const noexcept { return (epoch_ << 32 | index) + 1; }

  std::atomic<State> state_{State::kOff};
  ForkableMutex<std::mutex> mutex_;
  std::uint64_t epoch_ = 0;  // tags of earlier tapes mean nothing now
  Tape tape_;
  std::vector<TapeEvent> first_events_;  // of what was there before
  std::vector<bool> held_;               // by storage
  StorageId base_;
  std::unordered_map<const char*, std::uint32_t> names_;
};

}  // namespace lowtide
