#include "src/fit/stash.h"

#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "src/base/checksum.h"
#include "src/base/text.h"
#include "src/fit/room.h"
#include "src/hook/host.h"
#include "src/hook/op_observer.h"
#include "src/observe/tape_recorder.h"

namespace lowtide {
namespace {

// Smaller storages are not worth an extent of a file, or a pass over their bytes.
constexpr Bytes kSmallestStashed = Bytes{16} << 10;
// Packed forms that save less are not worth their time.
constexpr double kWorstPackedRatio = 0.85;
// Of the limit, what is written ahead of need, and what reading ahead leaves free.
constexpr Bytes kWriteAheadShare = 32;
constexpr Bytes kReadAheadShare = 8;
constexpr std::size_t kMostReadsAhead = 2;

thread_local bool t_reading_ahead = false;

// The bytes in a storage that nobody knows. Weak references to the old one, such as a checkpointed
// region's, find it gone, as they do where it is dropped, and never see packed bytes. Throws before
// anything is changed.
c10::Storage take_bytes(c10::Storage& storage, StorageTable::Trash& trash) {
  c10::StorageImpl& old = *storage.unsafeGetStorageImpl();
  c10::Storage taken(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), old.nbytes(), c10::DataPtr(nullptr, old.device()),
      old.allocator(), old.resizable()));
  trash.storages.emplace_back();
  taken.unsafeGetStorageImpl()->set_data_ptr_noswap(
      old.set_data_ptr(c10::DataPtr(nullptr, old.device())));
  trash.storages.back() = std::exchange(storage, c10::Storage());
  return taken;
}

}  // namespace

StashedBytes::~StashedBytes() = default;

// ---- in the file ----

class Stash::Spilled final : public StashedBytes {
 public:
  // Begins to write the storage, which is to be given to hold() next.
  Spilled(std::shared_ptr<SpillStore> store, const c10::Storage& storage)
      : store_(std::move(store)), bytes_(storage.nbytes()) {
    write_ = store_->queue.write(storage.data(), bytes_);
  }

  void hold(c10::Storage storage) noexcept { storage_ = std::move(storage); }

  ~Spilled() override {
    if (read_ != nullptr) store_->queue.cancel(read_);
    if (write_ != nullptr) stop_writing();
    if (extent_.has_value()) store_->file.release(*extent_);
  }

  c10::Storage take() override {
    // Before the lock: who has the host's may ask for this one (Note [The host's lock]).
    const hook::HostUnlocked unlocked;
    const std::lock_guard lock(mutex_);
    if (!storage_) return {};
    if (write_ != nullptr) {
      stop_writing();
    } else {
      const auto read = std::exchange(read_, nullptr);
      try {
        store_->queue.wait(read);
      } catch (...) {
        storage_ = c10::Storage();
        throw;
      }
    }
    return std::exchange(storage_, c10::Storage());
  }

  void restore(void* to) override {
    const hook::HostUnlocked unlocked;
    const auto job = [&] {
      const std::lock_guard lock(mutex_);
      return store_->queue.read(*extent_, to);
    }();
    store_->queue.wait(job);
  }

  bool stays() const override {
    const std::lock_guard lock(mutex_);
    return extent_.has_value();
  }

  // Whether the storage's bytes are those in the file.
  bool holds(const c10::StorageImpl& storage) const {
    const std::lock_guard lock(mutex_);
    return extent_.has_value() && extent_->bytes == storage.nbytes() &&
           extent_->checksum == checksum_of(storage);
  }

  std::shared_ptr<SpillJob> write_job() const {
    const std::lock_guard lock(mutex_);
    return write_;
  }
  SpillQueue& queue() const { return store_->queue; }

  // The write has ended: the storage, which is free now. Or why it failed; then it is not. None
  // when it was taken back meanwhile.
  c10::Storage written(std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    if (write_ == nullptr) return {};
    const auto job = std::exchange(write_, nullptr);
    error = job->error();
    if (error == nullptr) extent_ = job->extent();
    return std::exchange(storage_, c10::Storage());
  }

  // Reads into `storage` until it is asked for.
  void read_ahead(c10::Storage storage) {
    const std::lock_guard lock(mutex_);
    if (storage_ || !extent_.has_value()) return;
    storage_ = std::move(storage);
    read_ = store_->queue.read(*extent_, storage_.mutable_data());
  }
  c10::Storage give_up_read() {
    const std::lock_guard lock(mutex_);
    if (read_ == nullptr) return {};
    store_->queue.cancel(std::exchange(read_, nullptr));
    return std::exchange(storage_, c10::Storage());
  }
  bool is_away() const {
    const std::lock_guard lock(mutex_);
    return !storage_;
  }

