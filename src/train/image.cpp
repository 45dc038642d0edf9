// Reading never trusts the file: libpng's simplified interface keeps its own error handling, and
// libjpeg's errors come back through setjmp, so that a damaged photograph is an error with a name.
// libjpeg treats a file that is cut short as a warning and fills the rest with grey; training on
// grey would be wrong without a word, so those warnings are errors here.
//
// Tested by tests/train/image_test.cpp.
#include "src/train/image.h"

#include <fcntl.h>
#include <png.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

// After <cstdio>: jpeglib.h uses FILE without including it.
#include <jpeglib.h>

#include <jerror.h>

#include "lowtide/error.h"
#include "src/base/text.h"

namespace lowtide {
namespace {

constexpr std::uint64_t kMostPixels = 100'000'000;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

void check_pixel_count(const std::filesystem::path& path, std::uint64_t width,
                       std::uint64_t height) {
  if (width == 0 || height == 0 || width * height > kMostPixels) {
    throw FormatError("LT0504", concat("cannot use image ", path, ": it is ", width, " x ", height,
                                       " pixels, and between 1 and ", kMostPixels,
                                       " in all are read. Cut it into pieces"));
  }
}

[[noreturn]] void refuse_damaged(const std::filesystem::path& path, const std::string& reason) {
  throw FormatError("LT0503",
                    concat("cannot read image ", path, ": the file is damaged or cut (", reason,
                           "). Copy it again from its source, or remove it and "
                           "its annotation from the data folder"));
}

Image read_png(const std::filesystem::path& path, std::FILE* file) {
  png_image control{};
  control.version = PNG_IMAGE_VERSION;
  const struct Release {
    png_image* control;
    ~Release() { png_image_free(control); }
  } release{&control};
  if (png_image_begin_read_from_stdio(&control, file) == 0) refuse_damaged(path, control.message);
  check_pixel_count(path, control.width, control.height);
  control.format = PNG_FORMAT_RGB;
  Image image(static_cast<int>(control.width), static_cast<int>(control.height));
  const png_color black{};
  if (png_image_finish_read(&control, &black, image.rgb.data(), 0, nullptr) == 0) {
    refuse_damaged(path, control.message);
  }
  return image;
}

struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg hands back a pointer to it
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave_jpeg(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<JpegErrors*>(jpeg->err);
  errors->manager.format_message(jpeg, errors->message);
  std::longjmp(errors->back, 1);
}

void note_jpeg_warning(j_common_ptr jpeg, int level) {
  if (level >= 0) return;  // traces
  const int code = jpeg->err->msg_code;
  if (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE) {
    leave_jpeg(jpeg);
  }
}

// Between setjmp and the end of this function no object with a destructor is made: longjmp would
// not run it. The pixels go to `rows`, which the caller owns; false means that errors.message says
// why.
bool decode_jpeg(jpeg_decompress_struct& jpeg, JpegErrors& errors, std::FILE* file, Image& image,
                 bool& too_large) {
  if (setjmp(errors.back) != 0) return false;
  jpeg_create_decompress(&jpeg);
  jpeg_stdio_src(&jpeg, file);
  jpeg_read_header(&jpeg, TRUE);
  too_large = std::uint64_t{jpeg.image_width} * jpeg.image_height > kMostPixels;
  if (too_large) return false;
  jpeg.out_color_space = JCS_RGB;
  jpeg.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&jpeg);
  image.width = static_cast<int>(jpeg.output_width);
  image.height = static_cast<int>(jpeg.output_height);
  image.rgb.resize(std::size_t{jpeg.output_width} * jpeg.output_height * 3);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = image.at(0, static_cast<int>(jpeg.output_scanline));
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

Image read_jpeg(const std::filesystem::path& path, std::FILE* file) {
  jpeg_decompress_struct jpeg{};
  JpegErrors errors{};
  jpeg.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = leave_jpeg;
  errors.manager.emit_message = note_jpeg_warning;
  Image image;
  bool too_large = false;
  const bool decoded = decode_jpeg(jpeg, errors, file, image, too_large);
  const std::uint64_t width = jpeg.image_width;
  const std::uint64_t height = jpeg.image_height;
  jpeg_destroy_decompress(&jpeg);
  if (too_large) check_pixel_count(path, width, height);
  if (!decoded) refuse_damaged(path, errors.message);
  return image;
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

Image::Image(int width_pixels, int height_pixels)
    : width(width_pixels),
      height(height_pixels),
      rgb(std::size_t(width_pixels) * std::size_t(height_pixels) * 3) {}

bool is_readable_image_name(const std::filesystem::path& file) {
  const std::string ending = lower_case(file.extension().string());
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

Image read_image(const std::filesystem::path& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    throw IoError("LT0501", concat("cannot open image ", path, ": ", std::strerror(errno),
                                   ". Check the name and the permissions"));
  }
  unsigned char start[8] = {};
  const std::size_t got = std::fread(start, 1, sizeof start, file.get());
  std::rewind(file.get());
  if (got == 8 && png_sig_cmp(start, 0, 8) == 0) return read_png(path, file.get());
  if (got >= 3 && start[0] == 0xff && start[1] == 0xd8 && start[2] == 0xff) {
    return read_jpeg(path, file.get());
  }
  throw FormatError("LT0502", concat("cannot read image ", path,
                                     ": its first bytes are neither PNG's nor JPEG's. Convert it "
                                     "to PNG, for example with: convert FILE FILE.png"));
}

void write_whole_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::path beside = path;
  beside += ".part";
  const auto fail = [&] {
    const std::string reason = std::strerror(errno);
    std::remove(beside.c_str());
    throw IoError("LT0505", concat("cannot write ", path, " (", bytes.size(), " bytes): ", reason,
                                   ". Make room, or choose another place with --out"));
  };
  {
    File file(std::fopen(beside.c_str(), "wb"));
    if (!file) fail();
    if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) fail();
    if (std::fflush(file.get()) != 0 || fsync(fileno(file.get())) != 0) fail();
  }
  if (std::rename(beside.c_str(), path.c_str()) != 0) fail();
}

void write_png(const std::filesystem::path& path, const Image& image) {
  png_image control{};
  control.version = PNG_IMAGE_VERSION;
  control.width = static_cast<png_uint_32>(image.width);
  control.height = static_cast<png_uint_32>(image.height);
  control.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  std::string bytes;
  if (png_image_write_to_memory(&control, nullptr, &size, 0, image.rgb.data(), 0, nullptr) != 0) {
    bytes.resize(size);
    if (png_image_write_to_memory(&control, bytes.data(), &size, 0, image.rgb.data(), 0, nullptr) !=
        0) {
      write_whole_file(path, std::string_view(bytes).substr(0, size));
      return;
    }
  }
  throw IoError("LT0505", concat("cannot write ", path, ": ", control.message,
                                 ". Choose another place with --out"));
}

}  // namespace lowtide
