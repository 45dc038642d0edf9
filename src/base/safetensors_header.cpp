#include "src/base/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "lowtide/error.h"
#include "src/base/json.h"
#include "src/base/text.h"

// Tested by tests/base/safetensors_header_test.cpp

namespace lowtide {
namespace {

constexpr std::uint64_t kLengthBytes = 8;

struct DtypeBits {
  std::string_view name;
  unsigned bits;
};

constexpr std::array kDtypes = {
    DtypeBits{"BOOL", 8},    DtypeBits{"F4", 4},   DtypeBits{"F6_E2M3", 6}, DtypeBits{"F6_E3M2", 6},
    DtypeBits{"U8", 8},      DtypeBits{"I8", 8},   DtypeBits{"F8_E5M2", 8}, DtypeBits{"F8_E4M3", 8},
    DtypeBits{"F8_E8M0", 8}, DtypeBits{"I16", 16}, DtypeBits{"U16", 16},    DtypeBits{"F16", 16},
    DtypeBits{"BF16", 16},   DtypeBits{"I32", 32}, DtypeBits{"U32", 32},    DtypeBits{"F32", 32},
    DtypeBits{"F64", 64},    DtypeBits{"I64", 64}, DtypeBits{"U64", 64},    DtypeBits{"C64", 64},
};

template <typename... Parts>
[[noreturn]] void refuse(const char* id, std::string_view file, const Parts&... parts) {
  throw FormatError(
      id, concat("cannot read ", file, ": ", parts..., ". The file is damaged or not safetensors"),
      {{"file", std::string(file)}});
}

// Names come from the file: show a bounded, printable part.
std::string quoted(std::string_view name) {
  constexpr std::size_t kShown = 120;
  std::string out = "'";
  for (const char c : name.substr(0, kShown)) {
    out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  }
  return out + (name.size() > kShown ? "...'" : "'");
}

std::uint64_t unsigned_number(const Json& value, std::string_view file, std::string_view tensor,
                              const char* what) {
  if (value.is_integer()) {
    try {
      return value.as_uint64();
    } catch (const FormatError&) {
      // Negative: falls to the refusal below.
    }
  }
  refuse("LT0112", file, "tensor ", quoted(tensor), " has a ", what,
         " that is not a whole number from 0");
}

const Json& member(const Json& entry, std::string_view key, std::string_view file,
                   std::string_view tensor) {
  const Json* value = entry.find(key);
  if (value == nullptr) {
    refuse("LT0112", file, "tensor ", quoted(tensor), " has no '", key, "'");
  }
  return *value;
}

// Bytes of a tensor of this dtype and shape.
std::uint64_t tensor_bytes(const SafetensorsEntry& entry, std::string_view file) {
  const unsigned bits = safetensors_dtype_bits(entry.dtype);
  if (bits == 0) {
    refuse("LT0112", file, "tensor ", quoted(entry.name), " has the unknown dtype ",
           quoted(entry.dtype));
  }
  // A zero does not excuse the other dimensions: strides are their products.
  std::int64_t total_bits = bits;
  bool empty = false;
  for (const std::int64_t size : entry.shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(total_bits, std::max<std::int64_t>(size, 1), &total_bits)) {
      refuse("LT0112", file, "the shape of tensor ", quoted(entry.name),
             " is too large to count its bits in 63 bits");
    }
  }
  if (empty) {
    return 0;
  }
  if (total_bits % 8 != 0) {
    refuse("LT0112", file, "tensor ", quoted(entry.name), " of dtype ", entry.dtype,
           " does not end on a whole byte");
  }
  return static_cast<std::uint64_t>(total_bits) / 8;
}

SafetensorsEntry parse_entry(const std::string& name, const Json& value, std::string_view file) {
  if (!value.is_object()) {
    refuse("LT0112", file, "the entry of tensor ", quoted(name), " is not a JSON object");
  }
  for (const auto& [key, unused] : value.as_object()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      refuse("LT0112", file, "tensor ", quoted(name), " has the unknown key ", quoted(key));
    }
  }
  SafetensorsEntry entry;
  entry.name = name;

  const Json& dtype = member(value, "dtype", file, name);
  if (!dtype.is_string()) {
    refuse("LT0112", file, "the dtype of tensor ", quoted(name), " is not a string");
  }
  entry.dtype = dtype.as_string();

  const Json& shape = member(value, "shape", file, name);
  if (!shape.is_array()) {
    refuse("LT0112", file, "the shape of tensor ", quoted(name), " is not a list");
  }
  for (const Json& size : shape.as_array()) {
    const std::uint64_t number = unsigned_number(size, file, name, "dimension");
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      refuse("LT0112", file, "tensor ", quoted(name), " has a dimension of ", number,
             ", which is over 2^63-1");
    }
    entry.shape.push_back(static_cast<std::int64_t>(number));
  }

  const Json& offsets = member(value, "data_offsets", file, name);
  if (!offsets.is_array() || offsets.as_array().size() != 2) {
    refuse("LT0112", file, "the data_offsets of tensor ", quoted(name), " are not two numbers");
  }
  entry.begin_bytes = unsigned_number(offsets.as_array()[0], file, name, "data offset");
  entry.end_bytes = unsigned_number(offsets.as_array()[1], file, name, "data offset");
  return entry;
}

