#include "src/stash/spill_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <thread>

#include "lowtide/error.h"
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

SpillFile::Extent write(SpillFile& file, const Buffer& data) {
  return file.write(data.data(), data.size());
}

TEST_CASE("what was written comes back, whatever its size") {
  const TemporaryFolder folder;
  SpillFile file({.directory = folder.path()});
  std::vector<std::pair<Buffer, SpillFile::Extent>> all;
  for (const std::size_t bytes : {0, 1, 4095, 4096, 4097, 1'000'003}) {
    all.emplace_back(random_bytes(bytes, bytes), SpillFile::Extent{});
    all.back().second = write(file, all.back().first);
  }
  for (const auto& [data, extent] : all) CHECK(read_back(file, extent) == data);
  CHECK(file.written_bytes() == 1'012'292);
  CHECK(file.read_bytes() == 1'012'292);
  CHECK(file.used_bytes() == 4 * 4096 + 4096 + 1'003'520);
  for (const auto& [data, extent] : all) file.release(extent);
  CHECK(file.used_bytes() == 0);
}

TEST_CASE("a released place is used again, and the file does not grow") {
  const TemporaryFolder folder;
  SpillFile file({.directory = folder.path()});
  const Buffer data = random_bytes(1_MiB, 1);
  const SpillFile::Extent kept = write(file, data);
  const Bytes before = file.file_bytes();
  for (int step = 0; step < 200; ++step) {
    const SpillFile::Extent a = write(file, data);
    const SpillFile::Extent b = write(file, data);
    file.release(a);
    file.release(b);
  }
  CHECK(file.file_bytes() == before);
  CHECK(read_back(file, kept) == data);
}

TEST_CASE("disk space is reserved before anything is written") {
  const TemporaryFolder folder;
  DiskLog log;
  SpillFile file({.directory = folder.path()}, std::make_unique<testing::LoggingDisk>(log));
  write(file, random_bytes(100_KiB, 1));
  write(file, random_bytes(100_KiB, 1));
  CHECK(log.calls == std::vector<std::string>{"reserve", "write", "write"});
  struct stat seen{};
  REQUIRE(fstat(log.file, &seen) == 0);
  CHECK(static_cast<Bytes>(seen.st_size) == file.file_bytes());
  CHECK(static_cast<Bytes>(seen.st_blocks) * 512 >= file.file_bytes());
}

