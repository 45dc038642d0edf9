#include "lowtide/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lowtide/error.h"

namespace {

namespace fs = std::filesystem;
using lowtide::FormatError;
using lowtide::IoError;
using lowtide::load_safetensors;
using lowtide::SafetensorsFile;
using lowtide::save_safetensors;
using lowtide::UsageError;

// A folder that is gone after the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "lowtide.XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 || std::memcmp(a.contiguous().const_data_ptr(),
                                        b.contiguous().const_data_ptr(), a.nbytes()) == 0);
}

template <typename Refusal, typename Work>
void check_refused(const Work& work, const std::string& id, const std::string& part) {
  try {
    work();
    FAIL("not refused: ", part);
  } catch (const Refusal& error) {
    const std::string message = error.what();
    CHECK(error.id() == id);
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  }
}

}  // namespace

TEST_CASE("tensors of every dtype come back as the bits that were saved") {
  const TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  for (const at::ScalarType type :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kByte, at::kBool, at::kComplexFloat, at::kUInt16, at::kUInt32, at::kUInt64,
        at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    tensors[std::string("t.") + at::toString(type)] =
        at::arange(6).view({2, 3}).remainder(2).to(type);
  }
  tensors["number"] = at::tensor(3.5);
  tensors["nothing"] = at::empty({0, 4});
  tensors["transposed"] = at::arange(6.0).view({2, 3}).t();
  tensors["part"] = at::arange(10).slice(0, 1, 9, 2);
  const std::map<std::string, std::string> metadata = {{"case", "{\"d\": 1}"}, {"salt", "p#1"}};
  save_safetensors(folder / "a.safetensors", tensors, metadata);
  const SafetensorsFile back = load_safetensors(folder / "a.safetensors");
  CHECK(back.metadata == metadata);
  REQUIRE(back.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    CHECK(same(back.tensors.at(name), tensor));
    CHECK(back.tensors.at(name).is_contiguous());
  }
}

TEST_CASE("the same tensors give the same bytes, wide dtypes first") {
  const TemporaryFolder folder;
  const std::map<std::string, at::Tensor> tensors = {
      {"a", at::ones({3}, at::kBool)}, {"b", at::ones({3}, at::kDouble)}, {"c", at::ones({1})}};
  save_safetensors(folder / "a", tensors);
  save_safetensors(folder / "b", tensors);
  const std::string bytes = read_bytes(folder / "a");
  CHECK(bytes == read_bytes(folder / "b"));
  const auto place = [&](const char* name) { return bytes.find(name); };
  CHECK(place("\"b\"") < place("\"c\""));
  CHECK(place("\"c\"") < place("\"a\""));
  CHECK(bytes.size() % 8 == (24 + 4 + 3) % 8);  // the data begins at a multiple of 8
}

TEST_CASE("an empty file of tensors saves and loads") {
  const TemporaryFolder folder;
  save_safetensors(folder / "a", {});
  CHECK(load_safetensors(folder / "a").tensors.empty());
}

TEST_CASE("saving replaces a file whole, keeps its rights and leaves nothing beside it") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  REQUIRE(::chmod((folder / "a").c_str(), 0640) == 0);
  save_safetensors(folder / "a", {{"x", at::ones({2})}});
  CHECK(same(load_safetensors(folder / "a").tensors.at("x"), at::ones({2})));
  struct stat status{};
  REQUIRE(::stat((folder / "a").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a failed save leaves what was there") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  check_refused<UsageError>([&] { save_safetensors(folder / "a", {{"x", at::Tensor()}}); },
                            "LT0117", "tensor 'x' is undefined. Leave it out");
  check_refused<UsageError>(
      [&] { save_safetensors(folder / "a", {{"x", at::ones({2}, at::kComplexDouble)}}); }, "LT0117",
      "which the format cannot hold");
  check_refused<UsageError>(
      [&] { save_safetensors(folder / "a", {{"x", at::ones({2}).to_sparse()}}); }, "LT0117",
      "which the format cannot hold");
  check_refused<UsageError>([&] { save_safetensors(folder / "a", {{"\xff", at::ones({2})}}); },
                            "LT0117", "a tensor's name is not UTF-8");
  check_refused<UsageError>(
      [&] { save_safetensors(folder / "a", {{"__metadata__", at::ones({2})}}); }, "LT0117",
      "the format's own key");
  check_refused<UsageError>(
      [&] { save_safetensors(folder / "a", {{"x", at::ones({2})}}, {{"k", "\xc3"}}); }, "LT0117",
      "a metadata key or value is not UTF-8");
  check_refused<IoError>([&] { save_safetensors(folder / "none" / "a", {{"x", at::ones({2})}}); },
                         "LT0118",
                         "making a temporary file beside it failed: No such file or directory");
  fs::create_directory(folder / "folder");
  check_refused<IoError>([&] { save_safetensors(folder / "folder", {{"x", at::ones({2})}}); },
                         "LT0118", "renaming the finished file failed: Is a directory");
  CHECK(read_bytes(folder / "a") == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("a file that cannot be opened is an IoError, one of bad bytes a FormatError") {
  const TemporaryFolder folder;
  check_refused<IoError>([&] { load_safetensors(folder / "none"); }, "LT0116",
                         "No such file or directory");
  check_refused<IoError>([&] { load_safetensors(folder.path()); }, "LT0116",
                         "it is not a regular file");
  write_bytes(folder / "a", "{}");
  check_refused<FormatError>([&] { load_safetensors(folder / "a"); }, "LT0110", "it has 2 bytes");
  save_safetensors(folder / "a", {{"x", at::ones({3}, at::kBool)}});
  std::string bytes = read_bytes(folder / "a");
  bytes[bytes.size() - 2] = '\x07';
  write_bytes(folder / "a", bytes);
  check_refused<FormatError>([&] { load_safetensors(folder / "a"); }, "LT0115",
                             "element 1 of BOOL tensor 'x' is 7, neither 0 nor 1");
  bytes.replace(bytes.find("\"BOOL\""), 6, "\"F4\"  ");
  bytes.replace(bytes.find("[3]"), 3, "[6]");
  write_bytes(folder / "a", bytes);
  check_refused<FormatError>([&] { load_safetensors(folder / "a"); }, "LT0114",
                             "has dtype F4, which torch has no counterpart of");
}

TEST_CASE("a cut file is always refused, a file with a flipped bit refused or read to its end") {
  const TemporaryFolder folder;
  const fs::path path = folder / "a";
  save_safetensors(path, {{"x", at::arange(3.0)}, {"m", at::ones({3}, at::kBool)}}, {{"k", "v"}});
  const std::string whole = read_bytes(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    write_bytes(path, whole.substr(0, size));
    CHECK_THROWS_AS(load_safetensors(path), FormatError);
  }
  int read = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      write_bytes(path, damaged);
      try {
        std::size_t bytes = 0;
        for (const auto& [name, tensor] : load_safetensors(path).tensors) {
          bytes += tensor.nbytes();
        }
        CHECK(bytes == 3 * 4 + 3);
        ++read;
      } catch (const FormatError& error) {
        CHECK(error.id().substr(0, 4) == "LT01");
      }
    }
  }
  CHECK(read >= 3 * 4 * 8 + 3);
}
