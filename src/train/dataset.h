#pragma once
// The photographs to train on, with their boxes, and the crops that a step sees.
//
//   Dataset data = load_dataset(find_default_data());
//   std::vector<Crop> batch = draw_crops(data, {.seed = 7, .step = 0, .count = 2, .size = 256});
//
// The crops of a step are a pure function of seed and step: there is no generator to save, and a
// run that resumes sees what the uninterrupted one would have seen.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/train/geometry.h"
#include "src/train/image.h"

namespace lowtide {

struct Photograph {
  std::string name;  // file name without folder
  Image image;
  std::vector<Box> boxes;  // inside the image; may be empty
};

struct Dataset {
  std::vector<Photograph> photographs;  // by name
  std::vector<std::string> notes;       // what was left out, and why; for people
  std::uint64_t fingerprint = 0;        // of names, sizes, pixels and boxes

  std::size_t box_count() const;
};

// Loads every annotated PNG and JPEG of a folder (not of folders in it). An image NAME.png takes
// the boxes of NAME.xml; without one, those of the CSV table that names it. Images that nothing
// annotates are left out, with a note; an annotation without objects makes the image a photograph
// without boxes, which is legal.
// Throws IoError LT0515 when the folder cannot be read, FormatError LT0516 when it has no annotated
// image, LT0513 when an annotation gives another size than its image has, LT0514 when two tables
// give boxes for one image, LT0517 when the image of an annotation is not there, and what
// image.h and annotations.h throw.
Dataset load_dataset(const std::filesystem::path& folder);

// The photographs reduced by a whole factor in each direction (means of factor x factor pixels;
// what is left over at the right and bottom is cut off), boxes with them. Notes and fingerprint
// stay.
Dataset shrunk(const Dataset& data, int factor);

// The data folder of the Python package deepforest, looked for in `.venv` of the working directory
// and of each folder above it and above the running program, then in $VIRTUAL_ENV.
// Throws IoError (LT0518), with the command that installs it, when it is nowhere.
std::filesystem::path find_default_data();

// A square cut from a photograph; one that is smaller than the square is filled up on the right and
// at the bottom, and `valid_width` x `valid_height` is photograph.
struct Crop {
  Image image;
  int valid_width = 0;
  int valid_height = 0;
  std::vector<Box> boxes;  // in pixels of the crop
};

struct CropRequest {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  int count = 1;
  int size = 256;  // pixels a side
};

// Photographs are drawn by the square root of their area, places evenly; half of the crops are
// mirrored, half turned upside down. Of a box that the edge cuts, the visible part is kept when it
// is at least 0.3 of the whole.
std::vector<Crop> draw_crops(const Dataset& data, const CropRequest& request);

// The square of `size` pixels at (x, y), unmirrored, without boxes.
Crop cut_crop(const Image& image, int x, int y, int size);

}  // namespace lowtide
