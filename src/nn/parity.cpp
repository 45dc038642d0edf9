#include "src/nn/parity.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "lowtide/deformable_detr_encoder.h"
#include "lowtide/error.h"
#include "lowtide/ms_deform_attn.h"
#include "lowtide/safetensors.h"
#include "lowtide/sine_positional_encoding.h"
#include "src/base/text.h"

// A parity file is read in three steps.
//
// 1. Inputs. Each is stored in the file or, in a hash file, filled from its key. The padding mask,
//    the positions and the level tables follow from the image sizes; where the file stores them
//    too, the stored ones are used and ours are compared with them.
// 2. The run, forward and backward, with dropout 0.
// 3. Comparison. Everything that the file expects (`out.X`, `grad.X`, and samples of them as `.idx`
//    and `.val`) is looked up by name among what was computed; a result that the file expects and
//    we did not compute is an error, so that nothing passes by being left out.
//
// Padded tokens: where the file stores whole tensors its query_pos is an input, results are defined
// everywhere and all of them count. Positions are noise at padded tokens (a division by eps), so
// `pre.sine_pos` and what a hash file derives from it count at valid tokens only.
//
// A sample that lies within float32 rounding of a pixel's centre has a gradient that jumps. Makers
// of small files avoid such samples; a hash file may have some, and a full-size one always does. So
// for hash files the norms of the gradients count, and their single values are held against a
// float64 run where the float32 run misses them; in full-size cases they are not compared.
//
// Tested by tests/nn/parity_test.cpp

namespace lowtide {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

constexpr double kOutTolerance = 5e-6;
constexpr double kGradTolerance = 1e-5;
constexpr double kOpTolerance = 1e-5;
constexpr double kNormTolerance = 1e-3;
constexpr double kLossTolerance = 1e-5;
// Sizes in a file are untrusted; nothing real comes near these.
constexpr std::int64_t kMaxSize = 1 << 20;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 31;

template <typename... Parts>
[[noreturn]] void refuse_file(const char* id, const std::string& file, const Parts&... parts) {
  throw FormatError(id, concat("cannot verify ", file, ": ", parts...), {{"file", file}});
}

double relative_error(double difference, double scale) {
  if (difference == 0 && std::isfinite(scale)) {
    return 0;
  }
  return difference / scale;  // infinite for a zero scale, NaN for a NaN
}

// max|got - expected| / max|expected|. NaN and infinities on either side do not vanish in it.
double max_relative_error(const at::Tensor& got, const at::Tensor& expected) {
  if (expected.numel() == 0) {
    return 0;
  }
  const at::Tensor a = got.detach().to(at::kDouble);
  const at::Tensor b = expected.detach().to(at::kDouble);
  return relative_error((a - b).abs().max().item<double>(), b.abs().max().item<double>());
}

// What the file's "case" says.
struct CaseSizes {
  std::string name;
  DeformableDetrEncoderLayerOptions layer;
  std::int64_t num_layers = 0;
  std::int64_t batch = 0;
  bool mask = true;
  bool hash = false;
  std::vector<ImageSize> level_shapes;   // given as such
  std::optional<ImageSize> batch_image;  // or by the padded image
  std::vector<ImageSize> images;
};

class CaseReader {
 public:
  CaseReader(const Json& json, const std::string& file) : json_(json), file_(file) {}

  std::int64_t size(const char* key) const {
    const Json* value = json_.find(key);
    if (value == nullptr) {
      refuse_file("LT0440", file_, "its 'case' does not give '", key, "'");
    }
    return checked(*value, key);
  }
  bool flag(const char* key, bool otherwise) const {
    const Json* value = json_.find(key);
    return value == nullptr ? otherwise : value->as_bool();
  }
  std::optional<ImageSize> pair(const char* key) const {
    const Json* value = json_.find(key);
    return value == nullptr ? std::nullopt : std::optional(pair_of(*value, key));
  }
  std::vector<ImageSize> pairs(const char* key) const {
    std::vector<ImageSize> result;
    if (const Json* value = json_.find(key)) {
      for (const Json& element : value->as_array()) {
        result.push_back(pair_of(element, key));
      }
    }
    return result;
  }

 private:
  std::int64_t checked(const Json& value, const char* key) const {
    const std::int64_t number = value.is_integer() ? value.as_int64() : 0;
    if (number < 1 || number > kMaxSize) {
      refuse_file("LT0442", file_, "'", key, "' in its 'case' is not a whole number from 1 to ",
                  kMaxSize);
    }
    return number;
  }
  ImageSize pair_of(const Json& value, const char* key) const {
    if (!value.is_array() || value.as_array().size() != 2) {
      refuse_file("LT0442", file_, "'", key, "' in its 'case' is not made of [height, width]");
    }
    return {checked(value.as_array()[0], key), checked(value.as_array()[1], key)};
  }

