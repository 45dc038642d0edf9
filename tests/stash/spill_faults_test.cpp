// What a disk can do to a file, one by one.

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "lowtide/error.h"
#include "src/stash/spill_file.h"
#include "tests/hook/child_process.h"
#include "tests/stash/faulty_disk.h"
#include "tests/stash/made_bytes.h"
#include "tests/train/temporary_folder.h"

namespace lowtide {
namespace {

using namespace literals;
using testing::Buffer;
using testing::DiskLog;
using testing::random_bytes;

Buffer read_back(const SpillFile& file, const SpillFile::Extent& extent) {
  Buffer data(extent.bytes);
  file.read(extent, data.data());
  return data;
}

// The error of a call that must throw an IoError with this id.
template <typename Call>
IoError error_of_call(const char* id, Call&& call) {
  try {
    call();
  } catch (const IoError& error) {
    REQUIRE(error.id() == id);
    return error;
  }
  FAIL("no error");
  return IoError("", "");
}

bool says(const IoError& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

std::int64_t number(const IoError& error, const char* name) {
  return std::get<std::int64_t>(error.details().at(name));
}

TEST_CASE("a file cut short is an error wherever the cut is") {
  const TemporaryFolder folder;
  DiskLog log;
  SpillFile file({.directory = folder.path()}, std::make_unique<testing::LoggingDisk>(log));
  const Buffer data = random_bytes(10'000, 1);
  const SpillFile::Extent before = file.write(data.data(), data.size());
  const SpillFile::Extent extent = file.write(data.data(), data.size());
  for (const Bytes left : {9'999, 4'096, 1, 0}) {
    REQUIRE(ftruncate(log.file, static_cast<off_t>(extent.offset + left)) == 0);
    const IoError error = error_of_call("LT0313", [&] { read_back(file, extent); });
    CHECK(says(error, "it was cut short"));
    CHECK(says(error, "Nothing was computed with them"));
    CHECK(says(error, folder.path()));
    CHECK(number(error, "done_bytes") == static_cast<std::int64_t>(left));
    CHECK(number(error, "request_bytes") == 10'000);
  }
  CHECK(read_back(file, before) == data);
  // Cut, then grown again: zeros are there, of which only the checksum knows.
  REQUIRE(ftruncate(log.file, static_cast<off_t>(file.file_bytes())) == 0);
  error_of_call("LT0314", [&] { read_back(file, extent); });
}

TEST_CASE("a flipped bit is an error wherever it is") {
  const TemporaryFolder folder;
  DiskLog log;
  SpillFile file({.directory = folder.path()}, std::make_unique<testing::LoggingDisk>(log));
  Buffer data = random_bytes(9'001, 1);
  const SpillFile::Extent extent = file.write(data.data(), data.size());
  std::mt19937_64 random(1);
  for (int i = 0; i < 100; ++i) {
    const std::size_t at = i == 0 ? 0 : i == 1 ? data.size() - 1 : random() % data.size();
    const auto offset = static_cast<off_t>(extent.offset + at);
    const auto flipped = static_cast<unsigned char>(data[at] ^ (1u << (random() % 8)));
    REQUIRE(pwrite(log.file, &flipped, 1, offset) == 1);
    const IoError error = error_of_call("LT0314", [&] { read_back(file, extent); });
    CHECK(says(error, "they are not the bytes that were written"));
    CHECK(says(error, "Nothing was computed with them"));
    REQUIRE(pwrite(log.file, &data[at], 1, offset) == 1);
  }
  CHECK(read_back(file, extent) == data);
}

TEST_CASE("calls that end early or are interrupted are gone on with") {
  const TemporaryFolder folder;
  SpillFile file({.directory = folder.path()}, std::make_unique<testing::InterruptedDisk>());
  for (std::uint64_t i = 1; i < 50; ++i) {
    const Buffer data = random_bytes(1'000 * i, i);
    const SpillFile::Extent extent = file.write(data.data(), data.size());
    CHECK(read_back(file, extent) == data);
  }
}

TEST_CASE("a write that fails half-way leaves everything as it was") {
  const TemporaryFolder folder;
  bool is_broken = false;
  SpillFile file({.directory = folder.path()}, std::make_unique<testing::BrokenDisk>(is_broken));
  const Buffer data = random_bytes(8'192, 1);
  const SpillFile::Extent extent = file.write(data.data(), data.size());
  is_broken = true;
  const IoError error = error_of_call("LT0312", [&] { file.write(data.data(), data.size()); });
  CHECK(says(error, "stopped after 100 B: Input/output error. Nothing is lost"));
  CHECK(number(error, "done_bytes") == 100);
  const IoError no_read = error_of_call("LT0313", [&] { read_back(file, extent); });
  CHECK(says(no_read, "Input/output error"));
  is_broken = false;
  CHECK(file.used_bytes() == 8'192);
  CHECK(file.written_bytes() == 8'192);
  CHECK(read_back(file, extent) == data);
  CHECK(file.write(data.data(), data.size()).offset == 8'192);
}

TEST_CASE("the size limit is met exactly, and what is over it is refused") {
  const TemporaryFolder folder;
  SpillFile file({.directory = folder.path(), .size_limit = 1_MiB + 100});
  const Buffer data = random_bytes(512_KiB, 1);
  const SpillFile::Extent a = file.write(data.data(), data.size());
  const SpillFile::Extent b = file.write(data.data(), data.size());
  CHECK(file.file_bytes() == 1_MiB);
  const IoError error = error_of_call("LT0312", [&] { file.write(data.data(), 1); });
  CHECK(says(error, "cannot write 1 B to the file in " + folder.path().string()));
  CHECK(says(error, "its size limit is 1.00 MiB"));
  CHECK(says(error, "1.00 MiB are in use"));
  CHECK(says(error, "Nothing is lost; raise the limit"));
  CHECK(number(error, "limit_bytes") == (1 << 20) + 100);
  CHECK(number(error, "used_bytes") == 1 << 20);
  CHECK(number(error, "request_bytes") == 1);
  CHECK(read_back(file, a) == data);
  CHECK(read_back(file, b) == data);
  file.release(a);
  CHECK(file.write(data.data(), data.size()).offset == a.offset);
}

TEST_CASE("the process's own limit is an error, not its end") {
  const TemporaryFolder folder;
  const int result = testing::in_child_process([&] {
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    SpillFile file({.directory = folder.path(), .size_limit = 1_GiB});
    const Buffer data = random_bytes(600_KiB, 1);
    const SpillFile::Extent extent = file.write(data.data(), data.size());
    const IoError error = error_of_call("LT0312", [&] { file.write(data.data(), data.size()); });
    if (!says(error, "RLIMIT_FSIZE") || !says(error, "ulimit -f")) return 2;
    if (number(error, "limit_bytes") != 1 << 20) return 3;
    return read_back(file, extent) == data ? 0 : 4;
  });
  CHECK(result == 0);
}

// Whether this process now has an 8 MiB file system at `path`, of which only it knows.
bool mount_small_disk(const std::string& path) {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", path.c_str(), "tmpfs", 0, "size=8m,mode=700") == 0;
}

TEST_CASE("a full disk is an error before anything is lost") {
  const TemporaryFolder folder;
  constexpr int kNoMount = 77;
  const int result = testing::in_child_process([&] {
    if (!mount_small_disk(folder.path())) return kNoMount;
    SpillFile file({.directory = folder.path()});
    if (!file.is_in_memory()) return 1;
    const Buffer data = random_bytes(3_MiB, 1);
    const SpillFile::Extent a = file.write(data.data(), data.size());
    const SpillFile::Extent b = file.write(data.data(), data.size());
    const IoError error = error_of_call("LT0312", [&] { file.write(data.data(), data.size()); });
    if (!says(error, "No space left on device, the disk has 2.00 MiB free")) return 2;
    if (!says(error, "Nothing is lost; free some space")) return 3;
    if (number(error, "free_bytes") != 2 << 20 || number(error, "used_bytes") != 6 << 20) return 4;
    if (read_back(file, a) != data || read_back(file, b) != data) return 5;
    // What is left can still be used, and what is released.
    const SpillFile::Extent c = file.write(data.data(), 2_MiB);
    file.release(b);
    const SpillFile::Extent d = file.write(data.data(), data.size());
    if (read_back(file, d) != data || read_back(file, a) != data) return 6;
    return read_back(file, c) == Buffer(data.begin(), data.begin() + (2 << 20)) ? 0 : 7;
  });
  if (result == kNoMount) {
    MESSAGE("skipped: this process may not mount a small file system");
    return;
  }
  CHECK(result == 0);
}

}  // namespace
}  // namespace lowtide
