#include "src/train/average_precision.h"

#include <doctest/doctest.h>

namespace lowtide {
namespace {

const Box kA{0, 0, 10, 10};
const Box kB{20, 0, 30, 10};
const Box kC{40, 0, 50, 10};
const Box kNowhere{100, 100, 110, 110};

}  // namespace

TEST_CASE("overlap is intersection over union") {
  CHECK(overlap(kA, {5, 0, 15, 10}) == doctest::Approx(50.0 / 150));
  CHECK(overlap(kA, kA) == 1);
  CHECK(overlap(kA, {10, 0, 20, 10}) == 0);
  CHECK(overlap({1, 1, 1, 1}, {1, 1, 1, 1}) == 0);
}

TEST_CASE("detections that equal the truth have an average precision of one") {
  const auto ap = average_precision({{{kA, 0.9f}, {kB, 0.2f}}}, {{kA, kB}}, 0.5f);
  CHECK(ap.value == 1);
  CHECK(ap.recall == 1);
  CHECK(ap.true_boxes == 2);
}

TEST_CASE("average precision of a hand-worked ranking") {
  // right, wrong, right, wrong; of three true boxes two are found.
  // precision at the hits: 1/1 and 2/3; area = 1/3 * 1 + 1/3 * 2/3 = 5/9.
  const auto ap = average_precision({{{kA, 0.9f}, {kNowhere, 0.8f}, {kB, 0.7f}, {kNowhere, 0.6f}}},
                                    {{kA, kB, kC}}, 0.5f);
  CHECK(ap.value == doctest::Approx(5.0 / 9));
  CHECK(ap.recall == doctest::Approx(2.0 / 3));
  // F1 is 2pr/(p+r): 1/2, 2/5, 2/3, 4/7; the best is at the third detection.
  CHECK(ap.best_f1 == doctest::Approx(2.0 / 3));
  CHECK(ap.best_score == 0.7f);
}

TEST_CASE("precision is raised to what a deeper cut reaches") {
  // wrong, right, right of two: precision 0, 1/2, 2/3; the 1/2 is lifted to 2/3.
  const auto ap = average_precision({{{kNowhere, 0.9f}, {kA, 0.8f}, {kB, 0.7f}}}, {{kA, kB}}, 0.5f);
  CHECK(ap.value == doctest::Approx(2.0 / 3));
}

TEST_CASE("a second detection of a box is wrong") {
  const auto ap = average_precision({{{kA, 0.9f}, {kA, 0.8f}, {kB, 0.7f}}}, {{kA, kB}}, 0.5f);
  CHECK(ap.value == doctest::Approx(0.5 + 0.5 * 2 / 3));
}

TEST_CASE("detections of all images are ranked together") {
  // By score: image 1 right, image 0 wrong, image 0 right.
  const auto ap =
      average_precision({{{kNowhere, 0.8f}, {kA, 0.1f}}, {{kB, 0.9f}}}, {{kA}, {kB}}, 0.5f);
  CHECK(ap.value == doctest::Approx(0.5 + 0.5 * 2 / 3));
}

TEST_CASE("a box of another image does not count") {
  CHECK(average_precision({{{kA, 0.9f}}, {}}, {{}, {kA}}, 0.5f).value == 0);
}

TEST_CASE("an overlap of exactly the threshold is enough") {
  CHECK(average_precision({{{{0, 0, 10, 5}, 0.5f}}}, {{kA}}, 0.5f).value == 1);
  CHECK(average_precision({{{{0, 0, 10, 4.9f}, 0.5f}}}, {{kA}}, 0.5f).value == 0);
}

TEST_CASE("nothing to find, or nothing found, is zero") {
  CHECK(average_precision({{{kA, 0.5f}}}, {{}}, 0.5f).value == 0);
  CHECK(average_precision({{}}, {{kA}}, 0.5f).value == 0);
}

TEST_CASE("pruning keeps the strongest of overlapping boxes and all others") {
  const auto kept = prune_overlapping(
      {{{1, 0, 11, 10}, 0.5f}, {kA, 0.9f}, {kB, 0.1f}, {{0, 1, 10, 11}, 0.6f}}, 0.5f);
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].box == kA);
  CHECK(kept[1].box == kB);
}

}  // namespace lowtide
