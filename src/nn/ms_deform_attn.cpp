// The operator `lowtide::ms_deform_attn`: its schema, and its kernels for CPU, Meta, Autograd and
// Autocast. The arithmetic is in ms_deform_attn_cpu.cpp, the checks in
// ms_deform_attn_arguments.cpp.
//
// The backward is an operator as well, `lowtide::ms_deform_attn_backward`, so that what observes
// operators sees it. It has an Autograd kernel of its own: the gradients it gives under
// create_graph=True are attached to a node that refuses to be differentiated. Without that, a
// gradient penalty would silently see them as constants.
//
// Tested by tests/nn/ms_deform_attn_test.cpp.

#include "lowtide/ms_deform_attn.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include <array>
#include <initializer_list>
#include <tuple>
#include <vector>

#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/hook/host_errors.h"
#include "src/nn/ms_deform_attn_arguments.h"
#include "src/nn/ms_deform_attn_cpu.h"

namespace lowtide {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

constexpr const char* kForwardName = "lowtide::ms_deform_attn";
constexpr const char* kBackwardName = "lowtide::ms_deform_attn_backward";

Tensor call_forward(const Tensor& value, const Tensor& spatial_shapes,
                    const Tensor& level_start_index, const Tensor& sampling_locations,
                    const Tensor& attention_weights) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(kForwardName, "")
                             .typed<decltype(call_forward)>();
  return op.call(value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
}

Gradients call_backward(const Tensor& grad_output, const Tensor& value,
                        const Tensor& spatial_shapes, const Tensor& level_start_index,
                        const Tensor& sampling_locations, const Tensor& attention_weights,
                        std::array<bool, 3> output_mask) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(kBackwardName, "")
                             .typed<decltype(call_backward)>();
  return op.call(grad_output, value, spatial_shapes, level_start_index, sampling_locations,
                 attention_weights, output_mask);
}

// ---- CPU and Meta ----

