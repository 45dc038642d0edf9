// Tested by tests/observe/allocation_recorder_test.cpp.

#include "src/observe/allocation_recorder.h"

#include <utility>

#include "lowtide/error.h"
#include "src/hook/saved_tensor_hooks.h"
#include "src/hook/tensor_block.h"
#include "src/observe/module_places.h"

namespace lowtide {

namespace {

thread_local bool t_in_optimizer = false;
thread_local std::uint32_t t_op = 0;
thread_local std::uint32_t t_op_number = 0;

}  // namespace

AllocationRecorder& AllocationRecorder::instance() {
  static auto* const one = new AllocationRecorder;
  return *one;
}

std::uint32_t AllocationRecorder::name_index(const std::string& name) {
  const auto [entry, is_new] = names_.emplace(name, static_cast<std::uint32_t>(log_.names.size()));
  if (is_new) log_.names.push_back(name);
  return entry->second;
}

std::uint32_t AllocationRecorder::known(hook::MemoryBlock& block) {
  if (block.tag != 0 && (block.tag - 1) >> 32 == epoch_) {
    return static_cast<std::uint32_t>(block.tag - 1);
  }
  const auto index = static_cast<std::uint32_t>(log_.blocks.size());
  AllocationLog::Block listed;
  listed.bytes = block.size_bytes;
  listed.was_there = true;
  log_.blocks.push_back(listed);
  block.tag = tag_of(index);
  return index;
}

void AllocationRecorder::mark(const at::Tensor& tensor, StorageKind kind,
                              const std::string& module) {
  hook::MemoryBlock* block = hook::block_of(tensor);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  AllocationLog::Block& listed = log_.blocks[known(*block)];
  listed.kind = kind;
  if (!module.empty()) listed.module = name_index(module);
}

void AllocationRecorder::start() {
  hook::cpu_memory().require_active();
  if (hook::cpu_memory().ledger().is_gated()) {
    throw UsageError("LT0331",
                     "predict: a budget is in force, which would drop what is to be counted. "
                     "Predict before the budget begins");
  }
  {
    const std::lock_guard lock(mutex_);
    if (is_on_) {
      throw UsageError("LT0331", "predict: a prediction is under way already; one at a time");
    }
    is_on_ = true;
    log_.start_bytes = hook::cpu_memory().ledger().live();
    op_number_ = 0;
  }
  hook::cpu_memory().set_block_listener(this);
  hook::listen_to_ops(this);
}

void AllocationRecorder::end_step() {
  const std::lock_guard lock(mutex_);
  log_.step_ends.push_back(log_.events.size());
}

AllocationLog AllocationRecorder::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (is_on_) {
      hook::listen_to_ops(nullptr);
      hook::cpu_memory().set_block_listener(nullptr);
    }
    is_on_ = false;
    ++epoch_;
  }
  t_in_optimizer = false;
  const std::lock_guard lock(mutex_);
  names_.clear();
  op_names_.clear();
  AllocationLog log = std::exchange(log_, AllocationLog{});
  names_.emplace("", 0);
  return log;
}

void AllocationRecorder::set_in_optimizer(bool on) { t_in_optimizer = on; }

void AllocationRecorder::block_made(hook::MemoryBlock& block) noexcept {
  const bool in_backward = hook::current_backward_id() != -1;
  const char* module = ModulePlaces::current();
  const std::lock_guard lock(mutex_);
  if (!is_on_) return;
  AllocationLog::Block made;
  made.bytes = block.size_bytes;
  if (hook::running_op() != nullptr) {
    made.op = t_op;
    made.op_number = t_op_number;
  }
  if (t_in_optimizer) {
    made.phase = StepPhase::kOptimizer;
  } else if (in_backward) {
    made.phase = StepPhase::kBackward;
  }
  if (module[0] != '\0') made.module = name_index(module);
  const auto index = static_cast<std::uint32_t>(log_.blocks.size());
  log_.blocks.push_back(made);
  block.tag = tag_of(index);
  log_.events.push_back({index, true});
}

void AllocationRecorder::block_gone(hook::MemoryBlock& block) noexcept {
  const std::lock_guard lock(mutex_);
  if (is_on_) log_.events.push_back({known(block), false});
}

std::unique_ptr<hook::OpTicket> AllocationRecorder::before(const hook::Operator& op,
                                                           c10::ArrayRef<c10::IValue>) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_on_) return nullptr;
  const auto known_op = op_names_.find(&op);
  t_op = known_op != op_names_.end() ? known_op->second : op_names_[&op] = name_index(op.name);
  t_op_number = ++op_number_;
  return std::make_unique<hook::OpTicket>();
}

void AllocationRecorder::after(hook::OpTicket&, c10::ArrayRef<c10::IValue>) noexcept {}

}  // namespace lowtide
