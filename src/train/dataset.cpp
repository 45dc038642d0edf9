// Tested by tests/train/dataset_test.cpp.
#include "src/train/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/train/annotations.h"
#include "src/train/random_stream.h"

namespace lowtide {
namespace {

namespace fs = std::filesystem;

constexpr float kLeastVisible = 0.3f;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    throw IoError("LT0515", concat("cannot read ", path, ": ", std::strerror(errno),
                                   ". Check its permissions"));
  }
  return std::move(text).str();
}

// FNV-1a: the fingerprint only has to tell data sets apart that differ by accident.
class Fingerprint {
 public:
  void add(const void* bytes, std::size_t count) {
    const auto* byte = static_cast<const unsigned char*>(bytes);
    for (std::size_t i = 0; i < count; ++i) value_ = (value_ ^ byte[i]) * 0x100000001b3ULL;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

std::uint64_t fingerprint_of(const std::vector<Photograph>& photographs) {
  Fingerprint fingerprint;
  for (const Photograph& photograph : photographs) {
    fingerprint.add(photograph.name.data(), photograph.name.size() + 1);
    fingerprint.add(&photograph.image.width, sizeof(int));
    fingerprint.add(&photograph.image.height, sizeof(int));
    fingerprint.add(photograph.image.rgb.data(), photograph.image.rgb.size());
    fingerprint.add(photograph.boxes.data(), photograph.boxes.size() * sizeof(Box));
  }
  return fingerprint.value();
}

// The image that an annotation speaks of: the name that it gives, or else a readable file of the
// same stem (tables often name the TIFF original of a PNG).
std::optional<fs::path> image_for(const fs::path& folder, const std::string& given,
                                  const std::string& stem) {
  const fs::path named = folder / fs::path(given).filename();
  if (!given.empty() && is_readable_image_name(named) && fs::is_regular_file(named)) return named;
  for (const char* ending : {".png", ".jpg", ".jpeg", ".PNG", ".JPG", ".JPEG"}) {
    const fs::path candidate = folder / (stem + ending);
    if (fs::is_regular_file(candidate)) return candidate;
  }
  return std::nullopt;
}

[[noreturn]] void refuse_missing_image(const fs::path& annotation, const std::string& given) {
  throw FormatError("LT0517",
                    concat("cannot use annotation ", annotation, ": its image '", given,
                           "' is not in the folder as PNG or JPEG, nor is one of the same "
                           "stem. Add the image (TIFF must be converted to PNG), or "
                           "remove the annotation"));
}

void check_size(const fs::path& annotation, const VocAnnotation& voc, const Image& image) {
  const bool says = voc.width != 0 || voc.height != 0;
  if (says && (voc.width != image.width || voc.height != image.height)) {
    throw FormatError(
        "LT0513", concat("cannot use annotation ", annotation,
                         ": it is for an image "
                         "of ",
                         voc.width, " x ", voc.height, " pixels, and the image has ", image.width,
                         " x ", image.height, ". Use the image that the boxes were drawn on"));
  }
}

void mirror(Crop& crop, bool left_right) {
  Image turned(crop.image.width, crop.image.height);
  for (int y = 0; y < crop.valid_height; ++y) {
    for (int x = 0; x < crop.valid_width; ++x) {
      const int from_x = left_right ? crop.valid_width - 1 - x : x;
      const int from_y = left_right ? y : crop.valid_height - 1 - y;
      std::copy_n(crop.image.at(from_x, from_y), 3, turned.at(x, y));
    }
  }
  crop.image = std::move(turned);
  for (Box& box : crop.boxes) {
    const Box old = box;
    if (left_right) {
      box.x1 = static_cast<float>(crop.valid_width) - old.x2;
      box.x2 = static_cast<float>(crop.valid_width) - old.x1;
    } else {
      box.y1 = static_cast<float>(crop.valid_height) - old.y2;
      box.y2 = static_cast<float>(crop.valid_height) - old.y1;
    }
  }
}

}  // namespace

std::size_t Dataset::box_count() const {
  std::size_t count = 0;
  for (const Photograph& photograph : photographs) count += photograph.boxes.size();
  return count;
}

Dataset load_dataset(const fs::path& folder) {
  std::error_code problem;
  std::set<fs::path> files;  // in order, so that nothing depends on the file system's
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end;
       entry.increment(problem)) {
    if (entry->is_regular_file()) files.insert(entry->path());
  }
  if (problem) {
    throw IoError("LT0515", concat("cannot read data folder ", folder, ": ", problem.message(),
                                   ". Give a folder of images and annotations with --data"));
  }

