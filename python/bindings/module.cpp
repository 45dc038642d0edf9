#include "lowtide/version.h"
#include "python/bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  using namespace lowtide::python;
  module.attr("version") = LOWTIDE_VERSION_STRING;
  module.attr("torch_version") = LOWTIDE_TORCH_VERSION;
  bind_error(module);
  bind_bytes(module);
  bind_memory_meter(module);
  bind_budget(module);
  bind_checkpoint(module);
  bind_sequence(module);
  bind_linear_cross_entropy(module);
  bind_large_linear(module);
  bind_ms_deform_attn(module);
  bind_deformable_detr_encoder(module);
  bind_host(module);
  bind_watch(module);
  bind_predict(module);
}