void check_entry_range(const SafetensorsEntry& entry, std::uint64_t data_bytes,
                       std::string_view file) {
  if (entry.begin_bytes > entry.end_bytes) {
    refuse("LT0113", file, "tensor ", quoted(entry.name), " ends at data byte ", entry.end_bytes,
           ", before it begins at ", entry.begin_bytes);
  }
  if (entry.end_bytes > data_bytes) {
    refuse("LT0113", file, "tensor ", quoted(entry.name), " ends at data byte ", entry.end_bytes,
           ", but the file has ", data_bytes, " bytes of data");
  }
  const std::uint64_t needed_bytes = tensor_bytes(entry, file);
  if (entry.end_bytes - entry.begin_bytes != needed_bytes) {
    refuse("LT0113", file, "tensor ", quoted(entry.name), " has ",
           entry.end_bytes - entry.begin_bytes, " bytes, but its dtype and shape need ",
           needed_bytes);
  }
}

// The ranges, sorted, must follow each other from 0 to the end of the data.
void check_coverage(const std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes,
                    std::string_view file) {
  std::uint64_t covered_bytes = 0;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.begin_bytes < covered_bytes) {
      refuse("LT0113", file, "tensor ", quoted(entry.name), " begins at data byte ",
             entry.begin_bytes, ", inside the tensor before it, which ends at ", covered_bytes);
    }
    if (entry.begin_bytes > covered_bytes) {
      refuse("LT0113", file, "data bytes ", covered_bytes, " to ", entry.begin_bytes,
             " belong to no tensor");
    }
    covered_bytes = entry.end_bytes;
  }
  if (covered_bytes != data_bytes) {
    refuse("LT0113", file, "the tensors end at data byte ", covered_bytes, ", but the file has ",
           data_bytes, " bytes of data");
  }
}

std::map<std::string, std::string> parse_metadata(const Json& value, std::string_view file) {
  if (!value.is_object()) {
    refuse("LT0111", file, "'__metadata__' is not a JSON object");
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.as_object()) {
    if (!text.is_string()) {
      refuse("LT0111", file, "the metadata value ", quoted(key), " is not a string");
    }
    metadata.emplace(key, text.as_string());
  }
  return metadata;
}

}  // namespace

unsigned safetensors_dtype_bits(std::string_view dtype) {
  for (const DtypeBits& known : kDtypes) {
    if (known.name == dtype) {
      return known.bits;
    }
  }
  return 0;
}

std::uint64_t parse_safetensors_header_length(std::string_view first_bytes,
                                              std::uint64_t file_size_bytes,
                                              std::string_view file) {
  if (first_bytes.size() < kLengthBytes || file_size_bytes < kLengthBytes) {
    refuse("LT0110", file, "it has ", std::min<std::uint64_t>(first_bytes.size(), file_size_bytes),
           " bytes, too few for the header length in the first ", kLengthBytes);
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(first_bytes[i])} << (8 * i);
  }
  if (length > file_size_bytes - kLengthBytes) {
    refuse("LT0110", file, "its first 8 bytes give a header of ", length, " bytes, but only ",
           file_size_bytes - kLengthBytes, " bytes follow");
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    refuse("LT0110", file, "its header has ", length, " bytes, over the limit of ",
           kMaxSafetensorsHeaderBytes);
  }
  return length;
}

SafetensorsHeader parse_safetensors_header(std::string_view bytes, std::uint64_t file_size_bytes,
                                           std::string_view file) {
  const std::uint64_t length = parse_safetensors_header_length(bytes, file_size_bytes, file);
  if (bytes.size() - kLengthBytes < length) {
    refuse("LT0110", file, "only ", bytes.size() - kLengthBytes, " of the header's ", length,
           " bytes could be read");
  }
  const std::string_view text = bytes.substr(kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    refuse("LT0111", file, "the header at byte 8 does not begin with '{'");
  }

  Json json;
  try {
    // {"name": {"shape": [..]}} is three levels; the rest is left to the checks below.
    json = parse_json(text, 8);
  } catch (const FormatError& error) {
    refuse("LT0111", file, "the JSON header that begins at byte 8 is not valid: ", error.what());
  }

  SafetensorsHeader header;
  header.data_begin_bytes = kLengthBytes + length;
  const std::uint64_t data_bytes = file_size_bytes - header.data_begin_bytes;
  for (const auto& [name, value] : json.as_object()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(value, file);
      continue;
    }
    header.tensors.push_back(parse_entry(name, value, file));
    check_entry_range(header.tensors.back(), data_bytes, file);
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin_bytes, a.end_bytes) < std::pair(b.begin_bytes, b.end_bytes);
  });
  check_coverage(header.tensors, data_bytes, file);
  return header;
}

std::string format_safetensors_header(const std::vector<SafetensorsEntry>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  Json root = Json::object();
  if (!metadata.empty()) {
    Json& strings = root["__metadata__"];
    strings = Json::object();
    for (const auto& [key, value] : metadata) {
      strings[key] = value;
    }
  }
  for (const SafetensorsEntry& entry : tensors) {
    Json shape = Json::array();
    for (const std::int64_t size : entry.shape) {
      shape.push_back(size);
    }
    Json offsets = Json::array();
    offsets.push_back(entry.begin_bytes);
    offsets.push_back(entry.end_bytes);
    Json value = Json::object();
    value["dtype"] = entry.dtype;
    value["shape"] = std::move(shape);
    value["data_offsets"] = std::move(offsets);
    root[entry.name] = std::move(value);
  }
  std::string text = to_text(root);
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');

  std::string out;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    out += static_cast<char>((text.size() >> (8 * i)) & 0xff);
  }
  return out + text;
}

}  // namespace lowtide
