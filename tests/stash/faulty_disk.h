#pragma once
// Disks that are short of something.

#include <cerrno>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "src/stash/spill_disk.h"

namespace lowtide::testing {

// What happened to it, for a test that keeps it while SpillFile owns the disk.
struct DiskLog {
  int file = -1;
  std::vector<std::string> calls;
};

class LoggingDisk : public SpillDisk {
 public:
  explicit LoggingDisk(DiskLog& log) : log_(log) {}
  int open_nameless(int directory) override {
    return log_.file = SpillDisk::open_nameless(directory);
  }
  int open_unlinked(int directory) override {
    return log_.file = SpillDisk::open_unlinked(directory);
  }
  int reserve(int file, off_t offset, off_t bytes) override {
    log_.calls.push_back("reserve");
    return SpillDisk::reserve(file, offset, bytes);
  }
  ssize_t write(int file, const void* from, std::size_t bytes, off_t offset) override {
    log_.calls.push_back("write");
    return SpillDisk::write(file, from, bytes, offset);
  }

 protected:
  DiskLog& log_;
};

// A file system without O_TMPFILE.
class NamingDisk : public LoggingDisk {
 public:
  using LoggingDisk::LoggingDisk;
  int open_nameless(int) override {
    errno = EOPNOTSUPP;
    return -1;
  }
};

// Calls end early, or with EINTR, at random.
class InterruptedDisk : public SpillDisk {
 public:
  ssize_t write(int file, const void* from, std::size_t bytes, off_t offset) override {
    return interrupted() ? -1 : SpillDisk::write(file, from, part(bytes), offset);
  }
  ssize_t read(int file, void* to, std::size_t bytes, off_t offset) override {
    return interrupted() ? -1 : SpillDisk::read(file, to, part(bytes), offset);
  }

 private:
  bool interrupted() {
    errno = EINTR;
    return random_() % 3 == 0;
  }
  std::size_t part(std::size_t bytes) { return 1 + random_() % bytes; }
  std::mt19937 random_{1};
};

// Fails with EIO while told so.
class BrokenDisk : public SpillDisk {
 public:
  explicit BrokenDisk(const bool& is_broken) : is_broken_(is_broken) {}
  ssize_t write(int file, const void* from, std::size_t bytes, off_t offset) override {
    if (is_broken_ && offset % 8192 != 0) return fail();
    return SpillDisk::write(file, from, is_broken_ ? 100 : bytes, offset);
  }
  ssize_t read(int file, void* to, std::size_t bytes, off_t offset) override {
    return is_broken_ ? fail() : SpillDisk::read(file, to, bytes, offset);
  }

 private:
  static ssize_t fail() {
    errno = EIO;
    return -1;
  }
  const bool& is_broken_;
};

}  // namespace lowtide::testing
