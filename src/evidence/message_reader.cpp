#include "src/evidence/message_reader.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <string_view>

namespace lowtide {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

// A place in squeezed text. Each reader moves on past what it read, or stays and says so.
class Cursor {
 public:
  Cursor(std::string_view text, std::size_t at) : text_(text), at_(at) {}

  std::size_t at() const { return at_; }
  void move_to(std::size_t at) { at_ = std::min(at, text_.size()); }

  bool literal(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  std::optional<std::uint64_t> integer() {
    std::size_t end = at_;
    std::uint64_t value = 0;
    constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
    while (end < text_.size() && is_digit(text_[end])) {
      const auto digit = static_cast<std::uint64_t>(text_[end] - '0');
      value = value > (kMax - digit) / 10 ? kMax : value * 10 + digit;
      ++end;
    }
    if (end == at_) return std::nullopt;
    at_ = end;
    return value;
  }

  // "12.34GiB", "512bytes". PyTorch means powers of 1024 by GB and MB too, where old versions write
  // them. Sizes that do not fit (a wrapped negative number prints 2^64) become the largest number.
  std::optional<PrintedBytes> size() {
    const std::size_t begin = at_;
    const std::optional<std::uint64_t> whole = integer();
    if (!whole) return std::nullopt;
    std::uint64_t fraction = 0;
    std::uint64_t scale = 1;
    if (literal(".")) {
      std::size_t count = 0;
      while (at_ < text_.size() && is_digit(text_[at_])) {
        if (count < 6) {
          fraction = fraction * 10 + static_cast<std::uint64_t>(text_[at_] - '0');
          scale *= 10;
          ++count;
        }
        ++at_;
      }
    }
    unsigned shift = 0;
    bool known = false;
    struct Unit {
      std::string_view name;
      unsigned shift;
    };
    constexpr std::array<Unit, 12> kUnits{{{"bytes", 0},
                                           {"KiB", 10},
                                           {"MiB", 20},
                                           {"GiB", 30},
                                           {"TiB", 40},
                                           {"KB", 10},
                                           {"kB", 10},
                                           {"MB", 20},
                                           {"GB", 30},
                                           {"TB", 40},
                                           {"B", 0},
                                           {"byte", 0}}};
    for (const Unit& unit : kUnits) {
      if (literal(unit.name)) {
        shift = unit.shift;
        known = true;
        break;
      }
    }
    if (!known) {
      at_ = begin;
      return std::nullopt;
    }
    PrintedBytes result;
    const std::uint64_t unit = std::uint64_t{1} << shift;
    constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
    result.bytes = *whole > (kMax >> shift) ? kMax : *whole << shift;
    // unit <= 2^40 and fraction < 10^6: no overflow.
    const std::uint64_t part = (fraction * unit + scale / 2) / scale;
    result.bytes = result.bytes > kMax - part ? kMax : result.bytes + part;
    // Half of the last printed digit, rounded up; whole bytes are exact.
    if (shift != 0) result.half_step = (unit + 2 * scale - 1) / (2 * scale);
    return result;
  }

 private:
  std::string_view text_;
  std::size_t at_;
};

// The device's name just before "out of memory": CUDA, HIP, XPU and the vendors that keep the form.
std::string backend_before(std::string_view text, std::size_t at) {
  std::size_t begin = at;
  while (begin > 0 && is_upper(text[begin - 1]) && at - begin < 8) --begin;
  const std::string_view word = text.substr(begin, at - begin);
  for (const std::string_view known : {"CUDA", "HIP", "XPU", "NPU", "MLU", "GCU", "MUSA", "DIPU"}) {
    if (word.ends_with(known)) return std::string(known);
  }
  return word.size() >= 2 ? std::string(word) : std::string();
}

void read_advice(std::string_view text, std::size_t at, MemoryMessage& message) {
  // The advice follows the numbers at once; its own length bounds the search.
  const std::string_view advice = text.substr(at, 220);
  if (advice.find("max_split_size_mb") != std::string_view::npos) {
    message.advice = MessageAdvice::kMaxSplitSize;
  } else if (advice.find("_ALLOC_CONF=expandable") != std::string_view::npos) {
    message.advice = advice.find("PYTORCH_ALLOC_CONF") != std::string_view::npos
                         ? MessageAdvice::kExpandableAllocConf
                         : MessageAdvice::kExpandableSegments;
  }
}

// "(GPU d; T total capacity; A already allocated; F free; C cached)" and its later forms.
void read_bracketed(Cursor& cursor, MemoryMessage& message) {
  message.device = cursor.integer();
  if (!cursor.literal(";")) return;
  for (int clause = 0; clause < 6; ++clause) {
    const std::optional<PrintedBytes> size = cursor.size();
    if (!size) return;
    if (cursor.literal("totalcapacity")) {
      message.capacity = size;
    } else if (cursor.literal("alreadyallocated")) {
      message.allocated = size;
    } else if (cursor.literal("free")) {
      message.free = size;
    } else if (cursor.literal("allowed")) {
      message.allowed = size;
    } else if (cursor.literal("cached")) {
      message.family = MessageFamily::kCached;
      message.reserved_unallocated = size;
    } else if (cursor.literal("reservedintotalbyPyTorch")) {
      message.family = MessageFamily::kReservedTotal;
      message.reserved_total = size;
    } else {
      return;
    }
    if (!cursor.literal(";")) {
      cursor.literal(")");
      return;
    }
  }
}

// ". GPU d has a total capacity of T of which F is free. ..."
void read_sentences(Cursor& cursor, MemoryMessage& message) {
  message.device = cursor.integer();  // missing in some 2.2 builds
  if (!cursor.literal("hasatotalcapacityof") && !cursor.literal("hasatotalcapactyof")) return;
  message.family = MessageFamily::kUnallocated;
  message.capacity = cursor.size();
  if (cursor.literal("ofwhich")) {
    message.free = cursor.size();
    cursor.literal("isfree");
  }
  cursor.literal(".");
  for (;;) {
    const std::size_t begin = cursor.at();
    if (cursor.literal("Process")) {
      const std::optional<std::uint64_t> pid = cursor.integer();
      if (pid && cursor.literal("has")) {
        const std::optional<PrintedBytes> size = cursor.size();
        if (size && cursor.literal("memoryinuse.")) {
          if (message.processes.size() < 256) message.processes.push_back({*pid, *size});
          continue;
        }
      }
    } else if (cursor.literal("Includingnon-PyTorchmemory,thisprocesshas")) {
      message.this_process = cursor.size();
      if (message.this_process && cursor.literal("memoryinuse.")) continue;
    } else if (cursor.literal("Oftheallocatedmemory")) {
      message.allocated = cursor.size();
      if (!message.allocated || !cursor.literal("isallocatedbyPyTorch,")) return;
      if (cursor.literal("with")) {
        message.private_pools = cursor.size();
        cursor.literal("allocatedinprivatepools(e.g.,CUDAGraphs),");
      }
      if (cursor.literal("and")) {
        message.reserved_unallocated = cursor.size();
        cursor.literal("isreservedbyPyTorchbutunallocated.");
      }
      return;
    } else if (const std::optional<PrintedBytes> size = cursor.size();
               size && cursor.literal("allowed;")) {
      message.allowed = size;
      continue;
    }
    cursor.move_to(begin);
    return;
  }
}

using Reader = bool (*)(std::string_view text, std::size_t seed, Cursor& cursor,
                        MemoryMessage& message);

bool read_out_of_memory(std::string_view text, std::size_t seed, Cursor& cursor,
                        MemoryMessage& message) {
  message.backend = backend_before(text, seed);
  if (message.backend.empty()) return false;
  cursor.literal("outofmemory.");
  message.family = MessageFamily::kShortened;
  if (!cursor.literal("Triedtoallocate")) return true;
  if (cursor.literal("morethan1EBmemory")) {
    message.family = MessageFamily::kOverOneExabyte;
    return true;
  }
  message.requested = cursor.size();
  if (!message.requested) return true;
  if (cursor.literal("(GPU")) {
    read_bracketed(cursor, message);
  } else if (cursor.literal(".GPU")) {
    read_sentences(cursor, message);
  }
  read_advice(text, cursor.at(), message);
  return true;
}

bool read_mps(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("MPSbackendoutofmemory");
  message.family = MessageFamily::kMps;
  message.backend = "MPS";
  if (!cursor.literal("(MPSallocated:")) return true;
  message.allocated = cursor.size();
  if (cursor.literal(",otherallocations:")) message.other_allocations = cursor.size();
  if (cursor.literal(",maxallowed:")) message.allowed = cursor.size();
  if (!cursor.literal(").Triedtoallocate")) return true;
  message.requested = cursor.size();
  if (cursor.literal("onprivatepool")) message.detail = "private";
  if (cursor.literal("onsharedpool")) message.detail = "shared";
  return true;
}

bool read_malloc_async(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("Allocationondevice");
  const std::optional<std::uint64_t> device = cursor.integer();
  if (!cursor.literal("wouldexceedallowedmemory.")) return false;
  message.family = MessageFamily::kMallocAsync;
  message.backend = "CUDA";
  message.device = device;
  cursor.literal("(outofmemory)");
  if (cursor.literal("Currentlyallocated:")) message.allocated = cursor.size();
  if (cursor.literal("Requested:")) message.requested = cursor.size();
  if (cursor.literal("Devicelimit:")) message.capacity = cursor.size();
  if (cursor.literal("Free(accordingtoCUDA):")) message.free = cursor.size();
  if (cursor.literal("PyTorchlimit(setbyuser-suppliedmemoryfraction):")) {
    message.allowed = cursor.size();
  }
  return true;
}

bool read_thc_check(std::string_view text, std::size_t seed, Cursor& cursor,
                    MemoryMessage& message) {
  cursor.literal("THCudaCheckFAIL");
  const std::size_t found = text.substr(seed, 400).find("error=2:outofmemory");
  if (found == std::string_view::npos) return false;
  message.family = MessageFamily::kThcCheck;
  message.backend = "CUDA";
  cursor.move_to(seed + found + std::string_view("error=2:outofmemory").size());
  return true;
}

bool read_runtime_error_two(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("cudaruntimeerror(2):outofmemory");
  message.family = MessageFamily::kRuntimeErrorTwo;
  message.backend = "CUDA";
  return true;
}

bool read_cuda_error(std::string_view text, std::size_t seed, Cursor& cursor,
                     MemoryMessage& message) {
  message.family = MessageFamily::kCudaErrorBare;
  message.backend = text.substr(seed).starts_with("HIP") ? "HIP" : "CUDA";
  cursor.literal("CUDAerror:outofmemory");
  cursor.literal("HIPerror:outofmemory");
  return true;
}

// Messages that say no more than that device memory ran out, in the words of others.
bool read_device_bare(std::string_view, std::size_t, Cursor&, MemoryMessage& message) {
  message.family = MessageFamily::kShortened;
  message.backend = "CUDA";
  return true;
}

// On Jetson the allocator fails while it asks who uses the memory, and reports that instead.
bool read_nvml_assert(std::string_view text, std::size_t seed, Cursor& cursor,
                      MemoryMessage& message) {
  const std::size_t found = text.substr(seed, 200).find("CUDACachingAllocator.cpp");
  if (found == std::string_view::npos) return false;
  cursor.move_to(seed + found);
  message.family = MessageFamily::kShortened;
  message.backend = "CUDA";
  message.detail = "NVML";
  return true;
}

bool read_driver(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("CUDAdrivererror:outofmemory");
  message.family = MessageFamily::kDriver;
  message.backend = "CUDA";
  return true;
}

bool read_cpu(std::string_view text, std::size_t seed, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("DefaultCPUAllocator:");
  if (!cursor.literal("can'tallocatememory:") && !cursor.literal("notenoughmemory:")) return false;
  message.family = MessageFamily::kCpuAllocator;
  message.backend = "CPU";
  message.detail = "DefaultCPUAllocator";
  if (cursor.literal("youtriedtoallocate")) message.requested = cursor.size();
  (void)text;
  (void)seed;
  return true;
}

bool read_torch7(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("$Torch:");
  if (!cursor.literal("notenoughmemory:youtriedtoallocate")) return false;
  message.family = MessageFamily::kCpuAllocator;
  message.backend = "CPU";
  message.detail = "Torch7";
  message.requested = cursor.size();
  return true;
}

bool read_c10(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("C10OutofMemory.");
  message.family = MessageFamily::kCpuAllocator;
  message.backend = "CPU";
  message.detail = "mobile";
  if (cursor.literal("Tryingtoallocate")) {
    if (const auto count = cursor.size()) message.requested = count;
  }
  return true;
}

bool read_array(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("Unabletoallocate");
  const std::optional<PrintedBytes> size = cursor.size();
  // NumPy before 1.18 names the shape only.
  if (!cursor.literal(size ? "foranarraywithshape" : "arraywithshape")) return false;
  message.family = MessageFamily::kArrayTooLarge;
  message.backend = "CPU";
  message.requested = size;
  return true;
}

bool read_host_bare(std::string_view, std::size_t, Cursor&, MemoryMessage& message) {
  message.family = MessageFamily::kArrayTooLarge;
  message.backend = "CPU";
  return true;
}

bool read_overflow(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("Storagesizecalculationoverflowed");
  message.family = MessageFamily::kSizeOverflow;
  return true;
}

template <MessageFamily family>
bool read_status(std::string_view text, std::size_t seed, Cursor& cursor, MemoryMessage& message) {
  message.family = family;
  message.backend = "CUDA";
  std::size_t end = seed;
  while (end < text.size() && (is_upper(text[end]) || text[end] == '_') && end - seed < 40) ++end;
  message.detail.assign(text.substr(seed, end - seed));
  cursor.move_to(end);
  return true;
}

bool read_no_engine(std::string_view, std::size_t, Cursor&, MemoryMessage& message) {
  message.family = MessageFamily::kCudnn;
  message.backend = "CUDA";
  message.detail = "no engine";
  return true;
}

bool read_nccl(std::string_view text, std::size_t seed, Cursor& cursor, MemoryMessage& message) {
  message.family = MessageFamily::kNccl;
  message.backend = "CUDA";
  if (cursor.literal("FailedtoCUDA")) {
    if (!cursor.literal("calloc") && !cursor.literal("malloc") && !cursor.literal("hostalloc")) {
      return false;
    }
    message.detail = "calloc";
    message.requested = cursor.size();
    return true;
  }
  const std::string_view near = text.substr(seed, 48);
  const std::size_t end = near.find("'outofmemory'");
  if (end == std::string_view::npos) return false;
  message.detail = "out of memory";
  cursor.move_to(seed + end + 13);
  return true;
}

bool read_kernel_resources(std::string_view text, std::size_t seed, Cursor& cursor,
                           MemoryMessage& message) {
  message.family = MessageFamily::kKernelResources;
  message.backend = "CUDA";
  message.detail = text.substr(seed).starts_with("outofresource") ? "shared memory of a kernel"
                                                                  : "launch resources";
  cursor.literal("outofresource:sharedmemory,Required:");
  if (const auto count = cursor.integer()) message.requested = PrintedBytes{*count, 0};
  if (cursor.literal(",Hardwarelimit:")) {
    if (const auto count = cursor.integer()) message.capacity = PrintedBytes{*count, 0};
  }
  return true;
}

bool read_data_loader(std::string_view, std::size_t, Cursor& cursor, MemoryMessage& message) {
  cursor.literal("DataLoaderworker(pid");
  cursor.literal("(s)");
  message.family = MessageFamily::kDataLoader;
  message.backend = "CPU";
  message.pid = cursor.integer();
  for (int more = 0; more < 64 && cursor.literal(","); ++more) cursor.integer();
  if (!cursor.literal(")")) return false;
  if (cursor.literal("iskilledbysignal:")) {
    if (cursor.literal("Buserror")) {
      message.detail = "Bus error";
    } else if (cursor.literal("Killed")) {
      message.detail = "Killed";
    } else {
      message.family = MessageFamily::kNotMemory;
      message.detail = "a worker ended by another signal";
    }
    return true;
  }
  if (cursor.literal("exitedunexpectedly")) {
    message.detail = "exited unexpectedly";
    return true;
  }
  return false;
}

bool read_shm(std::string_view, std::size_t, Cursor&, MemoryMessage& message) {
  message.family = MessageFamily::kSharedMemory;
  message.backend = "CPU";
  return true;
}

// "unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)":
// older versions give no reason.
bool read_shm_open(std::string_view text, std::size_t seed, Cursor& cursor,
                   MemoryMessage& message) {
  const std::string_view near = text.substr(seed, 160);
  const std::size_t files = near.find("Toomanyopenfiles");
  if (files != std::string_view::npos) {
    message.family = MessageFamily::kNotMemory;
    message.detail = "the limit of open files";
    cursor.move_to(seed + files + 16);
    return true;
  }
  message.family = MessageFamily::kSharedMemory;
  message.backend = "CPU";
  const bool told = near.find("Nospaceleft") != std::string_view::npos ||
                    near.find("Cannotallocate") != std::string_view::npos;
  if (!told) message.detail = "no reason given";
  return true;
}

bool read_no_space(std::string_view text, std::size_t seed, Cursor&, MemoryMessage& message) {
  // A full disk unless the words around it are those of shared memory.
  const std::size_t begin = seed > 200 ? seed - 200 : 0;
  const std::string_view near = text.substr(begin, seed - begin + 200);
  for (const std::string_view word : {"/dev/shm", "shm_open", "sharedmemory", "</torch_"}) {
    if (near.find(word) != std::string_view::npos) {
      message.family = MessageFamily::kSharedMemory;
      message.backend = "CPU";
      return true;
    }
  }
  message.family = MessageFamily::kNotMemory;
  message.detail = "a full disk";
  return true;
}

bool read_kernel_kill(std::string_view text, std::size_t, Cursor& cursor, MemoryMessage& message) {
  if (!cursor.literal("utofmemory:") && !cursor.literal("utofMemory:")) return false;
  if (!cursor.literal("Killedprocess") && !cursor.literal("Killprocess")) return false;
  message.family = MessageFamily::kKernelOomKill;
  message.backend = "CPU";
  message.pid = cursor.integer();
  cursor.literal(",");
  if (cursor.literal("UID")) {
    cursor.integer();
    cursor.literal(",");
  }
  if (cursor.literal("(")) {
    const std::size_t begin = cursor.at();
    const std::size_t close = text.find(')', begin);
    if (close == std::string_view::npos || close - begin > 40) return true;
    message.detail.assign(text.substr(begin, close - begin));
    cursor.move_to(close + 1);
  }
  cursor.literal(",");
  cursor.literal("UID:");
  cursor.integer();
  cursor.literal(",");
  if (cursor.literal("total-vm:")) cursor.size();
  if (cursor.literal(",anon-rss:")) {
    if (const auto size = cursor.size()) message.anon_rss = size->bytes;
  }
  if (cursor.literal(",file-rss:")) cursor.size();
  if (cursor.literal(",shmem-rss:")) {
    if (const auto size = cursor.size()) message.shmem_rss = size->bytes;
  }
  return true;
}

template <std::size_t length>
bool read_job_limit(std::string_view text, std::size_t seed, Cursor& cursor,
                    MemoryMessage& message) {
  message.family = MessageFamily::kJobMemoryLimit;
  message.backend = "CPU";
  message.detail.assign(text.substr(seed, length));
  cursor.move_to(seed + length);
  return true;
}

// A code or a signal and nothing else: "exitcode: -9", "exit code 137", "signal 9 (SIGKILL)".
bool read_exit_code(std::string_view text, std::size_t seed, Cursor& cursor,
                    MemoryMessage& message) {
  for (const std::string_view word : {"exitcode", "exitCode", "Exitcode", "ExitCode", "exitstatus",
                                      "returncode", "return_code", "exit_code"}) {
    if (cursor.literal(word)) break;
  }
  if (cursor.at() == seed) return false;
  for (const std::string_view sign : {":", "=", "\":", "':", "is", "of"}) {
    if (cursor.literal(sign)) break;
  }
  const bool negative = cursor.literal("-");
  const std::optional<std::uint64_t> code = cursor.integer();
  if (!code) return false;
  const bool killed = (negative && *code == 9) || (!negative && *code == 137);
  const bool bus = (negative && *code == 7) || (!negative && *code == 135);
  if (!killed && !bus) return false;
  message.family = bus ? MessageFamily::kSharedMemory : MessageFamily::kKilled;
  message.backend = "CPU";
  message.exit_code =
      negative ? -static_cast<std::int64_t>(*code) : static_cast<std::int64_t>(*code);
  (void)text;
  return true;
}

// A launcher ends the other processes of a job when one has failed: an echo.
bool read_launcher_kill(std::string_view, std::size_t, Cursor&, MemoryMessage& message) {
  message.family = MessageFamily::kKilled;
  message.backend = "CPU";
  message.detail = "by the launcher";
  return true;
}

bool read_sigkill(std::string_view, std::size_t, Cursor&, MemoryMessage& message) {
  message.family = MessageFamily::kKilled;
  message.backend = "CPU";
  message.detail = "SIGKILL";
  return true;
}

template <int which>
bool read_other(std::string_view, std::size_t, Cursor&, MemoryMessage& message) {
  constexpr std::array<const char*, 6> kMeanings{
      "a kernel read or wrote outside its data",
      "an index is outside its tensor's range",
      "the loader has no room for a library's thread-local data",
      "the limit of open files",
      "the device is refused to this process",
      "a label or an index outside its range"};
  message.family = MessageFamily::kNotMemory;
  message.detail = kMeanings[which];
  return true;
}

struct Seed {
  std::string_view word;  // without blanks
  Reader read;
};

constexpr std::string_view kBareError = "MemoryError";

// Where two seeds can begin at one place, the more telling one comes first.
// "budget: cannot allocate 1.00 GiB for aten::mm within the limit of 6.00 GiB: 5.50 GiB are live
// (..) and ... The smallest budget for this step is at least 6.50 GiB (6979321856 bytes) [LT0301]".
// The program is named in place of an op where none ran.
bool read_budget(std::string_view text, std::size_t seed, Cursor& cursor, MemoryMessage& message) {
  constexpr std::string_view kLimit = "withinthelimitof";
  constexpr std::string_view kSmallest = "Thesmallestbudgetforthisstepis";
  cursor.literal("budget:cannotallocate");
  message.family = MessageFamily::kBudget;
  message.backend = "CPU";
  message.requested = cursor.size();
  if (!message.requested || !cursor.literal("for")) return false;
  const std::size_t op = cursor.at();
  const std::size_t limit = text.substr(op, 300).find(kLimit);
  if (limit == std::string_view::npos) return false;
  message.detail = text.substr(op, limit);
  if (message.detail == "theprogram") message.detail = "the program";
  cursor.move_to(op + limit + kLimit.size());
  message.allowed = cursor.size();
  if (!message.allowed) return false;
  cursor.literal(":");
  message.allocated = cursor.size();
  // What is held by kind and by op stands between; a kilobyte, at most.
  const std::size_t smallest = text.substr(seed, 2000).find(kSmallest);
  if (smallest == std::string_view::npos) return true;
  cursor.move_to(seed + smallest + kSmallest.size());
  message.smallest_budget_is_bound = cursor.literal("atleast");
  cursor.size();
  if (cursor.literal("(")) message.smallest_budget = cursor.integer();
  cursor.literal("bytes)");
  cursor.literal("[LT0301]");
  return true;
}

constexpr std::array kSeeds{
    Seed{"budget:cannotallocate", read_budget},
    Seed{"outofmemory.", read_out_of_memory},
    Seed{"MPSbackendoutofmemory", read_mps},
    Seed{"Allocationondevice", read_malloc_async},
    Seed{"THCudaCheckFAIL", read_thc_check},
    Seed{"cudaruntimeerror(2):outofmemory", read_runtime_error_two},
    Seed{"CUDAerror:outofmemory", read_cuda_error},
    Seed{"HIPerror:outofmemory", read_cuda_error},
    Seed{"CUDAdrivererror:outofmemory", read_driver},
    Seed{"DefaultCPUAllocator:", read_cpu},
    Seed{"$Torch:notenoughmemory", read_torch7},
    Seed{"C10OutofMemory.", read_c10},
    Seed{"Unabletoallocate", read_array},
    Seed{"std::bad_alloc", read_host_bare},
    Seed{kBareError, read_host_bare},  // only as a whole line
    Seed{"[Errno12]Cannotallocatememory", read_host_bare},
    Seed{"Storagesizecalculationoverflowed", read_overflow},
    Seed{"CUBLAS_STATUS_ALLOC_FAILED", read_status<MessageFamily::kCublas>},
    Seed{"CUBLAS_STATUS_NOT_INITIALIZED", read_status<MessageFamily::kCublas>},
    Seed{"CUDNN_STATUS_ALLOC_FAILED", read_status<MessageFamily::kCudnn>},
    Seed{"CUDNN_STATUS_NOT_INITIALIZED", read_status<MessageFamily::kCudnn>},
    Seed{"unabletofindanengine", read_no_engine},
    Seed{"UnabletofindavalidcuDNNalgorithm", read_no_engine},
    Seed{"Cudafailure", read_nccl},
    Seed{"FailedtoCUDA", read_nccl},
    Seed{"outofresource:sharedmemory", read_kernel_resources},
    Seed{"toomanyresourcesrequestedforlaunch", read_kernel_resources},
    Seed{"DataLoaderworker(pid", read_data_loader},
    Seed{"unabletoopensharedmemoryobject", read_shm_open},
    Seed{"insufficientsharedmemory(shm)", read_shm},
    Seed{"unabletowritetofile</torch_", read_shm},
    Seed{"Errorwhilecreatingsharedmemory", read_shm},
    Seed{"Nospaceleftondevice", read_no_space},
    Seed{"utofmemory:Kill", read_kernel_kill},
    Seed{"utofMemory:Kill", read_kernel_kill},
    Seed{"oom-killevent", read_job_limit<13>},
    Seed{"oom_killevent", read_job_limit<13>},
    Seed{"OOMKilled", read_job_limit<9>},
    Seed{":task0:OutOfMemory", read_job_limit<18>},
    Seed{"Exceededjobmemorylimit", read_job_limit<22>},
    Seed{"Exceededstepmemorylimit", read_job_limit<23>},
    Seed{"exceededmemorylimit", read_job_limit<19>},
    Seed{"TERM_MEMLIMIT", read_job_limit<13>},
    Seed{"killedduetothenoderunninglowonmemory", read_job_limit<36>},
    Seed{"exitcode", read_exit_code},
    Seed{"exitCode", read_exit_code},
    Seed{"Exitcode", read_exit_code},
    Seed{"ExitCode", read_exit_code},
    Seed{"exitstatus", read_exit_code},
    Seed{"returncode", read_exit_code},
    Seed{"exit_code", read_exit_code},
    Seed{"Signal9(SIGKILL)", read_sigkill},
    Seed{"signal9(SIGKILL)", read_sigkill},
    Seed{"SIGKILL:9", read_sigkill},
    Seed{"sigkill_handler]Killingsubprocess", read_launcher_kill},
    Seed{"NVML_SUCCESS==r", read_nvml_assert},
    Seed{"CUDA_ERROR_OUT_OF_MEMORY", read_device_bare},
    Seed{"Noexecutablebatchsizefound", read_device_bare},
    Seed{"[WinError1455]", read_host_bare},
    Seed{"pagingfileistoosmall", read_host_bare},
    Seed{"afterusingallavailableRAM", read_host_bare},
    Seed{"unabletommap", read_shm},
    Seed{"CUDNN_STATUS_INTERNAL_ERROR", read_status<MessageFamily::kCudnn>},
    Seed{"Killed", read_sigkill},
    Seed{"illegalmemoryaccess", read_other<0>},
    Seed{"device-sideasserttriggered", read_other<1>},
    Seed{"cannotallocatememoryinstaticTLSblock", read_other<2>},
    Seed{"received0itemsofancdata", read_other<3>},
    Seed{"Toomanyopenfiles", read_other<3>},
    Seed{"allCUDA-capabledevicesarebusyorunavailable", read_other<4>},
};

}  // namespace

SqueezedText::SqueezedText(const std::vector<std::string>& lines) {
  std::size_t total = 0;
  for (const std::string& line : lines) total += line.size();
  text_.reserve(total);
  begins_.reserve(lines.size());
  for (const std::string& line : lines) {
    begins_.push_back(text_.size());
    for (const char c : line) {
      // Reports that people copied set the message in bold: **CUDA out of memory**.
      if (c != ' ' && c != '*') text_ += c;
    }
  }
}

std::size_t SqueezedText::line_of(std::size_t at) const {
  const auto above = std::upper_bound(begins_.begin(), begins_.end(), at);
  return above == begins_.begin() ? 0 : static_cast<std::size_t>(above - begins_.begin()) - 1;
}

std::size_t SqueezedText::end_of_line(std::size_t at) const {
  const auto above = std::upper_bound(begins_.begin(), begins_.end(), at);
  return above == begins_.end() ? text_.size() : *above;
}

bool SqueezedText::is_whole_line(std::size_t at, std::size_t length) const {
  const std::size_t begin = begins_.empty() ? 0 : begins_[line_of(at)];
  const std::string_view rest =
      std::string_view(text_).substr(at + length, end_of_line(at) - at - length);
  return begin == at && (rest.empty() || rest == ":");
}

// What shells print when a program was killed: "Killed", "run.sh: line 3: 24181 Killed  python
// ...",
// "[1]    24181 killed".
bool SqueezedText::is_shell_report(std::size_t at) const {
  const std::size_t begin = begins_.empty() ? 0 : begins_[line_of(at)];
  const std::size_t end = end_of_line(at);
  if (begin == at && end == at + 6) return true;
  std::size_t digit = at;
  while (digit > begin && is_digit(text_[digit - 1])) --digit;
  if (digit == at) return false;
  const std::string_view before = std::string_view(text_).substr(begin, digit - begin);
  return before.empty() || before.ends_with(":");
}

std::vector<FoundMessage> read_messages(const SqueezedText& squeezed) {
  const std::string_view text = squeezed.text();
  struct Hit {
    std::size_t at;
    std::size_t seed;
  };
  std::vector<Hit> hits;
  for (std::size_t seed = 0; seed < kSeeds.size(); ++seed) {
    const std::string_view word = kSeeds[seed].word;
    for (std::size_t at = text.find(word); at != std::string_view::npos;
         at = text.find(word, at + word.size())) {
      hits.push_back({at, seed});
    }
  }
  std::sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) {
    return a.at != b.at ? a.at < b.at : a.seed < b.seed;
  });

  std::vector<FoundMessage> found;
  std::size_t read_to = 0;
  for (const Hit& hit : hits) {
    if (hit.at < read_to) continue;
    FoundMessage entry;
    Cursor cursor(text, hit.at);
    // A number that ends its line must not run into one that begins the next.
    const bool bounded = kSeeds[hit.seed].read == read_exit_code;
    const std::string_view visible = bounded ? text.substr(0, squeezed.end_of_line(hit.at)) : text;
    if (bounded) cursor = Cursor(visible, hit.at);
    if (kSeeds[hit.seed].word == kBareError && !squeezed.is_whole_line(hit.at, kBareError.size())) {
      continue;
    }
    if (kSeeds[hit.seed].word == "Killed" && !squeezed.is_shell_report(hit.at)) continue;
    if (!kSeeds[hit.seed].read(visible, hit.at, cursor, entry.message)) continue;
    read_to = std::max(cursor.at(), hit.at + 1);
    entry.first_line = squeezed.line_of(hit.at);
    entry.last_line = squeezed.line_of(std::max(read_to, std::size_t{1}) - 1);
    found.push_back(std::move(entry));
  }
  return found;
}

}  // namespace lowtide
