#pragma once
// Live bytes over one step, and by how much the peak would fall if some blocks had been freed
// before the step began.
//
//   StepCurve curve;
//   curve.begin(live_bytes);
//   curve.made(4096);
//   curve.gone(4096, StepCurve::kNotHeld, 0, 0);
//   for (const StepCurve::Group& group : curve.end()) ... group.fall_bytes
//
// A held block is one from an earlier step that this step never reads. Those that go in one burst
// (nothing runs in between) make a group: what one `del` would have freed, a tensor and all that
// its graph saved. The fall is exact: the highest of what the curve would have been before the
// group went, and what it was afterwards.

#include <cstdint>
#include <vector>

#include "lowtide/bytes.h"

namespace lowtide {

class StepCurve {
 public:
  static constexpr std::uint32_t kNotHeld = ~std::uint32_t{0};
  // A step with more is not looked at.
  static constexpr std::size_t kMostEvents = std::size_t{1} << 20;

  struct Group {
    std::uint32_t origin = 0;  // of the block that went last: the tensor that held the others
    Bytes bytes = 0;
    Bytes fall_bytes = 0;
  };

  void begin(Bytes live_bytes);
  void made(Bytes bytes);
  // `origin`: of a held block, else kNotHeld. `burst`: equal for what goes in one burst.
  void gone(Bytes bytes, std::uint32_t origin, std::uint64_t burst);
  // The groups that would make the peak fall, largest first. Nothing after too many events.
  std::vector<Group> end();
  Bytes peak_bytes() const { return peak_; }  // after end()

 private:
  struct Event {
    std::int64_t delta;
    std::uint32_t group;  // kNotHeld: none
  };
  Bytes begin_ = 0;
  Bytes peak_ = 0;
  std::uint64_t burst_ = 0;
  bool has_burst_ = false;
  std::vector<Event> events_;
  std::vector<Group> groups_;
};

}  // namespace lowtide