  const Json& json_;
  const std::string& file_;
};

CaseSizes read_case(const SafetensorsFile& parity, const std::string& file) {
  const auto text = parity.metadata.find("case");
  if (text == parity.metadata.end()) {
    refuse_file("LT0440", file,
                "it has neither attention cases (X.value, X.out, ...) nor a 'case' ",
                "in its metadata. Give a parity file");
  }
  const Json json = parse_json(text->second);
  const CaseReader reader(json, file);
  CaseSizes sizes;
  if (const Json* name = json.find("name")) {
    sizes.name = name->as_string();
  }
  sizes.layer.embed_dims = reader.size("d");
  sizes.layer.num_heads = reader.size("heads");
  sizes.layer.num_levels = reader.size("levels");
  sizes.layer.num_points = reader.size("points");
  sizes.layer.feedforward_channels = reader.size("ffn");
  sizes.layer.dropout = 0;
  sizes.num_layers = reader.size("layers");
  sizes.batch = reader.size("bs");
  sizes.mask = reader.flag("mask", !sizes.name.ends_with("_nomask"));
  sizes.hash = reader.flag("hash", false);
  sizes.level_shapes = reader.pairs("shapes");
  sizes.batch_image = reader.pair("img");
  sizes.images = reader.pairs("img_shapes");
  return sizes;
}

// Rows of a stored (n, 2) table as sizes.
std::vector<ImageSize> table_rows(const at::Tensor& table, const char* name,
                                  const std::string& file) {
  if (table.scalar_type() != at::kLong || table.dim() < 1 || table.size(-1) != 2) {
    refuse_file("LT0442", file, "'", name, "' is ", table.sizes(), " ", table.scalar_type(),
                ", not Long rows of (height, width)");
  }
  std::vector<ImageSize> rows;
  const auto* data = table.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < table.numel(); i += 2) {
    if (data[i] < 1 || data[i + 1] < 1 || data[i] > kMaxSize || data[i + 1] > kMaxSize) {
      refuse_file("LT0442", file, "'", name, "' holds ", data[i], "x", data[i + 1],
                  ", which is no size");
    }
    rows.push_back({data[i], data[i + 1]});
  }
  return rows;
}

// Strides 8, 16 and 32, then one halving a level; each step rounds up.
std::vector<ImageSize> level_shapes_of(ImageSize image, std::int64_t levels) {
  std::vector<ImageSize> shapes;
  for (std::int64_t step = 1; step < levels + 3; ++step) {
    image = {(image.height + 1) / 2, (image.width + 1) / 2};
    if (step >= 3) {
      shapes.push_back(image);
    }
  }
  return shapes;
}

at::Tensor table_of(const std::vector<ImageSize>& shapes) {
  at::Tensor table = at::empty({static_cast<std::int64_t>(shapes.size()), 2}, at::kLong);
  auto* data = table.mutable_data_ptr<std::int64_t>();
  for (const ImageSize& shape : shapes) {
    *data++ = shape.height;
    *data++ = shape.width;
  }
  return table;
}

at::Tensor starts_of(const std::vector<ImageSize>& shapes) {
  at::Tensor starts = at::empty({static_cast<std::int64_t>(shapes.size())}, at::kLong);
  auto* data = starts.mutable_data_ptr<std::int64_t>();
  std::int64_t start = 0;
  for (const ImageSize& shape : shapes) {
    *data++ = start;
    start += shape.height * shape.width;
  }
  return starts;
}

