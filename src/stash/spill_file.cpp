#include "src/stash/spill_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lowtide/error.h"
#include "src/base/checksum.h"
#include "src/base/text.h"

// The directory is opened once, looked at through its descriptor, and the file is made relative to
// that: what was checked is what is used, whoever renames what in between.
//
// Disk space is reserved with fallocate() when the file grows, 64 MiB at a time, and places are
// reused: so a full disk is met before a byte is written, and a step in its stride reserves
// nothing. Going over RLIMIT_FSIZE would not fail but end the process (SIGXFSZ), so the limit is
// looked up.
//
// A child process shares the parent's open file but not its knowledge of what is in use there. It
// therefore only reads from it.
//
// Tested by spill_file_test.cpp, spill_faults_test.cpp.

namespace lowtide {
namespace {

constexpr Bytes kGrowBytes = Bytes{64} << 20;
constexpr std::size_t kCallBytes = std::size_t{1} << 30;  // of one pwrite or pread
constexpr long kTmpfs = 0x01021994;
constexpr long kRamfs = static_cast<long>(0x858458f6u);

std::int64_t detail(Bytes bytes) {
  return static_cast<std::int64_t>(
      std::min<Bytes>(bytes, std::numeric_limits<std::int64_t>::max()));
}

[[noreturn]] void refuse_directory(const std::string& directory, const std::string& why,
                                   const std::string& way_out) {
  throw UsageError("LT0311",
                   concat("spill: cannot make a file in ",
                          directory.empty() ? "\"\"" : directory.c_str(), ": ", why, ". ", way_out),
                   {{"directory", directory}});
}

// "dir/", "dir/." would follow a link that "dir" is.
std::string without_trailing(std::string path) {
  const auto ends_with = [&path](std::string_view end) {
    return path.size() > end.size() && std::string_view(path).ends_with(end);
  };
  while (ends_with("/") || ends_with("/.")) path.pop_back();
  return path;
}

// Returns a descriptor that can only be looked at and opened from.
int open_directory(const std::string& given) {
  if (given.empty())
    refuse_directory(given, "no directory is given", "Name one on a disk with room");
  const std::string path = without_trailing(given);
  const int directory = open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) {
    const int error = errno;
    struct stat seen{};
    if (lstat(path.c_str(), &seen) == 0 && S_ISLNK(seen.st_mode)) {
      refuse_directory(given, "it is a symbolic link, which others may point elsewhere",
                       "Give the directory that it leads to");
    }
    refuse_directory(given, std::strerror(error), "Give a directory that is there");
  }
  struct stat seen{};
  std::string why;
  std::string way_out;
  if (fstat(directory, &seen) != 0) {
    why = std::strerror(errno);
    way_out = "Give another directory";
  } else if (seen.st_uid != geteuid() && seen.st_uid != 0) {
    why = concat("it belongs to user ", seen.st_uid, ", neither to this one, ", geteuid(),
                 ", nor to root");
    way_out = "Give a directory of this user's own";
  } else if ((seen.st_mode & S_IWOTH) != 0 && (seen.st_mode & S_ISVTX) == 0) {
    why =
        "everybody may write to it and it has no sticky bit, so that others may replace files in "
        "it";
    way_out =
        concat("Run chmod +t ", given, " or chmod o-w ", given, ", or give another directory");
  }
  if (!why.empty()) {
    close(directory);
    refuse_directory(given, why, way_out);
  }
  return directory;
}

Bytes process_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<Bytes>::max();
  }
  return limit.rlim_cur;
}

}  // namespace

SpillFile::SpillFile(const SpillOptions& options, std::unique_ptr<SpillDisk> disk)
    : options_(options), disk_(std::move(disk)), directory_(open_directory(options.directory)) {
  try {
    files_.emplace_back().descriptor = make_file();
  } catch (...) {
    close(directory_);
    throw;
  }
}

SpillFile::~SpillFile() {
  for (const File& file : files_) {
    if (file.descriptor >= 0) close(file.descriptor);
  }
  close(directory_);
}

int SpillFile::make_file() {
  int file = disk_->open_nameless(directory_);
  if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    file = disk_->open_unlinked(directory_);
  }
  if (file < 0) {
    refuse_directory(options_.directory, std::strerror(errno),
                     "Give a directory that this user may write to");
  }
  return file;
}

