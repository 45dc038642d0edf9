// Checked with torch 2.13.0. Tested by tests/python/predict_test.py.

#include "src/hook/backward_node.h"

#include <torch/csrc/autograd/function.h>

#include <limits>

namespace lowtide::hook {

std::int64_t current_node_number() noexcept {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return -1;
  const std::uint64_t number = node->sequence_nr();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return -1;
  return static_cast<std::int64_t>(number);
}

}  // namespace lowtide::hook