std::uint64_t fnv1a64(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Collects comparisons.
class Comparison {
 public:
  Comparison(const SafetensorsFile& parity, std::string file)
      : parity_(parity), file_(std::move(file)) {}

  void add(const std::string& name, double max_rel_err, double tolerance) {
    tensors_.push_back({name, max_rel_err, tolerance});
  }

  // Compares `got` with the whole tensor `name` of the file. Where `valid` (of the leading
  // dimensions' shape) is given, only there.
  void whole(const std::string& name, const at::Tensor& got, double tolerance,
             const at::Tensor& valid = {}) {
    at::Tensor expected = parity_.tensors.at(name);
    if (expected.sizes() != got.sizes()) {
      refuse_file("LT0442", file_, "'", name, "' is ", expected.sizes(),
                  ", but for the file's sizes it must be ", got.sizes());
    }
    at::Tensor actual = got.detach();
    if (valid.defined()) {
      actual = actual.flatten(0, 1).index({valid.flatten()});
      expected = expected.flatten(0, 1).index({valid.flatten()});
    }
    add(name, max_relative_error(actual, expected), tolerance);
  }

  // Compares the elements at `name`.idx with `name`.val.
  void samples(const std::string& name, const at::Tensor& got, double tolerance) {
    add(name + ".val", sample_error(name, got), tolerance);
  }

  double sample_error(const std::string& name, const at::Tensor& got) const {
    const at::Tensor index = checked_index(name, got.numel());
    const at::Tensor& expected = parity_.tensors.at(name + ".val");
    if (expected.sizes() != index.sizes()) {
      refuse_file("LT0442", file_, "'", name, ".val' is ", expected.sizes(), ", but '", name,
                  ".idx' is ", index.sizes());
    }
    return max_relative_error(got.detach().flatten().index_select(0, index), expected);
  }

  at::Tensor checked_index(const std::string& name, std::int64_t count) const {
    const auto found = parity_.tensors.find(name + ".idx");
    if (found == parity_.tensors.end()) {
      refuse_file("LT0440", file_, "it has '", name, ".val' but no '", name, ".idx'");
    }
    const at::Tensor& index = found->second;
    if (index.scalar_type() != at::kLong || index.dim() != 1) {
      refuse_file("LT0442", file_, "'", name, ".idx' is ", index.sizes(), " ", index.scalar_type(),
                  ", not a list of Long");
    }
    if (index.numel() > 0 &&
        (index.min().item<std::int64_t>() < 0 || index.max().item<std::int64_t>() >= count)) {
      refuse_file("LT0442", file_, "'", name, ".idx' points outside the tensor's ", count,
                  " elements");
    }
    return index;
  }

  std::vector<ParityTensor> take() { return std::move(tensors_); }

 private:
  const SafetensorsFile& parity_;
  std::string file_;
  std::vector<ParityTensor> tensors_;
};

void judge(ParityReport& report) {
  report.passed = !report.tensors.empty() &&
                  std::all_of(report.tensors.begin(), report.tensors.end(),
                              [](const ParityTensor& tensor) { return tensor.passed(); }) &&
                  (!report.loss || report.loss->passed());
}

// What does not fit in a file's tensors shows as a wrong call; to the user it is a wrong file.
template <typename Work>
auto blaming_file(const std::string& file, const Work& work) {
  try {
    return work();
  } catch (const UsageError& error) {
    refuse_file("LT0442", file, "its tensors do not fit each other: ", error.what());
  }
}

// ---- the attention op alone -------------------------------------------------------------------

constexpr std::array<std::string_view, 10> kOpParts = {"value",
                                                       "spatial_shapes",
                                                       "level_start_index",
                                                       "sampling_locations",
                                                       "attention_weights",
                                                       "gout",
                                                       "out",
                                                       "grad_value",
                                                       "grad_sampling_locations",
                                                       "grad_attention_weights"};

// {case, part} of "case.part", where part is one of the op's.
std::optional<std::pair<std::string, std::string>> split_op_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot == 0) {
    return std::nullopt;
  }
  const std::string part = name.substr(dot + 1);
  if (std::find(kOpParts.begin(), kOpParts.end(), part) == kOpParts.end()) {
    return std::nullopt;
  }
  return std::pair(name.substr(0, dot), part);
}

std::set<std::string> op_cases(const SafetensorsFile& parity) {
  std::set<std::string> cases;
  for (const auto& [name, tensor] : parity.tensors) {
    const auto split = split_op_name(name);
    // "in.spatial_shapes" alone makes no op case.
    if (split && split->second == "sampling_locations") {
      cases.insert(split->first);
    }
  }
  return cases;
}

void compare_op_case(const SafetensorsFile& parity, const std::string& prefix,
                     const std::string& file, Comparison& comparison) {
  const auto stored = [&](const char* part) -> const at::Tensor& {
    const auto found = parity.tensors.find(prefix + "." + part);
    if (found == parity.tensors.end()) {
      refuse_file("LT0440", file, "case '", prefix, "' has no '", prefix, ".", part, "'");
    }
    return found->second;
  };
  std::array<std::pair<const char*, at::Tensor>, 3> inputs = {{
      {"value", stored("value").clone()},
      {"sampling_locations", stored("sampling_locations").clone()},
      {"attention_weights", stored("attention_weights").clone()},
  }};
  for (auto& [name, tensor] : inputs) {
    if (!tensor.is_floating_point()) {
      refuse_file("LT0442", file, "'", prefix, ".", name, "' is ", tensor.scalar_type(),
                  ", not floating");
    }
    tensor.set_requires_grad(true);
  }
  const at::Tensor output =
      ms_deform_attn(inputs[0].second, stored("spatial_shapes"), stored("level_start_index"),
                     inputs[1].second, inputs[2].second);
  comparison.whole(prefix + ".out", (stored("out"), output), kOpTolerance);
  const bool has_grads = std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) {
    return parity.tensors.count(concat(prefix, ".grad_", input.first)) > 0;
  });
  if (!has_grads) {
    return;
  }
  const at::Tensor& gout = stored("gout");
  if (gout.sizes() != output.sizes()) {
    refuse_file("LT0442", file, "'", prefix, ".gout' is ", gout.sizes(), ", but the output is ",
                output.sizes());
  }
  output.backward(gout.to(output.scalar_type()));
  for (const auto& [name, tensor] : inputs) {
    const std::string grad_name = concat(prefix, ".grad_", name);
    if (parity.tensors.count(grad_name) > 0) {
      comparison.whole(grad_name, tensor.grad(), kOpTolerance);
    }
  }
}