  Dataset data;
  std::map<fs::path, Photograph> photographs;
  for (const fs::path& file : files) {
    if (file.extension() != ".xml") continue;
    const VocAnnotation voc = parse_voc(read_text(file), file.string());
    const auto image_file = image_for(folder, voc.image_name, file.stem().string());
    if (!image_file) refuse_missing_image(file, voc.image_name);
    Photograph photograph{image_file->filename().string(), read_image(*image_file), {}};
    check_size(file, voc, photograph.image);
    photograph.boxes =
        cut_to_image(voc.boxes, photograph.image.width, photograph.image.height, file.string());
    if (!photographs.emplace(*image_file, std::move(photograph)).second) {
      throw FormatError("LT0514", concat("cannot use annotation ", file, ": image ", *image_file,
                                         " has boxes from another file already. Remove one"));
    }
  }

  std::map<fs::path, fs::path> table_of;
  for (const fs::path& file : files) {
    if (file.extension() != ".csv") continue;
    const auto table = parse_box_table(read_text(file), file.string());
    if (!table) {
      data.notes.push_back(concat(file.filename().string(),
                                  " left out: no columns image_path, xmin, ymin, xmax, ymax"));
      continue;
    }
    for (const auto& [name, boxes] : *table) {
      const auto image_file = image_for(folder, name, fs::path(name).stem().string());
      if (!image_file) refuse_missing_image(file, name);
      if (const auto before = table_of.find(*image_file); before != table_of.end()) {
        throw FormatError(
            "LT0514", concat("cannot use table ", file, ": image ", *image_file, " has boxes in ",
                             before->second, " already. Remove the rows from one of them"));
      }
      if (photographs.count(*image_file) != 0) {
        data.notes.push_back(concat(file.filename().string(), ": boxes of ", name,
                                    " left out, the image has an XML annotation"));
        continue;
      }
      table_of.emplace(*image_file, file);
      Photograph photograph{image_file->filename().string(), read_image(*image_file), {}};
      photograph.boxes =
          cut_to_image(boxes, photograph.image.width, photograph.image.height, file.string());
      photographs.emplace(*image_file, std::move(photograph));
    }
  }

  for (const fs::path& file : files) {
    if (is_readable_image_name(file) && photographs.count(file) == 0) {
      data.notes.push_back(concat(file.filename().string(), " left out: nothing annotates it"));
    }
  }
  if (photographs.empty()) {
    throw FormatError("LT0516",
                      concat("cannot train on folder ", folder, ": none of its ", files.size(),
                             " files is a PNG or JPEG "
                             "image with a PASCAL VOC (NAME.xml) or CSV annotation. Give "
                             "another folder with --data"));
  }
  for (auto& [file, photograph] : photographs) data.photographs.push_back(std::move(photograph));
  data.fingerprint = fingerprint_of(data.photographs);
  return data;
}

Dataset shrunk(const Dataset& data, int factor) {
  if (factor == 1) return data;
  Dataset small;
  small.notes = data.notes;
  small.fingerprint = data.fingerprint;
  for (const Photograph& photograph : data.photographs) {
    const Image& from = photograph.image;
    if (from.width < factor || from.height < factor) {
      throw UsageError("LT0520",
                       concat("cannot shrink ", photograph.name, " of ", from.width, " x ",
                              from.height, " pixels by ", factor, ". Lower --shrink"));
    }
    Photograph reduced{photograph.name, Image(from.width / factor, from.height / factor), {}};
    for (int y = 0; y < reduced.image.height; ++y) {
      for (int x = 0; x < reduced.image.width; ++x) {
        for (int channel = 0; channel < 3; ++channel) {
          int sum = factor * factor / 2;
          for (int dy = 0; dy < factor; ++dy) {
            for (int dx = 0; dx < factor; ++dx) {
              sum += from.at(x * factor + dx, y * factor + dy)[channel];
            }
          }
          reduced.image.at(x, y)[channel] = static_cast<std::uint8_t>(sum / (factor * factor));
        }
      }
    }
    const auto scale = static_cast<float>(factor);
    const auto right = static_cast<float>(reduced.image.width);
    const auto bottom = static_cast<float>(reduced.image.height);
    for (const Box& box : photograph.boxes) {
      const Box moved{box.x1 / scale, box.y1 / scale, std::min(right, box.x2 / scale),
                      std::min(bottom, box.y2 / scale)};
      if (moved.area() > 0) reduced.boxes.push_back(moved);
    }
    small.photographs.push_back(std::move(reduced));
  }
  return small;
}

