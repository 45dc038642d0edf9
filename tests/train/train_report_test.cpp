// The values of a run and their forms; options and the drawing of boxes, which need no training.
#include "src/train/train_report.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>

#include <pugixml.hpp>

#include "src/train/drawing.h"
#include "src/train/interrupt.h"
#include "tests/train/temporary_folder.h"

namespace lowtide {
namespace {

TrainReport some_report(int steps) {
  TrainReport report;
  for (int i = 0; i < steps; ++i) {
    report.steps.push_back({.step = i, .loss = double(steps - i), .seconds = 0.1 * (i % 3 + 1)});
  }
  return report;
}

}  // namespace

TEST_CASE("first and last loss are means of ten steps") {
  const TrainReport report = some_report(100);
  CHECK(report.first_loss() == doctest::Approx(95.5));
  CHECK(report.last_loss() == doctest::Approx(5.5));
  CHECK(report.median_step_seconds() == doctest::Approx(0.2));
  CHECK(some_report(4).first_loss() == doctest::Approx(2.5));
  CHECK(some_report(0).last_loss() == 0);
}

TEST_CASE("the JSON report holds every step and the peak by kind") {
  TrainReport report = some_report(12);
  report.peak[MemoryKind::kParameters] = 100;
  report.peak[MemoryKind::kSaved] = 50;
  report.precision.value = 0.25;
  const Json json = parse_json(to_text(to_json(report)));
  CHECK(json.at("loss").at("ratio").as_double() == doctest::Approx(5.5 / 7.5));
  CHECK(json.at("training_images").at("ap50").as_double() == 0.25);
  CHECK(json.at("peak_bytes").at("parameters").as_uint64() == 100);
  CHECK(json.at("peak_bytes").at("total").as_uint64() == 150);
  CHECK(json.at("steps").as_array().size() == 12);
  report.interrupted = true;
  CHECK(to_json(report).find("training_images") == nullptr);
}

TEST_CASE("the loss curve is XML with a point for each step") {
  for (const int steps : {0, 1, 7, 500}) {
    const std::string svg = loss_curve_svg(some_report(steps).steps);
    pugi::xml_document document;
    REQUIRE(document.load_buffer(svg.data(), svg.size()));
    const std::string points = document.child("svg").child("polyline").attribute("points").value();
    CHECK(std::count(points.begin(), points.end(), ',') == steps);
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg.find("inf") == std::string::npos);
  }
}

TEST_CASE("a comparison is equal only without any difference") {
  CompareReport report;
  CHECK(report.equal());
  report.largest_gradient_difference = 1e-30;
  CHECK_FALSE(report.equal());
  CHECK_FALSE(to_json(report).at("equal").as_bool());
}

TEST_CASE("settings survive JSON, and an impossible one is refused with its range") {
  TrainOptions options;
  options.steps = 7;
  options.learning_rate = 0.1 + 0.2;
  options.seed = 123456789012345;
  const TrainSettings settings = settings_for(options);
  CHECK(settings_from_json(parse_json(to_text(to_json(settings)))) == settings);
  options.batch = 0;
  CHECK(error_of([&] { settings_for(options); }).find("--batch 0: it must be from 1") !=
        std::string::npos);
  options.batch = 1;
  options.width = 100;
  CHECK(error_of([&] { settings_for(options); }).find("128 is the next") != std::string::npos);
}

TEST_CASE("resuming keeps the stored settings and refuses others") {
  TrainSettings stored;
  stored.crop = 96;
  TrainOptions options;
  CHECK(settings_for_resuming(options, stored) == stored);
  options.steps = 1000;
  options.learning_rate = 1e-4;
  CHECK(settings_for_resuming(options, stored).steps == 1000);
  options.crop = 128;
  CHECK(error_of([&] {
          settings_for_resuming(options, stored);
        }).find("--crop 128: the checkpoint was made with 96") != std::string::npos);
}

TEST_CASE("the learning rate rises over twenty steps and falls to nothing") {
  CHECK(rate_factor(0, 1000) == doctest::Approx(0.05));
  CHECK(rate_factor(19, 1000) == doctest::Approx(1).epsilon(0.01));
  CHECK(rate_factor(500, 1000) == doctest::Approx(0.5));
  CHECK(rate_factor(999, 1000) < 1e-5);
}

TEST_CASE("a box is drawn on its edge and nowhere else") {
  Image image(40, 30);
  draw_box(image, {10, 5, 30, 20}, {255, 0, 0}, 2);
  CHECK(image.at(20, 5)[0] == 255);
  CHECK(image.at(10, 12)[0] == 255);
  CHECK(image.at(29, 12)[0] == 255);
  CHECK(image.at(20, 19)[0] == 255);
  CHECK(image.at(20, 12)[0] == 0);
  CHECK(image.at(20, 25)[0] == 0);
  draw_box(image, {-100, -100, 400, 300}, {0, 255, 0}, 2);  // outside: nothing to draw
  CHECK(image.at(0, 0)[1] == 0);
}

TEST_CASE("found, wrong and missed boxes have colours of their own") {
  Image image(60, 40);
  const Image drawn = draw_detections(image, {{{2, 2, 12, 12}, 0.9f}, {{42, 2, 52, 12}, 0.8f}},
                                      {{2, 2, 12, 12}, {22, 2, 32, 12}});
  const auto at = [&](int x, int y) {
    const std::uint8_t* pixel = drawn.at(x, y);
    return std::vector<int>{pixel[0], pixel[1], pixel[2]};
  };
  CHECK(at(7, 2) == std::vector<int>{90, 255, 90});
  CHECK(at(47, 2) == std::vector<int>{255, 130, 20});
  CHECK(at(27, 2) == std::vector<int>{255, 255, 255});
}

TEST_CASE("an interrupt becomes a question once, and handlers come back") {
  struct sigaction before{};
  sigaction(SIGINT, nullptr, &before);
  {
    const InterruptWatch watch;
    CHECK_FALSE(watch.requested());
    raise(SIGINT);
    CHECK(watch.requested());
    struct sigaction now{};
    sigaction(SIGINT, nullptr, &now);
    const bool ends_the_process = now.sa_handler == SIG_DFL;
    CHECK(ends_the_process);
  }
  {
    const InterruptWatch watch;
    CHECK_FALSE(watch.requested());
    raise(SIGTERM);
    CHECK(watch.requested());
  }
  struct sigaction after{};
  sigaction(SIGINT, nullptr, &after);
  const bool as_before = after.sa_handler == before.sa_handler;
  CHECK(as_before);
}

}  // namespace lowtide
