#include "src/checkpoint/region_trace.h"

#include <ATen/core/function_schema.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/flat_hash_map.h>

#include <cstring>
#include <sstream>

#include "lowtide/error.h"
#include "src/base/assert.h"
#include "src/base/checksum.h"
#include "src/base/text.h"
#include "src/hook/away_memory.h"

// What makes a replay the same computation as the first run, and what keeps it from being seen.
//
// A region is a function of its inputs and of what it reads beside them: captured tensors, buffers,
// generators. The first run looks at every op:
//
// - A tensor that no op of the region has made existed before it. If it is only read, its version
//   counter is kept, and a replay that finds another version is refused: it would read other
//   values. If it is written, the bytes from before the first write are kept, and every replay
//   finds them again: its storage points to a scratch copy while the replay runs. So batch norm's
//   statistics and a moving average that the region reads and updates are right in the replay, and
//   move once.
// - An op that draws says which generator it draws from. The replay passes it a private one in the
//   state of then, so the real generators stay out of it, whatever happens and on whichever thread.
//   If a real one moved between the draws that were seen (a kernel drew from it by hand, or another
//   thread did) the states at the seen draws are kept one by one, and the replay also moves the
//   real generator along and puts it back.
// - The ops that are recorded by autograd are hashed with their numbers, so that a replay with
// another
//   branch or another factor is noticed even where shapes agree. Ops that need no gradient are left
//   out: a table that is computed once and then reused is no divergence.
//
// Telling "made inside" from "from outside" is by storage: results of ops are made inside. A tensor
// made without an op (from_blob, torch::tensor) counts as from outside, which costs a copy if it is
// written and is right all the same: it is gone when the first run ends, and so many unknown
// tensors a replay may write. A write to any other is refused before it is done. Storages from
// outside are held weakly, so that an address means one storage.
//
// Cost: a hash lookup for each tensor that an op takes or gives.
//
// Tested by region_test.cpp and replay_test.cpp.

namespace lowtide::checkpoint_impl {
namespace {

void mix(std::uint64_t& hash, std::uint64_t value) {
  // splitmix64's finalizer over a running sum.
  hash += value + 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  hash ^= hash >> 31;
}

void mix_double(std::uint64_t& hash, double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  mix(hash, bits);
}

void mix_argument(std::uint64_t& hash, const c10::IValue& value) {
  if (value.isTensor()) {
    mix(hash, value.toTensor().defined() ? 1 : 2);
  } else if (value.isInt()) {
    mix(hash, static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    mix_double(hash, value.toDouble());
  } else if (value.isBool()) {
    mix(hash, value.toBool() ? 3 : 4);
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    mix_double(hash, number.real());
    mix_double(hash, number.imag());
  } else if (value.isString()) {
    mix(hash, std::hash<std::string_view>()(value.toStringView()));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    mix(hash, list.size());
    for (const c10::IValue& part : list) mix_argument(hash, part);
  } else {
    mix(hash, 5);
  }
}

template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) visit(tensor);
  } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    for (const c10::IValue& part : value.toListRef()) {
      if (part.isTensor() && part.toTensor().defined()) visit(part.toTensor());
    }
  }
}

c10::Storage storage_handle(c10::StorageImpl* storage) {
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
}

at::Tensor copy_bytes(c10::StorageImpl* storage) {
  const hook::UnobservedOps hidden;
  hook::bring_in(storage_handle(storage));
  const auto size = static_cast<std::int64_t>(storage->nbytes());
  at::Tensor copy =
      at::empty({size}, at::TensorOptions().dtype(at::kByte).device(storage->device()));
  if (size == 0 || storage->data() == nullptr) return copy;
  if (storage->device().is_cpu()) {
    std::memcpy(copy.mutable_data_ptr(), storage->data(), static_cast<std::size_t>(size));
  } else {
    at::Tensor bytes = at::empty({0}, copy.options());
    bytes.set_(storage_handle(storage), 0, {size});
    copy.copy_(bytes);
  }
  return copy;
}

bool has_bit(std::uint64_t mask, std::size_t i) { return i < 64 && (mask >> i & 1) != 0; }

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage()
             ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()
             : nullptr;
}