ParityReport verify_op_file(const SafetensorsFile& parity, const std::set<std::string>& cases,
                            const std::string& file) {
  ParityReport report;
  report.file = file;
  Comparison comparison(parity, file);
  for (const std::string& prefix : cases) {
    blaming_file(file, [&] { compare_op_case(parity, prefix, file, comparison); });
    report.case_name += (report.case_name.empty() ? "" : ",") + prefix;
  }
  for (const auto& [name, tensor] : parity.tensors) {
    const auto split = split_op_name(name);
    if (!split || cases.count(split->first) == 0) {
      report.ignored.push_back(name);
    }
  }
  report.tensors = comparison.take();
  judge(report);
  return report;
}

// ---- the encoder -------------------------------------------------------------------------------

class EncoderCase {
 public:
  EncoderCase(const SafetensorsFile& parity, std::string file, const ParityOptions& options)
      : parity_(parity),
        file_(std::move(file)),
        options_(options),
        sizes_(read_case(parity, file_)),
        comparison_(parity, file_) {}

  ParityReport verify() {
    read_levels();
    read_padding();
    read_inputs();
    make_encoder();
    encoder_->set_num_cp(options_.num_cp);
    step_ = blaming_file(file_, [&] { return run(at::kFloat); });
    compare_inputs();
    compare_results();
    return report();
  }

 private:
  bool has(const std::string& name) const { return parity_.tensors.count(name) > 0; }

  // The stored tensor of that name; in a hash file, what `fill` makes when there is none.
  at::Tensor input(const std::string& name, at::IntArrayRef shape,
                   const std::function<at::Tensor()>& fill) const {
    const auto found = parity_.tensors.find(name);
    if (found == parity_.tensors.end()) {
      if (!sizes_.hash) {
        refuse_file("LT0440", file_, "it has no '", name, "', and is no hash file");
      }
      return fill();
    }
    const at::Tensor& tensor = found->second;
    if (tensor.sizes() != shape || !tensor.is_floating_point()) {
      refuse_file("LT0442", file_, "'", name, "' is ", tensor.sizes(), " ", tensor.scalar_type(),
                  ", but its case makes it ", shape, " floating");
    }
    return tensor.to(at::kFloat).clone();
  }

  std::string key(const std::string& name) const {
    const auto salt = parity_.metadata.find("salt");
    if (salt == parity_.metadata.end()) {
      refuse_file("LT0440", file_, "it is a hash file without 'salt' in its metadata");
    }
    return salt->second + ":" + name;
  }

  void read_levels() {
    if (has("pre.batch_input_shape")) {
      const auto rows =
          table_rows(parity_.tensors.at("pre.batch_input_shape"), "pre.batch_input_shape", file_);
      if (rows.size() != 1) {
        refuse_file("LT0442", file_, "'pre.batch_input_shape' is not one (height, width)");
      }
      batch_image_ = rows.front();
    } else {
      batch_image_ = sizes_.batch_image;
    }
    if (batch_image_ && sizes_.level_shapes.empty()) {
      computed_shapes_ = level_shapes_of(*batch_image_, sizes_.layer.num_levels);
    } else {
      computed_shapes_ = sizes_.level_shapes;
    }
    shapes_ = has("in.spatial_shapes")
                  ? table_rows(parity_.tensors.at("in.spatial_shapes"), "in.spatial_shapes", file_)
                  : computed_shapes_;
    if (shapes_.empty()) {
      refuse_file("LT0440", file_, "it gives neither 'in.spatial_shapes' nor image sizes");
    }
    if (static_cast<std::int64_t>(shapes_.size()) != sizes_.layer.num_levels) {
      refuse_file("LT0442", file_, "it has the shapes of ", shapes_.size(),
                  " levels, but its case says ", sizes_.layer.num_levels);
    }
    for (const ImageSize& shape : shapes_) {
      token_count_ += shape.height * shape.width;
    }
    const std::int64_t widest =
        std::max({sizes_.layer.embed_dims, sizes_.layer.feedforward_channels,
                  2 * sizes_.layer.num_heads * sizes_.layer.num_levels * sizes_.layer.num_points});
    if (sizes_.layer.num_heads * sizes_.layer.num_levels > kMaxSize || widest > kMaxSize ||
        sizes_.batch * token_count_ > kMaxElements / widest) {
      refuse_file("LT0442", file_, "its case is too large: ", sizes_.batch, " x ", token_count_,
                  " tokens of ", widest, " channels");
    }
  }

