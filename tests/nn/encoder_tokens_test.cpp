#include "lowtide/encoder_tokens.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "lowtide/error.h"

namespace {

using lowtide::EncoderTokens;
using lowtide::flatten_feature_maps;
using lowtide::ImageSize;
using lowtide::SinePositionalEncoding;
using lowtide::UsageError;

template <typename Work>
void check_refused(const Work& work, const std::string& id, const std::string& part) {
  try {
    work();
    FAIL("not refused: ", part);
  } catch (const UsageError& error) {
    const std::string message = error.what();
    CHECK(error.id() == id);
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
}

// The formula, one element at a time, in double.
double sine_element(const at::Tensor& mask, std::int64_t channel, std::int64_t y, std::int64_t x,
                    std::int64_t num_feats) {
  const bool vertical = channel < num_feats;
  double count = 0;
  double last = 0;
  const std::int64_t length = mask.size(vertical ? 1 : 2);
  for (std::int64_t i = 0; i < length; ++i) {
    const bool padded = (vertical ? mask[0][i][x] : mask[0][y][i]).item<bool>();
    last += padded ? 0 : 1;
    count += padded || i > (vertical ? y : x) ? 0 : 1;
  }
  const double position = (count - 0.5) / (last + 1e-6) * 2 * M_PI;
  const std::int64_t k = channel % num_feats;
  const double angle =
      position / std::pow(10000.0, static_cast<double>(k / 2 * 2) / static_cast<double>(num_feats));
  return k % 2 == 0 ? std::sin(angle) : std::cos(angle);
}

}  // namespace

TEST_CASE("sine positions follow the formula at every valid pixel") {
  at::Tensor mask = at::zeros({1, 4, 6}, at::kBool);
  mask.slice(1, 3).fill_(true);
  mask.slice(2, 4).fill_(true);
  const at::Tensor pos = SinePositionalEncoding({.num_feats = 6})(mask);
  REQUIRE(pos.sizes() == at::IntArrayRef({1, 12, 4, 6}));
  REQUIRE((pos.scalar_type() == at::kFloat));
  for (std::int64_t channel = 0; channel < 12; ++channel) {
    for (std::int64_t y = 0; y < 3; ++y) {
      for (std::int64_t x = 0; x < 4; ++x) {
        CHECK(pos[0][channel][y][x].item<double>() ==
              doctest::Approx(sine_element(mask, channel, y, x, 6)).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("without normalizing, positions count from 1 whatever the image's size") {
  const at::Tensor mask = at::zeros({1, 2, 3}, at::kBool);
  const at::Tensor pos = SinePositionalEncoding({.num_feats = 2, .normalize = false})(mask);
  CHECK(pos[0][0][1][0].item<double>() == doctest::Approx(std::sin(2.0)));
  CHECK(pos[0][3][0][2].item<double>() == doctest::Approx(std::cos(3.0)));
}

TEST_CASE("options and masks that make no positions are refused") {
  check_refused([] { SinePositionalEncoding({.num_feats = 3}); }, "LT0427",
                "num_feats is 3, but must be positive and even");
  check_refused([] { SinePositionalEncoding({.num_feats = 0}); }, "LT0427", "num_feats is 0");
  check_refused([] { SinePositionalEncoding({.temperature = 0}); }, "LT0427",
                "temperature is 0, but must be above 0");
  check_refused([] { SinePositionalEncoding({.eps = -1}); }, "LT0427", "eps is -1");
  check_refused([] { SinePositionalEncoding({.scale = INFINITY}); }, "LT0427", "scale is inf");
  check_refused([] { SinePositionalEncoding({.offset = NAN}); }, "LT0427", "offset is nan");
  check_refused([] { SinePositionalEncoding()(at::zeros({1, 2, 2})); }, "LT0428",
                "padding_mask must be (bs, h, w) bool");
  check_refused([] { SinePositionalEncoding()(at::Tensor()); }, "LT0428", "but is undefined");
}

TEST_CASE("tokens are ordered level by level and row by row, with tables to find them") {
  const at::Tensor first = at::arange(2 * 8 * 2 * 3, at::kFloat).view({2, 8, 2, 3});
  const at::Tensor second = at::arange(2 * 8 * 1 * 2, at::kFloat).view({2, 8, 1, 2}) + 1000;
  at::Tensor embed = at::rand({2, 8});
  embed.set_requires_grad(true);
  const EncoderTokens tokens =
      flatten_feature_maps({first, second}, embed, {{16, 24}, {16, 24}}, {16, 24});
  REQUIRE(tokens.query.sizes() == at::IntArrayRef({2, 8, 8}));
  CHECK(tokens.query[1][4].equal(first.select(0, 1).select(1, 1).select(1, 1)));
  CHECK(tokens.query[0][7].equal(second.select(0, 0).select(1, 0).select(1, 1)));
  CHECK(tokens.spatial_shapes.equal(at::tensor({2, 3, 1, 2}, at::kLong).view({2, 2})));
  CHECK(tokens.level_start_index.equal(at::tensor({0, 6}, at::kLong)));
  CHECK(tokens.valid_ratios.equal(at::ones({2, 2, 2})));
  CHECK_FALSE(tokens.key_padding_mask.defined());

  const at::Tensor sine = SinePositionalEncoding({.num_feats = 4})(at::zeros({2, 1, 2}, at::kBool));
  CHECK(tokens.query_pos[0][7].equal(sine.select(0, 0).select(1, 0).select(1, 1) + embed[1]));
  tokens.query_pos.sum().backward();
  CHECK(embed.grad().equal(at::tensor({12.0F, 4.0F}).view({2, 1}).expand({2, 8})));
}

TEST_CASE("masks and valid ratios follow from the images' sizes by nearest resize") {
  // The padded batch is 16x24; the second image is 9x11 of it.
  const EncoderTokens tokens =
      flatten_feature_maps({at::zeros({2, 8, 4, 6}), at::zeros({2, 8, 2, 3})}, at::zeros({2, 8}),
                           {{16, 24}, {9, 11}}, {16, 24});
  REQUIRE(tokens.key_padding_mask.defined());
  CHECK_FALSE(tokens.key_padding_mask[0].any().item<bool>());
  const at::Tensor mask = tokens.key_padding_mask[1].slice(0, 0, 24).view({4, 6});
  for (std::int64_t y = 0; y < 4; ++y) {
    for (std::int64_t x = 0; x < 6; ++x) {
      CHECK(mask[y][x].item<bool>() == (y * 4 >= 9 || x * 4 >= 11));
    }
  }
  CHECK(
      at::allclose(tokens.valid_ratios[1], at::tensor({0.5F, 0.75F, 2.0F / 3, 1.0F}).view({2, 2})));
}

TEST_CASE("reference points are token centres over each level's valid part") {
  const at::Tensor shapes = at::tensor({2, 3, 1, 2}, at::kLong).view({2, 2});
  const at::Tensor ratios = at::tensor({0.5F, 1.0F, 1.0F, 0.25F}).view({1, 2, 2});
  const at::Tensor points = lowtide::encoder_reference_points(shapes, ratios);
  REQUIRE(points.sizes() == at::IntArrayRef({1, 8, 2, 2}));
  // Token 5 is row 1, column 2 of level 0.
  const double x = 2.5 / (0.5 * 3);
  const double y = 1.5 / (1.0 * 2);
  CHECK(points[0][5][0][0].item<double>() == doctest::Approx(x * 0.5));
  CHECK(points[0][5][0][1].item<double>() == doctest::Approx(y * 1.0));
  CHECK(points[0][5][1][0].item<double>() == doctest::Approx(x * 1.0));
  CHECK(points[0][5][1][1].item<double>() == doctest::Approx(y * 0.25));
  // Token 7 is column 1 of level 1.
  CHECK(points[0][7][0][0].item<double>() == doctest::Approx(1.5 / 2 * 0.5));
  CHECK(points[0][7][1][1].item<double>() == doctest::Approx(0.5 / 0.25 * 0.25));
}

TEST_CASE("maps that make no tokens are refused, naming the argument") {
  const at::Tensor map = at::zeros({1, 8, 2, 3});
  const at::Tensor embed = at::zeros({1, 8});
  const auto flatten = [&](const std::vector<at::Tensor>& maps, const at::Tensor& level_embed,
                           const std::vector<ImageSize>& images) {
    flatten_feature_maps(maps, level_embed, images, {16, 24});
  };
  check_refused([&] { flatten({}, embed, {{16, 24}}); }, "LT0428", "feature_maps[0]");
  check_refused([&] { flatten({map, at::zeros({2, 8, 1, 1})}, at::zeros({2, 8}), {{16, 24}}); },
                "LT0428", "feature_maps[1] must be (bs, C, h, w)");
  check_refused([&] { flatten({map}, at::zeros({2, 8}), {{16, 24}}); }, "LT0428",
                "level_embed must be (1, 8)");
  check_refused([&] { flatten({map}, embed, {}); }, "LT0428",
                "image_sizes has 0 entries, but feature_maps hold 1 images");
  check_refused([&] { flatten({map}, embed, {{17, 24}}); }, "LT0428",
                "image_sizes[0] is 17x24, but must be positive and within the batch's 16x24");
  check_refused([&] { flatten({map}, embed, {{0, 24}}); }, "LT0428", "image_sizes[0] is 0x24");
  check_refused([&] { flatten_feature_maps({map}, embed, {{1, 1}}, {0, 1}); }, "LT0428",
                "batch_size is 0x1");
  check_refused(
      [&] { flatten_feature_maps({map}, embed, {{1, 1}}, {1, 1}, SinePositionalEncoding()); },
      "LT0428", "num_feats 128, which makes 256 channels, but feature_maps have 8");
  check_refused([&] { flatten({at::zeros({1, 6, 2, 3})}, at::zeros({1, 6}), {{16, 24}}); },
                "LT0428", "need a multiple of 4");
}