// Memory that was filled anew holds the same or something else altogether; that shows anywhere.
std::uint64_t sample_of(const c10::StorageImpl& storage) {
  constexpr std::size_t kParts = 16, kPartBytes = 256;
  const auto* data = static_cast<const char*>(storage.data());
  const std::size_t bytes = storage.nbytes();
  if (data == nullptr || bytes <= kParts * kPartBytes) return checksum(data, data ? bytes : 0);
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < kParts; ++i) {
    const std::size_t at = (bytes - kPartBytes) / (kParts - 1) * i;
    all = all * 31 + checksum(data + at, kPartBytes);
  }
  return all;
}

}  // namespace

bool OutsideTensor::replaced() const {
  const auto alive = tensor.lock();
  if (alive && alive->has_storage() &&
      alive->unsafe_storage().unsafeGetStorageImpl() != storage._unsafe_get_target()) {
    return true;
  }
  const auto now = storage.lock();
  if (!now) return false;
  hook::bring_in(c10::Storage(now));
  // Written without a version (w.data.copy_), or freed and filled anew at the same place.
  if (sample != 0) {
    return now->data() == nullptr || now->nbytes() != bytes || sample_of(*now) != sample;
  }
  return now->data() != data;
}

std::string OutsideTensor::description() const {
  std::ostringstream out;
  out << c10::toString(dtype) << " tensor of shape " << at::IntArrayRef(sizes);
  return std::move(out).str();
}

// ---- RegionObserver ----

struct RegionObserver::StorageMap {
  ska::flat_hash_map<c10::StorageImpl*, int> places;
};

namespace {
// Tables are used again: growing one from nothing costs more than a small region.
template <class Map>
std::vector<std::unique_ptr<Map>>& spare_maps() {
  thread_local std::vector<std::unique_ptr<Map>> spare;
  return spare;
}
constexpr std::size_t kMaxSpareMaps = 4;
constexpr std::size_t kMaxSpareSize = 4096;
}  // namespace

RegionObserver::RegionObserver() {
  auto& spare = spare_maps<StorageMap>();
  if (spare.empty()) {
    storages_ = std::make_unique<StorageMap>();
    storages_->places.reserve(32);
  } else {
    storages_ = std::move(spare.back());
    spare.pop_back();
  }
}

RegionObserver::~RegionObserver() {
  auto& spare = spare_maps<StorageMap>();
  if (spare.size() < kMaxSpareMaps && storages_->places.bucket_count() <= kMaxSpareSize) {
    storages_->places.clear();
    spare.push_back(std::move(storages_));
  }
}

int& RegionObserver::place_of(c10::StorageImpl* storage) {
  return storages_->places.emplace(storage, kUnknown).first->second;
}

bool RegionObserver::takes_part_in_autograd(hook::OpCall& call) {
  if (!c10::GradMode::is_enabled()) return false;
  bool needs_grad = false;
  for (std::size_t i = 0; i < call.traits.num_arguments && !needs_grad; ++i) {
    for_each_tensor(call.argument(i),
                    [&](const at::Tensor& tensor) { needs_grad |= tensor.requires_grad(); });
  }
  return needs_grad;
}

void RegionObserver::note_op(hook::OpCall& call) {
  if (!call.top_level || !takes_part_in_autograd(call)) return;
  mix(hash_, reinterpret_cast<std::uintptr_t>(call.traits.schema));
  for (std::size_t i = 0; i < call.traits.num_arguments; ++i) {
    // A replay's generator is another object; its numbers are what counts.
    if (static_cast<int>(i) != call.traits.generator_argument)
      mix_argument(hash_, call.argument(i));
  }
}

void RegionObserver::note_results(const hook::OpCall& call, std::size_t num_results) {
  if (call.inside_kernel) return;
  for (std::size_t i = call.stack.size() - num_results; i < call.stack.size(); ++i) {
    for_each_tensor(call.stack[i], [&](const at::Tensor& tensor) {
      c10::StorageImpl* const storage = storage_of(tensor);
      if (storage == nullptr) return;
      int& place = place_of(storage);
      if (place == kUnknown) place = kMadeInside;
    });
  }
}