  void read_padding() {
    std::vector<ImageSize> images = sizes_.images;
    if (has("pre.img_shapes")) {
      images = table_rows(parity_.tensors.at("pre.img_shapes"), "pre.img_shapes", file_);
    }
    std::vector<at::Tensor> clear;
    for (const ImageSize& shape : shapes_) {
      clear.push_back(at::zeros({sizes_.batch, shape.height, shape.width}, at::kBool));
    }
    level_masks_ = clear;
    if (batch_image_ && !images.empty()) {
      if (static_cast<std::int64_t>(images.size()) != sizes_.batch) {
        refuse_file("LT0442", file_, "it has the sizes of ", images.size(),
                    " images, but its case says ", sizes_.batch);
      }
      positions_known_ = true;
      level_masks_.clear();
      const at::Tensor image_mask =
          blaming_file(file_, [&] { return image_padding_mask(images, *batch_image_); });
      for (const ImageSize& shape : shapes_) {
        level_masks_.push_back(level_padding_mask(image_mask, shape));
      }
    }
    computed_ratios_ = valid_ratios_of(level_masks_);
    ratios_ =
        input_or("in.valid_ratios", {sizes_.batch, sizes_.layer.num_levels, 2}, computed_ratios_);
    if (!sizes_.mask && !ratios_.equal(computed_ratios_) && ratios_.eq(1).all().item<bool>()) {
      // A case without mask may ignore its padding from the start, positions included.
      level_masks_ = clear;
      computed_ratios_ = valid_ratios_of(level_masks_);
    }
    positions_known_ = positions_known_ || ratios_.equal(computed_ratios_);

    std::vector<at::Tensor> flat;
    for (const at::Tensor& mask : level_masks_) {
      flat.push_back(mask.flatten(1));
    }
    padded_ = at::cat(flat, 1);
    if (has("in.key_padding_mask")) {
      mask_ = parity_.tensors.at("in.key_padding_mask");
      if (mask_.dim() != 2 || mask_.size(0) != sizes_.batch || mask_.size(1) != token_count_) {
        refuse_file("LT0442", file_, "'in.key_padding_mask' is ", mask_.sizes(), ", not [",
                    sizes_.batch, ", ", token_count_, "]");
      }
      mask_ = mask_.ne(0);
      if (!positions_known_ || !batch_image_) {
        padded_ = mask_;
      }
    } else if (sizes_.hash && sizes_.mask && batch_image_ && !images.empty()) {
      mask_ = padded_;
    }
  }

  at::Tensor input_or(const std::string& name, at::IntArrayRef shape,
                      const at::Tensor& otherwise) const {
    return has(name) ? input(name, shape, nullptr) : otherwise;
  }

  void read_inputs() {
    const std::int64_t channels = sizes_.layer.embed_dims;
    const std::int64_t token_shape[] = {sizes_.batch, token_count_, channels};
    const std::int64_t embed_shape[] = {sizes_.layer.num_levels, channels};
    feat_ =
        input("in.feat", token_shape, [&] { return parity_fill(key("feat"), token_shape, 1.7F); });
    if (sizes_.hash) {
      level_embed_ = parity_fill(key("level_embed"), embed_shape, 1.0F);
    } else if (has("pre.level_embed")) {
      level_embed_ = input("pre.level_embed", embed_shape, nullptr);
    }
    if (channels % 4 == 0 && positions_known_) {
      const SinePositionalEncoding encoding({.num_feats = channels / 2});
      std::vector<at::Tensor> positions;
      for (const at::Tensor& mask : level_masks_) {
        positions.push_back(encoding(mask).flatten(2).transpose(1, 2));
      }
      sine_ = at::cat(positions, 1);
    }
    if (sine_.defined() && level_embed_.defined()) {
      std::vector<at::Tensor> rows;
      for (std::size_t level = 0; level < shapes_.size(); ++level) {
        rows.push_back(level_embed_[static_cast<std::int64_t>(level)].expand(
            {shapes_[level].height * shapes_[level].width, channels}));
      }
      computed_pos_ = sine_ + at::cat(rows, 0);
    }
    query_pos_ = input("in.query_pos", token_shape, [&] {
      if (!computed_pos_.defined()) {
        refuse_file("LT0442", file_, "its query_pos can be neither read nor computed");
      }
      return computed_pos_.clone();
    });
    gout_ = input("gout", token_shape, [&] {
      at::Tensor filled = parity_fill(key("gout"), token_shape, 1.0F);
      if (padding_has_no_gout()) {
        filled.masked_fill_(padded_.unsqueeze(2), 0);
      }
      return filled;
    });
  }

  // A hash file samples valid tokens only: where it samples padded ones, nothing is padding to it.
  bool padding_has_no_gout() const {
    const at::Tensor padded = padded_.flatten();
    for (const char* name : {"out.memory", "grad.feat", "grad.query_pos"}) {
      if (has(concat(name, ".idx"))) {
        const at::Tensor index =
            comparison_.checked_index(name, sizes_.batch * token_count_ * sizes_.layer.embed_dims);
        const at::Tensor token = index.floor_divide(sizes_.layer.embed_dims);
        if (padded.index_select(0, token).any().item<bool>()) {
          return false;
        }
      }
    }
    return true;
  }

  void make_encoder() {
    blaming_file(file_, [&] {
      encoder_ = DeformableDetrTransformerEncoder(sizes_.num_layers, sizes_.layer);
    });
    Tensors values;
    for (const auto& [name, initial] : encoder_->state_dict()) {
      const at::Tensor& start = initial;
      values[name] = input("param." + name, initial.sizes(),
                           [&, &parameter = name] { return filled_parameter(parameter, start); });
    }
    encoder_->load_state_dict(values);
  }

