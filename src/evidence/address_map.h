#pragma once
// From device addresses to rows, for passes over millions of events.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lowtide {

// Open addressing with linear probing; removal leaves no gravestones (later entries move up).
class AddressMap {
 public:
  static constexpr std::uint32_t kAbsent = 0xffffffffu;

  std::uint32_t find(std::uint64_t address) const {
    if (slots_.empty()) return kAbsent;
    const std::size_t at = place(address);
    return slots_[at].row;
  }

  // Replaces the row when the address is there already. `row` is not kAbsent.
  void put(std::uint64_t address, std::uint32_t row) {
    if (slots_.size() < 2 * (count_ + 1)) grow();
    Slot& slot = slots_[place(address)];
    if (slot.row == kAbsent) ++count_;
    slot = {address, row};
  }

  // Removes the address and returns its row; kAbsent when it is not there.
  std::uint32_t take(std::uint64_t address) {
    if (slots_.empty()) return kAbsent;
    std::size_t hole = place(address);
    const std::uint32_t row = slots_[hole].row;
    if (row == kAbsent) return row;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = (hole + 1) & mask; slots_[at].row != kAbsent; at = (at + 1) & mask) {
      const std::size_t home = hash(slots_[at].address) & mask;
      if (((at - home) & mask) >= ((at - hole) & mask)) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole].row = kAbsent;
    --count_;
    return row;
  }

  std::size_t size() const { return count_; }

 private:
  struct Slot {
    std::uint64_t address = 0;
    std::uint32_t row = kAbsent;
  };

  static std::size_t hash(std::uint64_t address) {
    const std::uint64_t mixed = (address ^ (address >> 32)) * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(mixed ^ (mixed >> 32));
  }

  std::size_t place(std::uint64_t address) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash(address) & mask;
    while (slots_[at].row != kAbsent && slots_[at].address != address) at = (at + 1) & mask;
    return at;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.row != kAbsent) slots_[place(slot.address)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace lowtide