// ---- FirstRunObserver ----

FirstRunObserver::FirstRunObserver(RegionTrace& trace, const std::vector<at::Generator>& listed)
    : trace_(trace) {
  const auto list = [&](const at::Generator& generator) {
    for (const Draws& draws : trace_.draws) {
      if (draws.generator == generator) return;
    }
    trace_.draws.emplace_back();
    Draws& draws = trace_.draws.back();
    draws.generator = generator;
    draws.listed = true;
    draws.first.retake(generator);
    last_.push_back(draws.first.clone());
  };
  list(hook::default_generator());
  for (const at::Generator& generator : listed) list(generator);
}

std::size_t FirstRunObserver::find_draws(const at::Generator& generator) {
  for (std::size_t i = 0; i < trace_.draws.size(); ++i) {
    if (trace_.draws[i].generator == generator) return i;
  }
  trace_.draws.emplace_back();
  trace_.draws.back().generator = generator;
  last_.emplace_back();
  return last_.size() - 1;
}

void FirstRunObserver::before_draw(hook::OpCall& call) {
  const std::size_t i = find_draws(call.asked_generator);
  Draws& draws = trace_.draws[i];
  hook::GeneratorState now(call.generator);
  if (!last_[i].taken()) {
    draws.first = now.clone();
  } else if (!now.same_as(last_[i])) {
    draws.jumps.emplace_back(draws.count, now.clone());
    draws.drawn_unseen = true;
  }
  last_[i] = std::move(now);
  ++draws.count;
}

void FirstRunObserver::note_tensor(const at::Tensor& tensor, bool written, bool changes_history) {
  c10::StorageImpl* const storage = storage_of(tensor);
  if (storage == nullptr) return;
  int& place = place_of(storage);
  if (place == kMadeInside) return;
  if (place == kUnknown) {
    place = static_cast<int>(trace_.outside.size());
    // What may leave memory comes back at another place.
    const bool may_move = hook::bring_in(storage_handle(storage));
    trace_.outside.push_back(OutsideTensor{
        WeakStorage(tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl()),
        WeakTensor(tensor.getIntrusivePtr()),
        storage->data(),
        storage->nbytes(),
        may_move || (tensor.is_leaf() && tensor.requires_grad()) ? sample_of(*storage) : 0,
        hook::TensorVersion(tensor),
        tensor.scalar_type(),
        {},
        {}});
    trace_.outside.back().sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  }
  if (!written) return;
  OutsideTensor& outside = trace_.outside[static_cast<std::size_t>(place)];
  if (!outside.bytes_before.defined()) outside.bytes_before = copy_bytes(storage);
  if (changes_history) {
    trace_.history_changed.emplace_back(tensor.getIntrusivePtr());
    trace_.history_changed.emplace_back(hook::base_of(tensor).getIntrusivePtr());
  }
}

void FirstRunObserver::before(hook::OpCall& call) {
  if (!call.inside_kernel) {
    note_op(call);
    const bool changes_history = call.traits.declared_written != 0 && takes_part_in_autograd(call);
    for (std::size_t i = 0; i < call.traits.num_arguments; ++i) {
      const bool written = has_bit(call.traits.written_arguments, i);
      const bool declared = has_bit(call.traits.declared_written, i);
      for_each_tensor(call.argument(i), [&](const at::Tensor& tensor) {
        note_tensor(tensor, written, declared && changes_history);
      });
    }
  }
  if (call.asked_generator.defined()) before_draw(call);
}

void FirstRunObserver::after(const hook::OpCall& call, std::size_t num_results) {
  note_results(call, num_results);
  if (call.asked_generator.defined()) {
    last_[find_draws(call.asked_generator)].retake(call.generator);
  }
}

void FirstRunObserver::finish() {
  std::vector<Draws> needed;
  for (std::size_t i = 0; i < trace_.draws.size(); ++i) {
    Draws& draws = trace_.draws[i];
    if (!hook::GeneratorState(draws.generator).same_as(last_[i])) draws.drawn_unseen = true;
    if (draws.count > 0 || draws.drawn_unseen) needed.push_back(std::move(draws));
  }
  trace_.draws = std::move(needed);
  trace_.finished = true;
}

