#pragma once
// Reads and writes the header of a safetensors file: which tensors there are and where their bytes
// lie. Knows nothing of torch, and trusts no byte: every length, offset and product is checked
// before it is used, so any file ends in a header or in a FormatError that says where and what.
//
//   SafetensorsHeader header = parse_safetensors_header(bytes, file_size_bytes,
//   "model.safetensors"); for (const SafetensorsEntry& entry : header.tensors) use(entry.name,
//   entry.shape);
//
// The layout: 8 bytes little-endian header length, that many bytes of JSON, then the data. The
// tensors' byte ranges cover the data without holes or overlaps.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lowtide/export.h"

namespace lowtide {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // as spelled in the file: "F32", "I64", "BOOL"
  std::vector<std::int64_t> shape;  // no dimension: a single number
  std::uint64_t begin_bytes = 0;    // half open [begin, end), counted from the start of the data
  std::uint64_t end_bytes = 0;
};

struct SafetensorsHeader {
  std::uint64_t data_begin_bytes = 0;     // from the start of the file
  std::vector<SafetensorsEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// Longer headers are refused, as the format's reference reader does.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Bits of one element, 0 for a dtype that the format does not know.
LOWTIDE_API unsigned safetensors_dtype_bits(std::string_view dtype);

// The header's length in bytes as the file's first 8 bytes give it; `file` names it in messages.
// Throws FormatError (LT0110) when the file is shorter than that length says, or the length is over
// kMaxSafetensorsHeaderBytes.
LOWTIDE_API std::uint64_t parse_safetensors_header_length(std::string_view first_bytes,
                                                          std::uint64_t file_size_bytes,
                                                          std::string_view file);

// Reads the header from `bytes`, the start of a file of `file_size_bytes` (the data itself need not
// be in `bytes`). Throws FormatError: LT0110 cut short or a length that cannot be, LT0111 not the
// JSON that the format asks for, LT0112 a tensor's dtype, shape or offsets are not valid, LT0113
// the byte ranges do not cover the data exactly. Linear in the header but for one sort.
LOWTIDE_API SafetensorsHeader parse_safetensors_header(std::string_view bytes,
                                                       std::uint64_t file_size_bytes,
                                                       std::string_view file);

// The first bytes of a file that holds `tensors`: length and JSON, padded with blanks so that the
// data begins at a multiple of 8. Metadata comes first, then the tensors in the given order.
LOWTIDE_API std::string format_safetensors_header(
    const std::vector<SafetensorsEntry>& tensors,
    const std::map<std::string, std::string>& metadata);

}  // namespace lowtide
