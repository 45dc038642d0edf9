// Tested by tests/train/annotations_test.cpp.
#include "src/train/annotations.h"

#include <array>
#include <charconv>
#include <cmath>
#include <pugixml.hpp>
#include <string_view>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::optional<float> read_number(std::string_view text) {
  text = trim(text);
  float value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string describe(const Box& box) {
  return concat("(", box.x1, ", ", box.y1, ", ", box.x2, ", ", box.y2, ")");
}

void check_box(const Box& box, const std::string& place) {
  const bool finite = std::isfinite(box.x1) && std::isfinite(box.y1) && std::isfinite(box.x2) &&
                      std::isfinite(box.y2);
  if (!finite || box.x2 <= box.x1 || box.y2 <= box.y1) {
    throw FormatError("LT0512", concat("cannot use the box at ", place,
                                       ": xmin, ymin, xmax, ymax are ", describe(box),
                                       ", and each maximum must be above its minimum. Correct or "
                                       "remove it"));
  }
}

std::size_t line_of(const std::string& text, std::ptrdiff_t offset) {
  std::size_t line = 1;
  for (std::ptrdiff_t i = 0; i < offset && i < static_cast<std::ptrdiff_t>(text.size()); ++i) {
    if (text[static_cast<std::size_t>(i)] == '\n') ++line;
  }
  return line;
}

// One record of RFC 4180 from `text` at `offset`, which moves behind it and its line end. Quoted
// fields may hold commas, line ends and doubled quotes.
std::vector<std::string> next_record(const std::string& text, std::size_t& offset,
                                     std::size_t& line, const std::string& origin) {
  std::vector<std::string> fields(1);
  const std::size_t first_line = line;
  bool quoted = false;
  for (; offset < text.size(); ++offset) {
    const char c = text[offset];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (offset + 1 < text.size() && text[offset + 1] == '"') {
        fields.back() += c;
        ++offset;
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      ++offset;
      break;
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  if (quoted) {
    throw FormatError("LT0511", concat("cannot read table ", origin, ": the quote opened in line ",
                                       first_line, " is never closed. Close it"));
  }
  return fields;
}

}  // namespace

VocAnnotation parse_voc(const std::string& text, const std::string& origin) {
  pugi::xml_document document;
  const pugi::xml_parse_result parsed = document.load_buffer(text.data(), text.size());
  if (!parsed) {
    throw FormatError(
        "LT0510", concat("cannot read annotation ", origin, ", line ", line_of(text, parsed.offset),
                         ": ", parsed.description(), ". Export it again as PASCAL VOC"));
  }
  const pugi::xml_node root = document.child("annotation");
  if (!root) {
    throw FormatError("LT0510", concat("cannot read annotation ", origin, ": its root element is <",
                                       document.document_element().name(),
                                       ">, and <annotation> is expected. "
                                       "Export it as PASCAL VOC"));
  }
  const auto number = [&](const pugi::xml_node& parent, const char* name) {
    const pugi::xml_node node = parent.child(name);
    const auto value = read_number(node.child_value());
    if (!value) {
      throw FormatError(
          "LT0510", concat("cannot read annotation ", origin, ", line ",
                           line_of(text, node ? node.offset_debug() : parent.offset_debug()), ": <",
                           name, "> of <", parent.name(), "> is ",
                           node ? concat("'", trim(node.child_value()), "'") : "missing",
                           ", and a number is expected. Correct it"));
    }
    return *value;
  };
  VocAnnotation annotation;
  annotation.image_name = trim(root.child("filename").child_value());
  if (const pugi::xml_node size = root.child("size")) {
    annotation.width = static_cast<int>(number(size, "width"));
    annotation.height = static_cast<int>(number(size, "height"));
  }
  for (const pugi::xml_node object : root.children("object")) {
    const pugi::xml_node bounds = object.child("bndbox");
    if (!bounds) {
      throw FormatError("LT0510", concat("cannot read annotation ", origin, ", line ",
                                         line_of(text, object.offset_debug()),
                                         ": an <object> has no <bndbox>. Add or remove it"));
    }
    const Box box{number(bounds, "xmin"), number(bounds, "ymin"), number(bounds, "xmax"),
                  number(bounds, "ymax")};
    check_box(box, concat(origin, ", line ", line_of(text, bounds.offset_debug())));
    annotation.boxes.push_back(box);
  }
  return annotation;
}

std::optional<std::map<std::string, std::vector<Box>>> parse_box_table(const std::string& text,
                                                                       const std::string& origin) {
  std::size_t offset = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
  std::size_t line = 1;
  const std::vector<std::string> header = next_record(text, offset, line, origin);
  const auto column = [&](std::string_view name) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < header.size(); ++i) {
      if (trim(header[i]) == name) return i;
    }
    return std::nullopt;
  };
  std::optional<std::size_t> name_column = column("image_path");
  if (!name_column) name_column = column("filename");
  constexpr std::array<const char*, 4> kBounds{"xmin", "ymin", "xmax", "ymax"};
  std::array<std::size_t, 4> bound_columns{};
  if (!name_column) return std::nullopt;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    const auto found = column(kBounds[i]);
    if (!found) return std::nullopt;
    bound_columns[i] = *found;
  }

  std::map<std::string, std::vector<Box>> boxes;
  while (offset < text.size()) {
    const std::size_t row_line = line;
    const std::vector<std::string> row = next_record(text, offset, line, origin);
    if (row.size() == 1 && trim(row[0]).empty()) continue;
    const auto fail = [&](const std::string& what) {
      throw FormatError("LT0511", concat("cannot read table ", origin, ", line ", row_line, ": ",
                                         what, ". Correct the row"));
    };
    if (row.size() != header.size()) {
      fail(concat(row.size(), " fields, and the header has ", header.size()));
    }
    const std::string name(trim(row[*name_column]));
    if (name.empty()) fail("the image's name is empty");
    std::array<float, 4> bounds{};
    std::size_t empty = 0;
    for (std::size_t i = 0; i < kBounds.size(); ++i) {
      const std::string& field = row[bound_columns[i]];
      if (trim(field).empty()) {
        ++empty;
        continue;
      }
      const auto value = read_number(field);
      if (!value) fail(concat(kBounds[i], " is '", trim(field), "', and a number is expected"));
      bounds[i] = *value;
    }
    std::vector<Box>& of_image = boxes[name];
    if (empty == kBounds.size()) continue;
    if (empty != 0) fail(concat(empty, " of the four bounds are empty"));
    const Box box{bounds[0], bounds[1], bounds[2], bounds[3]};
    check_box(box, concat(origin, ", line ", row_line));
    of_image.push_back(box);
  }
  return boxes;
}

std::vector<Box> cut_to_image(std::vector<Box> boxes, int width, int height,
                              const std::string& origin) {
  const auto right = static_cast<float>(width);
  const auto bottom = static_cast<float>(height);
  for (Box& box : boxes) {
    if (box.x1 < -1 || box.y1 < -1 || box.x2 > right + 1 || box.y2 > bottom + 1 ||
        box.x1 >= right || box.y1 >= bottom || box.x2 <= 0 || box.y2 <= 0) {
      throw FormatError("LT0512",
                        concat("cannot use the box ", describe(box), " of ", origin,
                               ": it lies outside the image of ", width, " x ", height,
                               " pixels. Check that the annotation belongs to the image"));
    }
    box = {std::max(box.x1, 0.0f), std::max(box.y1, 0.0f), std::min(box.x2, right),
           std::min(box.y2, bottom)};
  }
  return boxes;
}

}  // namespace lowtide
