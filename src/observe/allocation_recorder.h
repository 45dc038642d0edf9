#pragma once
// Writes down every block that is made and freed, as an AllocationLog.
//
//   AllocationRecorder& recorder = AllocationRecorder::instance();
//   recorder.mark(weight, StorageKind::kParameter, "encoder.layers.0.linear1");
//   recorder.start();
//   ...a step; around modules: ModulePlaces::enter("encoder"), leave()...
//   recorder.end_step();
//   AllocationLog log = recorder.stop();
//
// Nothing is held, dropped or hooked into autograd: the step takes the memory that it takes without
// the recorder. The phase of a block is known from autograd (inside of a backward or not) and from
// set_in_optimizer(); its module from ModulePlaces.
//
// Threads: blocks and ops of all threads are seen; set_in_optimizer is for the calling thread. One
// recording at a time.
//
// Cost: some 100 ns an op and a block. Nothing when stopped.

#include <ATen/core/Tensor.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "lowtide/export.h"
#include "src/hook/device_memory.h"
#include "src/hook/op_observer.h"
#include "src/tape/allocation_log.h"

namespace lowtide {

class LOWTIDE_API AllocationRecorder final : public hook::BlockListener, public hook::OpListener {
 public:
  // Never destroyed, as a listener must not be.
  static AllocationRecorder& instance();

  // What the block of `tensor` is for, and in which module; the log lists it even when it was there
  // before the start. Of blocks that are made later the kind is what they are at the end of the
  // log.
  void mark(const at::Tensor& tensor, StorageKind kind, const std::string& module);

  // Throws UsageError (LT0331) when a budget is in force or a recording under way: both see blocks
  // through the same place; TorchError (LT0602) when tensors are not counted.
  void start();
  void end_step();
  AllocationLog stop();

  void set_in_optimizer(bool on);

  void block_made(hook::MemoryBlock& block) noexcept override;
  void block_gone(hook::MemoryBlock& block) noexcept override;
  std::unique_ptr<hook::OpTicket> before(const hook::Operator& op,
                                         c10::ArrayRef<c10::IValue> inputs) noexcept override;
  void after(hook::OpTicket& ticket, c10::ArrayRef<c10::IValue> outputs) noexcept override;

 private:
  AllocationRecorder() = default;
  std::uint32_t name_index(const std::string& name);
  // The block's place in the log, added if it is not there.
  std::uint32_t known(hook::MemoryBlock& block);
  std::uint64_t tag_of(std::uint32_t index) const { return (epoch_ << 32 | index) + 1; }

  std::mutex mutex_;  // guards all that follows
  bool is_on_ = false;
  // Tags of earlier logs mean nothing now. TapeRecorder's tags are of lower epochs.
  std::uint64_t epoch_ = std::uint64_t{1} << 31;
  AllocationLog log_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::unordered_map<const hook::Operator*, std::uint32_t> op_names_;
  std::uint32_t op_number_ = 0;
};

}  // namespace lowtide
