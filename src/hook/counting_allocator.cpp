// A CPU allocator that knows what each tensor block is.
//
// The problem. Lowtide must know the live bytes of all tensors exactly, find what it knows of a
// storage from the storage alone, and refuse an allocation before it happens. libtorch's allocator
// interface gives a size on the way in and a bare pointer on the way out.
//
// The method. Each block has a header of 64 bytes in front of it, inside one allocation of
// c10::alloc_cpu, so libtorch's alignment, huge pages (THP_MEM_ALLOC_ENABLE), NUMA placement and
// fill flags stay in force:
//
//     base                                  base + 64 = the tensor's data
//     | record | size | kind | ... | seal | data ...
//
// The deleter finds the header by subtraction, without a table or a lock. The seal, next to the
// data, is a constant mixed with the block's address: a write just before the data breaks it, and a
// freed block carries another one until the C library reuses it.
//
// Blocks without a header. A storage's header is read only if its deleter is ours. One path brings
// bare pointers of other origin here: raw_deallocate of a block that was taken with raw_allocate
// before we were registered (oneDNN asks libtorch for the current allocator each time). The seal
// tells these apart: the 8 bytes before such a block are the size field of the C library's own
// header, never a seal. They go to free_cpu, uncounted.
//
// Reuse. Large blocks are mapped on their own and kept when they are freed (block_cache.h), as long
// as what lives and what is kept stay within the limit and within what the process needed lately;
// so resident memory follows the counts, and a step finds the pages of the one before. Where
// libtorch was told to fill, align or place blocks in its own way, all of them come from
// c10::alloc_cpu.
//
// Order. A block is counted after it was allocated and uncounted after it was freed. With a gate in
// force its bytes are reserved before, so that live bytes never cross the limit, not for a moment;
// reserved bytes become live when the block exists, so a failed allocation shows in no peak.
//
// fork. The lock of the counts is held across fork(), so the child's counts are whole. The gate is
// off in the child: what stands behind it lived partly on threads that the child does not have.
//
// End of the process. Tensors in static variables are freed after our statics are gone. So the
// allocator and the counts have no destructors and need no construction at run time, and the
// library is never unloaded (-z nodelete in CMakeLists.txt).
//
// Checked with torch 2.13.0: c10/core/CPUAllocator.h, c10/core/impl/alloc_cpu.h.
// Tested by counting_allocator_test.cpp, memory_meter_test.cpp.

#include "src/hook/counting_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Flags.h>
#include <c10/util/numa.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <string_view>
#include <typeinfo>

#include "src/base/text.h"
#include "src/hook/block_cache.h"
#include "src/hook/device_memory.h"
#include "src/hook/host_errors.h"

C10_DECLARE_bool(caffe2_cpu_allocator_do_zero_fill);
C10_DECLARE_bool(caffe2_cpu_allocator_do_junk_fill);

namespace lowtide::hook {

namespace {

struct alignas(kBlockHeaderBytes) BlockHeader {
  MemoryBlock block;
  Bytes capacity;      // of the BlockCache; 0: from c10::alloc_cpu
  std::uint64_t seal;  // last: next to the data
};
static_assert(sizeof(BlockHeader) == kBlockHeaderBytes);

constexpr std::uint64_t kLiveSeal = 0x6c6f'7774'6964'6521;
constexpr std::uint64_t kFreedSeal = 0x6672'6565'6474'6964;

// The system takes sizes up to PTRDIFF_MAX; the header must fit too.
constexpr std::size_t kLargestRequest =
    static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) - kBlockHeaderBytes;

constinit MemoryLedger g_ledger;
constinit BlockCache g_cache;
constinit std::atomic<bool> g_reuses{false};

// Tells the listener and the watcher when there are both.
class BothListeners final : public BlockListener {
 public:
  constexpr BothListeners() = default;
  void block_made(MemoryBlock& block) noexcept override {
    for (const auto& one : {&listener, &watcher}) {
      if (BlockListener* told = one->load(std::memory_order_acquire)) told->block_made(block);
    }
  }
  void block_gone(MemoryBlock& block) noexcept override {
    for (const auto& one : {&listener, &watcher}) {
      if (BlockListener* told = one->load(std::memory_order_acquire)) told->block_gone(block);
    }
  }
  // Whom an allocation tells: nobody, one of them, or this.
  BlockListener* told() noexcept {
    BlockListener* first = listener.load(std::memory_order_relaxed);
    BlockListener* second = watcher.load(std::memory_order_relaxed);
    if (first != nullptr && second != nullptr) return this;
    return first != nullptr ? first : second;
  }

