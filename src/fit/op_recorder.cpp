#include "src/fit/op_recorder.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "src/base/text.h"
#include "src/fit/own_time.h"
#include "src/fit/replayer.h"
#include "src/fit/room.h"
#include "src/hook/host.h"
#include "src/hook/saved_tensor_hooks.h"
#include "src/hook/tensor_block.h"

namespace lowtide {
namespace {

void retag(hook::MemoryBlock& block, MemoryKind kind) {
  hook::cpu_memory().ledger().retag(block.size_bytes, block.kind, kind);
}

bool is_marked_written(const hook::Operator& op, TensorPlace place) {
  return place.position < 64 && (op.written_arguments >> place.position & 1) != 0;
}

// Whether the tensor covers all bytes of its storage.
bool is_whole(const at::Tensor& tensor) {
  return tensor.nbytes() == tensor.storage().nbytes() && tensor.is_non_overlapping_and_dense();
}

// Batch norm's statistics are written though its schema does not say so.
bool is_statistic_written(const hook::Operator& op, c10::ArrayRef<c10::IValue> inputs,
                          TensorPlace place) {
  return op.is_batch_norm && (place.position == 3 || place.position == 4) && inputs[5].toBool();
}

}  // namespace

struct OpRecorder::Ticket final : hook::OpTicket {
  explicit Ticket(StaticMemory& memory) : pins(memory) {}

  StaticMemory::Pins pins;
  StaticMemory::Blocked blocked;                                   // when they could not be had
  std::shared_ptr<OpCapture> capture;                              // null: not to be repeated
  std::vector<c10::Storage> input_storages;                        // of capture->inputs
  std::vector<std::shared_ptr<StorageRecord>> input_records;       // the same
  std::vector<std::pair<c10::StorageImpl*, const void*>> written;  // and where their bytes were
  c10::Storage before_write;  // when verifying: a copy of what is written in place
  std::uint64_t start_ns = 0;
  std::uint64_t own_before_ns = 0;  // of OwnTime
  MemoryKind outer_kind = MemoryKind::kProgram;
  bool in_place_ok = false;  // the one write can be appended to its recipe
  bool is_taped = false;
  bool is_update = false;
  bool is_state_made = false;  // like a parameter, by an optimizer that begins
  bool is_lost = false;  // drew in a way that cannot be repeated: nothing is known of its results

  // RecordFunction sees an op before a region's replay gives it the generator to draw from.
  void draws_from(const at::Generator& generator) override {
    if (capture == nullptr) return;
    const bool can_be_told = op->generator_argument >= 0 || op->drawing.has_value();
    is_lost = is_lost || !can_be_told || drew_;
    drew_ = true;
    if (!is_lost) capture->draw_from(generator);
  }

