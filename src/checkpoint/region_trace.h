#pragma once
// What a region did beside computing: which tensors from outside it read and wrote, which
// generators it drew from, and a running hash of its differentiable ops. The first run records it;
// a replay is held against it.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/hook/generator_state.h"
#include "src/hook/host_errors.h"
#include "src/hook/op_interceptor.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide::checkpoint_impl {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;

// A tensor that existed before the region and that an op of the region took.
struct OutsideTensor {
  WeakStorage storage;
  WeakTensor tensor;
  const void* data;      // where its bytes were
  std::size_t bytes;     // of the storage
  std::uint64_t sample;  // a checksum of some of them, for a leaf that needs grad; else 0
  hook::TensorVersion version;
  std::string description() const;
  at::ScalarType dtype;
  c10::SmallVector<std::int64_t, 5> sizes;
  // The storage's bytes before the region's first write to it; undefined if it did not write.
  at::Tensor bytes_before;

  // Whether it has got other bytes by a way that no version counter tells (set_data, resize_).
  // Fully sharded parameters are freed after each layer and gathered again: other memory, the same
  // bytes.
  bool replaced() const;
};

// A generator that the region drew from, and what is needed to draw the same numbers again.
struct Draws {
  at::Generator generator;
  bool listed = false;         // known from the region's start: `first` is its state then
  hook::GeneratorState first;  // state at the start (listed) or at the first draw
  std::uint32_t count = 0;     // draws seen
  // States at draws that do not continue where the last one ended.
  std::vector<std::pair<std::uint32_t, hook::GeneratorState>> jumps;
  bool drawn_unseen = false;  // it also moved between the draws that were seen
};

struct RegionTrace {
  std::vector<OutsideTensor> outside;
  std::vector<Draws> draws;
  // Captured tensors whose grad history the region changed in place.
  std::vector<WeakTensor> history_changed;
  bool finished = false;  // the first run has ended well
};

// What the first run and a replay have in common: telling tensors made in the region from others.
class RegionObserver : public hook::OpObserver {
 public:
  ~RegionObserver() override;
  std::uint64_t op_hash() const noexcept { return hash_; }

 protected:
  RegionObserver();
  void note_op(hook::OpCall& call);
  void note_results(const hook::OpCall& call, std::size_t num_results);

  static constexpr int kUnknown = -2;
  static constexpr int kMadeInside = -1;
  // Index of a tensor from outside, or one of the two above.
  int& place_of(c10::StorageImpl* storage);
  static bool takes_part_in_autograd(hook::OpCall& call);

  struct StorageMap;
  std::unique_ptr<StorageMap> storages_;
  std::uint64_t hash_ = 0;
};

class FirstRunObserver final : public RegionObserver {
 public:
  FirstRunObserver(RegionTrace& trace, const std::vector<at::Generator>& listed);
  // Ends the record: drops what no replay would need.
  void finish();

  void before(hook::OpCall& call) override;
  void after(const hook::OpCall& call, std::size_t num_results) override;

 private:
  void note_tensor(const at::Tensor& tensor, bool written, bool changes_history);
  void before_draw(hook::OpCall& call);
  std::size_t find_draws(const at::Generator& generator);

  RegionTrace& trace_;
  std::vector<hook::GeneratorState> last_;  // beside each Draws: its state after the last draw seen
};

// Puts the tensors that the region writes back to what they held before it, and after the replay
// to what they held before the replay; keeps generators out of the replay's way; holds the
// replay's ops against the trace.
class ReplayObserver final : public RegionObserver {
 public:
  // Throws DivergenceError LT0203 if something that the region only read has changed. Later, from
  // ops: LT0204, LT0205, LT0208.
  ReplayObserver(RegionTrace& trace, const void* frame);
  ~ReplayObserver() override;

  // Storages of the inputs made for this replay; writing to them needs no care.
  void own(const at::Tensor& tensor);
  // From the next op on whose kernel is not under way, stops the replay.
  void request_stop() noexcept { stop_requested_ = true; }
  // The bytes, as the replay sees them, of a storage that the region writes; or undefined.
  at::Tensor scratch_for(const at::Tensor& bytes_before);

  void before(hook::OpCall& call) override;
  void after(const hook::OpCall& call, std::size_t num_results) override;

 private:
  struct Swap;
  struct Stream;
  void before_write(const hook::OpCall& call, const at::Tensor& tensor, bool changes_history);
  void before_draw(hook::OpCall& call);

  RegionTrace& trace_;
  const void* frame_;
  bool stop_requested_ = false;
  // Tensors made without an op that the first run wrote to.
  std::size_t unseen_makings_left_ = 0;
  // Beside each copy of bytes from before the first run, the copy that this replay writes to;
  // swaps_ point into the latter.
  std::vector<std::pair<at::Tensor, at::Tensor>> scratches_;
  std::vector<Swap> swaps_;
  std::vector<Stream> streams_;
};

}  // namespace lowtide::checkpoint_impl
