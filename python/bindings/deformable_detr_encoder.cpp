#include "lowtide/deformable_detr_encoder.h"

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "lowtide/encoder_tokens.h"
#include "python/bindings/bindings.h"

namespace lowtide::python {

void bind_deformable_detr_encoder(py::module_& module) {
  using Encoder = DeformableDetrTransformerEncoderImpl;
  using Optional = std::optional<at::Tensor>;
  py::class_<Encoder, std::shared_ptr<Encoder>>(module, "DeformableDetrTransformerEncoder")
      .def(py::init([](std::int64_t num_layers, std::int64_t embed_dims, std::int64_t num_heads,
                       std::int64_t num_levels, std::int64_t num_points,
                       std::int64_t feedforward_channels, double dropout, std::int64_t num_cp) {
             return std::make_shared<Encoder>(
                 num_layers,
                 DeformableDetrEncoderLayerOptions{embed_dims, num_heads, num_levels, num_points,
                                                   feedforward_channels, dropout},
                 num_cp);
           }),
           py::arg("num_layers"), py::arg("embed_dims"), py::arg("num_heads"),
           py::arg("num_levels"), py::arg("num_points"), py::arg("feedforward_channels"),
           py::arg("dropout"), py::arg("num_cp"))
      .def("state_dict", &Encoder::state_dict)
      .def("load_state_dict", &Encoder::load_state_dict, py::arg("tensors"))
      .def("reset_parameters", &Encoder::reset_parameters)
      .def("use_parameters", &Encoder::use_parameters, py::arg("tensors"))
      .def("set_num_cp", &Encoder::set_num_cp, py::arg("num_cp"))
      .def(
          "train", [](Encoder& encoder, bool on) { encoder.train(on); }, py::arg("on"))
      .def(
          "forward",
          [](Encoder& encoder, const at::Tensor& query, const Optional& query_pos,
             const Optional& key_padding_mask, const Optional& spatial_shapes,
             const Optional& level_start_index, const Optional& valid_ratios) {
            const at::Tensor none;
            return encoder.forward(query, query_pos.value_or(none), key_padding_mask.value_or(none),
                                   spatial_shapes.value_or(none), level_start_index.value_or(none),
                                   valid_ratios.value_or(none));
          },
          py::arg("query"), py::arg("query_pos"), py::arg("key_padding_mask"),
          py::arg("spatial_shapes"), py::arg("level_start_index"), py::arg("valid_ratios"),
          py::call_guard<py::gil_scoped_release>());
}

}  // namespace lowtide::python
