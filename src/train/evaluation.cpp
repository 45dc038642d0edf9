// Tested by tests/train/trainer_test.cpp.
#include "src/train/evaluation.h"

#include <ATen/ops/sigmoid.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

namespace lowtide {
namespace {

constexpr std::size_t kMostPerTile = 100;
constexpr int kTilesAtOnce = 8;

// Where tiles of `tile` pixels start so that they cover `length` and overlap by a quarter at least.
std::vector<int> tile_starts(int length, int tile) {
  const int last = std::max(0, length - tile);
  const int stride = std::max(1, tile * 3 / 4);
  const int count = (last + stride - 1) / stride + 1;
  std::vector<int> starts;
  for (int i = 0; i < count; ++i) {
    starts.push_back(count == 1 ? 0 : int(std::int64_t{last} * i / (count - 1)));
  }
  return starts;
}

struct Tile {
  Crop crop;
  int x = 0;
  int y = 0;
  Box own;  // centres in it count, in pixels of the tile
};

std::vector<Tile> cut_tiles(const Image& image, int size) {
  const std::vector<int> xs = tile_starts(image.width, size);
  const std::vector<int> ys = tile_starts(image.height, size);
  // Half way into the overlap with each neighbour; the border of the photograph belongs to its
  // tile.
  const auto begin = [&](const std::vector<int>& starts, std::size_t i) {
    return i == 0 ? 0.0f : float(starts[i - 1] + size - starts[i]) / 2;
  };
  const auto end = [&](const std::vector<int>& starts, std::size_t i) {
    return i + 1 == starts.size() ? float(size) : float(starts[i + 1] - starts[i] + size) / 2;
  };
  std::vector<Tile> tiles;
  for (std::size_t row = 0; row < ys.size(); ++row) {
    for (std::size_t column = 0; column < xs.size(); ++column) {
      tiles.push_back({cut_crop(image, xs[column], ys[row], size),
                       xs[column],
                       ys[row],
                       {begin(xs, column), begin(ys, row), end(xs, column), end(ys, row)}});
    }
  }
  return tiles;
}

// The detections of tile `index` of a batch, in pixels of the photograph.
std::vector<ScoredBox> read_tile(const Predictions& found, std::int64_t index, const Tile& tile) {
  const std::int64_t tokens = found.logits.size(1);
  const at::Tensor scores = at::sigmoid(found.logits[index]).contiguous();
  const at::Tensor boxes = found.boxes[index].contiguous();
  const at::Tensor usable = found.usable[index].contiguous();
  const auto w = float(tile.crop.valid_width);
  const auto h = float(tile.crop.valid_height);
  std::vector<ScoredBox> detections;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (!usable.const_data_ptr<bool>()[t]) continue;
    const float* box = boxes.const_data_ptr<float>() + 4 * t;
    const float x = box[0] * w;
    const float y = box[1] * h;
    if (x < tile.own.x1 || x >= tile.own.x2 || y < tile.own.y1 || y >= tile.own.y2) continue;
    const Box cut{std::max(0.0f, x - box[2] * w / 2), std::max(0.0f, y - box[3] * h / 2),
                  std::min(w, x + box[2] * w / 2), std::min(h, y + box[3] * h / 2)};
    detections.push_back({{cut.x1 + float(tile.x), cut.y1 + float(tile.y), cut.x2 + float(tile.x),
                           cut.y2 + float(tile.y)},
                          scores.const_data_ptr<float>()[t]});
  }
  std::stable_sort(detections.begin(), detections.end(),
                   [](const ScoredBox& a, const ScoredBox& b) { return a.score > b.score; });
  if (detections.size() > kMostPerTile) detections.resize(kMostPerTile);
  return detections;
}

}  // namespace

std::vector<std::vector<ScoredBox>> detect_all(Detector& detector, const Dataset& data, int size) {
  const c10::NoGradGuard no_grad;
  detector.set_training(false);
  std::vector<std::vector<ScoredBox>> all;
  for (const Photograph& photograph : data.photographs) {
    const std::vector<Tile> tiles = cut_tiles(photograph.image, size);
    std::vector<ScoredBox> found;
    for (std::size_t first = 0; first < tiles.size(); first += kTilesAtOnce) {
      const std::size_t last = std::min(tiles.size(), first + kTilesAtOnce);
      std::vector<Crop> crops;
      for (std::size_t i = first; i < last; ++i) crops.push_back(tiles[i].crop);
      const Predictions predictions = detector.forward(make_batch(crops));
      for (std::size_t i = first; i < last; ++i) {
        const auto of_tile = read_tile(predictions, std::int64_t(i - first), tiles[i]);
        found.insert(found.end(), of_tile.begin(), of_tile.end());
      }
    }
    all.push_back(prune_overlapping(std::move(found), 0.5f));
  }
  detector.set_training(true);
  return all;
}

std::vector<std::vector<Box>> truth_of(const Dataset& data) {
  std::vector<std::vector<Box>> truth;
  for (const Photograph& photograph : data.photographs) truth.push_back(photograph.boxes);
  return truth;
}

std::vector<ScoredBox> above_score(const std::vector<ScoredBox>& boxes, float least_score) {
  std::vector<ScoredBox> kept;
  std::copy_if(boxes.begin(), boxes.end(), std::back_inserter(kept),
               [&](const ScoredBox& box) { return box.score >= least_score; });
  return kept;
}

}  // namespace lowtide
