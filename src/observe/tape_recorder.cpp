#include "src/observe/tape_recorder.h"

#include <algorithm>
#include <utility>

#include "src/observe/module_places.h"

namespace lowtide {

namespace {

thread_local bool t_paused = false;

// Of a block that is set aside: what becomes of it is no event of the step.
constexpr std::uint64_t kAside = ~std::uint64_t{0};

// The op that runs on this thread.
struct Frame {
  int depth = 0;
  std::uint64_t epoch = 0;
  Bytes now = 0;  // of `made`
  Bytes peak = 0;
  std::vector<std::pair<hook::MemoryBlock*, Bytes>> made;  // and not freed yet
  // Outputs that were saved before the op had ended, and the saved tensors' ids.
  std::vector<std::pair<hook::MemoryBlock*, std::uint32_t>> packed;
  std::vector<StorageId> reads;  // blocks that were there; an op may give them back (resize_)
  std::vector<StorageId> writes;
};
thread_local Frame t_frame;

}  // namespace

StorageKind storage_kind_of(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kProgram:
      return StorageKind::kProgram;
    case MemoryKind::kParameters:
      return StorageKind::kParameter;
    case MemoryKind::kGradients:
      return StorageKind::kGradient;
    case MemoryKind::kOptimizerState:
      return StorageKind::kOptimizerState;
    case MemoryKind::kSaved:
      return StorageKind::kSaved;
    case MemoryKind::kWorkspace:
      return StorageKind::kWorkspace;
  }
  return StorageKind::kProgram;
}

TapeRecorder::Pause::Pause() noexcept : before_(std::exchange(t_paused, true)) {}
TapeRecorder::Pause::~Pause() { t_paused = before_; }

void TapeRecorder::begin(Bytes live_bytes) {
  const std::lock_guard lock(mutex_);
  ++epoch_;
  if (t_frame.depth > 0) {
    // A step may begin inside an op, at the first tensor that it saves: the op is part of it.
    t_frame.epoch = epoch_;
    t_frame.reads.clear();  // ids of the tape before
    t_frame.writes.clear();
    live_bytes -= std::min(live_bytes, t_frame.now);
  }
  tape_ = Tape{};
  ModulePlaces::begin_step();
  first_events_.clear();
  held_.clear();
  names_.clear();
  tape_.storages.push_back({live_bytes, StorageKind::kProgram});
  held_.push_back(false);
  base_ = StorageId{0};
  state_.store(State::kOn, std::memory_order_release);
}

void TapeRecorder::arm() {
  const std::lock_guard lock(mutex_);
  if (!is_on()) state_.store(State::kArmed, std::memory_order_release);
}

Tape TapeRecorder::end() {
  const std::lock_guard lock(mutex_);
  state_.store(State::kOff, std::memory_order_release);
  std::vector<TapeEvent> events{{TapeEvent::Kind::kMake, base_.index()}};
  events.insert(events.end(), first_events_.begin(), first_events_.end());
  events.insert(events.end(), tape_.events.begin(), tape_.events.end());
  tape_.events = std::move(events);
  tape_.batch_size = ModulePlaces::batch_size();
  ++epoch_;
  return std::exchange(tape_, Tape{});
}

StorageId TapeRecorder::id_of(std::uint64_t tag) const noexcept {
  if (tag == 0 || (tag - 1) >> 32 != epoch_) return StorageId{};
  return StorageId{static_cast<std::uint32_t>(tag - 1)};
}

// The storage of a block, taken out of what was there before if need be.
StorageId TapeRecorder::known(hook::MemoryBlock& block) {
  StorageId id = id_of(block.tag);
  if (id.valid()) return id;
  Bytes& rest = tape_.storages[base_.index()].bytes;
  rest -= std::min(rest, block.size_bytes);
  id = tape_.add_storage(block.size_bytes, storage_kind_of(block.kind));
  held_.push_back(false);
  first_events_.push_back({TapeEvent::Kind::kMake, id.index()});
  block.tag = tag_of(id.index());
  return id;
}

