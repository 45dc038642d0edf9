#pragma once
// What ops read beside their arguments: autocast, the default dtype, the thread count and the
// process-wide switches that choose kernels. Taken in one place, put back in another.

#include <cstdint>
#include <memory>

namespace lowtide::hook {

class AmbientState {
 public:
  // Takes this thread's state; no allocation, some 20 loads.
  AmbientState();

  struct Fields {
    std::uint64_t autocast_enabled;  // bit: position in libtorch's list of autocast devices
    std::int8_t autocast_dtypes[16];
    std::int8_t default_dtype;
    std::int8_t precisions[3];  // of oneDNN's float32 matmul, convolution, RNN
    int num_threads;
    bool autocast_cache;
    std::uint8_t flushes_denormals;  // bits of this thread's floating-point unit
    bool deterministic, deterministic_warn_only, deterministic_fill;
    bool mkldnn, deterministic_mkldnn;
    bool flash_sdp, mem_efficient_sdp, math_sdp;
  };

 private:
  friend class AmbientScope;
  Fields fields_;
};

// Puts `state` and grad mode on into force while it lives, then puts back what was. Process-wide
// switches are touched only when they differ. With `autocast_cache` false no cast made inside is
// kept in autocast's cache: a replay must not leave its casts behind.
class AmbientScope {
 public:
  explicit AmbientScope(const AmbientState& state);
  ~AmbientScope();
  AmbientScope(const AmbientScope&) = delete;
  AmbientScope& operator=(const AmbientScope&) = delete;

 private:
  AmbientState before_;
  AmbientState::Fields inside_;
  bool grad_mode_before_;
  unsigned follow_ = 0;  // bit: a precision that followed the setting above it
};

}  // namespace lowtide::hook