fs::path find_default_data() {
  std::vector<fs::path> roots;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (const fs::path& start : {fs::current_path(ignored), program.parent_path()}) {
    for (fs::path folder = start; !folder.empty(); folder = folder.parent_path()) {
      roots.push_back(folder / ".venv");
      if (folder == folder.root_path()) break;
    }
  }
  if (const char* active = std::getenv("VIRTUAL_ENV")) roots.emplace_back(active);
  for (const fs::path& root : roots) {
    std::set<fs::path> pythons;
    for (fs::directory_iterator entry(root / "lib", ignored), end; !ignored && entry != end;
         entry.increment(ignored)) {
      if (entry->path().filename().string().starts_with("python3")) pythons.insert(entry->path());
    }
    for (const fs::path& python : pythons) {
      const fs::path data = python / "site-packages" / "deepforest" / "data";
      if (fs::is_directory(data, ignored)) return data;
    }
  }
  throw IoError("LT0518", concat("cannot find the photographs to train on: the Python package "
                                 "deepforest 2.1.0 is in none of ",
                                 roots.size(),
                                 " environments looked at (.venv here and above, VIRTUAL_ENV). "
                                 "Install it with: .venv/bin/pip install --no-deps "
                                 "deepforest==2.1.0, or give a folder with --data"));
}

Crop cut_crop(const Image& image, int x, int y, int size) {
  Crop crop;
  crop.image = Image(size, size);
  crop.valid_width = std::min(size, image.width - x);
  crop.valid_height = std::min(size, image.height - y);
  for (int row = 0; row < crop.valid_height; ++row) {
    std::copy_n(image.at(x, y + row), static_cast<std::size_t>(crop.valid_width) * 3,
                crop.image.at(0, row));
  }
  return crop;
}

std::vector<Crop> draw_crops(const Dataset& data, const CropRequest& request) {
  std::vector<double> up_to;  // running sums of the weights
  double total = 0;
  for (const Photograph& photograph : data.photographs) {
    total += std::sqrt(double(photograph.image.width) * double(photograph.image.height));
    up_to.push_back(total);
  }
  std::vector<Crop> crops;
  for (int i = 0; i < request.count; ++i) {
    RandomStream random(request.seed, static_cast<std::uint64_t>(request.step),
                        static_cast<std::uint64_t>(i));
    const double drawn = random.unit() * total;
    const auto place = std::upper_bound(up_to.begin(), up_to.end() - 1, drawn);
    const Photograph& photograph =
        data.photographs[static_cast<std::size_t>(place - up_to.begin())];
    const auto start = [&](int length) {
      return static_cast<int>(random.below(std::uint64_t(std::max(0, length - request.size)) + 1));
    };
    const int x = start(photograph.image.width);
    const int y = start(photograph.image.height);
    Crop crop = cut_crop(photograph.image, x, y, request.size);
    const Box window{0, 0, float(crop.valid_width), float(crop.valid_height)};
    for (const Box& box : photograph.boxes) {
      const Box moved{box.x1 - float(x), box.y1 - float(y), box.x2 - float(x), box.y2 - float(y)};
      const float visible = intersection_area(moved, window);
      if (visible <= 0 || visible < kLeastVisible * moved.area()) continue;
      crop.boxes.push_back({std::max(moved.x1, 0.0f), std::max(moved.y1, 0.0f),
                            std::min(moved.x2, window.x2), std::min(moved.y2, window.y2)});
    }
    if (random.below(2) == 1) mirror(crop, true);
    if (random.below(2) == 1) mirror(crop, false);
    crops.push_back(std::move(crop));
  }
  return crops;
}

}  // namespace lowtide
