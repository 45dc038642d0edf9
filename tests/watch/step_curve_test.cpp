#include "src/watch/step_curve.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

namespace lowtide {
namespace {

constexpr std::uint32_t kNo = StepCurve::kNotHeld;

TEST_CASE("the peak falls by all of what is held when it comes and goes afterwards") {
  StepCurve curve;
  curve.begin(1000);
  curve.made(500);  // 1500: the peak
  curve.gone(500, kNo, 0);
  curve.gone(300, 7, 1);
  const auto groups = curve.end();
  CHECK(curve.peak_bytes() == 1500);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].origin == 7);
  CHECK(groups[0].fall_bytes == 300);
}

TEST_CASE("what goes before the peak saves nothing") {
  StepCurve curve;
  curve.begin(1000);
  curve.gone(300, 7, 1);
  curve.made(500);
  CHECK(curve.end().empty());
}

TEST_CASE("a second peak bounds the fall") {
  StepCurve curve;
  curve.begin(1000);
  curve.made(500);  // 1500
  curve.gone(500, kNo, 0);
  curve.gone(300, 7, 1);  // 700
  curve.made(700);        // 1400
  curve.gone(700, kNo, 2);
  const auto groups = curve.end();
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].fall_bytes == 100);
}

TEST_CASE("what goes in one burst is one group, named for what goes last") {
  StepCurve curve;
  curve.begin(1000);
  curve.made(10);
  curve.gone(100, 3, 5);
  curve.gone(50, kNo, 5);
  curve.gone(200, 4, 5);
  curve.gone(400, 9, 6);
  const auto groups = curve.end();
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].origin == 9);
  CHECK(groups[0].fall_bytes == 400);
  CHECK(groups[1].origin == 4);
  CHECK(groups[1].bytes == 300);
}

// Plain and slow: the curve once more without each group.
TEST_CASE("random steps: as running them without the group") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    struct Event {
      std::int64_t delta;
      int group;
    };
    std::vector<Event> events;
    std::int64_t live = 5000;
    StepCurve curve;
    curve.begin(5000);
    int group = -1;
    for (int i = 0; i < 40; ++i) {
      const std::int64_t bytes = 1 + static_cast<std::int64_t>(random() % 100);
      if (random() % 2 == 0) {
        curve.made(static_cast<Bytes>(bytes));
        events.push_back({bytes, -1});
      } else if (random() % 3 == 0) {
        ++group;
        for (int k = 0; k < 2; ++k) {
          curve.gone(static_cast<Bytes>(bytes), static_cast<std::uint32_t>(group),
                     static_cast<std::uint64_t>(group));
          events.push_back({-bytes, group});
        }
      } else {
        curve.gone(static_cast<Bytes>(bytes), kNo, 0);
        events.push_back({-bytes, -1});
      }
    }
    const auto peak_without = [&](int left_out) {
      std::int64_t begin = 5000;
      for (const Event& event : events) begin += event.group == left_out ? event.delta : 0;
      if (left_out < 0) begin = 5000;
      std::int64_t now = begin;
      std::int64_t peak = begin;
      for (const Event& event : events) {
        if (left_out >= 0 && event.group == left_out) continue;
        now += event.delta;
        peak = std::max(peak, now);
      }
      return peak;
    };
    live = peak_without(-1);
    std::map<std::uint32_t, Bytes> falls;
    for (const auto& one : curve.end()) falls[one.origin] = one.fall_bytes;
    CHECK(curve.peak_bytes() == static_cast<Bytes>(live));
    for (int g = 0; g <= group; ++g) {
      const std::int64_t fall = live - peak_without(g);
      CHECK(falls[static_cast<std::uint32_t>(g)] ==
            static_cast<Bytes>(std::max<std::int64_t>(fall, 0)));
    }
  }
}

}  // namespace
}  // namespace lowtide