  std::atomic<BlockListener*> listener{nullptr};
  std::atomic<BlockListener*> watcher{nullptr};
};

constinit std::atomic<BlockListener*> g_listener{nullptr};
constinit thread_local MemoryKind g_current_kind = MemoryKind::kProgram;

std::uint64_t seal_of(const void* data, std::uint64_t constant) noexcept {
  return reinterpret_cast<std::uintptr_t>(data) ^ constant;
}

BlockHeader* header_before(void* data) noexcept {
  return reinterpret_cast<BlockHeader*>(static_cast<char*>(data) - kBlockHeaderBytes);
}

// May look at the C library's own bytes, which the address sanitizer guards.
[[gnu::no_sanitize_address]] std::uint64_t read_seal(void* data) noexcept {
  return header_before(data)->seal;
}

[[noreturn, gnu::cold]] void stop_for_double_free(void* data) {
  std::fprintf(stderr,
               "lowtide: tensor memory at %p was freed twice; stopping before it corrupts other "
               "tensors. A deleter ran two times, or raw_deallocate was called on a tensor's own "
               "memory.\n",
               data);
  std::abort();
}

[[gnu::cold]] void free_unsealed(void* data, std::uint64_t seal) {
  if (seal == seal_of(data, kFreedSeal)) {
    stop_for_double_free(data);
  }
  c10::free_cpu(data);  // not ours: see the essay
}

// What may be kept for reuse when `request` more bytes are about to live. Blocks are a 128th larger
// than what was asked for; that part of them is not touched.
Bytes bytes_that_may_stay(Bytes request) noexcept {
  if (!g_reuses.load(std::memory_order_relaxed)) return 0;
  const Bytes room = g_ledger.room_for_reuse();
  const Bytes left = room - std::min(room, request);
  return left + left / 128;
}

void free_block(void* data) {
  if (data == nullptr) {
    return;
  }
  c10::profiledCPUMemoryReporter().Delete(data);
  const std::uint64_t seal = read_seal(data);
  if (seal != seal_of(data, kLiveSeal)) [[unlikely]] {
    free_unsealed(data, seal);
    return;
  }
  BlockHeader* header = header_before(data);
  if (header->block.record != nullptr) {
    header->block.record->block_freed(header->block);
  }
  if (BlockListener* listener = g_listener.load(std::memory_order_acquire)) [[unlikely]] {
    listener->block_gone(header->block);
  }
  const Bytes size_bytes = header->block.size_bytes;
  const MemoryKind kind = header->block.kind;
  header->seal = seal_of(data, kFreedSeal);
  const Bytes capacity = header->capacity;
  if (capacity == 0) {
    c10::free_cpu(header);
    g_ledger.subtract(size_bytes, kind);
    return;
  }
  // What is kept is no tensor's any more, and does not count against the limit while it can go.
  g_ledger.subtract(size_bytes, kind);
  g_cache.put(header, capacity, bytes_that_may_stay(0));
}

// A block from c10::alloc_cpu becomes a smaller one, elsewhere. False: the system has none.
bool move_to_smaller(c10::StorageImpl& storage, BlockHeader& old, Bytes bytes) noexcept {
  BlockHeader* header = nullptr;
  try {
    header = new (c10::alloc_cpu(bytes + kBlockHeaderBytes)) BlockHeader;
  } catch (const c10::Error&) {
    return false;
  }
  void* data = reinterpret_cast<char*>(header) + kBlockHeaderBytes;
  c10::DataPtr& place = storage._mutable_data_ptr_no_checks();
  std::memcpy(data, place.get_context(), bytes);
  header->block = old.block;
  header->block.size_bytes = bytes;
  header->capacity = 0;
  header->seal = seal_of(data, kLiveSeal);
  void* old_data = place.release_context();
  place = c10::DataPtr(data, data, &free_block, place.device());
  c10::profiledCPUMemoryReporter().Delete(old_data);
  c10::profiledCPUMemoryReporter().New(data, bytes);
  const Bytes fewer = old.block.size_bytes - bytes;
  old.seal = seal_of(old_data, kFreedSeal);
  c10::free_cpu(&old);
  g_ledger.subtract(fewer, header->block.kind);
  return true;
}

// Cuts the end off a block of the cache's, as far as that is worth a block.
void cut(BlockHeader& header, Bytes bytes) noexcept {
  const Bytes fewer = header.block.size_bytes - bytes;
  header.block.size_bytes = bytes;
  g_ledger.subtract(fewer, header.block.kind);
  const Bytes capacity =
      BlockCache::capacity_for(std::max(bytes + kBlockHeaderBytes, BlockCache::kSmallest));
  if (capacity + BlockCache::kSmallest > header.capacity) return;
  const Bytes end_bytes = header.capacity - capacity;
  header.capacity = capacity;
  g_cache.put(reinterpret_cast<char*>(&header) + capacity, end_bytes, bytes_that_may_stay(0));
}

// "Error code 12 (Cannot allocate memory)" out of libtorch's message, or its first line.
std::string system_reason(const std::string& message) {
  const std::size_t begin = message.find("Error code");
  return begin == std::string::npos ? message.substr(0, message.find('\n'))
                                    : message.substr(begin, message.find('\n', begin) - begin);
}

[[noreturn, gnu::cold]] void fail(Bytes request, const std::string& reason) {
  c10::profiledCPUMemoryReporter().OutOfMemory(request);
  const MemoryByKind live = g_ledger.live_by_kind();
  ErrorDetails details = {{"request_bytes", static_cast<std::int64_t>(request)},
                          {"live_bytes", static_cast<std::int64_t>(live.total())}};
  for (const MemoryKind kind : kAllMemoryKinds) {
    details[concat("live_", to_string(kind), "_bytes")] = static_cast<std::int64_t>(live[kind]);
  }
  throw AllocationError(
      concat("DefaultCPUAllocator: can't allocate memory: you tried to allocate ", request,
             " bytes (", format_bytes(request), "). ", reason,
             ". Live tensors: ", format_bytes(live.total()), " (", to_string(live),
             "). Free tensors, or make the batch or the model smaller"),
      std::move(details));
}

// Reserves `request` bytes under the limit, asking the gate for room until they fit. Returns false
// when the gate went away meanwhile.
bool reserve_room(Bytes request, MemoryKind kind) {
  struct GateHold {
    ~GateHold() { g_ledger.release_gate(); }
  };
  for (;;) {
    bool reserved = false;
    AllocationGate* gate = nullptr;
    if (g_ledger.reserve(request, reserved, gate)) {
      return reserved;
    }
    const GateHold hold;
    const Bytes limit = g_ledger.limit();
    if (!gate->make_room({RoomRequest::Reason::kLimit, request, limit, kind})) {
      fail(request, concat("the limit is ", format_bytes(limit), " and nothing more can be freed"));
    }
  }
}

// Asks the gate, if there is one, for room after the system refused. False: nothing was freed.
bool gate_makes_room_for_system(Bytes request, MemoryKind kind) {
  AllocationGate* gate = g_ledger.acquire_gate();
  if (gate == nullptr) {
    return false;
  }
  struct GateHold {
    ~GateHold() { g_ledger.release_gate(); }
  } const hold;
  return gate->make_room({RoomRequest::Reason::kSystem, request, g_ledger.limit(), kind});
}

// A warm block, or a new mapping; null when there is neither. `request` is reserved already if
// there is a limit.
BlockHeader* allocate_reusable(Bytes request, bool is_reserved) {
  const Bytes capacity = BlockCache::capacity_for(request + kBlockHeaderBytes);
  void* base = g_cache.take(capacity);
  if (base == nullptr) {
    g_cache.trim(bytes_that_may_stay(is_reserved ? 0 : request));
    base = BlockCache::map(capacity);
    if (base == nullptr) return nullptr;
  }
  auto* header = new (base) BlockHeader;
  header->capacity = capacity;
  return header;
}

BlockHeader* allocate_from_system(Bytes request, MemoryKind kind, bool is_reserved) {
  const Bytes bytes = request + kBlockHeaderBytes;
  for (;;) {
    if (BlockCache::is_large(bytes) && g_reuses.load(std::memory_order_relaxed)) {
      if (BlockHeader* header = allocate_reusable(request, is_reserved)) {
        return header;
      }
    }
    std::string reason;
    try {
      auto* header = new (c10::alloc_cpu(bytes)) BlockHeader;
      header->capacity = 0;
      return header;
    } catch (const c10::Error& error) {
      reason = system_reason(error.what_without_backtrace());
    }
    if (g_cache.trim(0) > 0) {
      continue;
    }
    if (!gate_makes_room_for_system(request, kind)) {
      fail(request, reason);
    }
  }
}

// Whether libtorch was told to fill, align or place blocks in a way of its own.
bool is_plain_alloc_cpu() {
  return !FLAGS_caffe2_cpu_allocator_do_junk_fill && !FLAGS_caffe2_cpu_allocator_do_zero_fill &&
         !c10::IsNUMAEnabled() && c10::c10_compute_alignment(Bytes{1} << 30) == c10::gAlignment;
}

class CountingAllocator final : public c10::Allocator {
 public:
  constexpr CountingAllocator() = default;

