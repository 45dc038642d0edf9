#pragma once
// The causes that `lowtide explain` knows, their names, and what to do about each.

#include <string_view>
#include <vector>

namespace lowtide {

enum class Cause {
  kBatchOrInputTooLarge,
  kSequenceTooLong,
  kLogitsOverVocab,
  kHugeLinear,
  kUnintendedBroadcast,
  kOptimizerState,
  kHistoryAccumulation,
  kPredictionsKeptOnDevice,
  kExceptionKeepsTensors,
  kEvalWithoutNoGrad,
  kFragmentation,
  kVariableShapes,
  kOtherProcess,
  kRankContextsOnGpu0,
  kCheckpointLoadedOnDevice,
  kMemoryFractionCap,
  kNoHeadroomForLibraries,
  kLibraryWorkspace,
  kGraphPrivatePool,
  kHostRamExhausted,
  kHostRamDataloader,
  kShmExhausted,
  kCheckpointingUnavailable,
  kCheckpointingInactive,
  kNotMemory,
  kUnknown,
};

struct CauseInfo {
  Cause cause;
  std::string_view slug;  // stable: part of the JSON
  std::string_view title;
  std::string_view record;              // its record in the error catalogue; empty for kUnknown
  std::vector<std::string_view> fixes;  // the cheapest first; a setting or a line of code each
};

// All causes, in the order of the enumeration.
const std::vector<CauseInfo>& all_causes();
const CauseInfo& cause_info(Cause cause);

}  // namespace lowtide
