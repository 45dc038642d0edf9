#include "src/evidence/pickle_value.h"

#include <functional>

namespace lowtide {
namespace {

constexpr std::int64_t kSmallest = -(std::int64_t{1} << 59);
constexpr std::int64_t kLargest = (std::int64_t{1} << 59) - 1;

}  // namespace

std::uint32_t TextPool::intern(std::string_view text) {
  if (slots_.size() < 2 * (ends_.size() + 1)) grow();
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = std::hash<std::string_view>()(text) & mask;
  for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
    if (view(slots_[slot] - 1) == text) return slots_[slot] - 1;
  }
  ends_.emplace_back(characters_.size(), static_cast<std::uint32_t>(text.size()));
  characters_.insert(characters_.end(), text.begin(), text.end());
  slots_[slot] = size();
  return size() - 1;
}

void TextPool::grow() {
  slots_.assign(slots_.empty() ? 64 : 2 * slots_.size(), 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::uint32_t id = 0; id < size(); ++id) {
    std::size_t slot = std::hash<std::string_view>()(view(id)) & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = id + 1;
  }
}

PickleValue PickleHeap::integer(std::int64_t value) {
  if (value >= kSmallest && value <= kLargest) {
    return {PickleValue::Kind::kInteger, static_cast<std::uint64_t>(value)};
  }
  wide_.push_back({static_cast<std::uint64_t>(value), value < 0});
  return {PickleValue::Kind::kWide, wide_.size() - 1};
}

PickleValue PickleHeap::unsigned_integer(std::uint64_t value) {
  if (value <= static_cast<std::uint64_t>(kLargest)) {
    return {PickleValue::Kind::kInteger, value};
  }
  wide_.push_back({value, false});
  return {PickleValue::Kind::kWide, wide_.size() - 1};
}

PickleValue PickleHeap::number(double value) {
  floats_.push_back(value);
  return {PickleValue::Kind::kFloat, floats_.size() - 1};
}

PickleValue PickleHeap::tuple(std::span<const PickleValue> elements) {
  tuples_.emplace_back(tuple_elements_.size(), elements.size());
  tuple_elements_.insert(tuple_elements_.end(), elements.begin(), elements.end());
  return {PickleValue::Kind::kTuple, tuples_.size() - 1};
}

PickleValue PickleHeap::make_list() {
  list_cells_.emplace_back();
  return {PickleValue::Kind::kList, list_cells_.size() - 1};
}

PickleValue PickleHeap::make_dict() {
  dict_cells_.emplace_back();
  return {PickleValue::Kind::kDict, dict_cells_.size() - 1};
}

std::vector<PickleValue> PickleHeap::elements(PickleValue value) const {
  std::vector<PickleValue> all;
  if (value.is(PickleValue::Kind::kTuple)) {
    const auto [first, count] = tuples_[value.index()];
    all.assign(tuple_elements_.begin() + first, tuple_elements_.begin() + first + count);
  } else if (value.is(PickleValue::Kind::kList)) {
    const Cell& cell = list_cells_[value.index()];
    if (cell.form != Form::kPlain) return all;
    for (const Run& run : lists_[cell.index]) {
      for (std::uint32_t i = 0; i < run.count; ++i) {
        all.push_back(i == 0 ? run.first
                             : PickleValue::record(run.first.tag(), run.first.index() + i));
      }
    }
  }
  return all;
}

const std::vector<PickleHeap::Pair>& PickleHeap::pairs(PickleValue dict) const {
  static const std::vector<Pair> kEmpty;
  if (!dict.is(PickleValue::Kind::kDict)) return kEmpty;
  const Cell& cell = dict_cells_[dict.index()];
  return cell.form == Form::kPlain ? dicts_[cell.index] : kEmpty;
}

PickleValue PickleHeap::folded(PickleValue value) const {
  const bool is_list = value.is(PickleValue::Kind::kList);
  if (!is_list && !value.is(PickleValue::Kind::kDict)) return value;
  const Cell& cell = is_list ? list_cells_[value.index()] : dict_cells_[value.index()];
  return cell.form == Form::kFolded ? PickleValue::record(cell.tag, cell.index) : value;
}

PickleValue PickleHeap::find(PickleValue dict, std::string_view key) const {
  PickleValue found;
  for (const auto& [name, value] : pairs(dict)) {
    if (name.is(PickleValue::Kind::kText) && texts.view(name.index()) == key) found = value;
  }
  return found;
}

bool PickleHeap::read_integer(PickleValue value, WideInteger& out) const {
  switch (value.kind()) {
    case PickleValue::Kind::kBool:
    case PickleValue::Kind::kInteger:
      out.magnitude = static_cast<std::uint64_t>(value.small_integer());
      out.negative = value.small_integer() < 0;
      return true;
    case PickleValue::Kind::kWide:
      out = wide_[value.index()];
      return true;
    default:
      return false;
  }
}

bool PickleHeap::read_number(PickleValue value, double& out) const {
  WideInteger integer;
  if (value.is(PickleValue::Kind::kFloat)) {
    out = floats_[value.index()];
    return true;
  }
  if (!read_integer(value, integer)) return false;
  out = integer.negative ? static_cast<double>(static_cast<std::int64_t>(integer.magnitude))
                         : static_cast<double>(integer.magnitude);
  return true;
}

}  // namespace lowtide