  c10::DataPtr allocate(std::size_t request) override {
    return with_host_errors([&] { return allocate_block(request); });
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  static c10::DataPtr allocate_block(std::size_t request) {
    const c10::Device kCpu(c10::DeviceType::CPU);
    if (request == 0) {
      return {nullptr, nullptr, &free_block, kCpu};
    }
    if (request > kLargestRequest) [[unlikely]] {
      fail(request, "no such size exists (a negative number?)");
    }
    const MemoryKind kind = g_current_kind;
    BlockHeader* header = nullptr;
    bool reserved = false;
    if (g_ledger.is_gated()) [[unlikely]] {
      reserved = reserve_room(request, kind);
    }
    try {
      header = allocate_from_system(request, kind, reserved);
    } catch (...) {
      if (reserved) {
        g_ledger.cancel(request);
      }
      throw;
    }
    void* data = reinterpret_cast<char*>(header) + kBlockHeaderBytes;
    header->block = {nullptr, request, kind, 0, 0, 0};
    header->seal = seal_of(data, kLiveSeal);
    if (reserved) {
      g_ledger.commit(request, kind);
    } else {
      g_ledger.add(request, kind);
    }
    if (BlockListener* listener = g_listener.load(std::memory_order_acquire)) [[unlikely]] {
      listener->block_made(header->block);
    }
    c10::DataPtr result(data, data, &free_block, kCpu);
    c10::profiledCPUMemoryReporter().New(data, request);
    return result;
  }
};

BothListeners& both_listeners() noexcept;

class CpuMemory final : public DeviceMemory {
 public:
  constexpr CpuMemory() = default;

