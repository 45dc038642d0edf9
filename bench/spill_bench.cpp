// What the disk under a spill file gives: GB/s (10^9 bytes) of writing and reading back, checksums
// included, through SpillFile.
//
//   spill_bench DIRECTORY [MIB_IN_ALL] [MIB_A_PIECE]      default 1024 and 16
//
// Each way of writing takes turns with the others, five times; the median and the spread. "plain"
// is what SpillFile does. "behind" also starts writing out behind each piece (sync_file_range), and
// "forgetting" takes each piece out of the page cache when it is written and when it is read
// (POSIX_FADV_DONTNEED; what is dirty stays). "cached" is the part of the file in the page cache
// after writing it all: memory that the process does not have, but a control group counts.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/measurement.h"
#include "lowtide/error.h"
#include "src/stash/spill_file.h"

namespace {

using namespace lowtide;  // one program

enum class Way { kPlain, kBehind, kForgetting };
constexpr const char* kNames[] = {"plain", "behind", "forgetting"};

class BenchDisk : public SpillDisk {
 public:
  BenchDisk(Way way, int& file) : way_(way), file_(file) {}
  int open_nameless(int directory) override { return file_ = SpillDisk::open_nameless(directory); }
  ssize_t write(int file, const void* from, std::size_t bytes, off_t offset) override {
    const ssize_t count = SpillDisk::write(file, from, bytes, offset);
    if (count > 0 && way_ != Way::kPlain) {
      sync_file_range(file, offset, count, SYNC_FILE_RANGE_WRITE);
      if (way_ == Way::kForgetting) posix_fadvise(file, offset, count, POSIX_FADV_DONTNEED);
    }
    return count;
  }
  ssize_t read(int file, void* to, std::size_t bytes, off_t offset) override {
    const ssize_t count = SpillDisk::read(file, to, bytes, offset);
    if (way_ == Way::kForgetting) posix_fadvise(file, offset, count, POSIX_FADV_DONTNEED);
    return count;
  }

 private:
  Way way_;
  int& file_;
};

double cached_part(int file, Bytes bytes) {
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return -1;
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  mincore(mapped, bytes, pages.data());
  munmap(mapped, bytes);
  Bytes cached = 0;
  for (const unsigned char page : pages) cached += page & 1;
  return static_cast<double>(cached) / static_cast<double>(pages.size());
}

struct Run {
  double write;  // GB/s
  double read;
  double cached;
};

Run run(Way way, const std::string& directory, Bytes in_all, Bytes piece) {
  int descriptor = -1;
  SpillFile file({.directory = directory}, std::make_unique<BenchDisk>(way, descriptor));
  std::vector<unsigned char> data(piece);
  for (Bytes i = 0; i < piece; ++i) data[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  std::vector<SpillFile::Extent> extents;
  Run result{};
  double begin = bench::wall_seconds();
  for (Bytes done = 0; done < in_all; done += piece) {
    data[done % piece] ^= 1;
    extents.push_back(file.write(data.data(), piece));
  }
  result.write = static_cast<double>(in_all) / 1e9 / (bench::wall_seconds() - begin);
  result.cached = cached_part(descriptor, file.file_bytes());
  begin = bench::wall_seconds();
  while (!extents.empty()) {  // as backward does
    file.read(extents.back(), data.data());
    extents.pop_back();
  }
  result.read = static_cast<double>(in_all) / 1e9 / (bench::wall_seconds() - begin);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: spill_bench DIRECTORY [MIB_IN_ALL] [MIB_A_PIECE]\n");
    return 2;
  }
  const Bytes piece = Bytes{argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 16} << 20;
  const Bytes in_all =
      (Bytes{argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024} << 20) / piece * piece;
  try {
    std::vector<Run> runs[3];
    for (int turn = 0; turn < 5; ++turn) {
      for (const Way way : {Way::kPlain, Way::kBehind, Way::kForgetting}) {
        runs[static_cast<int>(way)].push_back(run(way, argv[1], in_all, piece));
      }
    }
    std::printf("%s, %llu MiB in pieces of %llu MiB, GB/s: median (min - max)\n",
                bench::processor_name().c_str(), static_cast<unsigned long long>(in_all >> 20),
                static_cast<unsigned long long>(piece >> 20));
    for (int way = 0; way < 3; ++way) {
      std::vector<double> write;
      std::vector<double> read;
      std::vector<double> cached;
      for (const Run& one : runs[way]) {
        write.push_back(one.write);
        read.push_back(one.read);
        cached.push_back(one.cached);
      }
      const auto print = [](const char* name, std::vector<double> values) {
        std::sort(values.begin(), values.end());
        std::printf("  %s %5.2f (%.2f - %.2f)", name, bench::median(values), values.front(),
                    values.back());
      };
      std::printf("%-10s", kNames[way]);
      print("write", write);
      print("read", read);
      std::printf("  cached %3.0f %%\n", 100 * bench::median(cached));
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "spill_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
