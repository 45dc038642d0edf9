#pragma once
// Counts the bytes of the process's CPU tensors: live now, at their peak, and by what they are for.
//
//   lowtide::MemoryMeter meter;                       // its peak starts at what is live now
//   lowtide::retag_all(model->parameters(), lowtide::MemoryKind::kParameters);
//   auto loss = model->forward(batch).sum();
//   {
//     lowtide::KindScope scope(lowtide::MemoryKind::kGradients);
//     loss.backward();
//   }
//   std::cout << lowtide::format_bytes(meter.peak_bytes()) << " at the peak: "
//             << lowtide::to_string(meter.peak_by_kind()) << "\n";
//
// What is counted. When liblowtide is loaded it registers a CPU allocator with libtorch and leaves
// it registered. That allocator counts each block by the bytes that were asked for, from the moment
// it is handed out to the moment it is given back: the storage of every tensor that libtorch
// allocates on the CPU, and what oneDNN takes through libtorch's allocator. A block counts once,
// however many tensors view it. Counts are exact, under any number of threads, and independent of
// what the C library does with freed memory.
//
// What is not counted.
//   - Memory that libtorch did not allocate: from_blob, files mapped into memory, shared memory,
//     numpy arrays. Tensors allocated before liblowtide was loaded.
//   - Scratch memory that kernels take from malloc (oneDNN and MKL do), and objects of C++ such as
//     the autograd graph. The header of 64 bytes that Lowtide puts in front of each block.
//   - The difference between tensor bytes and resident memory: pages never touched are not
//     resident, and the C library keeps freed ones. Resident memory is usually higher.
//   - Other devices.
//
// What it costs: some tens of nanoseconds per allocation, measured in docs/design/allocator.md.
// A meter adds to that only while a new peak is being reached.
//
// Threads: everything here may be called from any thread at any time. The counts are the
// process's, not the thread's.
//
// fork: the child goes on from the counts at the time of the fork (it has copies of those tensors),
// and its meters work.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lowtide/bytes.h"
#include "lowtide/export.h"

namespace at {
class Tensor;
}

namespace lowtide {

namespace hook {
struct PeakWatch;
}

// What a block of tensor memory is for. A block's kind is the tag in force on the allocating thread
// (KindScope) until retag() changes it; nothing is guessed.
enum class MemoryKind : std::uint8_t {
  kProgram = 0,  // not tagged: what the program itself holds, such as inputs and outputs
  kParameters = 1,
  kGradients = 2,
  kOptimizerState = 3,
  kSaved = 4,      // made in the forward pass, kept for the backward pass
  kWorkspace = 5,  // scratch of an operation
};

inline constexpr std::size_t kMemoryKindCount = 6;

// In the order in which reports show them.
inline constexpr std::array<MemoryKind, kMemoryKindCount> kAllMemoryKinds = {
    MemoryKind::kParameters, MemoryKind::kGradients, MemoryKind::kOptimizerState,
    MemoryKind::kSaved,      MemoryKind::kProgram,   MemoryKind::kWorkspace};

// Returns "parameters", "gradients", "optimizer_state", "saved", "program" or "workspace". These
// names are part of every report and of the JSON forms; they do not change.
LOWTIDE_API const char* to_string(MemoryKind kind) noexcept;

// Bytes of each kind, taken at one moment.
struct MemoryByKind {
  std::array<Bytes, kMemoryKindCount> bytes{};

  Bytes& operator[](MemoryKind kind) { return bytes[static_cast<std::size_t>(kind)]; }
  Bytes operator[](MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
  Bytes total() const noexcept {
    Bytes sum = 0;
    for (const Bytes part : bytes) {
      sum += part;
    }
    return sum;
  }
  bool operator==(const MemoryByKind&) const = default;
};

// For people: "parameters 4.10 MiB, saved 2.05 MiB". Kinds of zero bytes are left out; "nothing"
// when all are zero.
LOWTIDE_API std::string to_string(const MemoryByKind& by_kind);

// Tags what the current thread allocates while it lives. Scopes nest; the innermost counts.
//
//   KindScope scope(MemoryKind::kOptimizerState);
//   optimizer.step();
//
// Only the current thread's allocations: the tag does not follow work to other threads.
//   - backward() of a CPU graph runs on the thread that calls it, so a scope around it tags all
//     gradients. (libtorch moves to another thread only for other devices, and for backward calls
//     nested more than 60 deep.)
//   - Workers of at::parallel_for, which rarely allocate, and threads that you start count as
//     kProgram unless they open scopes of their own.
//
// Destroy it on the thread that made it, in reverse order; a local variable does that.
// Cost: a thread-local store, nothing per allocation.
class LOWTIDE_API KindScope {
 public:
  [[nodiscard]] explicit KindScope(MemoryKind kind) noexcept;
  ~KindScope();
  KindScope(const KindScope&) = delete;
  KindScope& operator=(const KindScope&) = delete;

 private:
  MemoryKind outer_;
};

// Counts the storage of `tensor` under `kind` from now on, for tensors that exist already: the
// parameters of a model that was built without a scope, gradients after backward(). The whole
// storage moves, also when `tensor` is a view of a part of it. Live bytes stay the same; peaks that
// were reached before keep the kinds that they had.
//
// Returns the bytes that are now counted under `kind`: the size of the storage, or 0 when the
// storage is not counted at all (undefined, meta, sparse, from_blob, other devices, a lazily cloned
// tensor that still shares its bytes).
LOWTIDE_API Bytes retag(const at::Tensor& tensor, MemoryKind kind);

// retag() for each tensor of a range, such as model->parameters(). Tensors that share a storage add
// to the returned sum each time.
template <typename Tensors>
Bytes retag_all(const Tensors& tensors, MemoryKind kind) {
  Bytes sum = 0;
  for (const auto& tensor : tensors) {
    sum += retag(tensor, kind);
  }
  return sum;
}

// Live bytes of the process and the peak since the meter was made or reset. Any number of meters
// can live at once; each has a peak of its own, so that an epoch, a step and a block of code can be
// measured at the same time.
class LOWTIDE_API MemoryMeter {
 public:
  // Throws TorchError (LT0602) when Lowtide's allocator is not the one that libtorch uses: another
  // tool registered one. The message names it. Counts would be silently wrong otherwise.
  MemoryMeter();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  // Bytes of all counted blocks now, also of those from before the meter.
  Bytes live_bytes() const noexcept;

  // The highest value that live_bytes() took, for however short a moment, since the meter was made
  // or reset. Never less than live_bytes() was at that time. An allocation that failed is not in
  // it.
  Bytes peak_bytes() const noexcept;

  // Live bytes by kind, all taken at one moment: they add up to live_bytes() of that moment.
  MemoryByKind by_kind() const noexcept;

  // The kinds as they were when the peak was first reached: they add up to peak_bytes() exactly.
  MemoryByKind peak_by_kind() const noexcept;

  // Starts over: the peak is what is live now.
  void reset_peak() noexcept;

 private:
  std::unique_ptr<hook::PeakWatch> watch_;
};

}  // namespace lowtide
