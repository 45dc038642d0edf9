#pragma once
// The calls of the operating system that SpillFile makes, so that tests can stand in for a disk
// that is full, slow or broken. Results and errno as the calls of the same names.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace lowtide {

class SpillDisk {
 public:
  virtual ~SpillDisk();

  // A file without a name in a directory: open(O_TMPFILE), which can never get one. Fails with
  // EOPNOTSUPP, EISDIR or EINVAL where the file system does not know it.
  virtual int open_nameless(int directory);
  // A new file that is open and has no name any more. Its name was unpredictable, it was not there
  // before and no link was followed. There is a name for the time between two calls only.
  virtual int open_unlinked(int directory);
  // Disk space for [offset, offset + bytes); the file then reaches to there at least.
  virtual int reserve(int file, off_t offset, off_t bytes);
  virtual ssize_t write(int file, const void* from, std::size_t bytes, off_t offset);
  virtual ssize_t read(int file, void* to, std::size_t bytes, off_t offset);
  // Of a clock that only goes forward.
  virtual std::uint64_t now_ns();
};

}  // namespace lowtide
