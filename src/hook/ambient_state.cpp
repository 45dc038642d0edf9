#include "src/hook/ambient_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

#include <array>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace lowtide::hook {
namespace {

namespace autocast = at::autocast;
using Precision = at::Float32Precision;
using Backend = at::Float32Backend;
using Op = at::Float32Op;

// What the CPU's kernels ask for. The older float32MatmulPrecision() throws when it was set through
// other names than this, and no kernel of the CPU's asks for it.
constexpr std::array<Op, 3> kPrecisionOps{Op::MATMUL, Op::CONV, Op::RNN};

// Whether oneDNN's setting for `op` follows the one above it. A setting can be read only as it is
// in force, so the one above is changed for a moment.
bool follows(at::Context& context, Backend backend, Op op) {
  const bool is_top = op == Op::ALL;
  const Backend above = is_top ? Backend::GENERIC : backend;
  const Precision in_force = context.float32Precision(backend, op);
  const Precision before = context.float32Precision(above, Op::ALL);
  if (in_force != before) return false;
  const bool above_follows = !is_top && follows(context, above, Op::ALL);
  context.setFloat32Precision(above, Op::ALL,
                              before == Precision::BF16 ? Precision::IEEE : Precision::BF16);
  const bool result = context.float32Precision(backend, op) != in_force;
  context.setFloat32Precision(above, Op::ALL, above_follows ? Precision::NONE : before);
  return result;
}

// torch.set_flush_denormal(): two bits of the thread's control register.
#if defined(__SSE2__)
constexpr unsigned kFlushBits = 0x8040;  // results that are denormal; operands that are
std::uint8_t flushed() {
  const unsigned bits = _mm_getcsr();
  return static_cast<std::uint8_t>((bits >> 15 & 1) | (bits >> 5 & 2));
}
void set_flushed(std::uint8_t flags) {
  const unsigned bits = (flags & 1U) << 15 | (flags & 2U) << 5;
  _mm_setcsr((_mm_getcsr() & ~kFlushBits) | bits);
}
#else
// There torch.set_flush_denormal() changes a register that is not read here.
std::uint8_t flushed() { return 0; }
void set_flushed(std::uint8_t) {}
#endif

const auto& kDevices = autocast::_AUTOCAST_SUPPORTED_DEVICES;
static_assert(std::tuple_size_v<std::decay_t<decltype(autocast::_AUTOCAST_SUPPORTED_DEVICES)>> <=
              16);

AmbientState::Fields take() {
  AmbientState::Fields f{};
  for (std::size_t i = 0; i < kDevices.size(); ++i) {
    if (autocast::is_autocast_enabled(kDevices[i])) f.autocast_enabled |= std::uint64_t{1} << i;
    f.autocast_dtypes[i] = static_cast<std::int8_t>(autocast::get_autocast_dtype(kDevices[i]));
  }
  f.autocast_cache = autocast::is_autocast_cache_enabled();
  f.default_dtype = static_cast<std::int8_t>(c10::get_default_dtype_as_scalartype());
  f.num_threads = at::get_num_threads();
  const at::Context& context = at::globalContext();
  for (std::size_t i = 0; i < kPrecisionOps.size(); ++i) {
    f.precisions[i] =
        static_cast<std::int8_t>(context.float32Precision(Backend::MKLDNN, kPrecisionOps[i]));
  }
  f.flushes_denormals = flushed();
  f.deterministic = context.deterministicAlgorithms();
  f.deterministic_warn_only = context.deterministicAlgorithmsWarnOnly();
  f.deterministic_fill = context.deterministicFillUninitializedMemory();
  f.mkldnn = context.userEnabledMkldnn();
  f.deterministic_mkldnn = context.deterministicMkldnn();
  f.flash_sdp = context.userEnabledFlashSDP();
  f.mem_efficient_sdp = context.userEnabledMemEfficientSDP();
  f.math_sdp = context.userEnabledMathSDP();
  return f;
}

// Changes what differs between `from`, which is in force, and `to`.
void change(const AmbientState::Fields& from, const AmbientState::Fields& to) {
  for (std::size_t i = 0; i < kDevices.size(); ++i) {
    const std::uint64_t bit = std::uint64_t{1} << i;
    if ((from.autocast_enabled & bit) != (to.autocast_enabled & bit)) {
      autocast::set_autocast_enabled(kDevices[i], (to.autocast_enabled & bit) != 0);
    }
    if (from.autocast_dtypes[i] != to.autocast_dtypes[i]) {
      autocast::set_autocast_dtype(kDevices[i], static_cast<at::ScalarType>(to.autocast_dtypes[i]));
    }
  }
  if (from.autocast_cache != to.autocast_cache) {
    autocast::set_autocast_cache_enabled(to.autocast_cache);
  }
  if (from.default_dtype != to.default_dtype) {
    c10::set_default_dtype(
        c10::scalarTypeToTypeMeta(static_cast<at::ScalarType>(to.default_dtype)));
  }
  if (from.num_threads != to.num_threads) at::set_num_threads(to.num_threads);
  at::Context& context = at::globalContext();
  for (std::size_t i = 0; i < kPrecisionOps.size(); ++i) {
    if (from.precisions[i] == to.precisions[i]) continue;
    // "None" would follow the setting above; where nothing is set at all, kernels do as for IEEE.
    const auto precision = static_cast<Precision>(to.precisions[i]);
    context.setFloat32Precision(Backend::MKLDNN, kPrecisionOps[i],
                                precision == Precision::NONE ? Precision::IEEE : precision);
  }
  if (from.flushes_denormals != to.flushes_denormals) set_flushed(to.flushes_denormals);
  if (from.deterministic != to.deterministic ||
      from.deterministic_warn_only != to.deterministic_warn_only) {
    context.setDeterministicAlgorithms(to.deterministic, to.deterministic_warn_only);
  }
  if (from.deterministic_fill != to.deterministic_fill) {
    context.setDeterministicFillUninitializedMemory(to.deterministic_fill);
  }
  if (from.mkldnn != to.mkldnn) context.setUserEnabledMkldnn(to.mkldnn);
  if (from.deterministic_mkldnn != to.deterministic_mkldnn) {
    context.setDeterministicMkldnn(to.deterministic_mkldnn);
  }
  if (from.flash_sdp != to.flash_sdp) context.setSDPUseFlash(to.flash_sdp);
  if (from.mem_efficient_sdp != to.mem_efficient_sdp) {
    context.setSDPUseMemEfficient(to.mem_efficient_sdp);
  }
  if (from.math_sdp != to.math_sdp) context.setSDPUseMath(to.math_sdp);
}

}  // namespace

AmbientState::AmbientState() : fields_(take()) {}

AmbientScope::AmbientScope(const AmbientState& state)
    : inside_(state.fields_), grad_mode_before_(c10::GradMode::is_enabled()) {
  inside_.autocast_cache = false;
  c10::GradMode::set_enabled(true);
  for (std::size_t i = 0; i < kPrecisionOps.size(); ++i) {
    if (before_.fields_.precisions[i] == inside_.precisions[i]) continue;
    if (follows(at::globalContext(), Backend::MKLDNN, kPrecisionOps[i])) follow_ |= 1U << i;
  }
  change(before_.fields_, inside_);
}

AmbientScope::~AmbientScope() {
  // What the code inside may itself have changed and not put back counts too.
  change(take(), before_.fields_);
  for (std::size_t i = 0; i < kPrecisionOps.size(); ++i) {
    if ((follow_ >> i & 1U) == 0) continue;
    at::globalContext().setFloat32Precision(Backend::MKLDNN, kPrecisionOps[i], Precision::NONE);
  }
  c10::GradMode::set_enabled(grad_mode_before_);
}

}  // namespace lowtide::hook
