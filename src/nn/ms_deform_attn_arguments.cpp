#include "src/nn/ms_deform_attn_arguments.h"

#include <cstddef>
#include <limits>
#include <string>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr const char* kWhat = "cannot run ms_deform_attn: ";

void check_defined(const at::Tensor& tensor, const char* name, const char* expected) {
  if (!tensor.defined()) {
    throw UsageError("LT0401", concat(kWhat, name, " is an undefined tensor, expected ", expected));
  }
}

[[noreturn]] void refuse_shape(const at::Tensor& tensor, const char* name,
                               const std::string& expected) {
  throw UsageError("LT0401",
                   concat(kWhat, name, " has shape ", tensor.sizes(), ", expected ", expected),
                   {{"argument", std::string(name)}});
}

[[noreturn]] void refuse_dtype(const at::Tensor& tensor, const char* name,
                               const std::string& expected) {
  throw UsageError("LT0402",
                   concat(kWhat, name, " is ", tensor.scalar_type(), ", expected ", expected),
                   {{"argument", std::string(name)}});
}

void check_device(const at::Tensor& tensor, const char* name, const at::Tensor& value) {
  if (tensor.device() != value.device()) {
    throw UsageError("LT0404",
                     concat(kWhat, name, " is on ", tensor.device(), " but value is on ",
                            value.device(), "; move both to the same device"),
                     {{"argument", std::string(name)}});
  }
}

void check_layout(const at::Tensor& tensor, const char* name) {
  if (tensor.layout() != at::kStrided) {
    throw UsageError(
        "LT0404",
        concat(kWhat, name, " has layout ", tensor.layout(), ", expected a dense (strided) tensor"),
        {{"argument", std::string(name)}});
  }
}

[[noreturn]] void refuse_levels(const std::string& problem) {
  throw UsageError("LT0403", concat(kWhat, problem));
}

}  // namespace

MsDeformAttnSizes check_ms_deform_attn_arguments(const at::Tensor& value,
                                                 const at::Tensor& spatial_shapes,
                                                 const at::Tensor& level_start_index,
                                                 const at::Tensor& sampling_locations,
                                                 const at::Tensor& attention_weights) {
  check_defined(value, "value", "(bs, N, heads, D)");
  check_defined(spatial_shapes, "spatial_shapes", "(L, 2)");
  check_defined(level_start_index, "level_start_index", "(L)");
  check_defined(sampling_locations, "sampling_locations", "(bs, Q, heads, L, P, 2)");
  check_defined(attention_weights, "attention_weights", "(bs, Q, heads, L, P)");

  if (!value.is_cpu() && !value.is_meta()) {
    throw UsageError("LT0404",
                     concat(kWhat, "value is on ", value.device(),
                            ", expected the CPU (or meta); there is no kernel for other "
                            "devices"),
                     {{"argument", std::string("value")}});
  }
  check_layout(value, "value");
  check_layout(spatial_shapes, "spatial_shapes");
  check_layout(level_start_index, "level_start_index");
  check_layout(sampling_locations, "sampling_locations");
  check_layout(attention_weights, "attention_weights");
  check_device(sampling_locations, "sampling_locations", value);
  check_device(attention_weights, "attention_weights", value);
  if (!(value.is_meta() && spatial_shapes.is_cpu())) {
    check_device(spatial_shapes, "spatial_shapes", value);
  }
  if (!(value.is_meta() && level_start_index.is_cpu())) {
    check_device(level_start_index, "level_start_index", value);
  }

  if (value.dim() != 4) {
    refuse_shape(value, "value", "four dimensions, (bs, N, heads, D)");
  }
  if (spatial_shapes.dim() != 2 || spatial_shapes.size(1) != 2 || spatial_shapes.size(0) == 0) {
    refuse_shape(spatial_shapes, "spatial_shapes", "(L, 2), with at least one level");
  }
  if (sampling_locations.dim() != 6) {
    refuse_shape(sampling_locations, "sampling_locations",
                 "six dimensions, (bs, Q, heads, L, P, 2)");
  }
  const MsDeformAttnSizes sizes = {value.size(0),
                                   value.size(1),
                                   value.size(2),
                                   value.size(3),
                                   sampling_locations.size(1),
                                   spatial_shapes.size(0),
                                   sampling_locations.size(4)};
  constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
  if (sizes.tokens > kMostTokens) {
    refuse_shape(value, "value", concat("at most N = ", kMostTokens, " tokens"));
  }
  if (level_start_index.dim() != 1 || level_start_index.size(0) != sizes.levels) {
    refuse_shape(level_start_index, "level_start_index",
                 concat("[", sizes.levels, "]: one entry for each row of spatial_shapes"));
  }
  const std::vector<std::int64_t> weight_sizes = {sizes.batch, sizes.queries, sizes.heads,
                                                  sizes.levels, sizes.points};
  std::vector<std::int64_t> location_sizes = weight_sizes;
  location_sizes.push_back(2);
  if (sampling_locations.sizes() != location_sizes) {
    refuse_shape(sampling_locations, "sampling_locations",
                 concat(at::IntArrayRef(location_sizes),
                        " = (bs, Q, heads, L, P, 2), with bs and heads those of value ",
                        value.sizes(), " and L that of spatial_shapes"));
  }
  if (attention_weights.sizes() != weight_sizes) {
    refuse_shape(attention_weights, "attention_weights",
                 concat(at::IntArrayRef(weight_sizes),
                        " = (bs, Q, heads, L, P), with Q and P those of sampling_locations"));
  }

  const at::ScalarType dtype = value.scalar_type();
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 && dtype != at::kHalf) {
    refuse_dtype(value, "value", "Float, Double, BFloat16 or Half");
  }
  const at::ScalarType arithmetic = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const std::string expected = concat(
      arithmetic, " for a value of ", dtype,
      arithmetic == at::kFloat ? " (half precision moves samples by whole parts of a pixel)" : "");
  if (sampling_locations.scalar_type() != arithmetic) {
    refuse_dtype(sampling_locations, "sampling_locations", expected);
  }
  if (attention_weights.scalar_type() != arithmetic) {
    refuse_dtype(attention_weights, "attention_weights",
                 concat(arithmetic, ", the same as sampling_locations"));
  }
  if (spatial_shapes.scalar_type() != at::kLong) {
    refuse_dtype(spatial_shapes, "spatial_shapes", "Long (int64)");
  }
  if (level_start_index.scalar_type() != at::kLong) {
    refuse_dtype(level_start_index, "level_start_index", "Long (int64)");
  }
  return sizes;
}

