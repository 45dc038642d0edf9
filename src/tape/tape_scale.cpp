// Tested by tests/tape/tape_scale_test.cpp.

#include "src/tape/tape_scale.h"

#include <algorithm>
#include <cmath>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

template <typename... Parts>
[[noreturn]] void differ(const Parts&... parts) {
  throw FormatError("LT0157",
                    concat("cannot go from one batch size to another: ", parts...,
                           ". Record both from the same program, with nothing else changed"));
}

void require_same_step(const Tape& first, const Tape& second) {
  for (std::size_t i = 0; i < std::min(first.ops.size(), second.ops.size()); ++i) {
    const OpId op{static_cast<std::uint32_t>(i)};
    const std::string& name = first.names[first.ops[i].name];
    const std::string& other = second.names[second.ops[i].name];
    if (name != other) differ("op ", i, " is ", name, " on one tape and ", other, " on the other");
    const auto same = [](std::span<const StorageId> a, std::span<const StorageId> b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    if (!same(first.reads(op), second.reads(op)) || !same(first.writes(op), second.writes(op)) ||
        first.ops[i].flags != second.ops[i].flags) {
      differ("op ", i, " (", name, ") has other inputs or outputs on the second tape");
    }
  }
  if (first.ops.size() != second.ops.size()) {
    differ("one tape has ", first.ops.size(), " ops and the other ", second.ops.size());
  }
  const std::size_t events = std::min(first.events.size(), second.events.size());
  for (std::size_t i = 0; i < events; ++i) {
    if (first.events[i].kind != second.events[i].kind ||
        first.events[i].index != second.events[i].index) {
      differ("the tapes part at event ", i, " of ", first.events.size());
    }
  }
  if (first.events.size() != second.events.size()) differ("one tape goes on where the other ends");
  if (first.storages.size() != second.storages.size() ||
      first.saved.size() != second.saved.size()) {
    differ("the tapes have different storages");
  }
}

}  // namespace

Tape tape_at_batch(const Tape& first, const Tape& second, std::uint64_t batch_size) {
  if (first.batch_size == 0 || second.batch_size == 0 || first.batch_size == second.batch_size) {
    throw UsageError("LT0156", concat("two tapes of different batch sizes are needed; these have ",
                                      first.batch_size, " and ", second.batch_size,
                                      " (0: not known). Give them with --batches 8,16"));
  }
  require_same_step(first, second);
  const auto width =
      static_cast<long double>(second.batch_size) - static_cast<long double>(first.batch_size);
  const auto way =
      static_cast<long double>(batch_size) - static_cast<long double>(first.batch_size);
  const auto at = [&](std::uint64_t a, std::uint64_t b) -> std::uint64_t {
    const long double slope = (static_cast<long double>(b) - static_cast<long double>(a)) / width;
    const long double value = static_cast<long double>(a) + way * slope;
    // A line through whole numbers may miss one by a rounding.
    const long double whole = std::ceil(value - 1e-6L);
    return whole <= 0 ? 0 : static_cast<std::uint64_t>(std::min(whole, 9.0e18L));
  };
  Tape tape = first;
  tape.batch_size = batch_size;
  for (std::size_t i = 0; i < tape.storages.size(); ++i) {
    tape.storages[i].bytes = at(first.storages[i].bytes, second.storages[i].bytes);
  }
  for (std::size_t i = 0; i < tape.ops.size(); ++i) {
    tape.ops[i].cost_ns = at(first.ops[i].cost_ns, second.ops[i].cost_ns);
    tape.ops[i].working_bytes = at(first.ops[i].working_bytes, second.ops[i].working_bytes);
  }
  return tape;
}

}  // namespace lowtide