 private:
  bool drew_ = false;
};

std::string OpRecorder::take_difference() {
  if (!differs_) return {};
  differs_ = false;
  const std::lock_guard lock(difference_mutex_);
  return std::exchange(difference_, std::string());
}

// ---- before ----

bool OpRecorder::is_update(c10::ArrayRef<c10::IValue> inputs, bool in_backward) {
  if (in_backward || c10::GradMode::is_enabled()) return false;
  bool reads_gradient = false;
  OpCapture::for_each_tensor(inputs, [&](TensorPlace, const at::Tensor& tensor) {
    const hook::MemoryBlock* block = hook::block_of(tensor);
    reads_gradient |= block != nullptr && (block->kind == MemoryKind::kGradients ||
                                           block->kind == MemoryKind::kOptimizerState ||
                                           block->kind == MemoryKind::kWorkspace);
  });
  return reads_gradient;
}

void OpRecorder::observe_writes(const hook::Operator& op, c10::ArrayRef<c10::IValue> inputs,
                                bool in_backward) {
  if (op.written_arguments == 0) return;
  OpCapture::for_each_tensor(inputs, [&](TensorPlace place, const at::Tensor& tensor) {
    if (!is_marked_written(op, place)) return;
    hook::MemoryBlock* block = hook::block_of(tensor);
    if (block == nullptr || block->kind != MemoryKind::kProgram) return;
    if (in_backward) {
      retag(*block, MemoryKind::kGradients);
    } else if (!(tensor.is_leaf() && tensor.requires_grad())) {
      retag(*block, MemoryKind::kOptimizerState);
    }
  });
}

void OpRecorder::observe_parameter(const at::Tensor& leaf) {
  hook::MemoryBlock* block = hook::block_of(leaf);
  if (block != nullptr && block->kind == MemoryKind::kProgram)
    retag(*block, MemoryKind::kParameters);
}

// Whether the tensor is of what training changes from step to step. The program holds it for good,
// and a recipe of such writes would hold every step's gradients.
bool OpRecorder::is_state(const at::Tensor& tensor) {
  if (tensor.is_leaf() && tensor.requires_grad()) return true;
  if (c10::GradMode::is_enabled()) return false;  // part of a graph
  const hook::MemoryBlock* block = hook::block_of(tensor);
  return block != nullptr &&
         (block->kind == MemoryKind::kParameters || block->kind == MemoryKind::kOptimizerState ||
          block->kind == MemoryKind::kGradients);
}

std::unique_ptr<hook::OpTicket> OpRecorder::before(const hook::Operator& op,
                                                   c10::ArrayRef<c10::IValue> inputs) noexcept {
  std::unique_ptr<Ticket> ticket;
  try {
    const bool in_backward = hook::current_backward_id() != -1;
    phase_listener_(in_backward);
    const bool records = c10::GradMode::is_enabled() || !in_backward;
    ticket = std::make_unique<Ticket>(static_);
    ticket->op = &op;
    if (static_.is_on()) {
      try {
        static_.pin(inputs, ticket->pins);
      } catch (const std::exception& error) {
        StaticMemory::block(inputs, error.what(), ticket->blocked);
        throw;
      }
      ticket->is_state_made = !in_backward && !c10::GradMode::is_enabled() && op.reads_shapes &&
                              !inputs.empty() && inputs[0].isTensor() &&
                              inputs[0].toTensor().is_leaf() &&
                              inputs[0].toTensor().requires_grad();
    }
    ticket->is_update = is_update(inputs, in_backward);
    if (in_backward || ticket->is_update) observe_writes(op, inputs, in_backward);
    std::vector<at::Tensor> written;
    if (op.written_arguments != 0 || op.is_batch_norm) {
      OpCapture::for_each_tensor(inputs, [&](TensorPlace place, const at::Tensor& tensor) {
        if (!tensor.has_storage()) return;
        if (is_marked_written(op, place) || is_statistic_written(op, inputs, place)) {
          written.push_back(tensor);
        }
      });
    }
    if (records && !ticket->is_update) capture_inputs(*ticket, inputs);

    if (!written.empty()) {
      std::vector<std::shared_ptr<StorageRecord>> losing;
      {
        const StorageTable::Lock lock = table_.lock();
        const RecipeGraph& graph = table_.graph();
        const std::size_t marked_writes = op.is_batch_norm ? 0 : written.size();
        for (const at::Tensor& tensor : written) {
          const auto record = table_.find(tensor.storage());
          c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
          ticket->written.emplace_back(impl, impl->data());
          if (record == nullptr) continue;
          const bool has_base = graph.has_recipe(record->id) ||
                                (record->factory != nullptr && op.fills_whole && is_whole(tensor));
          ticket->in_place_ok = ticket->capture != nullptr && marked_writes == 1 && has_base &&
                                !is_state(tensor) && graph.version(record->id) < kMostWrites;
          if (!ticket->in_place_ok) losing.push_back(record);
        }
      }
      for (const auto& record : losing) prepare_write(record);
      // To run it again for its other results would write a second time.
      if (!ticket->in_place_ok && !op.is_batch_norm) ticket->capture = nullptr;
    }

    if (ticket->capture != nullptr) {
      StorageTable::Trash trash;
      const StorageTable::Lock lock = table_.lock();
      OpCapture& capture = *ticket->capture;
      for (std::size_t i = 0; i < capture.inputs.size(); ++i) {
        auto record = table_.find_or_make(ticket->input_storages[i]);
        // Filled by something unseen since empty() made it: what fills it later is no beginning.
        if (record->factory != nullptr && !is_marked_written(op, capture.inputs[i].place)) {
          trash.captures.push_back(std::exchange(record->factory, nullptr));
        }
        capture.inputs[i].storage = record->name();
        capture.inputs[i].version = table_.graph().version(record->id);
        ticket->input_records.push_back(std::move(record));
      }
      if (ticket->in_place_ok && table_.depth_after(capture) > kLongestChain) {
        const auto record = table_.find(written.front().storage());
        ticket->in_place_ok = false;
        ticket->capture = nullptr;
        if (record != nullptr) prepare_write(record);
      }
    }
    if (verify_ && ticket->in_place_ok) {
      const TapeRecorder::Pause unseen;
      const hook::ObserverPause hidden;
      const c10::StorageImpl& whole = *written.front().storage().unsafeGetStorageImpl();
      ticket->before_write =
          at::empty({static_cast<std::int64_t>(whole.nbytes())}, at::kByte).storage();
      std::memcpy(ticket->before_write.mutable_data(), whole.data(), whole.nbytes());
    }

    if (!recorder_.is_off()) {
      ticket->is_taped = true;
      std::vector<hook::MemoryBlock*> reads;
      std::vector<hook::MemoryBlock*> writes;
      OpCapture::for_each_tensor(inputs, [&](TensorPlace place, const at::Tensor& tensor) {
        hook::MemoryBlock* block = hook::block_of(tensor);
        if (block == nullptr) return;
        reads.push_back(block);
        if (is_marked_written(op, place)) writes.push_back(block);
      });
      recorder_.op_begins(reads, writes);
    }
    // From here on nothing throws.
    ticket->outer_kind =
        hook::exchange_current_kind(records ? MemoryKind::kWorkspace : MemoryKind::kGradients);
    if (ticket->outer_kind != MemoryKind::kProgram) {
      hook::exchange_current_kind(ticket->outer_kind);
    }
    ticket->own_before_ns = OwnTime::spent_ns();
    ticket->start_ns = now_ns();
    return ticket;
  } catch (...) {
    lose_written(op, inputs);
    if (ticket != nullptr && ticket->blocked.any()) return ticket;
    return nullptr;  // not recorded: what the op makes is kept
  }
}

// What an op writes unrecorded, and what was made from that, stays as it is from now on, or is lost
// if it is dropped.
void OpRecorder::lose_written(const StorageRecord& written, const hook::Operator& op,
                              StorageTable::Trash& trash) {
  const RecipeGraph& graph = table_.graph();
  const auto why = std::make_shared<const std::string>(
      concat("what it was made from was written by ", op.name, ", which could not be recorded"));
  for (const auto& other : table_.dependents(written)) {
    if (!other->id.valid()) continue;
    if (table_.has_contents(other->id)) {
      table_.lose_contents(*other, trash);
    } else if (other->lost == nullptr) {
      other->lost = why;
    }
  }
  if (!written.id.valid()) return;
  // One that was given other memory meanwhile is not there: its recipe makes what it was before.
  const auto& record = table_.record(written.id);
  if (record != nullptr && graph.is_there(written.id)) table_.lose_contents(*record, trash);
}

void OpRecorder::lose_written(const hook::Operator& op,
                              c10::ArrayRef<c10::IValue> inputs) noexcept {
  if (op.written_arguments == 0 && !op.is_batch_norm) return;
  try {
    StorageTable::Trash trash;
    const StorageTable::Lock lock = table_.lock();
    OpCapture::for_each_tensor(inputs, [&](TensorPlace place, const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      if (!is_marked_written(op, place) && !is_statistic_written(op, inputs, place)) return;
      const auto record = table_.find(tensor.storage());
      if (record != nullptr) lose_written(*record, op, trash);
    });
  } catch (...) {
    missed_write_ = true;
  }
}

void OpRecorder::lose_written(const Ticket& ticket) {
  StorageTable::Trash trash;
  const StorageTable::Lock lock = table_.lock();
  for (const auto& record : ticket.input_records) {
    const bool is_written = std::any_of(
        ticket.written.begin(), ticket.written.end(),
        [&](const auto& written) { return written.first == record->storage._unsafe_get_target(); });
    if (is_written && record->id.valid()) lose_written(*record, *ticket.op, trash);
  }
}

void OpRecorder::capture_inputs(Ticket& ticket, c10::ArrayRef<c10::IValue> inputs) {
  const hook::Operator& op = *ticket.op;
  if (!is_repeatable(op, inputs)) return;
  auto capture = std::make_shared<OpCapture>(op, inputs);
  bool all_plain = true;
  const bool found_all =
      OpCapture::for_each_tensor(inputs, [&](TensorPlace place, const at::Tensor& tensor) {
        all_plain = all_plain && is_plain(tensor);
        if (!all_plain) return;
        if (tensor.requires_grad() && tensor.is_leaf()) observe_parameter(tensor);
        if (op.reads_shapes) {
          capture->shapes.push_back({place, TensorGeometry::of(tensor)});
          return;
        }
        capture->inputs.push_back({place, {}, 0, TensorGeometry::of(tensor)});
        ticket.input_storages.push_back(tensor.storage());
      });
  if (found_all && all_plain && !table_.any_comes_and_goes(ticket.input_storages)) {
    ticket.capture = std::move(capture);
  } else {
    ticket.input_storages.clear();
  }
}

// The record is about to be written by something that cannot be appended to its recipe.
void OpRecorder::prepare_write(const std::shared_ptr<StorageRecord>& record) {
  StorageTable::Records dropped;
  // What was made from the record must stay, or come back and stay, until its recipe is given up.
  std::vector<c10::Storage> pinned;
  std::vector<c10::Storage> arrived;
  {
    const StorageTable::Lock lock = table_.lock();
    if (!record->id.valid()) return;
    for (const auto& other : table_.dependents(*record)) {
      if (other->held) pinned.push_back(other->held);
      if (table_.has_contents(other->id)) continue;
      // What an earlier write has lost cannot come back; its unpack says so.
      if (other->saved > 0 && other->lost == nullptr) dropped.push_back(other);
    }
  }
  if (!dropped.empty()) {
    std::string problem = "its record was forgotten";
    try {
      arrived = replayer_.bring_back(dropped);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const StorageTable::Lock lock = table_.lock();
    for (const auto& other : dropped) {
      if (other->id.valid() && !table_.has_contents(other->id) && other->lost == nullptr) {
        other->lost = std::make_shared<std::string>(problem);
      }
    }
  }
  StorageTable::Trash trash;
  const StorageTable::Lock lock = table_.lock();
  if (!record->id.valid()) return;
  for (const auto& other : table_.dependents(*record)) {
    if (other->id.valid() && table_.has_contents(other->id)) table_.lose_contents(*other, trash);
  }
  if (record->id.valid()) table_.lose_contents(*record, trash);
}

// ---- after ----

void OpRecorder::after(hook::OpTicket& given, c10::ArrayRef<c10::IValue> outputs) noexcept {
  auto& ticket = static_cast<Ticket&>(given);
  if (ticket.blocked.any()) return;
  const std::uint64_t taken_ns = now_ns() - ticket.start_ns;
  const std::uint64_t cost_ns =
      taken_ns - std::min(taken_ns, OwnTime::spent_ns() - ticket.own_before_ns);
  const bool kinds_ours = ticket.outer_kind == MemoryKind::kProgram;
  const MemoryKind inside =
      kinds_ours ? hook::exchange_current_kind(ticket.outer_kind) : MemoryKind::kProgram;
  bool is_kept = false;
  try {
    if (inside == MemoryKind::kWorkspace && !ticket.is_update) {
      OpCapture::for_each_tensor(outputs, [&](TensorPlace, const at::Tensor& tensor) {
        hook::MemoryBlock* block = hook::block_of(tensor);
        if (block != nullptr && block->kind == MemoryKind::kWorkspace) {
          retag(*block, MemoryKind::kProgram);
        }
      });
    }
    if (ticket.is_state_made) {
      OpCapture::for_each_tensor(outputs, [&](TensorPlace, const at::Tensor& tensor) {
        if (hook::MemoryBlock* block = hook::block_of(tensor)) {
          retag(*block, MemoryKind::kOptimizerState);
          static_.add_state(tensor);
        }
      });
    }
    if (ticket.is_lost) {
      lose_written(ticket);
    } else if (ticket.capture != nullptr) {
      const std::shared_ptr<OpCapture> capture = ticket.capture;
      is_kept = add(ticket, outputs, cost_ns);
      if (verify_ && is_kept) verify(ticket, *capture, outputs);
    }
  } catch (...) {
    // Out of memory for our own tables: the op stays unrecorded, its results are kept.
    try {
      lose_written(ticket);
    } catch (...) {
      missed_write_ = true;
    }
  }
  if (ticket.is_taped) tell_tape(ticket, outputs, cost_ns, is_kept);
}

// Asking costs up to a microsecond; small tensors are not worth it.
const char* OpRecorder::line_of(c10::ArrayRef<c10::IValue> outputs) {
  constexpr Bytes kSmallest = Bytes{1} << 20;
  bool is_large = false;
  OpCapture::for_each_tensor(outputs, [&](TensorPlace, const at::Tensor& tensor) {
    is_large |= tensor.has_storage() && tensor.storage().nbytes() >= kSmallest;
  });
  return is_large ? hook::program_line() : "";
}

// Whether the op is part of the recipe of all that it made.
bool OpRecorder::add(Ticket& ticket, c10::ArrayRef<c10::IValue> outputs, std::uint64_t cost_ns) {
  const char* line = line_of(outputs);
  StorageTable::Trash trash;
  const StorageTable::Lock lock = table_.lock();
  const RecipeGraph& graph = table_.graph();
  OpCapture& capture = *ticket.capture;
  const bool completed = !outputs.empty();
  // A record may have been forgotten while the op ran, and its id given out again.
  for (std::size_t i = 0; i < capture.inputs.size(); ++i) {
    if (ticket.input_records[i]->id == capture.inputs[i].storage.id) continue;
    for (const auto& [impl, data] : ticket.written) {
      for (const auto& record : ticket.input_records) {
        if (record->id.valid() && record->storage._unsafe_get_target() == impl) {
          table_.lose_contents(*record, trash);
        }
      }
    }
    return false;
  }
  const auto is_input = [&](const c10::StorageImpl* impl) {
    return std::any_of(ticket.input_storages.begin(), ticket.input_storages.end(),
                       [&](const c10::Storage& s) { return s.unsafeGetStorageImpl() == impl; });
  };
  OpCapture::for_each_tensor(outputs, [&](TensorPlace place, const at::Tensor& tensor) {
    if (!is_plain(tensor)) return;
    const c10::Storage& storage = tensor.storage();
    if (is_input(storage.unsafeGetStorageImpl()) || storage.nbytes() < kSmallestRecipe) return;
    // Bytes that the result does not cover may never be written (col2im): they come back as others.
    if (!is_whole(tensor)) return;
    const auto record = table_.find_or_make(storage);
    const bool seen = std::any_of(capture.outputs.begin(), capture.outputs.end(),
                                  [&](const auto& o) { return o.storage.id == record->id; });
    // A block that is not from our allocator, or that has a past, was not made by this op.
    if (seen || record->block == nullptr || graph.version(record->id) > 0) return;
    capture.outputs.push_back({record->name(), 1, -1, place});
    record->made_at = line;
  });
  if (!ticket.written.empty()) {
    const auto [impl, data] = ticket.written.front();
    for (std::size_t i = 0; i < capture.inputs.size(); ++i) {
      if (ticket.input_storages[i].unsafeGetStorageImpl() != impl) continue;
      if (!is_marked_written(capture.op, capture.inputs[i].place)) continue;
      const auto record = table_.record(capture.inputs[i].storage);
      if (record == nullptr || !ticket.in_place_ok) break;
      const bool moved = impl->data() != data || record->data != data;
      if (completed && !moved) {
        if (record->factory != nullptr) {
          // The empty block and what fills it are its first two writes.
          table_.add_op(std::exchange(record->factory, nullptr), 0, {}, now_ns());
          capture.inputs[i].version = graph.version(record->id);
        }
        capture.outputs.push_back(
            {record->name(), graph.version(record->id) + 1, static_cast<std::int32_t>(i), {0, -1}});
      } else if ((moved || !checks_replays_) && graph.is_there(record->id)) {
        table_.lose_contents(*record, trash);
      }
      // One that failed has most likely written nothing, as refused ones have not. If it did write,
      // the checksum of what is brought back says so.
      break;
    }
  }
  if (capture.op.is_factory) {
    if (capture.outputs.size() == 1 && capture.outputs.front().written_input < 0) {
      const auto& record = table_.record(capture.outputs.front().storage);
      record->made_by = capture.op.name.c_str();
      record->factory = std::move(ticket.capture);
      return true;
    }
    return false;
  }
  if (capture.outputs.empty()) return false;
  const bool is_kept =
      table_.add_op(std::move(ticket.capture), cost_ns, ticket.input_storages, now_ns());
  if (table_.is_collection_due()) table_.collect(trash);
  return is_kept;
}

void OpRecorder::verify(const Ticket& ticket, const OpCapture& capture,
                        c10::ArrayRef<c10::IValue> outputs) {
  if (capture.op.is_factory || outputs.empty()) return;
  const TapeRecorder::Pause unseen;
  std::vector<c10::Storage> storages = ticket.input_storages;
  for (const CapturedOutput& output : capture.outputs) {
    if (output.written_input < 0) continue;
    const c10::Storage written = storages[static_cast<std::size_t>(output.written_input)];
    for (c10::Storage& storage : storages) {
      if (storage.unsafeGetStorageImpl() == written.unsafeGetStorageImpl()) {
        storage = ticket.before_write;
      }
    }
  }
  const std::vector<c10::IValue> results = capture.run(storages);
  const std::vector<c10::IValue> first(outputs.begin(), outputs.end());
  for (const CapturedOutput& output : capture.outputs) {
    if (is_opaque(capture.op, output)) continue;
    c10::Storage expected, got;
    if (output.written_input >= 0) {
      expected = ticket.input_storages[static_cast<std::size_t>(output.written_input)];
      got = storages[static_cast<std::size_t>(output.written_input)];
    } else {
      expected = tensor_at(first, output.result).storage();
      const at::Tensor tensor = tensor_at(results, output.result);
      if (!tensor.defined()) continue;
      got = tensor.storage();
    }
    if (expected.nbytes() == got.nbytes() &&
        std::memcmp(expected.data(), got.data(), got.nbytes()) == 0) {
      continue;
    }
    const std::lock_guard lock(difference_mutex_);
    if (difference_.empty()) {
      difference_ = concat(capture.op.name,
                           " gave other bits when it was run a second time on the "
                           "same inputs (result ",
                           output.result.position, ", ", format_bytes(expected.nbytes()), ")");
      differs_ = true;
    }
    return;
  }
}

void OpRecorder::tell_tape(const Ticket& ticket, c10::ArrayRef<c10::IValue> outputs,
                           std::uint64_t cost_ns, bool is_kept) {
  std::vector<hook::MemoryBlock*> results;
  OpCapture::for_each_tensor(outputs, [&](TensorPlace, const at::Tensor& tensor) {
    if (hook::MemoryBlock* block = hook::block_of(tensor)) results.push_back(block);
  });
  std::uint8_t flags = 0;
  if (ticket.op->is_random) flags |= static_cast<std::uint8_t>(OpFlag::kRandom);
  if (!is_kept) flags |= static_cast<std::uint8_t>(OpFlag::kNotRepeatable);
  recorder_.op_ended(ticket.op->name.c_str(), hook::program_line(), cost_ns, flags, results);
}

}  // namespace lowtide