// ---- ReplayObserver ----

// A storage that shows a scratch copy of what it held before the first run.
struct ReplayObserver::Swap {
  Swap(c10::intrusive_ptr<c10::StorageImpl> of, const at::Tensor& scratch,
       const hook::TensorVersion& version_of)
      : storage(std::move(of)),
        version(version_of),
        version_before(version_of.current()),
        size_before(storage->nbytes()) {
    before = storage->set_data_ptr(
        at::DataPtr(scratch.numel() == 0 ? nullptr : scratch.mutable_data_ptr(), scratch.device()));
    storage->set_nbytes(static_cast<std::size_t>(scratch.numel()));
  }
  Swap(Swap&&) noexcept = default;
  Swap& operator=(Swap&&) = delete;
  ~Swap() {
    if (!storage) return;
    storage->set_data_ptr_noswap(std::move(before));
    storage->set_nbytes(size_before);
    version.restore(version_before);
  }

  c10::intrusive_ptr<c10::StorageImpl> storage;
  at::DataPtr before;
  hook::TensorVersion version;
  std::uint32_t version_before;
  std::size_t size_before;
};

// The numbers of one generator, drawn again from a private one.
struct ReplayObserver::Stream {
  explicit Stream(Draws& of)
      : draws(&of),
        substitute(of.generator.device().is_cpu()),
        touches_real(of.drawn_unseen || !substitute) {
    const hook::DrawHold hold;
    if (substitute && of.first.taken()) {
      generator = hook::new_generator(of.generator);
      of.first.put_into(generator);
    }
    if (touches_real || !of.listed) real_before.retake(of.generator);
    if (touches_real && of.first.taken()) of.first.put_into(of.generator);
  }
  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&&) = delete;
  ~Stream() {
    const hook::DrawHold hold;
    if (draws != nullptr && real_before.taken()) real_before.put_into(draws->generator);
    draws = nullptr;
  }

  Draws* draws;
  at::Generator generator;
  std::uint32_t count = 0;
  std::size_t next_jump = 0;
  bool substitute;
  bool touches_real;
  hook::GeneratorState real_before;
};

ReplayObserver::ReplayObserver(RegionTrace& trace, const void* frame)
    : trace_(trace), frame_(frame) {
  for (const OutsideTensor& outside : trace_.outside) {
    if (outside.bytes_before.defined()) continue;
    const bool replaced = outside.replaced();
    if (!replaced && !outside.version.changed()) continue;
    throw DivergenceError(
        "LT0203",
        concat("cannot replay a checkpointed region: a ", outside.description(),
               " that it read was ",
               replaced ? "given other storage since (set_data or resize_), or other values where "
                          "no version tells (.data)"
                        : concat("changed in place since (version ", outside.version.recorded(),
                                 " then, ", outside.version.current(), " now)"),
               ", so the replay would compute with other values. Change it after backward, or "
               "give the region a clone of it"),
        {{"recorded_version", std::int64_t{outside.version.recorded()}},
         {"current_version", std::int64_t{outside.version.current()}}});
  }
  for (OutsideTensor& outside : trace_.outside) {
    if (!outside.bytes_before.defined()) continue;
    auto storage = outside.storage.lock();
    if (!storage || !trace_.finished) ++unseen_makings_left_;
    if (!storage) continue;
    place_of(storage.get()) = kMadeInside;
    const at::Tensor scratch = scratch_for(outside.bytes_before);
    swaps_.emplace_back(std::move(storage), scratch, outside.version);
  }
  streams_.reserve(trace_.draws.size());
  for (Draws& draws : trace_.draws) streams_.emplace_back(draws);
}

ReplayObserver::~ReplayObserver() = default;