Tensor forward_cpu(const Tensor& value, const Tensor& spatial_shapes,
                   const Tensor& level_start_index, const Tensor& sampling_locations,
                   const Tensor& attention_weights) {
  const MsDeformAttnSizes sizes = check_ms_deform_attn_arguments(
      value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
  return ms_deform_attn_forward_cpu(
      value, read_ms_deform_attn_levels(spatial_shapes, level_start_index, sizes.tokens),
      sampling_locations, attention_weights, sizes);
}

Gradients backward_cpu(const Tensor& grad_output, const Tensor& value, const Tensor& spatial_shapes,
                       const Tensor& level_start_index, const Tensor& sampling_locations,
                       const Tensor& attention_weights, std::array<bool, 3> output_mask) {
  const MsDeformAttnSizes sizes = check_ms_deform_attn_arguments(
      value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
  check_ms_deform_attn_gradient(grad_output, value, sizes);
  auto [grad_value, grad_locations, grad_weights] = ms_deform_attn_backward_cpu(
      grad_output, value,
      read_ms_deform_attn_levels(spatial_shapes, level_start_index, sizes.tokens),
      sampling_locations, attention_weights, sizes, output_mask);
  return {std::move(grad_value), std::move(grad_locations), std::move(grad_weights)};
}

MsDeformAttnSizes check_meta(const Tensor& value, const Tensor& spatial_shapes,
                             const Tensor& level_start_index, const Tensor& sampling_locations,
                             const Tensor& attention_weights) {
  const MsDeformAttnSizes sizes = check_ms_deform_attn_arguments(
      value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
  if (spatial_shapes.is_cpu() && level_start_index.is_cpu()) {
    read_ms_deform_attn_levels(spatial_shapes, level_start_index, sizes.tokens);
  }
  return sizes;
}

Tensor forward_meta(const Tensor& value, const Tensor& spatial_shapes,
                    const Tensor& level_start_index, const Tensor& sampling_locations,
                    const Tensor& attention_weights) {
  const MsDeformAttnSizes sizes =
      check_meta(value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
  return at::empty({sizes.batch, sizes.queries, sizes.heads * sizes.head_width}, value.options());
}

Gradients backward_meta(const Tensor& grad_output, const Tensor& value,
                        const Tensor& spatial_shapes, const Tensor& level_start_index,
                        const Tensor& sampling_locations, const Tensor& attention_weights,
                        std::array<bool, 3> output_mask) {
  const MsDeformAttnSizes sizes =
      check_meta(value, spatial_shapes, level_start_index, sampling_locations, attention_weights);
  check_ms_deform_attn_gradient(grad_output, value, sizes);
  const auto like = [](const Tensor& input, bool needed) {
    return needed ? at::empty(input.sizes(), input.options()) : Tensor();
  };
  return {like(value, output_mask[0]), like(sampling_locations, output_mask[1]),
          like(attention_weights, output_mask[2])};
}

// ---- Autograd ----

void refuse_forward_gradients(std::initializer_list<const Tensor*> inputs) {
  for (const Tensor* input : inputs) {
    if (input->defined() && input->_fw_grad(0).defined()) {
      throw UsageError("LT0406",
                       "cannot run ms_deform_attn on inputs that carry a forward-mode gradient "
                       "(dual tensors): it has none. Use reverse mode, or unpack the duals first");
    }
  }
}

bool needs_graph(std::initializer_list<const Tensor*> inputs) {
  if (!at::GradMode::is_enabled()) {
    return false;
  }
  for (const Tensor* input : inputs) {
    if (input->defined() && input->requires_grad()) {
      return true;
    }
  }
  return false;
}

struct MsDeformAttnFunction : torch::autograd::Function<MsDeformAttnFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& value, const Tensor& spatial_shapes,
                        const Tensor& level_start_index, const Tensor& sampling_locations,
                        const Tensor& attention_weights) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensor output = call_forward(value, spatial_shapes, level_start_index, sampling_locations,
                                 attention_weights);
    context->save_for_backward(
        {value, spatial_shapes, level_start_index, sampling_locations, attention_weights});
    context->set_materialize_grads(false);
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    variable_list gradients(5);
    if (!grad_outputs[0].defined()) {
      return gradients;
    }
    const variable_list saved = context->get_saved_variables();
    std::tie(gradients[0], gradients[3], gradients[4]) = call_backward(
        grad_outputs[0], saved[0], saved[1], saved[2], saved[3], saved[4],
        {context->needs_input_grad(0), context->needs_input_grad(3), context->needs_input_grad(4)});
    return gradients;
  }
};

struct MsDeformAttnBackwardFunction : torch::autograd::Function<MsDeformAttnBackwardFunction> {
  static variable_list forward(AutogradContext*, const Tensor& grad_output, const Tensor& value,
                               const Tensor& spatial_shapes, const Tensor& level_start_index,
                               const Tensor& sampling_locations, const Tensor& attention_weights,
                               std::array<bool, 3> output_mask) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [grad_value, grad_locations, grad_weights] =
        call_backward(grad_output, value, spatial_shapes, level_start_index, sampling_locations,
                      attention_weights, output_mask);
    variable_list defined;
    for (const Tensor& gradient : {grad_value, grad_locations, grad_weights}) {
      if (gradient.defined()) {
        defined.push_back(gradient);
      }
    }
    return defined;
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    hook::with_host_errors([] {
      throw UsageError(
          "LT0405",
          "cannot differentiate the gradients of ms_deform_attn: it has no double "
          "backward. Leave out create_graph=True, or keep its inputs out of the second "
          "derivative (detach them)");
    });
    return {};
  }
};

Tensor forward_autograd(const Tensor& value, const Tensor& spatial_shapes,
                        const Tensor& level_start_index, const Tensor& sampling_locations,
                        const Tensor& attention_weights) {
  refuse_forward_gradients({&value, &sampling_locations, &attention_weights});
  if (!needs_graph({&value, &sampling_locations, &attention_weights})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_forward(value, spatial_shapes, level_start_index, sampling_locations,
                        attention_weights);
  }
  return MsDeformAttnFunction::apply(value, spatial_shapes, level_start_index, sampling_locations,
                                     attention_weights);
}

