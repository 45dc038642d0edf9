#include "src/train/image.h"

#include <doctest/doctest.h>
#include <jpeglib.h>
#include <png.h>

#include <cmath>
#include <cstdlib>

#include "src/train/random_stream.h"
#include "tests/train/temporary_folder.h"

namespace lowtide {
namespace {

Image pattern(int width, int height) {
  Image image(width, height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.at(x, y)[0] = std::uint8_t(x * 5);
      image.at(x, y)[1] = std::uint8_t(y * 3);
      image.at(x, y)[2] = std::uint8_t(x + y);
    }
  }
  return image;
}

void write_jpeg(const std::filesystem::path& path, Image image) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  jpeg_stdio_dest(&jpeg, file);
  jpeg.image_width = JDIMENSION(image.width);
  jpeg.image_height = JDIMENSION(image.height);
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 95, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = image.at(0, int(jpeg.next_scanline));
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::fclose(file);
}

// Reads each prefix of `bytes` and the bytes with one of them changed: an error or an image of a
// sane size, never anything else.
void damage(const TemporaryFolder& folder, const std::string& bytes) {
  int refused = 0;
  RandomStream random(1, 2, 3);
  for (int trial = 0; trial < 300; ++trial) {
    std::string damaged = bytes;
    if (trial % 2 == 0) {
      damaged.resize(random.below(bytes.size()));
    } else {
      damaged[random.below(bytes.size())] ^= char(1 + random.below(255));
    }
    const auto file = folder.write("damaged", damaged);
    const std::string error = error_of([&] {
      const Image image = read_image(file);
      CHECK(image.rgb.size() == std::size_t(image.width) * std::size_t(image.height) * 3);
    });
    if (error == "none") continue;
    ++refused;
    CHECK_MESSAGE(error.find("[LT050") != std::string::npos, error);
    CHECK(error.find("damaged") != std::string::npos);
  }
  CHECK(refused > 140);
}

}  // namespace

TEST_CASE("a picture written as PNG reads back the same") {
  const TemporaryFolder folder;
  const Image image = pattern(37, 23);
  write_png(folder / "a.png", image);
  const Image read = read_image(folder / "a.png");
  CHECK(read.width == 37);
  CHECK(read.height == 23);
  CHECK(read.rgb == image.rgb);
}

TEST_CASE("a JPEG reads back nearly the same, whatever its name") {
  const TemporaryFolder folder;
  Image image(40, 30);
  for (int y = 0; y < 30; ++y) {
    for (int x = 0; x < 40; ++x) image.at(x, y)[0] = std::uint8_t(x * 4);
  }
  write_jpeg(folder / "a.png", image);
  const Image read = read_image(folder / "a.png");
  REQUIRE(read.width == 40);
  REQUIRE(read.height == 30);
  int worst = 0;
  for (std::size_t i = 0; i < read.rgb.size(); ++i) {
    worst = std::max(worst, std::abs(int(read.rgb[i]) - int(image.rgb[i])));
  }
  CHECK(worst < 40);
}

TEST_CASE("a greyscale PNG with transparency becomes RGB over black") {
  const TemporaryFolder folder;
  png_image control{};
  control.version = PNG_IMAGE_VERSION;
  control.width = 2;
  control.height = 1;
  control.format = PNG_FORMAT_GA;
  const std::uint8_t pixels[] = {200, 255, 200, 0};
  REQUIRE(png_image_write_to_file(&control, (folder / "g.png").c_str(), 0, pixels, 0, nullptr) !=
          0);
  CHECK(read_image(folder / "g.png").rgb == std::vector<std::uint8_t>{200, 200, 200, 0, 0, 0});
}

TEST_CASE("a damaged PNG is an error, not a crash") {
  const TemporaryFolder folder;
  write_png(folder / "a.png", pattern(20, 20));
  damage(folder, read_file(folder / "a.png"));
}

TEST_CASE("a JPEG that is cut short is an error, not grey pixels") {
  const TemporaryFolder folder;
  write_jpeg(folder / "a.jpg", pattern(64, 64));
  const std::string bytes = read_file(folder / "a.jpg");
  for (const double share : {0.02, 0.3, 0.6, 0.9}) {
    const auto file =
        folder.write("cut.jpg", bytes.substr(0, std::size_t(double(bytes.size()) * share)));
    CHECK(error_of([&] { read_image(file); }).find("[LT0503]") != std::string::npos);
  }
}

TEST_CASE("a JPEG with a changed byte is read or refused, never a crash") {
  const TemporaryFolder folder;
  write_jpeg(folder / "a.jpg", pattern(32, 32));
  const std::string bytes = read_file(folder / "a.jpg");
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::string damaged = bytes;
    damaged[i] = char(damaged[i] ^ 0x5a);
    const auto file = folder.write("damaged.jpg", damaged);
    const std::string error = error_of([&] { read_image(file); });
    CHECK((error == "none" || error.find("[LT050") != std::string::npos));
  }
}

TEST_CASE("files that are no images are refused with the way out") {
  const TemporaryFolder folder;
  CHECK(error_of([&] { read_image(folder / "absent.png"); }).find("[LT0501]") != std::string::npos);
  for (const std::string& bytes : {std::string(), std::string("II*\0", 4), std::string("hello")}) {
    const std::string error = error_of([&] { read_image(folder.write("x.png", bytes)); });
    CHECK(error.find("Convert it to PNG") != std::string::npos);
    CHECK(error.find("[LT0502]") != std::string::npos);
  }
}

TEST_CASE("an image of too many pixels is refused before it is unpacked") {
  const TemporaryFolder folder;
  write_png(folder / "a.png", pattern(4, 4));
  std::string bytes = read_file(folder / "a.png");
  // Width and height stand at offset 16; the checksum of that chunk must fit.
  const auto put = [&](std::size_t at, std::uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes[at + std::size_t(i)] = char(value >> (24 - 8 * i));
  };
  put(16, 60000);
  put(20, 60000);
  std::uint32_t checksum = 0xffffffffu;
  for (std::size_t i = 12; i < 29; ++i) {
    checksum ^= std::uint8_t(bytes[i]);
    for (int bit = 0; bit < 8; ++bit) {
      checksum = (checksum >> 1) ^ ((checksum & 1u) != 0 ? 0xedb88320u : 0u);
    }
  }
  put(29, ~checksum);
  const auto file = folder.write("huge.png", bytes);
  CHECK(error_of([&] { read_image(file); }).find("[LT0504]") != std::string::npos);
}

TEST_CASE("a picture that cannot be written leaves nothing behind") {
  const TemporaryFolder folder;
  const auto place = folder / "missing/a.png";
  CHECK(error_of([&] { write_png(place, pattern(3, 3)); }).find("[LT0505]") != std::string::npos);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("names of images are told by their ending, in any case") {
  CHECK(is_readable_image_name("a.PNG"));
  CHECK(is_readable_image_name("b.b.jpeg"));
  CHECK_FALSE(is_readable_image_name("a.tif"));
  CHECK_FALSE(is_readable_image_name("png"));
}

}  // namespace lowtide
