#pragma once
// An input of a region, waiting for the replay: by reference, in host memory or on disk.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "lowtide/checkpoint.h"
#include "src/checkpoint/region_trace.h"
#include "src/hook/saved_tensor_hooks.h"

namespace lowtide::checkpoint_impl {

// An unlinked file that grows at its end. Throws IoError LT0210 (cannot be created or written) and
// LT0211 (cannot be read back). Reads and writes may come from any thread.
class SpillFile {
 public:
  explicit SpillFile(const std::string& directory);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Appends and returns where.
  std::uint64_t append(const void* bytes, std::uint64_t size);
  void read(std::uint64_t at, void* bytes, std::uint64_t size) const;

 private:
  int fd_ = -1;
  std::uint64_t end_ = 0;
  std::string directory_;
};

class KeptInput {
 public:
  // Keeps `tensor` by reference, as autograd keeps a saved tensor: under the providers in force.
  explicit KeptInput(const at::Tensor& tensor);

  // Whether this thread is in the constructor, which asks the providers in force.
  static bool is_keeping() noexcept;

  // If the region wrote to the tensor's storage, keeps the bytes from before instead. Called when
  // the first run ends, and by a replay that comes before that.
  void follow_writes(const RegionTrace& trace);
  // Lets go of what follow_writes() needs.
  void first_run_ended() { as_given_ = at::Tensor(); }
  // Moves the tensor; `file` is opened on first use. Only after first_run_ended().
  void offload(const CheckpointOptions& options, std::shared_ptr<SpillFile>& file);

  // A tensor for the replay: equal in everything to what the first run got, but with a history that
  // ends here. Throws c10::Error if the kept tensor was changed in place since, IoError LT0211.
  at::Tensor for_replay(ReplayObserver& observer) const;

 private:
  bool requires_grad_;
  bool is_leaf_;
  bool movable_;
  hook::SavedTensor saved_;
  // Same geometry and storage as the input when it was given.
  at::Tensor as_given_;
  // After follow_writes(): the input over the bytes from before the region's first write.
  at::Tensor before_writes_;
  at::Tensor bytes_before_;
  // After offload(): the input's span of its storage, in host memory or in a file.
  at::Tensor on_host_;
  std::shared_ptr<SpillFile> file_;
  std::uint64_t at_ = 0;
  at::Tensor empty_like_;  // no storage: geometry, dtype and device of the input
  std::int64_t span_ = 0;  // elements
};

}  // namespace lowtide::checkpoint_impl
