#include "src/hook/generator_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>
#include <optional>

#include "src/base/assert.h"

namespace lowtide::hook {

struct GeneratorState::Impl {
  // On the CPU: the engine, and what Box-Muller left over.
  at::mt19937_data_pod engine{};
  std::optional<float> next_float;
  std::optional<double> next_double;
  // Elsewhere: what get_state() gives.
  at::Tensor opaque;

  void take(const at::Generator& generator) {
    at::GeneratorImpl* const impl = generator.unsafeGetGeneratorImpl();
    const std::lock_guard<std::mutex> lock(impl->mutex_);
    if (impl->device().is_cpu()) {
      auto* const cpu = static_cast<at::CPUGeneratorImpl*>(impl);
      engine = cpu->engine().data();
      next_float = cpu->next_float_normal_sample();
      next_double = cpu->next_double_normal_sample();
    } else {
      opaque = generator.get_state();
    }
  }
};

GeneratorState::GeneratorState() noexcept = default;
GeneratorState::GeneratorState(const at::Generator& generator) : impl_(new Impl) {
  impl_->take(generator);
}
GeneratorState::~GeneratorState() = default;
GeneratorState::GeneratorState(GeneratorState&&) noexcept = default;
GeneratorState& GeneratorState::operator=(GeneratorState&&) noexcept = default;

GeneratorState GeneratorState::clone() const {
  GeneratorState copy;
  if (impl_ != nullptr) copy.impl_ = std::make_unique<Impl>(*impl_);
  return copy;
}

void GeneratorState::retake(const at::Generator& generator) {
  if (impl_ == nullptr) impl_ = std::make_unique<Impl>();
  impl_->take(generator);
}

void GeneratorState::put_into(const at::Generator& generator) const {
  LOWTIDE_ASSERT(impl_ != nullptr);
  at::GeneratorImpl* const impl = generator.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> lock(impl->mutex_);
  if (impl->device().is_cpu()) {
    auto* const cpu = static_cast<at::CPUGeneratorImpl*>(impl);
    at::mt19937 engine;
    engine.set_data(impl_->engine);
    cpu->set_engine(engine);
    cpu->set_next_float_normal_sample(impl_->next_float);
    cpu->set_next_double_normal_sample(impl_->next_double);
  } else {
    impl->set_state(*impl_->opaque.unsafeGetTensorImpl());
  }
}

bool GeneratorState::same_as(const GeneratorState& other) const {
  if (impl_ == nullptr || other.impl_ == nullptr) return impl_ == other.impl_;
  if (impl_->opaque.defined() || other.impl_->opaque.defined()) {
    return impl_->opaque.defined() && other.impl_->opaque.defined() &&
           impl_->opaque.equal(other.impl_->opaque);
  }
  const at::mt19937_data_pod& a = impl_->engine;
  const at::mt19937_data_pod& b = other.impl_->engine;
  return a.left_ == b.left_ && a.next_ == b.next_ && a.seed_ == b.seed_ && a.seeded_ == b.seeded_ &&
         impl_->next_float == other.impl_->next_float &&
         impl_->next_double == other.impl_->next_double && a.state_ == b.state_;
}

const at::Generator& default_generator() { return at::detail::getDefaultCPUGenerator(); }

at::Generator default_generator(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return default_generator();
  return at::globalContext().defaultGenerator(device);
}

at::Generator new_generator(const at::Generator& like) {
  if (like.device().is_cpu()) return at::detail::createCPUGenerator();
  return like.clone();
}

}  // namespace lowtide::hook