TEST_CASE("the file has no name and is its owner's alone") {
  for (const bool has_tmpfile : {true, false}) {
    CAPTURE(has_tmpfile);
    const TemporaryFolder folder;
    DiskLog log;
    std::unique_ptr<SpillDisk> disk = std::make_unique<testing::LoggingDisk>(log);
    if (!has_tmpfile) disk = std::make_unique<testing::NamingDisk>(log);
    SpillFile file({.directory = folder.path()}, std::move(disk));
    const Buffer data = random_bytes(10'000, 1);
    CHECK(read_back(file, write(file, data)) == data);
    CHECK(std::filesystem::is_empty(folder.path()));
    struct stat seen{};
    REQUIRE(fstat(log.file, &seen) == 0);
    CHECK(seen.st_nlink == 0);
    CHECK((seen.st_mode & 07777) == 0600);
  }
}

TEST_CASE("a process that is killed leaves nothing behind") {
  for (const bool has_tmpfile : {true, false}) {
    CAPTURE(has_tmpfile);
    const TemporaryFolder folder;
    const int result = testing::in_child_process([&] {
      DiskLog log;
      std::unique_ptr<SpillDisk> disk = std::make_unique<testing::LoggingDisk>(log);
      if (!has_tmpfile) disk = std::make_unique<testing::NamingDisk>(log);
      SpillFile file({.directory = folder.path()}, std::move(disk));
      write(file, random_bytes(1_MiB, 1));
      raise(SIGKILL);
      return 0;
    });
    CHECK(result == testing::kChildSignalled + SIGKILL);
    CHECK(std::filesystem::is_empty(folder.path()));
  }
}

TEST_CASE("several threads write, read and release at once") {
  const TemporaryFolder folder;
  SpillFile file({.directory = folder.path()});
  constexpr int kThreads = 4;
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<std::uint64_t>(t));
      std::vector<std::pair<Buffer, SpillFile::Extent>> twin;
      for (int i = 0; i < 150; ++i) {
        if (twin.size() < 8 && random() % 3 != 0) {
          twin.emplace_back(random_bytes(1 + random() % 40'000, random()), SpillFile::Extent{});
          twin.back().second = write(file, twin.back().first);
        } else if (!twin.empty()) {
          auto& one = twin[random() % twin.size()];
          if (read_back(file, one.second) != one.first) ++wrong[static_cast<std::size_t>(t)];
          if (random() % 2 == 0) {
            file.release(one.second);
            std::swap(one, twin.back());
            twin.pop_back();
          }
        }
      }
      for (const auto& [data, extent] : twin) {
        if (read_back(file, extent) != data) ++wrong[static_cast<std::size_t>(t)];
        file.release(extent);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) CHECK(count == 0);
  CHECK(file.used_bytes() == 0);
}

TEST_CASE("a forked child reads what was written, and writes elsewhere") {
  const TemporaryFolder folder;
  SpillFile file({.directory = folder.path()});
  const Buffer data = random_bytes(50'000, 1);
  const Buffer other = random_bytes(50'000, 2);
  const SpillFile::Extent extent = write(file, data);
  file.before_fork();
  const int result = testing::in_child_process([&] {
    file.after_fork(true);
    if (read_back(file, extent) != data) return 1;
    file.release(extent);
    if (file.used_bytes() != 0 || file.file_bytes() != 0) return 2;
    const SpillFile::Extent own = write(file, other);
    if (read_back(file, own) != other) return 3;
    if (read_back(file, extent) != data) return 4;
    file.release(own);
    return file.used_bytes() == 0 ? 0 : 5;
  });
  file.after_fork(false);
  CHECK(result == 0);
  CHECK(read_back(file, extent) == data);
  CHECK(std::filesystem::is_empty(folder.path()));
}

// A disk with a clock of its own: what takes time is writing and reading.
class TimedDisk : public SpillDisk {
 public:
  ssize_t write(int file, const void* from, std::size_t bytes, off_t offset) override {
    now_ns_ += 3 * bytes;
    return SpillDisk::write(file, from, bytes, offset);
  }
  ssize_t read(int file, void* to, std::size_t bytes, off_t offset) override {
    now_ns_ += ns_per_read_byte * bytes;
    return SpillDisk::read(file, to, bytes, offset);
  }
  std::uint64_t now_ns() override { return now_ns_; }

  std::uint64_t ns_per_read_byte = 2;

 private:
  std::uint64_t now_ns_ = 7;
};

TEST_CASE("expected times follow what was measured") {
  const TemporaryFolder folder;
  auto owned = std::make_unique<TimedDisk>();
  TimedDisk& disk = *owned;
  SpillFile file({.directory = folder.path()}, std::move(owned));
  CHECK(file.write_ns(1000) == 1000);
  CHECK(file.read_ns(1000) == 1000);
  const Buffer data = random_bytes(1_MiB, 1);
  const SpillFile::Extent extent = write(file, data);
  CHECK(file.write_ns(1000) == 3000);
  CHECK(file.read_ns(1000) == 1000);
  for (int i = 0; i < 256; ++i) read_back(file, extent);
  CHECK(file.read_ns(1000) == doctest::Approx(2000).epsilon(0.001));
  disk.ns_per_read_byte = 6;
  for (int i = 0; i < 256; ++i) read_back(file, extent);
  // The first half weighs half as much as the second: (2000 + 2 * 6000) / 3.
  CHECK(file.read_ns(1000) == doctest::Approx(4667).epsilon(0.01));
}

void check_refused(const std::string& directory, const char* why, const char* way_out) {
  try {
    const SpillFile file({.directory = directory});
    FAIL("accepted ", directory);
  } catch (const UsageError& error) {
    CHECK(error.id() == "LT0311");
    CHECK(std::get<std::string>(error.details().at("directory")) == directory);
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find(why) != std::string::npos);
    CHECK(text.find(way_out) != std::string::npos);
  }
}

TEST_CASE("directories that are none, missing, or links are refused") {
  const TemporaryFolder folder;
  const std::string path = folder.path();
  check_refused("", "no directory is given", "Name one");
  check_refused(path + "/none", "No such file or directory", "that is there");
  folder.write("plain", "x");
  check_refused(path + "/plain", "Not a directory", "that is there");
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_symlink("real", folder / "link");
  for (const char* name : {"/link", "/link/", "/link/.", "/link/././/"}) {
    check_refused(path + name, "symbolic link", "Give the directory that it leads to");
  }
  for (const char* name : {"/real", "/real/", "/real/."}) {
    const SpillFile file({.directory = path + name});
  }
  const SpillFile root_of_a_link({.directory = path + "/link/../real"});
}

TEST_CASE("directories that others can write to, or own, are refused") {
  const TemporaryFolder folder;
  const std::string path = folder / "open";
  std::filesystem::create_directory(path);
  REQUIRE(chmod(path.c_str(), 0777) == 0);
  check_refused(path, "no sticky bit", "chmod +t");
  REQUIRE(chmod(path.c_str(), 01777) == 0);
  {
    const SpillFile file({.directory = path});
  }
  REQUIRE(chmod(path.c_str(), 0755) == 0);
  if (chown(path.c_str(), 12345, 12345) != 0) {
    MESSAGE("skipped: another user's directory, which only root can make");
    return;
  }
  check_refused(path, "it belongs to user 12345", "of this user's own");
}

TEST_CASE("a directory that cannot be written to is refused") {
  const TemporaryFolder folder;
  REQUIRE(chmod(folder.path().c_str(), 0755) == 0);
  const std::string path = folder / "closed";
  std::filesystem::create_directory(path);
  REQUIRE(chmod(path.c_str(), 0555) == 0);
  const int result = testing::in_child_process([&] {
    if (geteuid() == 0 && setuid(65534) != 0) return 1;
    try {
      const SpillFile file({.directory = path});
    } catch (const UsageError& error) {
      const std::string text = error.what();
      return error.id() == "LT0311" && text.find("Permission denied") != std::string::npos &&
                     text.find("that this user may write to") != std::string::npos
                 ? 0
                 : 2;
    }
    return 3;
  });
  CHECK(result == 0);
}

}  // namespace
}  // namespace lowtide
