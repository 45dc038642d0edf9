#pragma once
// Boxes that people drew on photographs, from the two file formats that are common for them.
//
//   PASCAL VOC: one XML file an image, <annotation><filename/><size/><object><bndbox/></object>...
//   CSV: a header with image_path (or filename), xmin, ymin, xmax, ymax; one row a box
//
// Coordinates are pixels of the stored image. A box without area, upside down, not finite, or more
// than a pixel outside its image is refused; the last pixel of tolerance is cut off, since tools
// disagree about whether the right edge belongs to the box. Class names are not used: training is
// class-agnostic. The CSV of an image without objects has one row with the four numbers left empty.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/train/geometry.h"

namespace lowtide {

struct VocAnnotation {
  std::string image_name;  // as the file gives it; may be empty
  int width = 0;           // 0 when the file does not say
  int height = 0;
  std::vector<Box> boxes;
};

// Reads the text of a VOC file; `origin` is its name in messages.
// Throws FormatError (LT0510), with the place, for text that is not XML, another root element, or a
// number that is missing or unreadable, and LT0512 for an impossible box.
VocAnnotation parse_voc(const std::string& text, const std::string& origin);

// The boxes of each image named, in the order of the rows. Nothing when the header lacks one of the
// five columns: then it is a table of something else.
// Throws FormatError LT0511, with the line, for a bad row, and LT0512 for an impossible box.
std::optional<std::map<std::string, std::vector<Box>>> parse_box_table(const std::string& text,
                                                                       const std::string& origin);

// Cuts the boxes to an image of that size.
// Throws FormatError (LT0512) for a box that is more than one pixel outside.
std::vector<Box> cut_to_image(std::vector<Box> boxes, int width, int height,
                              const std::string& origin);

}  // namespace lowtide