  at::Tensor filled_parameter(const std::string& name, const at::Tensor& initial) const {
    const auto fill = [&](float scale) { return parity_fill(key(name), initial.sizes(), scale); };
    if (name.ends_with("sampling_offsets.weight")) {
      return fill(0.06F);
    }
    if (name.ends_with("sampling_offsets.bias")) {
      return initial + fill(0.4F);  // a new encoder holds the grid there
    }
    if (name.ends_with("attention_weights.weight") || name.ends_with(".bias")) {
      return fill(0.1F);
    }
    if (name.find(".norms.") != std::string::npos) {
      return fill(0.1F) + 1;
    }
    return fill(static_cast<float>(std::sqrt(3.0 / static_cast<double>(initial.size(1)))));
  }

  struct Step {
    Tensors results;
    double loss = 0;
    double loss_spread = 0;  // the L2 norm of the products that the loss sums
  };

  // One step in `type`, from the same float32 numbers.
  Step run(at::ScalarType type) {
    encoder_->zero_grad();
    encoder_->to(type);
    EncoderTokens tokens;
    tokens.query = feat_.to(type).detach().set_requires_grad(true);
    tokens.query_pos = query_pos_.to(type).detach().set_requires_grad(true);
    tokens.key_padding_mask = mask_;
    tokens.spatial_shapes = table_of(shapes_);
    tokens.level_start_index = has("in.level_start_index")
                                   ? parity_.tensors.at("in.level_start_index")
                                   : starts_of(shapes_);
    tokens.valid_ratios = ratios_;

    Step step;
    at::Tensor memory;
    if (expects_layers()) {
      const std::vector<at::Tensor> outputs = encoder_->forward_layers(tokens);
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        step.results[concat("out.layer", i)] = outputs[i].detach();
      }
      memory = outputs.back();
    } else {
      memory = encoder_->forward(tokens);
    }
    step.results["out.memory"] = memory.detach();
    const at::Tensor products = memory.detach().to(at::kDouble).mul_(gout_);
    step.loss = products.sum().item<double>();
    step.loss_spread = products.norm().item<double>();
    memory.backward(gout_.to(type));