  Bytes bytes() const { return bytes_; }

 private:
  void stop_writing() noexcept {
    const auto job = std::exchange(write_, nullptr);
    const bool is_written = !store_->queue.cancel(job) && job->error() == nullptr;
    if (is_written) extent_ = job->extent();
  }

  const std::shared_ptr<SpillStore> store_;
  const Bytes bytes_;
  mutable std::mutex mutex_;
  c10::Storage storage_;  // being written, or read ahead
  std::shared_ptr<SpillJob> write_;
  std::shared_ptr<SpillJob> read_;
  std::optional<SpillFile::Extent> extent_;
};

// ---- packed ----

class Stash::Packed final : public StashedBytes {
 public:
  explicit Packed(PackedArray array) : array_(std::move(array)) {}

  // Returns what is free then.
  Bytes pack(c10::Storage storage) noexcept {
    storage_ = std::move(storage);
    checksum_ = checksum_of(*storage_.unsafeGetStorageImpl());
    array_.pack_in_place(storage_.mutable_data());
    // Where the system has no memory to move the few bytes to, they stay where they are.
    const bool is_smaller =
        hook::cpu_memory().shrink(*storage_.unsafeGetStorageImpl(), array_.packed_bytes());
    return is_smaller ? array_.bytes() - array_.packed_bytes() : 0;
  }

  c10::Storage take() override { return {}; }

  void restore(void* to) override {
    array_.unpack(storage_.data(), to);
    if (checksum(to, array_.bytes()) != checksum_) {
      throw IoError("LT0315", concat("a tensor that was packed came back with other contents (",
                                     format_bytes(array_.bytes()),
                                     "): something wrote over its packed form in memory"));
    }
  }

  bool stays() const override { return false; }

  Bytes packed_bytes() const { return array_.packed_bytes(); }
  std::uint64_t checksum_of_bytes() const { return checksum_; }

 private:
  const PackedArray array_;
  c10::Storage storage_;
  std::uint64_t checksum_ = 0;
};

// ---- the stash ----

void Stash::configure(const StashOptions& options) {
  if (options.store != options_.store) problem_.clear();
  options_ = options;
}

Stash::Choice Stash::choose(const StorageRecord& record) const {
  Choice best;
  if (!record.held || record.block == nullptr) return best;
  const c10::StorageImpl& storage = *record.held.unsafeGetStorageImpl();
  const Bytes bytes = storage.nbytes();
  if (bytes < kSmallestStashed && !options_.always) return best;
  const auto per_freed_byte = [&](const CopyCost& cost) {
    return static_cast<double>(cost.away_ns + cost.back_ns) /
           static_cast<double>(bytes - cost.kept_bytes);
  };
  if (options_.pack) {
    const auto ratio = probe_packing(storage.data(), bytes, record.element_bytes);
    if (ratio.has_value() && *ratio <= kWorstPackedRatio) {
      best = {Form::kPacked,
              {pack_rate_.expected_ns(bytes), unpack_rate_.expected_ns(bytes),
               static_cast<Bytes>(*ratio * static_cast<double>(bytes))}};
    }
  }
  if (can_spill()) {
    const bool is_clean = record.copy != nullptr && record.copy->stays();
    const Choice spilled{
        Form::kSpilled,
        {is_clean ? static_cast<std::uint64_t>(kPassNsPerByte * static_cast<double>(bytes))
                  : options_.store->file.write_ns(bytes),
         options_.store->file.read_ns(bytes), 0}};
    if (best.form == Form::kNone || per_freed_byte(spilled.cost) < per_freed_byte(best.cost)) {
      best = spilled;
    }
  }
  if (options_.always) best.cost = {0, 0, best.cost.kept_bytes};
  return best;
}

std::optional<CopyCost> Stash::cost(const StorageRecord& record) const {
  const Choice choice = choose(record);
  if (choice.form == Form::kNone) return std::nullopt;
  return choice.cost;
}

std::optional<Bytes> Stash::put_away(const std::shared_ptr<StorageRecord>& record,
                                     StorageTable::Trash& trash) {
  switch (choose(*record).form) {
    case Form::kPacked:
      if (auto freed = pack(record, trash)) return freed;
      // The few bytes that were looked at were not like the rest.
      if (can_spill()) return spill(record, trash);
      break;
    case Form::kSpilled:
      return spill(record, trash);
    case Form::kNone:
      break;
  }
  return std::nullopt;
}