Gradients backward_autograd(const Tensor& grad_output, const Tensor& value,
                            const Tensor& spatial_shapes, const Tensor& level_start_index,
                            const Tensor& sampling_locations, const Tensor& attention_weights,
                            std::array<bool, 3> output_mask) {
  refuse_forward_gradients({&grad_output, &value, &sampling_locations, &attention_weights});
  if (!needs_graph({&grad_output, &value, &sampling_locations, &attention_weights})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_backward(grad_output, value, spatial_shapes, level_start_index, sampling_locations,
                         attention_weights, output_mask);
  }
  const variable_list defined =
      MsDeformAttnBackwardFunction::apply(grad_output, value, spatial_shapes, level_start_index,
                                          sampling_locations, attention_weights, output_mask);
  std::array<Tensor, 3> gradients;
  std::size_t next = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    if (output_mask[i]) {
      gradients[i] = defined[next++];
    }
  }
  return {gradients[0], gradients[1], gradients[2]};
}

// ---- Autocast ----

Tensor raised(const Tensor& input, const Tensor& value) {
  const bool is_half =
      input.defined() && (input.scalar_type() == at::kBFloat16 || input.scalar_type() == at::kHalf);
  if (!is_half) {
    return input;
  }
  return input.to(value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

Tensor forward_autocast(const Tensor& value, const Tensor& spatial_shapes,
                        const Tensor& level_start_index, const Tensor& sampling_locations,
                        const Tensor& attention_weights) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return call_forward(value, spatial_shapes, level_start_index, raised(sampling_locations, value),
                      raised(attention_weights, value));
}

// An op is called through libtorch.
template <auto kernel>
struct WithHostErrors;
template <class Result, class... Arguments, Result (*kernel)(Arguments...)>
struct WithHostErrors<kernel> {
  static Result call(Arguments... arguments) {
    return hook::with_host_errors([&] { return kernel(arguments...); });
  }
};

TORCH_LIBRARY_FRAGMENT(lowtide, library) {
  library.def(
      "ms_deform_attn(Tensor value, Tensor spatial_shapes, Tensor level_start_index, "
      "Tensor sampling_locations, Tensor attention_weights) -> Tensor");
  library.def(
      "ms_deform_attn_backward(Tensor grad_output, Tensor value, Tensor spatial_shapes, "
      "Tensor level_start_index, Tensor sampling_locations, Tensor attention_weights, "
      "bool[3] output_mask) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(lowtide, CPU, library) {
  library.impl("ms_deform_attn", &WithHostErrors<&forward_cpu>::call);
  library.impl("ms_deform_attn_backward", &WithHostErrors<&backward_cpu>::call);
}

TORCH_LIBRARY_IMPL(lowtide, Meta, library) {
  library.impl("ms_deform_attn", &WithHostErrors<&forward_meta>::call);
  library.impl("ms_deform_attn_backward", &WithHostErrors<&backward_meta>::call);
}

TORCH_LIBRARY_IMPL(lowtide, Autograd, library) {
  library.impl("ms_deform_attn", &WithHostErrors<&forward_autograd>::call);
  library.impl("ms_deform_attn_backward", &WithHostErrors<&backward_autograd>::call);
}

TORCH_LIBRARY_IMPL(lowtide, AutocastCPU, library) {
  library.impl("ms_deform_attn", &WithHostErrors<&forward_autocast>::call);
}

}  // namespace

Tensor ms_deform_attn(const Tensor& value, const Tensor& spatial_shapes,
                      const Tensor& level_start_index, const Tensor& sampling_locations,
                      const Tensor& attention_weights) {
  for (const Tensor* input :
       {&value, &spatial_shapes, &level_start_index, &sampling_locations, &attention_weights}) {
    // The dispatcher cannot choose a kernel for these; the check names the argument.
    if (!input->defined() || (!input->is_cpu() && !input->is_meta()) ||
        input->layout() != at::kStrided) {
      check_ms_deform_attn_arguments(value, spatial_shapes, level_start_index, sampling_locations,
                                     attention_weights);
    }
  }
  return call_forward(value, spatial_shapes, level_start_index, sampling_locations,
                      attention_weights);
}

}  // namespace lowtide