    step.results["grad.feat"] = tokens.query.grad();
    step.results["grad.query_pos"] = tokens.query_pos.grad();
    for (const auto& item : encoder_->named_parameters()) {
      step.results["grad.param." + item.key()] = item.value().grad();
    }
    const at::Tensor level_gradient = level_sums(tokens.query_pos.grad());
    step.results["grad.level_embed"] = level_gradient;
    step.results["grad.param.level_embed"] = level_gradient;
    return step;
  }

  // query_pos = sine + level_embed[level], so each level's gradients add up.
  at::Tensor level_sums(const at::Tensor& gradient) const {
    std::vector<at::Tensor> rows;
    std::int64_t start = 0;
    for (const ImageSize& shape : shapes_) {
      const std::int64_t count = shape.height * shape.width;
      rows.push_back(gradient.narrow(1, start, count).to(at::kDouble).sum({0, 1}));
      start += count;
    }
    return at::stack(rows, 0);
  }

  bool expects_layers() const {
    return std::any_of(parity_.tensors.begin(), parity_.tensors.end(),
                       [](const auto& item) { return item.first.starts_with("out.layer"); });
  }

  // Ours against what the file stores of the steps before the encoder.
  void compare_inputs() {
    const at::Tensor valid = padded_.logical_not();
    if (has("in.spatial_shapes") && !computed_shapes_.empty()) {
      comparison_.whole("in.spatial_shapes", table_of(computed_shapes_), 0);
    }
    if (has("in.level_start_index")) {
      comparison_.whole("in.level_start_index", starts_of(shapes_), 0);
    }
    if (has("in.valid_ratios") && batch_image_) {
      comparison_.whole("in.valid_ratios", computed_ratios_, kOutTolerance);
    }
    if (has("in.key_padding_mask") && positions_known_ && batch_image_) {
      comparison_.whole("in.key_padding_mask", padded_, 0);
    }
    if (has("pre.level_embed") && sizes_.hash) {
      comparison_.whole("pre.level_embed", level_embed_, 0);
    }
    if (has("pre.sine_pos") && sine_.defined()) {
      comparison_.whole("pre.sine_pos", sine_, kOutTolerance, valid);
    }
    if (has("in.query_pos") && computed_pos_.defined()) {
      comparison_.whole("in.query_pos", computed_pos_, kOutTolerance, valid);
    }
    if (has("ref.reference_points")) {
      comparison_.whole("ref.reference_points",
                        encoder_reference_points(table_of(shapes_), ratios_), kOutTolerance);
    }
  }

  void compare_results() {
    for (const auto& [name, tensor] : parity_.tensors) {
      const bool is_output = name.starts_with("out.");
      if ((!is_output && !name.starts_with("grad.")) || name.ends_with(".idx")) {
        continue;
      }
      const double tolerance = is_output ? kOutTolerance : kGradTolerance;
      const bool sampled = name.ends_with(".val");
      const std::string base = sampled ? name.substr(0, name.size() - 4) : name;
      const at::Tensor& got = result(base, name);
      if (!sampled) {
        comparison_.whole(name, got, tolerance);
      } else if (is_output || !sizes_.hash) {
        comparison_.samples(base, got, tolerance);
      } else if (!is_full_size()) {
        compare_single_gradients(base, got);
      }
    }
    compare_norms();
    if (!has("out.memory") && !has("out.memory.val")) {
      refuse_file("LT0440", file_, "it has neither 'out.memory' nor 'out.memory.val' to compare");
    }
  }

  const at::Tensor& result(const std::string& base, const std::string& name) const {
    const auto found = step_.results.find(base);
    if (found == step_.results.end() || !found->second.defined()) {
      refuse_file("LT0440", file_, "it expects '", name, "', which an encoder of ",
                  sizes_.num_layers, " layers does not have");
    }
    return found->second;
  }

  void compare_single_gradients(const std::string& name, const at::Tensor& got) {
    if (comparison_.sample_error(name, got) <= kGradTolerance) {
      comparison_.samples(name, got, kGradTolerance);
      return;
    }
    if (!double_step_) {
      double_step_ = run(at::kDouble);
    }
    comparison_.samples(name, double_step_->results.at(name), kGradTolerance);
    in_float64_.push_back(name + ".val");
  }

  bool is_full_size() const {
    return 2 * sizes_.batch * token_count_ * sizes_.layer.num_heads * sizes_.layer.num_levels *
               sizes_.layer.num_points * sizes_.num_layers >
           kMaxCoordinatesForSingleGradients;
  }

  void compare_norms() {
    const auto text = parity_.metadata.find("norm_sum_absmax");
    if (text == parity_.metadata.end()) {
      return;
    }
    const Json json = parse_json(text->second);
    for (const auto& [name, numbers] : json.as_object()) {
      if (!name.starts_with("grad.")) {
        continue;
      }
      if (numbers.as_array().empty()) {
        refuse_file("LT0442", file_, "'norm_sum_absmax' has no numbers for '", name, "'");
      }
      const double expected = numbers.as_array()[0].as_double();
      const double got = result(name, name).to(at::kDouble).norm().item<double>();
      comparison_.add(name + ".norm", relative_error(std::abs(got - expected), std::abs(expected)),
                      kNormTolerance);
    }
  }

  ParityReport report() {
    ParityReport report;
    report.file = file_;
    report.case_name = sizes_.name;
    report.tensors = comparison_.take();
    const auto loss = parity_.tensors.find("loss");
    if (loss == parity_.tensors.end() || loss->second.numel() != 1) {
      refuse_file("LT0440", file_, "it has no single number 'loss'");
    }
    report.loss = ParityLoss{step_.loss, loss->second.to(at::kDouble).item<double>()};
    if (is_full_size()) {
      // Millions of products of either sign may cancel to next to nothing.
      report.loss->spread = step_.loss_spread;
    }
    report.in_float64 = in_float64_;
    for (const auto& [name, tensor] : parity_.tensors) {
      if (!is_known(name)) {
        report.ignored.push_back(name);
      }
    }
    judge(report);
    return report;
  }

  bool is_known(const std::string& name) const {
    static const std::set<std::string> kKnown = {"in.feat",
                                                 "in.query_pos",
                                                 "in.spatial_shapes",
                                                 "in.level_start_index",
                                                 "in.valid_ratios",
                                                 "in.key_padding_mask",
                                                 "pre.batch_input_shape",
                                                 "pre.img_shapes",
                                                 "pre.sine_pos",
                                                 "pre.level_embed",
                                                 "ref.reference_points",
                                                 "gout",
                                                 "loss"};
    if (name.starts_with("param.")) {
      return encoder_->named_parameters().contains(name.substr(6));
    }
    return name.starts_with("out.") || name.starts_with("grad.") || kKnown.count(name) > 0;
  }

  // p4_std_hash has 1.0 million, a full-size case 34 million.
  static constexpr std::int64_t kMaxCoordinatesForSingleGradients = 2'000'000;

  const SafetensorsFile& parity_;
  std::string file_;
  ParityOptions options_;
  CaseSizes sizes_;
  Comparison comparison_;

  std::optional<ImageSize> batch_image_;
  std::vector<ImageSize> computed_shapes_;  // from the image's size; empty when unknown
  std::vector<ImageSize> shapes_;
  std::int64_t token_count_ = 0;
  std::vector<at::Tensor> level_masks_;  // what positions and valid ratios are made of
  bool positions_known_ = false;         // whether level_masks_ is what the file's maker had
  at::Tensor computed_ratios_;
  at::Tensor ratios_;
  at::Tensor padded_;  // (bs, N): tokens that are padding, whether the encoder is told or not
  at::Tensor mask_;    // what the encoder is told, or undefined
  at::Tensor feat_;
  at::Tensor level_embed_;
  at::Tensor sine_;
  at::Tensor computed_pos_;
  at::Tensor query_pos_;
  at::Tensor gout_;

  DeformableDetrTransformerEncoder encoder_{nullptr};
  Step step_;
  std::optional<Step> double_step_;
  std::vector<std::string> in_float64_;
};