std::vector<MsDeformAttnLevel> read_ms_deform_attn_levels(const at::Tensor& spatial_shapes,
                                                          const at::Tensor& level_start_index,
                                                          std::int64_t tokens) {
  const std::int64_t* shapes = spatial_shapes.const_data_ptr<std::int64_t>();
  const std::int64_t* starts = level_start_index.const_data_ptr<std::int64_t>();
  const std::int64_t shapes_rows = spatial_shapes.stride(0);
  const std::int64_t shapes_columns = spatial_shapes.stride(1);
  const std::int64_t starts_step = level_start_index.stride(0);

  std::vector<MsDeformAttnLevel> levels;
  std::int64_t covered = 0;
  for (std::int64_t l = 0; l < spatial_shapes.size(0); ++l) {
    const std::int64_t height = shapes[l * shapes_rows];
    const std::int64_t width = shapes[l * shapes_rows + shapes_columns];
    const std::int64_t start = starts[l * starts_step];
    // What float32 counts exactly: beyond it, locations could not tell pixels apart.
    constexpr std::int64_t kLargest = std::int64_t{1} << 24;
    if (height < 0 || width < 0 || height > kLargest || width > kLargest) {
      refuse_levels(concat("spatial_shapes[", l, "] is (", height, ", ", width,
                           "), expected (height, width) from 0 to ", kLargest));
    }
    if (start != covered) {
      refuse_levels(concat("level_start_index[", l, "] is ", start, ", expected ", covered,
                           ", the sum of height * width of the levels before it"));
    }
    // At most 2^48, which cannot overflow; a sum above `tokens` is refused at once.
    const std::int64_t area = height * width;
    if (area > tokens - covered) {
      refuse_levels(concat("spatial_shapes covers more tokens than value has: level ", l, " is ",
                           height, " x ", width, " = ", area, " from token ", covered,
                           ", but value has N = ", tokens));
    }
    levels.push_back({height, width, start});
    covered += area;
  }
  if (covered != tokens) {
    refuse_levels(concat("spatial_shapes covers ", covered,
                         " tokens (the sum of height * width), but value has N = ", tokens));
  }
  return levels;
}

void check_ms_deform_attn_gradient(const at::Tensor& grad_output, const at::Tensor& value,
                                   const MsDeformAttnSizes& sizes) {
  check_defined(grad_output, "grad_output", "(bs, Q, heads * D)");
  check_layout(grad_output, "grad_output");
  check_device(grad_output, "grad_output", value);
  const std::vector<std::int64_t> expected = {sizes.batch, sizes.queries,
                                              sizes.heads * sizes.head_width};
  if (grad_output.sizes() != expected) {
    refuse_shape(grad_output, "grad_output",
                 concat(at::IntArrayRef(expected), " = (bs, Q, heads * D)"));
  }
  if (grad_output.scalar_type() != value.scalar_type()) {
    refuse_dtype(grad_output, "grad_output", concat(value.scalar_type(), ", the same as value"));
  }
}

}  // namespace lowtide
