#pragma once
// Photographs in memory: 8-bit RGB, read from PNG and JPEG, written as PNG.
//
//   Image photo = read_image("plot.jpg");
//   photo.at(x, y)[0] = 255;              // red of one pixel
//   write_png("marked.png", photo);
//
// Greyscale, palette, alpha and 16-bit files are turned into 8-bit RGB (alpha over black). The
// orientation note that cameras put into JPEG files is not applied: boxes are given in stored
// pixels. TIFF is not read.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace lowtide {

struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;  // height * width * 3, rows from the top

  Image() = default;
  Image(int width_pixels, int height_pixels);  // black
  std::uint8_t* at(int x, int y) { return &rgb[(std::size_t(y) * width + x) * 3]; }
  const std::uint8_t* at(int x, int y) const { return &rgb[(std::size_t(y) * width + x) * 3]; }
};

// True when the name ends in .png, .jpg or .jpeg, in any case.
bool is_readable_image_name(const std::filesystem::path& file);

// Reads a PNG or JPEG file; which one is decided by its first bytes, not by its name.
// Throws IoError (LT0501) when the file cannot be opened, FormatError LT0502 for another format,
// LT0503 for a damaged or cut file and LT0504 for one of more than 100 million pixels.
Image read_image(const std::filesystem::path& file);

// Writes `image` in one piece: readers see the old file or the whole new one.
// Throws IoError (LT0505).
void write_png(const std::filesystem::path& file, const Image& image);

// Writes text or other bytes in the same way. Throws IoError (LT0505).
void write_whole_file(const std::filesystem::path& file, std::string_view bytes);

}  // namespace lowtide