bool is_detector_file(const SafetensorsFile& parity) {
  return std::any_of(parity.tensors.begin(), parity.tensors.end(), [](const auto& item) {
    const std::string& name = item.first;
    return name.starts_with("gt.") || name.starts_with("match.") ||
           name.starts_with("out.cls_scores") || name.starts_with("out.bbox_preds");
  });
}

}  // namespace

bool ParityLoss::passed() const {
  return relative_error(std::abs(got - expected), std::max(std::abs(expected), spread)) <=
         kLossTolerance;
}

at::Tensor parity_fill(std::string_view key, at::IntArrayRef shape, float scale) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  auto* data = tensor.mutable_data_ptr<float>();
  const std::uint64_t seed = fnv1a64(key);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const std::uint64_t u =
        splitmix64(seed + static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL);
    data[i] = (static_cast<float>(u >> 40) * 0x1p-23F - 1.0F) * scale;
  }
  return tensor;
}

ParityReport verify_parity_file(const std::filesystem::path& path, const ParityOptions& options) {
  const SafetensorsFile parity = load_safetensors(path);
  const std::string file = path.string();
  if (is_detector_file(parity)) {
    throw Error("LT0441",
                concat("cannot verify ", file, ": it describes a detector with decoder and heads, ",
                       "which is not supported yet. Give a file of the encoder or of the op"),
                {{"file", file}});
  }
  const std::set<std::string> cases = op_cases(parity);
  if (!cases.empty()) {
    return verify_op_file(parity, cases, file);
  }
  return EncoderCase(parity, file, options).verify();
}

Json parity_json(const ParityReport& report) {
  Json json = Json::object();
  json["file"] = report.file;
  json["case"] = report.case_name;
  json["passed"] = report.passed;
  Json tensors = Json::array();
  for (const ParityTensor& tensor : report.tensors) {
    Json entry = Json::object();
    entry["name"] = tensor.name;
    entry["max_rel_err"] = tensor.max_rel_err;
    entry["tolerance"] = tensor.tolerance;
    tensors.push_back(std::move(entry));
  }
  json["tensors"] = std::move(tensors);
  Json loss = Json::object();
  loss["got"] = report.loss ? Json(report.loss->got) : Json();
  loss["expected"] = report.loss ? Json(report.loss->expected) : Json();
  json["loss"] = std::move(loss);
  return json;
}

std::string parity_text(const ParityReport& report) {
  std::size_t width = 24;
  for (const ParityTensor& tensor : report.tensors) {
    width = std::max(width, tensor.name.size());
  }
  std::string out;
  const auto line = [&](const std::string& name, const std::string& a, const std::string& b,
                        const char* verdict) {
    std::string row = name;
    row.resize(std::max(width, name.size()), ' ');
    out += row;
    for (const std::string& cell : {a, b}) {
      out += std::string(cell.size() < 13 ? 13 - cell.size() : 1, ' ') + cell;
    }
    out += *verdict == '\0' ? "\n" : concat("  ", verdict, "\n");
  };
  const auto number = [](const char* format, double value) {
    std::array<char, 40> buffer{};
    std::snprintf(buffer.data(), buffer.size(), format, value);
    return std::string(buffer.data());
  };
  line("tensor", "max rel err", "tolerance", "");
  std::size_t failed = 0;
  for (const ParityTensor& tensor : report.tensors) {
    failed += tensor.passed() ? 0 : 1;
    line(tensor.name, number("%.2e", tensor.max_rel_err), number("%.0e", tensor.tolerance),
         tensor.passed() ? "ok" : "DIFFERS");
  }
  if (report.loss) {
    out +=
        concat("\nloss ", number("%.9g", report.loss->got), ", expected ",
               number("%.9g", report.loss->expected), report.loss->passed() ? "\n" : ": DIFFERS\n");
  }
  if (!report.in_float64.empty()) {
    out += concat("\nfrom a float64 run: ", report.in_float64.size(), " tensors, from '",
                  report.in_float64.front(), "' on. Some samples lie within float32 rounding of a ",
                  "pixel's centre, where gradients jump\n");
  }
  if (!report.ignored.empty()) {
    out += concat("\nnot compared: ", report.ignored.size(), " tensors, from '",
                  report.ignored.front(), "' on\n");
  }
  out += concat("\n", report.case_name, report.case_name.empty() ? "" : ": ",
                report.passed ? "passed, " : "FAILED, ", report.tensors.size() - failed, " of ",
                report.tensors.size(), " tensors within tolerance\n");
  return out;
}

}  // namespace lowtide