SpillFile::File& SpillFile::own_file() {
  if (first_own_ == files_.size()) {
    const int descriptor = make_file();
    try {
      files_.emplace_back().descriptor = descriptor;
    } catch (...) {
      close(descriptor);
      throw;
    }
  }
  return files_.back();
}

const SpillFile::File* SpillFile::own_file_or_null() const {
  return first_own_ == files_.size() ? nullptr : &files_.back();
}

// Grows the file so that take() succeeds.
void SpillFile::make_room(File& file, Bytes rounded, Bytes bytes) {
  SpillSpace& space = file.space;
  const Bytes at_end = space.free_at_end();
  const Bytes least = rounded - at_end;  // the free range at the end is too small
  const Bytes process_limit = process_file_limit();
  const Bytes limit =
      std::min(options_.size_limit, process_limit) / SpillSpace::kBlock * SpillSpace::kBlock;
  const auto reserve = [&](Bytes more) {
    return disk_->reserve(file.descriptor, static_cast<off_t>(space.end()),
                          static_cast<off_t>(more)) == 0;
  };
  const auto refuse = [&](const std::string& why, const char* way_out, const char* name,
                          Bytes number) {
    throw IoError(
        "LT0312",
        concat("spill: cannot write ", format_bytes(bytes), " to the file in ", options_.directory,
               ": ", why, "; the file has ", format_bytes(space.end()), ", of which ",
               format_bytes(space.used()), " are in use and the largest free part is ",
               format_bytes(space.largest_free()), ". Nothing is lost; ", way_out),
        {{"directory", options_.directory},
         {"request_bytes", detail(bytes)},
         {"used_bytes", detail(space.used())},
         {"file_bytes", detail(space.end())},
         {name, detail(number)}});
  };

  const Bytes left = limit > space.end() ? limit - space.end() : 0;
  if (least > left) {
    if (process_limit < options_.size_limit) {
      refuse(concat("this process may not write files over ", format_bytes(process_limit),
                    " (RLIMIT_FSIZE)"),
             "raise that limit (ulimit -f)", "limit_bytes", process_limit);
    }
    refuse(concat("its size limit is ", format_bytes(options_.size_limit)),
           "raise the limit of the spill file's size", "limit_bytes", options_.size_limit);
  }
  Bytes more = std::min(std::max(least, kGrowBytes), left);
  bool reserved = reserve(more);
  if (!reserved && more > least) {
    more = least;
    reserved = reserve(more);
  }
  if (!reserved) {
    const int error = errno;
    // What was reserved in part.
    [[maybe_unused]] const int cut = ftruncate(file.descriptor, static_cast<off_t>(space.end()));
    struct statfs disk{};
    const Bytes free_bytes =
        fstatfs(file.descriptor, &disk) == 0
            ? static_cast<Bytes>(disk.f_bavail) * static_cast<Bytes>(disk.f_bsize)
            : 0;
    refuse(concat(std::strerror(error), ", the disk has ", format_bytes(free_bytes), " free"),
           "free some space, or give a directory on a disk with more room", "free_bytes",
           free_bytes);
  }
  space.grow(more);
}