std::optional<Bytes> Stash::pack(const std::shared_ptr<StorageRecord>& record,
                                 StorageTable::Trash& trash) {
  const std::uint64_t begin_ns = now_ns();
  const Bytes bytes = record->held.nbytes();
  auto array =
      PackedArray::find(record->held.data(), bytes, record->element_bytes, kWorstPackedRatio);
  if (!array.has_value()) return std::nullopt;
  counts_.packed_tensors += 1;
  counts_.packed_bytes += bytes;
  counts_.packed_into_bytes += array->packed_bytes();
  const auto packed = std::make_shared<Packed>(std::move(*array));
  trash.copies.emplace_back();
  const Bytes freed = packed->pack(take_bytes(record->held, trash));
  record->checksum = packed->checksum_of_bytes();
  trash.copies.back() = std::exchange(record->copy, packed);
  const std::uint64_t took_ns = now_ns() - begin_ns;
  counts_.pack_ns += took_ns;
  pack_rate_.add(bytes, took_ns);
  return freed;
}

Bytes Stash::spill(const std::shared_ptr<StorageRecord>& record, StorageTable::Trash& trash) {
  spilled_[record->saved_at] = record;
  c10::Storage storage = take_bytes(record->held, trash);
  try {
    return spill(
        storage, record->copy, trash,
        [this, record = std::weak_ptr<StorageRecord>(record)](const c10::Storage& back) {
          const auto kept = record.lock();
          if (kept == nullptr || !kept->id.valid() || !table_.graph().is_copied(kept->id)) {
            return false;
          }
          table_.put_back(kept, back);
          table_.graph().set_copy_cost(kept->id, std::nullopt);
          return true;
        });
  } catch (...) {
    record->held = std::move(storage);
    table_.moved(record, record->held);
    throw;
  }
}

Bytes Stash::spill(c10::Storage& storage, std::shared_ptr<StashedBytes>& copy,
                   StorageTable::Trash& trash, GiveBack give_back) {
  const Bytes bytes = storage.nbytes();
  const auto clean = std::dynamic_pointer_cast<Spilled>(copy);
  if (clean != nullptr && clean->holds(*storage.unsafeGetStorageImpl())) {
    trash.storages.emplace_back();
    trash.storages.back() = std::move(storage);
    return bytes;
  }
  trash.copies.emplace_back();
  const auto spilled = std::make_shared<Spilled>(options_.store, storage);
  writing_.push_back({spilled, bytes, std::move(give_back)});
  spilled->hold(std::move(storage));
  being_written_ += bytes;
  trash.copies.back() = std::exchange(copy, spilled);
  counts_.spilled_tensors += 1;
  counts_.spilled_bytes += bytes;
  return 0;
}

Bytes Stash::reap(StorageTable::Trash& trash) {
  Bytes freed = 0;
  std::deque<Writing> ended;
  for (std::size_t i = 0; i < writing_.size();) {
    const auto copy = writing_[i].copy.lock();
    const auto job = copy == nullptr ? nullptr : copy->write_job();
    if (job != nullptr && !job->is_done()) {
      ++i;
      continue;
    }
    ended.push_back(std::move(writing_[i]));
    writing_.erase(writing_.begin() + static_cast<std::ptrdiff_t>(i));
    trash.copies.push_back(copy);
  }
  for (const Writing& writing : ended) {
    being_written_ -= writing.bytes;
    const auto copy = writing.copy.lock();
    if (copy == nullptr || copy->write_job() == nullptr) continue;  // taken back, or forgotten
    std::exception_ptr error;
    c10::Storage storage = copy->written(error);
    if (!storage) continue;
    if (error == nullptr) {
      freed += writing.bytes;
    } else {
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& failure) {
        problem_ = failure.what();
      }
      if (!writing.give_back(storage)) freed += writing.bytes;
    }
    trash.storages.push_back(std::move(storage));
  }
  return freed;
}

Bytes Stash::packed_bytes(const StorageRecord& record) {
  const auto* packed = dynamic_cast<const Packed*>(record.copy.get());
  return packed == nullptr ? 0 : packed->packed_bytes();
}