  c10::DeviceType device_type() const noexcept override { return c10::DeviceType::CPU; }

  bool is_active() const noexcept override {
    return c10::GetAllocator(c10::DeviceType::CPU) == &counting_allocator();
  }

  void require_active() const override {
    if (is_active()) {
      return;
    }
    const std::string other = current_registration().other;
    throw TorchError("LT0602",
                     concat("tensor memory cannot be counted: libtorch's CPU allocator is ", other,
                            ", registered by another tool, and Lowtide's is not in use. Run "
                            "without that tool"),
                     {{"allocator", other}});
  }

  MemoryLedger& ledger() noexcept override { return g_ledger; }

  void trim_to_limit() noexcept override { g_cache.trim(bytes_that_may_stay(0)); }

  bool shrink(c10::StorageImpl& storage, Bytes bytes) noexcept override {
    const MemoryBlock* block = find_block(storage._mutable_data_ptr_no_checks());
    if (block == nullptr || bytes == 0 || bytes >= block->size_bytes) return false;
    BlockHeader* header = header_before(storage._mutable_data_ptr_no_checks().get_context());
    if (header->capacity == 0) {
      if (!move_to_smaller(storage, *header, bytes)) return false;
    } else {
      cut(*header, bytes);
    }
    storage.set_nbytes(bytes);
    return true;
  }