void TapeRecorder::block_made(hook::MemoryBlock& block) noexcept {
  if (t_paused || is_off()) return;
  const std::lock_guard lock(mutex_);
  Frame& frame = t_frame;
  if (frame.depth > 0 && frame.epoch == epoch_) {
    frame.now += block.size_bytes;
    frame.peak = std::max(frame.peak, frame.now);
    frame.made.emplace_back(&block, block.size_bytes);
    return;
  }
  if (!is_on()) return;
  make(block);
}

void TapeRecorder::make(hook::MemoryBlock& block) {
  const StorageId id = tape_.make(block.size_bytes, storage_kind_of(block.kind));
  held_.push_back(false);
  block.tag = tag_of(id.index());
}

void TapeRecorder::block_gone(hook::MemoryBlock& block) noexcept {
  Frame& frame = t_frame;
  // Also while paused: what the op made must not be looked at when it ends.
  if (frame.depth > 0) {
    // Whatever tape it was for: a later one may begin inside this op. The latest is the likeliest.
    for (auto made = frame.made.rbegin(); made != frame.made.rend(); ++made) {
      if (made->first != &block) continue;
      frame.now -= made->second;
      frame.made.erase(std::next(made).base());
      std::erase_if(frame.packed, [&](const auto& packed) { return packed.first == &block; });
      return;
    }
  }
  if (t_paused || block.tag == kAside || is_off()) return;
  const std::lock_guard lock(mutex_);
  if (is_on()) free_locked(known(block));
}

void TapeRecorder::free_locked(StorageId id) {
  let_go_locked(id);
  tape_.free(id);
}

void TapeRecorder::op_begins(std::span<hook::MemoryBlock* const> reads,
                             std::span<hook::MemoryBlock* const> writes) {
  Frame& frame = t_frame;
  if (frame.depth++ > 0) return;
  const std::lock_guard lock(mutex_);
  frame.epoch = epoch_;
  frame.now = frame.peak = 0;
  frame.made.clear();
  frame.packed.clear();
  frame.reads.clear();
  frame.writes.clear();
  if (!is_on()) return;
  for (hook::MemoryBlock* block : reads) frame.reads.push_back(known(*block));
  for (hook::MemoryBlock* block : writes) frame.writes.push_back(known(*block));
}

std::uint32_t TapeRecorder::name_index(const char* name) {
  const auto [entry, is_new] = names_.emplace(name, static_cast<std::uint32_t>(tape_.names.size()));
  if (is_new) tape_.names.emplace_back(name);
  return entry->second;
}

void TapeRecorder::op_ended(const char* name, const char* line, std::uint64_t cost_ns,
                            std::uint8_t flags, std::span<hook::MemoryBlock* const> results) {
  Frame& frame = t_frame;
  if (frame.depth == 0 || --frame.depth > 0) return;
  const char* module = ModulePlaces::current();
  const std::lock_guard lock(mutex_);
  if (!is_on() || frame.epoch != epoch_) return;
  const auto is_result = [&](const hook::MemoryBlock* block) {
    return std::find(results.begin(), results.end(), block) != results.end();
  };
  for (const auto& [block, bytes] : frame.made) {
    if (!is_result(block)) make(*block);
  }
  TapeOp op;
  op.name = name_index(name);
  if (line[0] != '\0') op.source = name_index(line);
  if (module[0] != '\0') op.module = name_index(module);
  op.flags = flags;
  op.cost_ns = cost_ns;
  op.working_bytes = frame.peak - frame.now;
  op.first_read = static_cast<std::uint32_t>(tape_.read_ids.size());
  tape_.read_ids.insert(tape_.read_ids.end(), frame.reads.begin(), frame.reads.end());
  op.read_count = static_cast<std::uint32_t>(tape_.read_ids.size()) - op.first_read;
  op.first_write = static_cast<std::uint32_t>(tape_.write_ids.size());
  tape_.write_ids.insert(tape_.write_ids.end(), frame.writes.begin(), frame.writes.end());
  const std::size_t first_made = tape_.write_ids.size();
  for (const auto& [block, bytes] : frame.made) {
    if (!is_result(block)) continue;
    const StorageId id = tape_.add_storage(bytes, storage_kind_of(block->kind));
    held_.push_back(true);
    block->tag = tag_of(id.index());
    tape_.write_ids.push_back(id);
  }
  op.write_count = static_cast<std::uint32_t>(tape_.write_ids.size()) - op.first_write;
  tape_.add(TapeEvent::Kind::kRun, static_cast<std::uint32_t>(tape_.ops.size()));
  tape_.ops.push_back(op);
  for (std::size_t i = first_made; i < tape_.write_ids.size(); ++i) tape_.hold(tape_.write_ids[i]);
  for (const auto& [block, saved] : frame.packed) add_pack(*block, saved);
}