Bytes Stash::bytes_to_write_ahead() {
  const Bytes limit = hook::cpu_memory().ledger().limit();
  return limit == hook::MemoryLedger::kNoLimit ? 0 : limit / kWriteAheadShare;
}

bool Stash::wait_for_write() {
  std::shared_ptr<Spilled> copy;
  std::shared_ptr<SpillJob> job;
  {
    const StorageTable::Lock lock = table_.lock();
    for (const Writing& writing : writing_) {
      copy = writing.copy.lock();
      if (copy != nullptr) job = copy->write_job();
      if (job != nullptr) break;
    }
    if (job == nullptr) return !writing_.empty();
  }
  const hook::HostUnlocked unlocked;
  const std::uint64_t begin_ns = now_ns();
  try {
    copy->queue().wait(job);
  } catch (const std::exception&) {
    // reap() deals with it.
  }
  const StorageTable::Lock lock = table_.lock();
  counts_.wait_ns += now_ns() - begin_ns;
  return true;
}

// ---- reading ahead ----

bool Stash::is_reading_ahead() noexcept { return t_reading_ahead; }

void Stash::read_ahead(const StorageRecord& record) {
  std::shared_ptr<Spilled> next;
  Bytes bytes = 0;
  {
    const StorageTable::Lock lock = table_.lock();
    if (spilled_.empty() || options_.store == nullptr) return;
    std::erase_if(read_ahead_, [](const auto& copy) {
      const auto read = copy.lock();
      return read == nullptr || read->is_away();
    });
    if (read_ahead_.size() >= kMostReadsAhead) return;
    for (auto at = spilled_.lower_bound(record.saved_at); at != spilled_.begin();) {
      --at;
      const auto candidate = at->second.lock();
      auto copy =
          candidate == nullptr ? nullptr : std::dynamic_pointer_cast<Spilled>(candidate->copy);
      if (copy == nullptr || !candidate->id.valid() || !table_.graph().is_copied(candidate->id)) {
        at = spilled_.erase(at);
        continue;
      }
      if (!copy->is_away()) continue;
      next = std::move(copy);
      break;
    }
    if (next == nullptr) return;
    bytes = next->bytes();
    const hook::MemoryLedger& ledger = hook::cpu_memory().ledger();
    const Bytes limit = ledger.limit();
    if (limit == hook::MemoryLedger::kNoLimit ||
        ledger.live() + bytes + limit / kReadAheadShare > limit) {
      return;
    }
    read_ahead_.push_back(next);
  }
  t_reading_ahead = true;
  const MemoryKind outer = hook::exchange_current_kind(MemoryKind::kSaved);
  try {
    const hook::ObserverPause hidden;
    const TapeRecorder::Pause unseen;
    next->read_ahead(at::empty({static_cast<std::int64_t>(bytes)}, at::kByte).storage());
  } catch (const std::exception&) {
    // There was no room after all.
  }
  hook::exchange_current_kind(outer);
  t_reading_ahead = false;
}

Bytes Stash::give_up_reads(StorageTable::Trash& trash) {
  Bytes freed = 0;
  for (const auto& read : read_ahead_) {
    const auto copy = read.lock();
    if (copy == nullptr) continue;
    c10::Storage storage = copy->give_up_read();
    if (!storage) continue;
    freed += storage.nbytes();
    trash.storages.push_back(std::move(storage));
  }
  read_ahead_.clear();
  return freed;
}

c10::Storage Stash::fetch(StashedBytes& copy, Bytes bytes, MemoryKind kind) {
  const std::uint64_t begin_ns = now_ns();
  c10::Storage storage = copy.take();
  if (!storage) {
    const MemoryKind outer = hook::exchange_current_kind(kind);
    const auto restore_kind = c10::make_scope_exit([&] { hook::exchange_current_kind(outer); });
    const hook::ObserverPause hidden;
    storage = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte).storage();
    copy.restore(storage.mutable_data());
  }
  const std::uint64_t took_ns = now_ns() - begin_ns;
  const StorageTable::Lock lock = table_.lock();
  if (dynamic_cast<const Packed*>(&copy) != nullptr) {
    counts_.pack_ns += took_ns;
    unpack_rate_.add(bytes, took_ns);
  } else {
    counts_.wait_ns += took_ns;
  }
  return storage;
}

void Stash::before_fork() {
  if (options_.store != nullptr) options_.store->queue.before_fork();
}
void Stash::after_fork(bool in_child) {
  if (options_.store != nullptr) options_.store->queue.after_fork(in_child);
}

}  // namespace lowtide
