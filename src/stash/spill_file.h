#pragma once
// One file on a disk, for bytes that leave memory for a while.
//
//   SpillFile file({.directory = "/scratch"});
//   const SpillFile::Extent extent = file.write(data, bytes);
//   ...                          // the memory at `data` may be used for something else
//   file.read(extent, data);     // these bytes, or an error
//   file.release(extent);
//
// The file has no name, is readable by its owner alone and goes with the process, however that
// ends. What it holds is never mapped: it is not part of the resident set. (The page cache of the
// system holds some of it while there is memory, and a control group may count that.)
//
// Safe for threads. After fork() the child reads what was written before, as long as the parent
// does not release it; what it writes goes to another file of its own in the same directory.

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lowtide/bytes.h"
#include "src/base/forkable_mutex.h"
#include "src/stash/byte_rate.h"
#include "src/stash/spill_disk.h"
#include "src/stash/spill_space.h"

namespace lowtide {

struct SpillOptions {
  // Where the file is made. Must be given, must be there and be a directory: not a symbolic link to
  // one, not writable for everybody without the sticky bit, and owned by this user or root.
  std::string directory;
  // The file never grows beyond this; without it the disk is the limit.
  Bytes size_limit = std::numeric_limits<Bytes>::max();
};

class SpillFile {
 public:
  // Where some bytes are. Plain data, to be kept by who wrote them.
  struct Extent {
    std::uint64_t offset = 0;
    Bytes bytes = 0;
    std::uint64_t checksum = 0;
    std::uint32_t file = 0;  // 0 but in a forked process
  };

  // Throws UsageError (LT0311) when the directory is not as SpillOptions asks for, or no file can
  // be made there.
  explicit SpillFile(const SpillOptions& options,
                     std::unique_ptr<SpillDisk> disk = std::make_unique<SpillDisk>());
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Disk space is reserved before anything is written. Throws IoError (LT0312) when there is none
  // (the limit, a full disk, a quota) or writing fails; everything is then as before. In a forked
  // child the first one makes the child's file, and may throw LT0311.
  Extent write(const void* data, Bytes bytes);

  // Throws IoError: LT0313 when the bytes cannot be read or the file has been cut short, LT0314
  // when they are not those that were written. What is at `to` is not to be used then.
  void read(const Extent& extent, void* to) const;

  // The extent's place is free for others. Must be called once only for what write() gave.
  void release(const Extent& extent) noexcept;

  // Bytes of the file in use, in whole blocks of 4 KiB, and its size.
  Bytes used_bytes() const;
  Bytes file_bytes() const;
  // Since the file was made.
  Bytes written_bytes() const;
  Bytes read_bytes() const;

  // What writing or reading so many bytes takes, by what was measured. Before the first: 1 GB/s.
  std::uint64_t write_ns(Bytes bytes) const;
  std::uint64_t read_ns(Bytes bytes) const;

  // Whether the directory is in memory (tmpfs, ramfs), so that spilling there frees nothing.
  bool is_in_memory() const;

  const std::string& directory() const { return options_.directory; }

  // For pthread_atfork, see above.
  void before_fork();
  void after_fork(bool in_child);

 private:
  static constexpr double kPriorNsPerByte = 1.0;

  struct File {
    int descriptor = -1;
    SpillSpace space;
  };

  int make_file();
  // All with mutex_ held.
  File& own_file();
  void make_room(File& file, Bytes rounded, Bytes bytes);
  const File* own_file_or_null() const;

  SpillOptions options_;
  std::unique_ptr<SpillDisk> disk_;
  int directory_ = -1;

  // Guards what follows.
  mutable ForkableMutex<std::mutex> mutex_;
  // The last one is written to. Those before first_own_ are a parent process's.
  std::vector<File> files_;
  std::size_t first_own_ = 0;
  Bytes written_bytes_ = 0;
  mutable Bytes read_bytes_ = 0;
  ByteRate write_rate_{kPriorNsPerByte};
  mutable ByteRate read_rate_{kPriorNsPerByte};
};

}  // namespace lowtide