void TapeRecorder::add_pack(hook::MemoryBlock& block, std::uint32_t saved) {
  const StorageId id = known(block);
  tape_.storages[id.index()].kind = StorageKind::kSaved;
  tape_.saved[saved].storage = id;
  tape_.add(TapeEvent::Kind::kPack, saved);
}

std::uint64_t TapeRecorder::packed(hook::MemoryBlock& block) {
  if (!is_on()) return 0;
  const std::lock_guard lock(mutex_);
  if (!is_on()) return 0;
  Frame& frame = t_frame;
  if (frame.depth > 0 && frame.epoch == epoch_) {
    for (const auto& [made, bytes] : frame.made) {
      if (made != &block) continue;
      const auto saved = static_cast<std::uint32_t>(tape_.saved.size());
      tape_.saved.push_back({});
      frame.packed.emplace_back(&block, saved);
      return tag_of(saved);
    }
  }
  const StorageId id = known(block);
  tape_.storages[id.index()].kind = StorageKind::kSaved;
  return tag_of(tape_.pack(id).index());
}

void TapeRecorder::unpacked(std::uint64_t saved_tag) {
  const std::lock_guard lock(mutex_);
  const StorageId saved = id_of(saved_tag);
  if (!is_on() || !saved.valid()) return;
  tape_.unpack(SavedId{saved.index()});
  const StorageId id = tape_.saved[saved.index()].storage;
  if (held_[id.index()]) return;
  held_[id.index()] = true;
  tape_.hold(id);
}

void TapeRecorder::forgotten(std::uint64_t saved_tag) {
  const std::lock_guard lock(mutex_);
  const StorageId saved = id_of(saved_tag);
  if (is_on() && saved.valid()) tape_.forget(SavedId{saved.index()});
}

void TapeRecorder::let_go_locked(StorageId id) {
  if (!held_[id.index()]) return;
  held_[id.index()] = false;
  tape_.unhold(id);
}

void TapeRecorder::let_go(std::uint64_t block_tag) {
  const std::lock_guard lock(mutex_);
  const StorageId id = id_of(block_tag);
  if (is_on() && id.valid()) let_go_locked(id);
}

void TapeRecorder::set_aside(hook::MemoryBlock& block) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_on()) return;
  Frame& frame = t_frame;
  if (frame.depth > 0 && frame.epoch == epoch_) {
    // Made by the op that runs: it may be gone when that ends.
    if (std::erase_if(frame.made, [&](const auto& made) { return made.first == &block; }) > 0) {
      make(block);
    }
    std::erase_if(frame.packed, [&](const auto& packed) {
      if (packed.first != &block) return false;
      add_pack(block, packed.second);
      return true;
    });
  }
  let_go_locked(known(block));
  block.tag = kAside;
}

void TapeRecorder::resume(hook::MemoryBlock& block, std::uint64_t tag) noexcept { block.tag = tag; }

void TapeRecorder::gone(std::uint64_t tag) noexcept {
  const std::lock_guard lock(mutex_);
  const StorageId id = id_of(tag);
  if (is_on() && id.valid()) free_locked(id);
}

}  // namespace lowtide
