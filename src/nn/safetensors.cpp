#include "lowtide/safetensors.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lowtide/error.h"
#include "src/base/safetensors_header.h"
#include "src/base/text.h"

// Tested by tests/nn/safetensors_test.cpp

namespace lowtide {
namespace {

struct DtypeName {
  std::string_view name;
  at::ScalarType type;
};

constexpr std::array kDtypes = {
    DtypeName{"F64", at::kDouble},
    DtypeName{"F32", at::kFloat},
    DtypeName{"F16", at::kHalf},
    DtypeName{"BF16", at::kBFloat16},
    DtypeName{"I64", at::kLong},
    DtypeName{"I32", at::kInt},
    DtypeName{"I16", at::kShort},
    DtypeName{"I8", at::kChar},
    DtypeName{"U64", at::kUInt64},
    DtypeName{"U32", at::kUInt32},
    DtypeName{"U16", at::kUInt16},
    DtypeName{"U8", at::kByte},
    DtypeName{"BOOL", at::kBool},
    DtypeName{"C64", at::kComplexFloat},
    DtypeName{"F8_E4M3", at::kFloat8_e4m3fn},
    DtypeName{"F8_E5M2", at::kFloat8_e5m2},
};

// Owns a file descriptor.
class FileHandle {
 public:
  explicit FileHandle(int descriptor) : descriptor_(descriptor) {}
  ~FileHandle() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;

  int get() const { return descriptor_; }
  // Closes and reports failure, which for a written file can be the first word of a full disk.
  bool close() { return ::close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

[[noreturn]] void refuse_reading(const std::filesystem::path& path, const std::string& why) {
  throw IoError("LT0116",
                concat("cannot read ", path.string(), ": ", why, ". Check the path and its rights"),
                {{"file", path.string()}});
}

// Fills [data, data + size_bytes) from the file's `offset_bytes` on.
void read_exactly(const FileHandle& file, const std::filesystem::path& path, char* data,
                  std::uint64_t size_bytes, std::uint64_t offset_bytes) {
  while (size_bytes > 0) {
    // Linux moves at most 2 GiB a call.
    const std::size_t chunk = std::min<std::uint64_t>(size_bytes, std::uint64_t{1} << 30);
    const ssize_t got = ::pread(file.get(), data, chunk, static_cast<off_t>(offset_bytes));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      refuse_reading(path, std::strerror(errno));
    }
    if (got == 0) {
      refuse_reading(path, concat("it ended at byte ", offset_bytes, " while it was being read"));
    }
    data += got;
    size_bytes -= static_cast<std::uint64_t>(got);
    offset_bytes += static_cast<std::uint64_t>(got);
  }
}

std::string dtype_list() {
  std::string list;
  for (const DtypeName& known : kDtypes) {
    list += list.empty() ? "" : " ";
    list += known.name;
  }
  return list;
}

at::ScalarType scalar_type_of(const SafetensorsEntry& entry, const std::filesystem::path& path) {
  for (const DtypeName& known : kDtypes) {
    if (known.name == entry.dtype) {
      return known.type;
    }
  }
  throw FormatError(
      "LT0114",
      concat("cannot load ", path.string(), ": tensor '", entry.name, "' has dtype ", entry.dtype,
             ", which torch has no counterpart of. Save it as one of ", dtype_list()),
      {{"file", path.string()}, {"tensor", entry.name}});
}

void check_bools(const at::Tensor& tensor, const SafetensorsEntry& entry,
                 const std::filesystem::path& path) {
  const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  const auto* end = bytes + tensor.numel();
  const auto* bad = std::find_if(bytes, end, [](unsigned char byte) { return byte > 1; });
  if (bad != end) {
    throw FormatError("LT0115",
                      concat("cannot read ", path.string(), ": element ", bad - bytes,
                             " of BOOL tensor '", entry.name, "' is ", static_cast<int>(*bad),
                             ", neither 0 nor 1. The file is damaged"),
                      {{"file", path.string()}, {"tensor", entry.name}});
  }
}

[[noreturn]] void refuse_saving(const std::filesystem::path& path, const std::string& why) {
  throw UsageError("LT0117", concat("cannot save ", path.string(), ": ", why),
                   {{"file", path.string()}});
}

[[noreturn]] void refuse_writing(const std::filesystem::path& path, const char* step, int code) {
  throw IoError("LT0118",
                concat("cannot save ", path.string(), ": ", step, " failed: ", std::strerror(code),
                       ". What was there before is untouched; check the folder and the disk"),
                {{"file", path.string()}});
}

std::vector<SafetensorsEntry> lay_out(const std::filesystem::path& path,
                                      const std::map<std::string, at::Tensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) {
      refuse_saving(path, concat("tensor '", name, "' is undefined. Leave it out"));
    }
    const auto known = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeName& dtype) {
      return dtype.type == tensor.scalar_type();
    });
    if (known == kDtypes.end() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
      refuse_saving(path, concat("tensor '", name, "' is ", tensor.toString(),
                                 ", which the format cannot hold. Convert it to a dense tensor of ",
                                 dtype_list()));
    }
    if (name == "__metadata__") {
      refuse_saving(path, "a tensor is named '__metadata__', the format's own key. Rename it");
    }
    SafetensorsEntry entry;
    entry.name = name;
    entry.dtype = known->name;
    entry.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
    entry.end_bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    entries.push_back(std::move(entry));
  }
  // Wide elements first keeps every tensor aligned to its element.
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return safetensors_dtype_bits(a.dtype) > safetensors_dtype_bits(b.dtype);
  });
  std::uint64_t offset_bytes = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.begin_bytes = offset_bytes;
    entry.end_bytes += offset_bytes;
    offset_bytes = entry.end_bytes;
  }
  return entries;
}

