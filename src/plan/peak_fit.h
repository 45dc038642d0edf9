#pragma once
// The peak of steps at a batch size that was not run, from logs of the same steps at smaller ones.
//
//   std::vector<AllocationLog> logs = ...;   // at batch 4, 6, 8
//   PeakFit fit = fit_peak(logs, 64);
//   fit.growth_bytes                          // the peak, beyond what was live at the start
//
// Method. Live bytes right after each allocation are a sum of blocks, and blocks grow with the
// batch on straight lines (or do not). So the live bytes after the n-th allocation of a step are
// drawn as a line through the logs, each n by itself, and the peak is the largest of them at the
// batch size asked for: where the peak is may move, and does. That is exact where the steps do the
// same at all sizes.
//
// Where they do not (an expert that gets no token, a kernel that allocates otherwise, a loop over
// samples), the sequences of ops are aligned: allocations that all logs share are fitted each by
// itself as before, and what lies between two of them is one point, its highest.
//
// Points off a line: where a parabola through three logs meets a fourth to the byte, it is one
// (scores of every sample with every other). Other points scatter: a router sends another share of
// the tokens here. They get the line with the least squares, raised to the highest of them.
//
// Blocks that a kernel rounds up to whole pages, and of several parts (the workspace of an LSTM),
// grow in steps. Between small batches that looks like another line; rounded_points counts such,
// and a log of half the batch size or so puts the line right.
//
// error_bound says how far off the largest of the logs would have been, told from the others.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/tape/allocation_log.h"

namespace lowtide {

inline constexpr std::size_t kStorageKinds = 7;

// How like each other the logs are, from best to worst.
enum class FitWay : std::uint8_t {
  kEveryAllocation,  // the same allocations at every size
  kAligned,          // most are the same
  kPhases,           // only the phases could be compared
};

struct PeakFit {
  std::int64_t growth_bytes = 0;
  std::size_t step = 0;  // where the peak is
  StepPhase phase = StepPhase::kForward;
  std::string op;                                           // the leaf op, or ""
  std::string module;                                       // "encoder.layers.0", or ""
  std::array<std::int64_t, kStepPhases> growth_by_phase{};  // the highest in each
  // What is live at the peak of the blocks that the logs list; what they do not is the rest.
  std::array<std::int64_t, kStorageKinds> by_kind{};  // by StorageKind
  struct Module {
    std::string name;
    std::int64_t bytes;
  };
  std::vector<Module> by_module;  // the largest first

  FitWay way = FitWay::kEveryAllocation;
  double error_bound = 0;            // of growth_bytes, a part of it
  std::size_t points = 0;            // that were fitted
  std::size_t curved_points = 0;     // on parabolas
  std::size_t scattered_points = 0;  // on neither line nor parabola
  std::size_t rounded_points = 0;    // where a block of whole pages grows, but not from nothing
};

// `logs` are of different batch sizes, ascending, with the same number of steps, at least one each;
// two at least, unless the only one is of `batch_size` itself. Linear in the logs where they do the
// same.
PeakFit fit_peak(std::span<const AllocationLog> logs, std::uint64_t batch_size);

}  // namespace lowtide
