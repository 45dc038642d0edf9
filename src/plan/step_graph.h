#pragma once
// A trace as the planners see it: values instead of storages, each made once, with every use known.
//
//   const StepGraph graph(trace);
//   graph.reads(op);        // the values that op reads
//   graph.uses(value);      // events at which the step itself needs it, ascending
//
// A value is the contents of a storage between two writes. A write in place ends one value
// (`consumed`) and makes the next in the same block. A view is a value without bytes in another's
// block: it goes with its root and is made again by its own op.
//
// A value is fixed when nothing can make it again: a source, the output of an op that reads what
// will be gone when it would have to run again, or that overwrites a source. Others may be dropped
// at any time outside of the program's holds.
//
// Values and ops are plain indexes here: ops are those of the trace, values are counted from 0 in
// the order of their appearance. Internal to the planners.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/trace.h"

namespace lowtide {

class StepGraph {
 public:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Value {
    Bytes bytes = 0;
    std::uint32_t root = 0;          // the value whose block it lives in; itself unless a view
    std::uint32_t producer = kNone;  // kNone: a source
    std::uint32_t born = 0;          // event
    std::uint32_t gone_at = kNone;   // event that overwrites or frees it
    std::uint32_t last_need = 0;     // after this event neither it nor what is made from it is used
    bool fixed = false;
    StorageId storage;
    std::uint32_t version = 0;  // of the storage: how often it had been written before
  };
  struct Op {
    std::uint64_t cost_ns = 0;
    Bytes working_bytes = 0;
    std::uint32_t event = 0;
    bool repeatable = true;
  };
  // What a trace event asks for.
  struct Step {
    enum class Kind : std::uint8_t { kRun, kUse, kHold, kUnhold, kSource, kFree, kNothing };
    Kind kind = Kind::kNothing;
    std::uint32_t index = 0;  // of an op for kRun, else of a value
  };

  explicit StepGraph(const Trace& trace);

  std::span<const Value> values() const { return values_; }
  std::span<const Op> ops() const { return ops_; }
  std::span<const Step> steps() const { return steps_; }  // one for each event
  std::uint32_t end() const { return static_cast<std::uint32_t>(steps_.size()); }

  // Without doubles. What an op overwrites it also reads.
  std::span<const std::uint32_t> reads(std::uint32_t op) const { return reads_.row(op); }
  std::span<const std::uint32_t> writes(std::uint32_t op) const { return writes_.row(op); }
  std::span<const std::uint32_t> consumed(std::uint32_t op) const { return consumed_.row(op); }
  std::span<const std::uint32_t> readers(std::uint32_t value) const { return readers_.row(value); }
  std::span<const std::uint32_t> views(std::uint32_t root) const { return views_.row(root); }
  // Events, ascending; end() for what must be there at the end.
  std::span<const std::uint32_t> uses(std::uint32_t value) const { return uses_.row(value); }
  // A slot is the time of a value before one of its uses, in their order; the last is that after
  // all. Slots of all values are numbered through.
  std::uint32_t first_slot(std::uint32_t value) const { return uses_.offset(value) + value; }
  std::uint32_t slot_count() const {
    return first_slot(static_cast<std::uint32_t>(values_.size()));
  }
  // Time of the step's own ops before each event, [0, end()].
  std::span<const std::uint64_t> plain_ns_before() const { return plain_ns_before_; }
  std::uint64_t plain_ns() const { return plain_ns_before_.back(); }

 private:
  class Rows {
   public:
    void build(std::uint32_t rows,
               const std::vector<std::pair<std::uint32_t, std::uint32_t>>& pairs);
    std::span<const std::uint32_t> row(std::uint32_t i) const {
      return {items_.data() + first_[i], first_[i + 1] - first_[i]};
    }

    std::uint32_t offset(std::uint32_t i) const { return first_[i]; }

   private:
    std::vector<std::uint32_t> first_;
    std::vector<std::uint32_t> items_;
  };

  void find_fixed();

  std::vector<Value> values_;
  std::vector<Op> ops_;
  std::vector<Step> steps_;
  Rows reads_;
  Rows writes_;
  Rows consumed_;
  Rows readers_;
  Rows views_;
  Rows uses_;
  std::vector<std::uint64_t> plain_ns_before_;
};

}  // namespace lowtide