// A file that would not be read back is not written: text that is not UTF-8, above all.
void check_reads_back(const std::filesystem::path& path, const std::string& header,
                      const std::vector<SafetensorsEntry>& entries,
                      const std::map<std::string, std::string>& metadata) {
  const std::uint64_t data_bytes = entries.empty() ? 0 : entries.back().end_bytes;
  SafetensorsHeader back;
  try {
    back = parse_safetensors_header(header, header.size() + data_bytes, path.string());
  } catch (const FormatError& error) {
    refuse_saving(path, concat("it would not be readable: ", error.what()));
  }
  if (back.metadata != metadata) {
    refuse_saving(path, "a metadata key or value is not UTF-8 text. Encode it first");
  }
  std::map<std::string_view, int> names;
  for (const SafetensorsEntry& entry : back.tensors) {
    names[entry.name] = 1;
  }
  for (const SafetensorsEntry& entry : entries) {
    if (names.count(entry.name) == 0) {
      refuse_saving(path, "a tensor's name is not UTF-8 text. Rename it");
    }
  }
}

void write_all(const FileHandle& file, const std::filesystem::path& path, const char* data,
               std::uint64_t size_bytes) {
  while (size_bytes > 0) {
    const std::size_t chunk = std::min<std::uint64_t>(size_bytes, std::uint64_t{1} << 30);
    const ssize_t put = ::write(file.get(), data, chunk);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      refuse_writing(path, "writing", errno);
    }
    data += put;
    size_bytes -= static_cast<std::uint64_t>(put);
  }
}

// The rights of the file to be replaced, or those that a new file gets.
mode_t file_mode(const std::filesystem::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0) {
    return status.st_mode & 07777;
  }
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

// A file beside `path` that is gone again unless it was renamed to it.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::filesystem::path& path)
      : path_(path), temporary_(path.string() + ".XXXXXX"), file_(::mkstemp(temporary_.data())) {
    if (file_.get() < 0) {
      refuse_writing(path_, "making a temporary file beside it", errno);
    }
  }
  ~ReplacementFile() {
    if (!temporary_.empty()) {
      ::unlink(temporary_.c_str());
    }
  }
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(const char* data, std::uint64_t size_bytes) {
    write_all(file_, path_, data, size_bytes);
  }

  void commit() {
    if (::fchmod(file_.get(), file_mode(path_)) != 0) {
      refuse_writing(path_, "setting its rights", errno);
    }
    if (::fsync(file_.get()) != 0) {
      refuse_writing(path_, "flushing to the disk", errno);
    }
    if (!file_.close()) {
      refuse_writing(path_, "closing", errno);
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      refuse_writing(path_, "renaming the finished file", errno);
    }
    temporary_.clear();
    // The new name itself must reach the disk too. Not every file system can; the data is safe.
    const std::filesystem::path parent = path_.parent_path();
    const FileHandle folder(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY));
    if (folder.get() >= 0) {
      ::fsync(folder.get());
    }
  }

 private:
  std::filesystem::path path_;
  std::string temporary_;
  FileHandle file_;
};

}  // namespace

SafetensorsFile load_safetensors(const std::filesystem::path& path) {
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    refuse_reading(path, std::strerror(errno));
  }
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) {
    refuse_reading(path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    refuse_reading(path, "it is not a regular file");
  }
  const auto size_bytes = static_cast<std::uint64_t>(status.st_size);

  std::string bytes(std::min<std::uint64_t>(size_bytes, 8), '\0');
  read_exactly(file, path, bytes.data(), bytes.size(), 0);
  const std::uint64_t length = parse_safetensors_header_length(bytes, size_bytes, path.string());
  bytes.resize(8 + length);
  read_exactly(file, path, bytes.data() + 8, length, 8);
  SafetensorsHeader header = parse_safetensors_header(bytes, size_bytes, path.string());

  SafetensorsFile result;
  result.metadata = std::move(header.metadata);
  for (const SafetensorsEntry& entry : header.tensors) {
    const at::ScalarType type = scalar_type_of(entry, path);
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(type));
    read_exactly(file, path, static_cast<char*>(tensor.mutable_data_ptr()),
                 entry.end_bytes - entry.begin_bytes, header.data_begin_bytes + entry.begin_bytes);
    if (type == at::kBool) {
      check_bools(tensor, entry, path);
    }
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  return result;
}

void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  const std::vector<SafetensorsEntry> entries = lay_out(path, tensors);
  const std::string header = format_safetensors_header(entries, metadata);
  check_reads_back(path, header, entries, metadata);

  ReplacementFile file(path);
  file.write(header.data(), header.size());
  for (const SafetensorsEntry& entry : entries) {
    // Also resolves conjugate and negative views, whose bytes are not their values.
    const at::Tensor tensor =
        tensors.at(entry.name).detach().cpu().contiguous().resolve_conj().resolve_neg();
    file.write(static_cast<const char*>(tensor.const_data_ptr()),
               entry.end_bytes - entry.begin_bytes);
  }
  file.commit();
}

}  // namespace lowtide
