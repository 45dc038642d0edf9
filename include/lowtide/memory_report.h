#pragma once
// Says why memory ran out, at the moment it does, in files to look at later.
//
//   lowtide::report_out_of_memory("oom");      // once, at the program's begin
//   ..
//   try { train(); }
//   catch (const c10::OutOfMemoryError& error) {
//     lowtide::write_memory_report("oom", error);   // or by hand, where it is caught
//     throw;
//   }
//
// Written: PATH.pickle, a memory snapshot as torch.cuda.memory._dump_snapshot writes one; PATH.txt,
// the causes with their arithmetic and what to do; PATH.html, a page that needs no network. The
// commands `lowtide snapshot`, `replay`, `explain` and `report` read the snapshot, and so do
// torch's own tools.
//
// On the CPU the report is of a budget's refusal (BudgetError): what was live by op and kind, what
// the program itself holds, the smallest budget. In a build with LOWTIDE_CUDA it is of the CUDA
// allocator: what was live, by which line (with record_memory_history()), where the free memory
// lay, and which setting would have helped. docs/how-lowtide-works.md.

#include <cstddef>
#include <string>

#include "lowtide/export.h"

namespace c10 {
class OutOfMemoryError;
}

namespace lowtide {

struct LOWTIDE_API MemoryReportPaths {
  std::string snapshot;     // PATH.pickle; empty: there was nothing to write
  std::string explanation;  // PATH.txt
  std::string page;         // PATH.html; empty without a snapshot
  std::string tape;         // PATH.tape, the step so far; empty where none was being written
};

// Writes the report of `error` now; files that are there are replaced. For an error that is neither
// a budget's nor of a CUDA build, only the explanation. Throws IoError (LT0722) for what cannot be
// written. Takes as long as reading the snapshot does: about a second for a million events.
LOWTIDE_API MemoryReportPaths write_memory_report(const std::string& path,
                                                  const c10::OutOfMemoryError& error);

// From now on each budget's refusal, and in a build with LOWTIDE_CUDA each failure of the CUDA
// allocator, writes its report to `path` before the error is thrown; a later one replaces it. ""
// stops that. At first the environment variable LOWTIDE_REPORT is the path. What goes wrong with
// writing is told on standard error: the error itself is the program's business. Any thread.
LOWTIDE_API void report_out_of_memory(std::string path);

// Whether this build knows CUDA's memory (LOWTIDE_CUDA).
LOWTIDE_API bool reports_cuda_memory() noexcept;

// Begins to record CUDA allocations with their C++ stacks, so that reports can name lines and
// replay; at most `max_entries`, the latest. Costs about a microsecond and 200 bytes an allocation.
// Throws TorchError (LT0603) in a build without LOWTIDE_CUDA.
LOWTIDE_API void record_memory_history(std::size_t max_entries = 1'000'000);

}  // namespace lowtide
