#pragma once
// One op as it ran, without its tensors' bytes: enough to run it again, bit for bit.
//
// Each tensor argument is replaced by the storage that it lay over, that storage's version, and its
// geometry. What an op reads beside its arguments is captured too: grad mode (some kernels ask),
// autocast and dtype defaults, thread count, deterministic flags, and for random ops the generator
// and its state.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

#include "src/fit/tensor_geometry.h"
#include "src/hook/ambient_state.h"
#include "src/hook/generator_state.h"
#include "src/hook/op_observer.h"
#include "src/tape/ids.h"

namespace lowtide {

// A tensor among the arguments or results. `element` is its place in a list, -1 when it stands
// alone.
struct TensorPlace {
  std::uint16_t position;
  std::int32_t element;
  auto operator<=>(const TensorPlace&) const = default;
};

// Names a record for as long as an op is kept. An op with several results outlives the records of
// those that nobody needs, and ids are given out again; serials never are.
struct RecordName {
  StorageId id;
  std::uint64_t serial = 0;
};

struct CapturedInput {
  TensorPlace place;
  RecordName storage;
  std::uint32_t version = 0;
  TensorGeometry geometry;
};

// A tensor of which the op reads the shape alone (empty_like): no storage is needed to run it
// again.
struct CapturedShape {
  TensorPlace place;
  TensorGeometry geometry;
};

// A storage that the op wrote.
struct CapturedOutput {
  RecordName storage;
  std::uint32_t version = 0;        // after the write
  std::int32_t written_input = -1;  // in place over inputs[written_input]; else a result
  TensorPlace result{0, -1};
};

class OpCapture {
 public:
  // Captures all but the tensors. Takes the generator's state when the op draws from one.
  OpCapture(const hook::Operator& op, c10::ArrayRef<c10::IValue> arguments);

  // It draws from this generator instead, as it is now.
  void draw_from(const at::Generator& generator);

  // Calls f(place, tensor) for each defined tensor among the values. Returns false when there is a
  // value in which tensors cannot be found (an object, a dictionary).
  template <typename F>
  static bool for_each_tensor(c10::ArrayRef<c10::IValue> values, F&& f);

  // Runs the op again, below autograd and unseen, with storages[i] for inputs[i], and returns its
  // results. The generator is left as it is, or, for ops that can only draw from the default one,
  // as it was found. Throws what the op throws.
  std::vector<c10::IValue> run(const std::vector<c10::Storage>& storages) const;

  const hook::Operator& op;
  std::vector<CapturedInput> inputs;
  std::vector<CapturedShape> shapes;
  std::vector<CapturedOutput> outputs;

 private:
  std::vector<c10::IValue> arguments_;     // tensors and lists of them replaced by None
  std::vector<std::uint32_t> list_sizes_;  // by argument; 0 for what is no list of tensors
  hook::AmbientState ambient_;
  bool grad_mode_;
  at::Generator generator_;
  hook::GeneratorState generator_state_;
};

// The tensor at `place` of an op's results.
at::Tensor tensor_at(const std::vector<c10::IValue>& results, TensorPlace place);

// Whether running `op` with these arguments again gives the same bits. Known not to be repeatable:
// ops of other libraries (they may have side effects), accumulating index writes, which add in any
// order when there are several threads, ops that leave parts of their results unwritten, least
// squares, and medians along an expanded dimension.
bool is_repeatable(const hook::Operator& op, c10::ArrayRef<c10::IValue> arguments);

// Whether the output is a kernel's scratch whose bits mean nothing: it travels with its op, and is
// not compared.
bool is_opaque(const hook::Operator& op, const CapturedOutput& output);

template <typename F>
bool OpCapture::for_each_tensor(c10::ArrayRef<c10::IValue> values, F&& f) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const c10::IValue& value = values[i];
    const auto position = static_cast<std::uint16_t>(i);
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.defined()) f(TensorPlace{position, -1}, tensor);
    } else if (value.isTensorList()) {
      const auto list = value.toTensorList();
      for (std::size_t j = 0; j < list.size(); ++j) {
        const at::Tensor tensor = list.get(j);
        if (tensor.defined()) f(TensorPlace{position, static_cast<std::int32_t>(j)}, tensor);
      }
    } else if (value.isOptionalTensorList()) {
      const auto list = value.toOptionalTensorList();
      for (std::size_t j = 0; j < list.size(); ++j) {
        const std::optional<at::Tensor> tensor = list.get(j);
        if (tensor.has_value() && tensor->defined()) {
          f(TensorPlace{position, static_cast<std::int32_t>(j)}, *tensor);
        }
      }
    } else if (value.isObject() || value.isGenericDict() || value.isTuple() || value.isCapsule() ||
               value.isPyObject() ||
               (value.isList() && !value.isIntList() && !value.isDoubleList() &&
                !value.isBoolList() && !value.isComplexDoubleList() &&
                !(value.toListRef().empty()))) {
      return false;
    }
  }
  return true;
}

}  // namespace lowtide
