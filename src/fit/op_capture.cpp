#include "src/fit/op_capture.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <array>
#include <optional>
#include <string_view>

#include "src/base/assert.h"
#include "src/hook/op_interceptor.h"

namespace lowtide {
namespace {

// How many tensors a list of tensors has; 0 for anything else.
std::size_t tensor_list_size(const c10::IValue& value) {
  if (value.isTensorList()) return value.toTensorList().size();
  if (value.isOptionalTensorList()) return value.toOptionalTensorList().size();
  return 0;
}

// An accumulating index write adds in the order in which threads arrive.
constexpr std::array<std::string_view, 4> kAccumulating{
    "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"};

// Ops that leave parts of their results as they found them.
constexpr std::array<std::string_view, 3> kPartlyWritten{"aten::_ctc_loss",
                                                         "aten::_native_multi_head_attention",
                                                         "aten::_transformer_encoder_layer_fwd"};

// torch.linalg.lstsq gives other bits the second time (LAPACK's, by where its arguments lie).
constexpr std::array<std::string_view, 1> kNeverTheSame{"aten::linalg_lstsq"};

// Along an expanded dimension these read memory that is not theirs (torch 2.13: what
// torch.median(x.expand(3, -1), 0) returns is not in x).
constexpr std::array<std::string_view, 2> kWrongWhenExpanded{"aten::median", "aten::nanmedian"};

bool is_expanded(const at::Tensor& tensor) {
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) return true;
  }
  return false;
}

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
constexpr std::size_t kRunningMean = 3;
constexpr std::size_t kRunningVar = 4;
constexpr std::size_t kTraining = 5;

}  // namespace

OpCapture::OpCapture(const hook::Operator& described, c10::ArrayRef<c10::IValue> arguments)
    : op(described), grad_mode_(c10::GradMode::is_enabled()) {
  arguments_.reserve(arguments.size());
  list_sizes_.reserve(arguments.size());
  for (const c10::IValue& value : arguments) {
    const std::size_t size = tensor_list_size(value);
    const bool replaced = size > 0 || (value.isTensor() && value.toTensor().defined());
    arguments_.push_back(replaced ? c10::IValue() : value);
    list_sizes_.push_back(static_cast<std::uint32_t>(size));
  }
  if (op.is_random || op.generator_argument >= 0) {
    if (op.generator_argument >= 0) {
      const c10::IValue& given = arguments[static_cast<std::size_t>(op.generator_argument)];
      if (!given.isNone()) generator_ = given.toGenerator();
    }
    if (!generator_.defined()) generator_ = hook::default_generator();
    generator_state_.retake(generator_);
  }
}

void OpCapture::draw_from(const at::Generator& generator) {
  generator_ = generator;
  generator_state_.retake(generator_);
}

std::vector<c10::IValue> OpCapture::run(const std::vector<c10::Storage>& storages) const {
  LOWTIDE_ASSERT(storages.size() == inputs.size());
  std::vector<c10::IValue> stack = arguments_;
  const auto& parameters = op.handle.schema().arguments();
  for (std::size_t position = 0; position < stack.size(); ++position) {
    if (list_sizes_[position] == 0) continue;
    const auto& list_type = parameters[position].type()->expectRef<c10::ListType>();
    if (list_type.getElementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<std::optional<at::Tensor>> list;
      list.resize(list_sizes_[position], std::nullopt);
      stack[position] = std::move(list);
    } else {
      stack[position] = c10::List<at::Tensor>();
      stack[position].toTensorList().resize(list_sizes_[position], at::Tensor());
    }
  }
  const auto put = [&](TensorPlace place, at::Tensor tensor) {
    c10::IValue& argument = stack[place.position];
    if (place.element < 0) {
      argument = std::move(tensor);
    } else if (argument.isTensorList()) {
      argument.toTensorList().set(static_cast<std::size_t>(place.element), tensor);
    } else {
      argument.toOptionalTensorList().set(static_cast<std::size_t>(place.element), tensor);
    }
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    put(inputs[i].place, inputs[i].geometry.over(storages[i]));
  }
  for (const CapturedShape& shape : shapes) {
    put(shape.place, shape.geometry.over(c10::Storage(c10::Storage::use_byte_size_t(), 0,
                                                      c10::DataPtr(nullptr, c10::kCPU))));
  }
  if (op.is_batch_norm && stack[kTraining].toBool()) {
    // With statistics of the batch the running ones are only written, and must move once.
    stack[kRunningMean] = at::Tensor();
    stack[kRunningVar] = at::Tensor();
  }

  const hook::ObserverPause pause;
  const hook::UnobservedOps below_autograd;
  const hook::AmbientScope ambient(ambient_);
  c10::GradMode::set_enabled(grad_mode_);  // AmbientScope puts it back
  if (!generator_state_.taken()) {
    op.handle.callBoxed(stack);
    return stack;
  }
  // The generator itself stays untouched where the op can be given another: the program may draw
  // from it on another thread meanwhile.
  if (op.generator_argument >= 0 || op.drawing.has_value()) {
    at::Generator own = hook::new_generator(generator_);
    generator_state_.put_into(own);
    if (op.generator_argument >= 0) {
      stack[static_cast<std::size_t>(op.generator_argument)] = std::move(own);
      op.handle.callBoxed(stack);
    } else {
      stack.insert(stack.begin() + op.drawing_position, c10::IValue(std::move(own)));
      op.drawing->callBoxed(stack);
    }
    return stack;
  }
  struct GeneratorScope {
    const at::Generator& generator;
    hook::GeneratorState before{generator};
    ~GeneratorScope() { before.put_into(generator); }
  } const as_found{generator_};
  generator_state_.put_into(generator_);
  op.handle.callBoxed(stack);
  return stack;
}

at::Tensor tensor_at(const std::vector<c10::IValue>& results, TensorPlace place) {
  const c10::IValue& value = results[place.position];
  if (place.element < 0) return value.isTensor() ? value.toTensor() : at::Tensor();
  const auto element = static_cast<std::size_t>(place.element);
  if (!value.isTensorList()) return at::Tensor();
  const auto list = value.toTensorList();
  return element < list.size() ? list.get(element) : at::Tensor();
}

bool is_opaque(const hook::Operator& op, const CapturedOutput& output) {
  constexpr std::uint16_t kWorkspaceResult = 3;
  return op.name == "aten::mkldnn_rnn_layer" && output.result.position == kWorkspaceResult;
}

bool is_repeatable(const hook::Operator& op, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.is_aten) return op.name == "lowtide::ms_deform_attn";
  const std::string_view base = op.handle.schema().name();
  for (const std::string_view name : kPartlyWritten) {
    if (base == name) return false;
  }
  for (const std::string_view name : kNeverTheSame) {
    if (base == name) return false;
  }
  for (const std::string_view name : kWrongWhenExpanded) {
    if (base == name && is_expanded(arguments[0].toTensor())) return false;
  }
  for (const std::string_view name : kAccumulating) {
    if (base != name) continue;
    for (const c10::IValue& value : arguments) {
      if (value.isBool() && value.toBool() && at::get_num_threads() > 1) return false;
    }
  }
  return true;
}

}  // namespace lowtide
