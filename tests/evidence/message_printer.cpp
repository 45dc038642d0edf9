#include "tests/evidence/message_printer.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <random>

#include "src/base/text.h"

namespace lowtide {
namespace {

// "20.00 MiB", or "20.00 MB" as MPS wrote it at first.
std::string print_size_in(Bytes bytes, bool short_units) {
  const char* names[] = {"KiB", "MiB", "GiB"};
  const char* short_names[] = {"KB", "MB", "GB"};
  if (bytes <= 1024) return concat(bytes, " bytes");
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (unit < 2 && value > 1024) {
    value /= 1024;
    ++unit;
  }
  char text[40];
  std::snprintf(text, sizeof text, "%.2f %s", value, short_units ? short_names[unit] : names[unit]);
  return text;
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}
  Bytes size() {
    // All magnitudes alike, and the borders of the units.
    const unsigned shift = static_cast<unsigned>(random_() % 38);
    const Bytes base = Bytes{1} << shift;
    const auto choice = random_() % 8;
    if (choice == 0) return base;
    return base + random_() % base;
  }
  std::uint64_t number(std::uint64_t below) { return random_() % below; }

 private:
  std::mt19937_64 random_;
};

}  // namespace

std::string print_size(Bytes bytes) { return print_size_in(bytes, false); }

PrintedBytes printed(Bytes bytes) {
  if (bytes <= 1024) return {bytes, 0};
  double value = static_cast<double>(bytes) / 1024;
  unsigned shift = 10;
  while (shift < 30 && value > 1024) {
    value /= 1024;
    shift += 10;
  }
  char text[40];
  std::snprintf(text, sizeof text, "%.2f", value);
  const std::string digits = text;
  const std::size_t dot = digits.find('.');
  const std::uint64_t hundredths = std::stoull(digits.substr(0, dot) + digits.substr(dot + 1));
  const std::uint64_t unit = std::uint64_t{1} << shift;
  return {(hundredths / 100) * unit + ((hundredths % 100) * unit + 50) / 100, (unit + 199) / 200};
}

