#include "src/train/dataset.h"

#include <doctest/doctest.h>

#include <map>

#include "tests/train/temporary_folder.h"

namespace lowtide {
namespace {

const std::string kHeader = "image_path,xmin,ymin,xmax,ymax,label\n";

// Pixel (x, y) is (x, y, 7): a crop shows where it was cut.
Image coordinates(int width, int height) {
  Image image(width, height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.at(x, y)[0] = std::uint8_t(x);
      image.at(x, y)[1] = std::uint8_t(y);
      image.at(x, y)[2] = 7;
    }
  }
  return image;
}

std::string voc(const std::string& image, int width, int height) {
  return "<annotation><filename>" + image + "</filename><size><width>" + std::to_string(width) +
         "</width><height>" + std::to_string(height) +
         "</height></size><object><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>5</xmax><ymax>6</ymax>"
         "</bndbox></object></annotation>";
}

Dataset one_photograph(int width, int height, std::vector<Box> boxes) {
  Dataset data;
  data.photographs.push_back({"a.png", coordinates(width, height), std::move(boxes)});
  return data;
}

}  // namespace

TEST_CASE("a folder gives its annotated images, XML before tables, and notes on the rest") {
  const TemporaryFolder folder;
  write_png(folder / "a.png", coordinates(20, 10));
  write_png(folder / "b.png", coordinates(30, 10));
  write_png(folder / "c.png", coordinates(8, 8));
  folder.write("a.xml", voc("a.png", 20, 10));
  folder.write("t.csv", kHeader + "a.png,1,1,2,2,Tree\nb.png,3,4,9,9,Tree\nb.png,1,1,2,2,Tree\n");
  folder.write("classes.csv", "Dead,0\n");
  const Dataset data = load_dataset(folder.path());
  REQUIRE(data.photographs.size() == 2);
  CHECK(data.photographs[0].name == "a.png");
  CHECK(data.photographs[0].boxes == std::vector<Box>{{1, 2, 5, 6}});
  CHECK(data.photographs[1].name == "b.png");
  CHECK(data.photographs[1].boxes == std::vector<Box>{{3, 4, 9, 9}, {1, 1, 2, 2}});
  CHECK(data.box_count() == 3);
  REQUIRE(data.notes.size() == 3);
  CHECK(data.notes[2] == "c.png left out: nothing annotates it");
}

TEST_CASE("an annotation of a TIFF takes the PNG of the same stem") {
  const TemporaryFolder folder;
  write_png(folder / "a.png", coordinates(20, 10));
  folder.write("a.xml", voc("a.tif", 20, 10));
  CHECK(load_dataset(folder.path()).photographs[0].name == "a.png");
}

TEST_CASE("an image without boxes is a photograph like others") {
  const TemporaryFolder folder;
  write_png(folder / "a.png", coordinates(20, 10));
  folder.write("t.csv", kHeader + "a.png,,,,,\n");
  const Dataset data = load_dataset(folder.path());
  CHECK(data.photographs.size() == 1);
  CHECK(data.box_count() == 0);
}

TEST_CASE("folders that cannot be trained on are refused with the way out") {
  const TemporaryFolder folder;
  const auto error = [&] { return error_of([&] { load_dataset(folder.path()); }); };
  CHECK(error_of([&] { load_dataset(folder / "absent"); }).find("[LT0515]") != std::string::npos);
  CHECK(error().find("[LT0516]") != std::string::npos);
  folder.write("a.xml", voc("a.tif", 20, 10));
  CHECK(error().find("'a.tif' is not in the folder") != std::string::npos);
  CHECK(error().find("[LT0517]") != std::string::npos);
  write_png(folder / "a.png", coordinates(10, 20));
  CHECK(error().find("20 x 10 pixels, and the image has 10 x 20") != std::string::npos);
  CHECK(error().find("[LT0513]") != std::string::npos);
  std::filesystem::remove(folder / "a.xml");
  folder.write("s.csv", kHeader + "a.png,1,1,2,2,Tree\n");
  folder.write("t.csv", kHeader + "a.png,1,1,2,2,Tree\n");
  CHECK(error().find("[LT0514]") != std::string::npos);
}

