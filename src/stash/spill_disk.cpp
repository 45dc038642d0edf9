#include "src/stash/spill_disk.h"

#include <fcntl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace lowtide {
namespace {

constexpr int kOpen = O_RDWR | O_CLOEXEC;
constexpr mode_t kOwnerOnly = 0600;

}  // namespace

SpillDisk::~SpillDisk() = default;

int SpillDisk::open_nameless(int directory) {
  // O_EXCL: linkat() can never give it a name.
  return openat(directory, ".", kOpen | O_TMPFILE | O_EXCL, kOwnerOnly);
}

int SpillDisk::open_unlinked(int directory) {
  std::uint64_t random[2];
  ssize_t got;
  do {
    got = getrandom(random, sizeof random, 0);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof random) return -1;
  char name[64];
  std::snprintf(name, sizeof name, ".lowtide-%016llx%016llx",
                static_cast<unsigned long long>(random[0]),
                static_cast<unsigned long long>(random[1]));
  const int file = openat(directory, name, kOpen | O_CREAT | O_EXCL | O_NOFOLLOW, kOwnerOnly);
  if (file >= 0 && unlinkat(directory, name, 0) != 0) {
    const int error = errno;
    close(file);
    errno = error;
    return -1;
  }
  return file;
}

int SpillDisk::reserve(int file, off_t offset, off_t bytes) {
  int result;
  do {
    result = fallocate(file, 0, offset, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EOPNOTSUPP) {
    // Writes to each block instead.
    errno = posix_fallocate(file, offset, bytes);
    result = errno == 0 ? 0 : -1;
  }
  return result;
}

ssize_t SpillDisk::write(int file, const void* from, std::size_t bytes, off_t offset) {
  return pwrite(file, from, bytes, offset);
}

ssize_t SpillDisk::read(int file, void* to, std::size_t bytes, off_t offset) {
  return pread(file, to, bytes, offset);
}

std::uint64_t SpillDisk::now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace lowtide