std::vector<MadeMessage> made_messages(unsigned seed) {
  Draw draw(seed);
  std::vector<MadeMessage> out;
  const auto add = [&out](std::string form, MemoryMessage record, std::string text) {
    out.push_back({std::move(form), std::move(record), std::move(text)});
  };

  const std::string url =
      "  See documentation for Memory Management  "
      "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)";
  for (const char* backend : {"CUDA", "HIP"}) {
    for (const bool with_limit : {false, true}) {
      const Bytes asked = draw.size(), total = draw.size(), used = draw.size(), free = draw.size(),
                  last = draw.size(), limit = draw.size();
      const std::uint64_t device = draw.number(16);
      MemoryMessage m;
      m.backend = backend;
      m.device = device;
      m.requested = printed(asked);
      m.capacity = printed(total);
      m.allocated = printed(used);
      m.free = printed(free);
      if (with_limit) m.allowed = printed(limit);
      const std::string head = concat(
          backend, " out of memory. Tried to allocate ", print_size(asked), " (GPU ", device, "; ",
          print_size(total), " total capacity; ", print_size(used), " already allocated; ",
          print_size(free), " free; ", with_limit ? print_size(limit) + " allowed; " : "");
      m.family = MessageFamily::kCached;
      m.reserved_unallocated = printed(last);
      add("1.0 to 1.3", m, head + print_size(last) + " cached)");
      m.family = MessageFamily::kReservedTotal;
      m.reserved_unallocated.reset();
      m.reserved_total = printed(last);
      add("1.4 to 1.9", m, head + print_size(last) + " reserved in total by PyTorch)");
      m.advice = MessageAdvice::kMaxSplitSize;
      add("1.10 to 2.0", m,
          head + print_size(last) +
              " reserved in total by PyTorch) If reserved memory is >> allocated memory try "
              "setting "
              "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management "
              "and PYTORCH_CUDA_ALLOC_CONF");
    }
    struct Form {
      const char* name;
      const char* capacity;
      MessageAdvice advice;
      const char* advice_text;
      bool pools;
    };
    const Form forms[] = {
        {"2.1", "capacty", MessageAdvice::kMaxSplitSize,
         "max_split_size_mb to avoid fragmentation.", false},
        {"2.2", "capacity", MessageAdvice::kExpandableSegments,
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.", false},
        {"2.4", "capacity", MessageAdvice::kExpandableSegments,
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.", true},
        {"2.9", "capacity", MessageAdvice::kExpandableAllocConf,
         "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.", true}};
    for (const Form& form : forms) {
      for (int variant = 0; variant < 4; ++variant) {
        const Bytes asked = draw.size(), total = draw.size(), used = draw.size(),
                    free = draw.size(), unused = draw.size();
        const std::uint64_t device = draw.number(16);
        MemoryMessage m;
        m.family = MessageFamily::kUnallocated;
        m.backend = backend;
        m.device = device;
        m.requested = printed(asked);
        m.capacity = printed(total);
        m.allocated = printed(used);
        m.free = printed(free);
        m.reserved_unallocated = printed(unused);
        m.advice = form.advice;
        std::string text = concat(backend, " out of memory. Tried to allocate ", print_size(asked),
                                  ". GPU ", device, " has a total ", form.capacity, " of ",
                                  print_size(total), " of which ", print_size(free), " is free. ");
        for (std::uint64_t i = draw.number(4); i > 0; --i) {
          const ProcessUse use{draw.number(4'000'000), printed(draw.size())};
          m.processes.push_back(use);
          text +=
              concat("Process ", use.pid, " has ", print_size(use.bytes.bytes), " memory in use. ");
          m.processes.back().bytes = printed(use.bytes.bytes);
        }
        if (variant % 2 == 1) {
          const Bytes own = draw.size();
          m.this_process = printed(own);
          text += concat("Including non-PyTorch memory, this process has ", print_size(own),
                         " memory in use. ");
        }
        if (variant >= 2) {
          const Bytes limit = draw.size();
          m.allowed = printed(limit);
          text += print_size(limit) + " allowed; ";
        }
        text += concat("Of the allocated memory ", print_size(used), " is allocated by PyTorch, ");
        if (form.pools) {
          const Bytes pools = draw.size();
          m.private_pools = printed(pools);
          text += concat("with ", print_size(pools),
                         " allocated in private pools (e.g., CUDA Graphs), ");
        }
        text += concat("and ", print_size(unused),
                       " is reserved by PyTorch but unallocated. If reserved but unallocated "
                       "memory is large try setting ",
                       form.advice_text, url);
        add(form.name, m, text);
      }
    }
  }

  {
    const Bytes asked = draw.size(), total = draw.size(), used = draw.size(), unused = draw.size();
    MemoryMessage m;
    m.family = MessageFamily::kUnallocated;
    m.backend = "XPU";
    m.device = draw.number(8);
    m.requested = printed(asked);
    m.capacity = printed(total);
    m.allocated = printed(used);
    m.reserved_unallocated = printed(unused);
    add("XPU", m,
        concat("XPU out of memory. Tried to allocate ", print_size(asked), ". GPU ", *m.device,
               " has a total capacity of ", print_size(total), ". Of the allocated memory ",
               print_size(used), " is allocated by PyTorch, and ", print_size(unused),
               " is reserved by PyTorch but unallocated. Please use `empty_cache` to release all "
               "unoccupied cached memory."));
  }
  for (const bool old_units : {false, true}) {
    const Bytes used = draw.size(), other = draw.size(), limit = draw.size(), asked = draw.size();
    MemoryMessage m;
    m.family = MessageFamily::kMps;
    m.backend = "MPS";
    m.allocated = printed(used);
    m.other_allocations = printed(other);
    m.allowed = printed(limit);
    m.requested = printed(asked);
    m.detail = old_units ? "private" : "shared";
    add("MPS", m,
        concat("MPS backend out of memory (MPS allocated: ", print_size_in(used, old_units),
               ", other allocations: ", print_size_in(other, old_units),
               ", max allowed: ", print_size_in(limit, old_units), "). Tried to allocate ",
               print_size_in(asked, old_units), " on ", m.detail,
               " pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory "
               "allocations (may cause system failure)."));
  }
  {
    const Bytes used = draw.size(), asked = draw.size(), total = draw.size(), free = draw.size(),
                limit = draw.size();
    MemoryMessage m;
    m.family = MessageFamily::kMallocAsync;
    m.backend = "CUDA";
    m.device = draw.number(8);
    m.allocated = printed(used);
    m.requested = printed(asked);
    m.capacity = printed(total);
    m.free = printed(free);
    m.allowed = printed(limit);
    add("cudaMallocAsync", m,
        concat("Allocation on device ", *m.device,
               " would exceed allowed memory. (out of memory)\nCurrently allocated     : ",
               print_size(used), "\nRequested               : ", print_size(asked),
               "\nDevice limit            : ", print_size(total),
               "\nFree (according to CUDA): ", print_size(free),
               "\nPyTorch limit (set by user-supplied memory fraction)\n                        : ",
               print_size(limit)));
  }
  const auto plain = [&add](const char* form, MessageFamily family, const char* backend,
                            const std::string& text, const std::string& detail = {}) {
    MemoryMessage m;
    m.family = family;
    m.backend = backend;
    m.detail = detail;
    add(form, m, text);
  };
  plain(
      "0.3", MessageFamily::kThcCheck, "CUDA",
      "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of "
      "memory");
  plain("0.4", MessageFamily::kRuntimeErrorTwo, "CUDA",
        "cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58");
  plain("runtime", MessageFamily::kCudaErrorBare, "CUDA", "CUDA error: out of memory");
  plain("runtime, HIP", MessageFamily::kCudaErrorBare, "HIP", "HIP error: out of memory");
  plain("driver", MessageFamily::kDriver, "CUDA", "CUDA driver error: out of memory");
  plain("1 EB", MessageFamily::kOverOneExabyte, "CUDA",
        "CUDA out of memory. Tried to allocate more than 1EB memory.");
  plain("cuBLAS", MessageFamily::kCublas, "CUDA",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUBLAS_STATUS_ALLOC_FAILED");
  plain("cuBLAS", MessageFamily::kCublas, "CUDA",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUBLAS_STATUS_NOT_INITIALIZED");
  plain("cuDNN", MessageFamily::kCudnn, "CUDA", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED");
  plain("cuDNN", MessageFamily::kCudnn, "CUDA",
        "FIND was unable to find an engine to execute this computation", "no engine");
  plain("NCCL", MessageFamily::kNccl, "CUDA", "NCCL WARN Cuda failure 'out of memory'",
        "out of memory");
  plain("Triton", MessageFamily::kKernelResources, "CUDA",
        "too many resources requested for launch", "launch resources");
  plain("shape", MessageFamily::kSizeOverflow, "",
        "Storage size calculation overflowed with sizes=[4611686018427387904]");
  plain("shm", MessageFamily::kSharedMemory, "CPU",
        "unable to open shared memory object </torch_12_34> in read-write mode", "no reason given");
  plain("shm", MessageFamily::kSharedMemory, "CPU",
        "unable to write to file </torch_12_34>: No space left on device (28)");
  plain(
      "open files", MessageFamily::kNotMemory, "",
      "unable to open shared memory object </torch_12_34> in read-write mode: Too many open files "
      "(24)",
      "the limit of open files");
  plain("Windows", MessageFamily::kArrayTooLarge, "CPU",
        "[WinError 1455] The paging file is too small for this operation to complete.");
  plain("array", MessageFamily::kArrayTooLarge, "CPU",
        "Unable to allocate array with shape (11490542,) and data type float64");
  plain("job", MessageFamily::kJobMemoryLimit, "CPU",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0.", "oom_killevent");
  plain("job", MessageFamily::kJobMemoryLimit, "CPU", "reason: OOMKilled", "OOMKilled");
  plain("other", MessageFamily::kNotMemory, "", "an illegal memory access was encountered",
        "a kernel read or wrote outside its data");
  {
    const Bytes asked = draw.size();
    MemoryMessage m;
    m.family = MessageFamily::kNccl;
    m.backend = "CUDA";
    m.detail = "calloc";
    m.requested = PrintedBytes{asked, 0};
    add("NCCL", m, concat("NCCL WARN Failed to CUDA calloc ", asked, " bytes"));
    m = {};
    m.family = MessageFamily::kCpuAllocator;
    m.backend = "CPU";
    m.detail = "DefaultCPUAllocator";
    m.requested = PrintedBytes{asked, 0};
    add("CPU, Linux", m,
        concat("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
               "memory: you tried to allocate ",
               asked, " bytes. Error code 12 (Cannot allocate memory)"));
    add("CPU, Windows", m,
        concat("data. DefaultCPUAllocator: not enough memory: you tried to allocate ", asked,
               " bytes."));
    m.detail = "Torch7";
    m.requested = PrintedBytes{Bytes{4} << 30, Bytes{1} << 29};
    add("CPU, Torch7", m, "$ Torch: not enough memory: you tried to allocate 4GB. Buy new RAM!");
    m.detail = "mobile";
    m.requested = PrintedBytes{asked, 0};
    add("CPU, mobile", m, concat("C10 Out of Memory. Trying to allocate ", asked, " bytes"));
    m = {};
    m.family = MessageFamily::kKernelResources;
    m.backend = "CUDA";
    m.detail = "shared memory of a kernel";
    m.requested = PrintedBytes{131072, 0};
    m.capacity = PrintedBytes{101376, 0};
    add("Triton", m,
        "out of resource: shared memory, Required: 131072, Hardware limit: 101376. Reducing block "
        "sizes or `num_stages` may help.");
  }
  for (const bool known : {false, true}) {
    // As lowtide::format_bytes prints: three digits, whole bytes below 1 KiB.
    MemoryMessage m;
    m.family = MessageFamily::kBudget;
    m.backend = "CPU";
    m.requested = PrintedBytes{Bytes{3} << 29, Bytes{1} << 20};
    m.requested->half_step = ((Bytes{1} << 30) + 199) / 200;
    m.allowed = PrintedBytes{Bytes{24} << 30, ((Bytes{1} << 30) + 19) / 20};
    m.allocated = PrintedBytes{Bytes{512} << 20, Bytes{1} << 19};
    m.detail = known ? "aten::mm" : "the program";
    m.smallest_budget = draw.size();
    m.smallest_budget_is_bound = !known;
    add("budget", m,
        concat("budget: cannot allocate 1.50 GiB for ", known ? "aten::mm" : "the program",
               " within the limit of 24.0 GiB: 512 MiB are live (parameters 400 MiB, saved 112 "
               "MiB) and nothing more can be given back: what is live is in use, or cannot be made "
               "again. The program itself holds 96.0 MiB made by aten::cat. The smallest budget "
               "for this step is ",
               known ? "" : "at least ", "25.0 GiB (", *m.smallest_budget, " bytes) [LT0301]"));
  }
  for (const char* signal : {"Killed", "Bus error"}) {
    MemoryMessage m;
    m.family = MessageFamily::kDataLoader;
    m.backend = "CPU";
    m.pid = draw.number(4'000'000);
    m.detail = signal;
    add("DataLoader", m,
        concat("DataLoader worker (pid ", *m.pid, ") is killed by signal: ", signal, ". "));
    m.detail = "exited unexpectedly";
    add("DataLoader", m, concat("DataLoader worker (pid(s) ", *m.pid, ", 77) exited unexpectedly"));
  }
  {
    MemoryMessage m;
    m.family = MessageFamily::kKernelOomKill;
    m.backend = "CPU";
    m.pid = draw.number(4'000'000);
    m.detail = "python";
    const Bytes anon = draw.size() % (Bytes{1} << 30), shared = draw.size() % (Bytes{1} << 30);
    m.anon_rss = anon << 10;
    m.shmem_rss = shared << 10;
    add("kernel", m,
        concat("Out of memory: Killed process ", *m.pid, " (python) total-vm:81236928kB, anon-rss:",
               anon, "kB, file-rss:71680kB, shmem-rss:", shared, "kB"));
    m = {};
    m.family = MessageFamily::kKilled;
    m.backend = "CPU";
    m.exit_code = -9;
    add("exit code", m, "failed (exitcode: -9) local_rank: 0 (pid: 1795) of binary: python3");
    m.exit_code = 137;
    add("exit code", m, "command terminated with exit code 137");
  }
  return out;
}

}  // namespace lowtide