TEST_CASE("the fingerprint tells data apart by a pixel and by a box") {
  const TemporaryFolder folder;
  Image image = coordinates(20, 10);
  const auto fingerprint = [&](const std::string& row) {
    write_png(folder / "a.png", image);
    folder.write("t.csv", kHeader + row);
    return load_dataset(folder.path()).fingerprint;
  };
  const std::uint64_t first = fingerprint("a.png,1,1,2,2,Tree\n");
  CHECK(fingerprint("a.png,1,1,2,2,Dead\n") == first);
  CHECK(fingerprint("a.png,1,1,2,3,Tree\n") != first);
  image.at(3, 3)[0] ^= 1;
  CHECK(fingerprint("a.png,1,1,2,2,Tree\n") != first);
}

TEST_CASE("the crops of a step depend on seed and step alone") {
  const Dataset data = one_photograph(200, 150, {{20, 20, 60, 60}});
  const auto places = [&](std::uint64_t seed, std::int64_t step) {
    std::vector<std::uint8_t> seen;
    for (const Crop& crop :
         draw_crops(data, {.seed = seed, .step = step, .count = 8, .size = 50})) {
      seen.insert(seen.end(), crop.image.rgb.begin(), crop.image.rgb.begin() + 3);
    }
    return seen;
  };
  CHECK(places(1, 5) == places(1, 5));
  CHECK(places(1, 5) != places(1, 6));
  CHECK(places(1, 5) != places(2, 5));
}

TEST_CASE("boxes go with the pixels under them through cutting and mirroring") {
  const Dataset data = one_photograph(100, 80, {{30, 20, 50, 44}});
  int seen = 0;
  for (const Crop& crop : draw_crops(data, {.seed = 3, .count = 200, .size = 64})) {
    for (const Box& box : crop.boxes) {
      if (box.area() < 20 * 24 - 0.5f) continue;  // cut
      ++seen;
      const std::uint8_t* first = crop.image.at(int(box.x1), int(box.y1));
      const std::uint8_t* last = crop.image.at(int(box.x2) - 1, int(box.y2) - 1);
      CHECK(std::min(first[0], last[0]) == 30);
      CHECK(std::max(first[0], last[0]) == 49);
      CHECK(std::min(first[1], last[1]) == 20);
      CHECK(std::max(first[1], last[1]) == 43);
    }
  }
  CHECK(seen > 100);
}

TEST_CASE("a box that the edge cuts stays when three tenths of it are visible") {
  const Dataset data = one_photograph(300, 64, {{100, 10, 200, 30}});
  bool cut = false;
  for (const Crop& crop : draw_crops(data, {.seed = 9, .count = 300, .size = 64})) {
    for (const Box& box : crop.boxes) {
      CHECK(box.x2 - box.x1 >= 29.9f);
      CHECK(box.x1 >= 0);
      CHECK(box.x2 <= 64);
      cut = cut || box.x2 - box.x1 < 64;
    }
  }
  CHECK(cut);
}

TEST_CASE("a photograph smaller than the crop is filled up, and says how much of it is real") {
  const Dataset data = one_photograph(40, 30, {{5, 5, 15, 25}});
  for (const Crop& crop : draw_crops(data, {.seed = 1, .count = 16, .size = 64})) {
    CHECK(crop.image.width == 64);
    CHECK(crop.valid_width == 40);
    CHECK(crop.valid_height == 30);
    REQUIRE(crop.boxes.size() == 1);
    CHECK(crop.boxes[0].x2 <= 40);
    CHECK(crop.image.at(39, 29)[2] == 7);
    CHECK(crop.image.at(40, 29)[2] == 0);
  }
}

TEST_CASE("shrinking averages pixels and scales boxes") {
  Dataset data = one_photograph(5, 4, {{1, 1, 3, 3}, {0, 0, 5, 4}});
  const Dataset small = shrunk(data, 2);
  CHECK(small.photographs[0].image.width == 2);
  CHECK(small.photographs[0].image.height == 2);
  CHECK(small.photographs[0].image.at(1, 0)[0] == 3);  // (2 + 3 + 2 + 3 + 2) / 4
  CHECK(small.photographs[0].boxes == std::vector<Box>{{0.5f, 0.5f, 1.5f, 1.5f}, {0, 0, 2, 2}});
  CHECK(error_of([&] { shrunk(data, 6); }).find("Lower --shrink") != std::string::npos);
}

}  // namespace lowtide