  void set_block_listener(BlockListener* listener) noexcept override {
    both_listeners().listener.store(listener, std::memory_order_release);
    g_listener.store(both_listeners().told(), std::memory_order_release);
  }

  void set_block_watcher(BlockListener* watcher) noexcept override {
    both_listeners().watcher.store(watcher, std::memory_order_release);
    g_listener.store(both_listeners().told(), std::memory_order_release);
  }

  MemoryBlock* find_block(const c10::DataPtr& data) const noexcept override {
    // A deleter of ours means a context of ours; the data pointer may have been moved into it.
    if (data.get_deleter() != &free_block || data.get_context() == nullptr) {
      return nullptr;
    }
    return &header_before(data.get_context())->block;
  }
};

// Storage for an object that is never destroyed, and constructed at compile time.
template <typename T>
union Undying {
  constexpr Undying() : object() {}
  ~Undying() {}
  T object;
};

constinit Undying<CountingAllocator> g_allocator;
constinit Undying<CpuMemory> g_memory;
constinit Undying<BothListeners> g_both_listeners;

BothListeners& both_listeners() noexcept { return g_both_listeners.object; }

std::string name_of(const c10::Allocator& allocator) {
  const char* mangled = typeid(allocator).name();
  int status = 0;
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  const void* vtable = nullptr;
  std::memcpy(&vtable, &allocator, sizeof vtable);
  Dl_info info{};
  if (dladdr(vtable, &info) != 0 && info.dli_fname != nullptr) {
    name += concat(" from ", info.dli_fname);
  }
  return name;
}

// Runs when the library is loaded. What goes wrong here is reported by the first MemoryMeter.
struct RegisterAtLoad {
  RegisterAtLoad() {
    register_counting_allocator();
    set_block_reuse(true);
    pthread_atfork(
        [] {
          g_cache.before_fork();
          g_ledger.before_fork();
        },
        [] {
          g_ledger.after_fork_in_parent();
          g_cache.after_fork();
        },
        [] {
          g_ledger.after_fork_in_child();
          g_cache.after_fork();
        });
  }
} const g_register_at_load;

}  // namespace

AllocationError::AllocationError(const std::string& message, ErrorDetails details)
    : c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, message + " [LT0601]"),
      ErrorInfo("LT0601", std::move(details)) {}

AllocationError::~AllocationError() = default;

c10::Allocator& counting_allocator() noexcept { return g_allocator.object; }

DeviceMemory& cpu_memory() noexcept { return g_memory.object; }

bool set_block_reuse(bool on) noexcept {
#ifdef __SANITIZE_ADDRESS__
  on = false;  // it would hide tensors that are used after they were freed
#endif
  const bool was_on = g_reuses.exchange(on && is_plain_alloc_cpu(), std::memory_order_relaxed);
  if (!on) g_cache.trim(0);
  return was_on;
}

Bytes reusable_bytes() noexcept { return g_cache.kept_bytes(); }

MemoryKind exchange_current_kind(MemoryKind kind) noexcept {
  return std::exchange(g_current_kind, kind);
}

Registration current_registration() {
  const c10::Allocator* current = c10::GetAllocator(c10::DeviceType::CPU);
  if (current == &counting_allocator()) {
    return {true, ""};
  }
  return {false, current == nullptr ? "none" : name_of(*current)};
}

Registration register_counting_allocator() {
  // Another tool's allocator stays: replacing it would make that tool's figures wrong.
  if (c10::GetAllocator(c10::DeviceType::CPU) == c10::GetDefaultCPUAllocator()) {
    c10::SetAllocator(c10::DeviceType::CPU, &counting_allocator(), kAllocatorPriority);
  }
  return current_registration();
}

}  // namespace lowtide::hook