SpillFile::Extent SpillFile::write(const void* data, Bytes bytes) {
  Extent extent{0, bytes, checksum(data, bytes), 0};
  if (bytes == 0) return extent;
  int file;
  {
    const std::lock_guard lock(mutex_);
    File& own = own_file();
    const Bytes rounded = SpillSpace::rounded(bytes);
    std::optional<std::uint64_t> offset = own.space.take(rounded);
    if (!offset) {
      make_room(own, rounded, bytes);
      offset = own.space.take(rounded);
    }
    extent.offset = *offset;
    extent.file = static_cast<std::uint32_t>(files_.size() - 1);
    file = own.descriptor;
  }

  const std::uint64_t began_ns = disk_->now_ns();
  const auto* const from = static_cast<const char*>(data);
  for (Bytes done = 0; done < bytes;) {
    const ssize_t count = disk_->write(file, from + done, std::min<Bytes>(bytes - done, kCallBytes),
                                       static_cast<off_t>(extent.offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count == 0 ? ENOSPC : errno;
      release(extent);
      throw IoError(
          "LT0312",
          concat("spill: writing ", format_bytes(bytes), " to the file in ", options_.directory,
                 " stopped after ", format_bytes(done), ": ", std::strerror(error),
                 ". Nothing is lost; check the disk, or give a directory on another one"),
          {{"directory", options_.directory},
           {"request_bytes", detail(bytes)},
           {"done_bytes", detail(done)}});
    }
    done += static_cast<Bytes>(count);
  }
  const std::uint64_t ns = disk_->now_ns() - began_ns;

  const std::lock_guard lock(mutex_);
  written_bytes_ += bytes;
  write_rate_.add(bytes, ns);
  return extent;
}

void SpillFile::read(const Extent& extent, void* to) const {
  int file = -1;
  if (extent.bytes > 0) {
    const std::lock_guard lock(mutex_);
    file = files_.at(extent.file).descriptor;
  }
  const auto refuse = [&](const char* id, const std::string& what, const char* way_out,
                          Bytes done) {
    throw IoError(id,
                  concat("spill: cannot read back ", format_bytes(extent.bytes), " from byte ",
                         extent.offset, " of the file in ", options_.directory, ": ", what,
                         ". Nothing was computed with them; ", way_out),
                  {{"directory", options_.directory},
                   {"request_bytes", detail(extent.bytes)},
                   {"offset", detail(extent.offset)},
                   {"done_bytes", detail(done)}});
  };

  const std::uint64_t began_ns = disk_->now_ns();
  auto* const begin = static_cast<char*>(to);
  for (Bytes done = 0; done < extent.bytes;) {
    const ssize_t count =
        disk_->read(file, begin + done, std::min<Bytes>(extent.bytes - done, kCallBytes),
                    static_cast<off_t>(extent.offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      refuse(
          "LT0313",
          concat(count == 0 ? "it was cut short" : std::strerror(errno), ", ", done, " bytes came"),
          "check the disk, and that no other program writes to the file", done);
    }
    done += static_cast<Bytes>(count);
  }
  const std::uint64_t ns = disk_->now_ns() - began_ns;

  if (checksum(to, extent.bytes) != extent.checksum) {
    refuse("LT0314", "they are not the bytes that were written (the checksum differs)",
           "check the disk, and that no other program writes to the file", extent.bytes);
  }
  const std::lock_guard lock(mutex_);
  read_bytes_ += extent.bytes;
  if (extent.bytes > 0) read_rate_.add(extent.bytes, ns);
}

void SpillFile::release(const Extent& extent) noexcept {
  if (extent.bytes == 0) return;
  const std::lock_guard lock(mutex_);
  if (extent.file < first_own_ || extent.file >= files_.size()) return;
  files_[extent.file].space.give_back(extent.offset);
}

Bytes SpillFile::used_bytes() const {
  const std::lock_guard lock(mutex_);
  const File* const own = own_file_or_null();
  return own == nullptr ? 0 : own->space.used();
}

Bytes SpillFile::file_bytes() const {
  const std::lock_guard lock(mutex_);
  const File* const own = own_file_or_null();
  return own == nullptr ? 0 : own->space.end();
}

Bytes SpillFile::written_bytes() const {
  const std::lock_guard lock(mutex_);
  return written_bytes_;
}

Bytes SpillFile::read_bytes() const {
  const std::lock_guard lock(mutex_);
  return read_bytes_;
}

std::uint64_t SpillFile::write_ns(Bytes bytes) const {
  const std::lock_guard lock(mutex_);
  return write_rate_.expected_ns(bytes);
}

std::uint64_t SpillFile::read_ns(Bytes bytes) const {
  const std::lock_guard lock(mutex_);
  return read_rate_.expected_ns(bytes);
}

bool SpillFile::is_in_memory() const {
  struct statfs disk{};
  const std::lock_guard lock(mutex_);
  return fstatfs(files_.back().descriptor, &disk) == 0 &&
         (disk.f_type == kTmpfs || disk.f_type == kRamfs);
}

void SpillFile::before_fork() { mutex_.before_fork(); }

void SpillFile::after_fork(bool in_child) {
  if (in_child) first_own_ = files_.size();
  mutex_.after_fork(in_child);
}

}  // namespace lowtide
