#include "lowtide/error.h"
#include "src/hook/cuda_memory.h"

namespace lowtide::hook {

bool has_cuda_memory() noexcept { return false; }

std::string cuda_memory_snapshot() { return {}; }

void record_cuda_history(std::size_t) {
  throw TorchError(
      "LT0603",
      "cannot record CUDA's memory: this Lowtide was built without LOWTIDE_CUDA. Build "
      "it with a libtorch that has CUDA, and -DLOWTIDE_CUDA=ON");
}

void watch_cuda_failures(std::function<void(const CudaFailure&)>) {}

}  // namespace lowtide::hook