at::Tensor ReplayObserver::scratch_for(const at::Tensor& bytes_before) {
  for (const auto& [before, scratch] : scratches_) {
    if (before.is_same(bytes_before)) return scratch;
  }
  const hook::UnobservedOps hidden;
  at::Tensor scratch = copy_bytes(storage_of(bytes_before));
  scratches_.emplace_back(bytes_before, scratch);
  own(scratch);
  return scratch;
}

void ReplayObserver::own(const at::Tensor& tensor) {
  if (auto* const storage = storage_of(tensor)) place_of(storage) = kMadeInside;
}

void ReplayObserver::before_write(const hook::OpCall& call, const at::Tensor& tensor,
                                  bool changes_history) {
  if (changes_history && !trace_.history_changed.empty()) {
    const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
    const at::Tensor& base = hook::base_of(tensor);
    for (const WeakTensor& changed : trace_.history_changed) {
      const c10::TensorImpl* const target = changed._unsafe_get_target();
      if (target != impl && target != base.unsafeGetTensorImpl()) continue;
      throw DivergenceError(
          "LT0204",
          concat("cannot replay a checkpointed region: its op ", hook::op_name(*call.traits.schema),
                 " changes in place a tensor of shape ", tensor.sizes(),
                 " that it captured and that needs grad; replaying that would rewrite the "
                 "tensor's history. Give the tensor to checkpoint() as an input"));
    }
  }
  c10::StorageImpl* const storage = storage_of(tensor);
  if (storage == nullptr) return;
  int& place = place_of(storage);
  if (place == kMadeInside) return;
  if (unseen_makings_left_ == 0) {
    throw DivergenceError(
        "LT0208",
        concat("cannot replay a checkpointed region: its op ", hook::op_name(*call.traits.schema),
               " would write to a tensor of shape ", tensor.sizes(),
               " that existed before, and the first run did not write to it. The region "
               "must do the same when it runs again"));
  }
  --unseen_makings_left_;
  place = kMadeInside;
}

void ReplayObserver::before_draw(hook::OpCall& call) {
  for (Stream& stream : streams_) {
    if (call.asked_generator != stream.draws->generator &&
        !(stream.generator.defined() && call.asked_generator == stream.generator)) {
      continue;
    }
    if (!stream.substitute || !stream.generator.defined()) return;
    if (stream.count == 0 && !stream.draws->listed && !stream.touches_real &&
        !hook::GeneratorState(stream.draws->generator).same_as(stream.real_before)) {
      throw DivergenceError(
          "LT0205",
          "cannot replay a checkpointed region: before its first op that takes a generator it drew "
          "from that generator by hand, and its state of then is not known. List the generator in "
          "CheckpointOptions::generators");
    }
    auto& jumps = stream.draws->jumps;
    if (stream.next_jump < jumps.size() && jumps[stream.next_jump].first == stream.count) {
      jumps[stream.next_jump++].second.put_into(stream.generator);
    }
    ++stream.count;
    call.replace_generator(stream.draws->generator, stream.generator);
    return;
  }
}

void ReplayObserver::before(hook::OpCall& call) {
  if (stop_requested_ && !call.inside_kernel) throw hook::ReplayDone(frame_);
  if (!call.inside_kernel) {
    note_op(call);
    if (call.traits.written_arguments != 0) {
      const bool changes_history =
          call.traits.declared_written != 0 && takes_part_in_autograd(call);
      for (std::size_t i = 0; i < call.traits.num_arguments; ++i) {
        if (!has_bit(call.traits.written_arguments, i)) continue;
        const bool declared = has_bit(call.traits.declared_written, i);
        for_each_tensor(call.argument(i), [&](const at::Tensor& tensor) {
          before_write(call, tensor, declared && changes_history);
        });
      }
    }
  }
  if (call.asked_generator.defined()) before_draw(call);
}

void ReplayObserver::after(const hook::OpCall& call, std::size_t num_results) {
  note_results(call, num_results);
  if (!call.asked_generator.defined()) return;
  for (Stream& stream : streams_) {
    if (stream.touches_real && stream.substitute && stream.generator.defined() &&
        call.generator == stream.generator) {
      hook::GeneratorState(stream.generator).put_into(stream.draws->generator);
    }
  }
}

}  // namespace lowtide::checkpoint_impl
