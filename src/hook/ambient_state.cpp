#include "src/hook/ambient_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>

namespace lowtide::hook {
namespace {

namespace autocast = at::autocast;
using Precision = at::Float32MatmulPrecision;

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
  f.matmul_precision = static_cast<std::int8_t>(context.float32MatmulPrecision());
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
  if (from.matmul_precision != to.matmul_precision) {
    context.setFloat32MatmulPrecision(
        static_cast<Precision>(to.matmul_precision) == Precision::HIGHEST ? "highest"
        : static_cast<Precision>(to.matmul_precision) == Precision::HIGH  ? "high"
                                                                          : "medium");
  }
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
  change(before_.fields_, inside_);
}

AmbientScope::~AmbientScope() {
  // What the code inside may itself have changed and not put back counts too.
  change(take(), before_.fields_);
  c10::GradMode::set_enabled(grad_mode_before_);
}

}  // namespace lowtide::hook
