#pragma once
// What the logs of a run say: the memory messages, and for each what was running and what stood
// around it.
//
//   LogEvidence log = read_log(source, "train.log");
//   for (const Sighting& sighting : log.sightings) ...

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/evidence/log_stream.h"
#include "src/evidence/memory_message.h"
#include "src/evidence/traceback.h"

namespace lowtide {

// Lines that mean one thing wherever they stand.
enum class Notice {
  kCheckpointingRefused,  // "please install fairscale", "does not support gradient checkpointing"
  kCheckpointingWithoutGrad,  // "None of the inputs have requires_grad=True"
  kBroadcastWarning,          // "Using a target size ... different to the input size"
  kLongSequence,              // "Token indices sequence length is longer than ..."
  kBatchSkipped,              // an OOM that a trainer caught, to go on with the next batch
  kDeviceAssert,              // an index or a label out of range, on the device
};

struct NoticeSighting {
  Notice notice;
  std::uint64_t line = 0;
  std::string text;
  std::uint64_t count = 1;
};

// A process of nvidia-smi's table.
struct DeviceProcess {
  std::uint64_t device = 0;
  std::uint64_t pid = 0;
  std::string name;
  Bytes bytes = 0;
};

// Memory figures that a trainer printed as it went on, oldest first, in the unit they were printed
// in; one series of the same words.
struct MemorySeries {
  std::string label;
  std::vector<double> values;
};

struct Progress {
  std::optional<std::uint64_t> step;   // the last one printed before the message
  std::optional<std::uint64_t> epoch;  // likewise
  std::string text;                    // the line it was read from
};

struct Sighting {
  MemoryMessage message;
  std::string lane;
  std::uint64_t first_line = 0;  // in the file, from 1
  std::uint64_t last_line = 0;
  std::string text;         // its lines joined, at most 600 characters
  std::uint64_t count = 1;  // equal messages of this lane
  // The one that raised it last; those that it is chained to before it. Empty when there is none.
  std::vector<Traceback> tracebacks;
  std::vector<std::string> before;  // lines of its lane, nearest last, at most 160
  std::vector<std::string> after;   // nearest first, at most 60
  Progress progress;
  std::vector<MemorySeries> memory;
};

struct LogEvidence {
  std::string source;  // the file's name
  StreamTotals totals;
  std::vector<Sighting> sightings;  // in the order of the file; at most 64 are kept
  std::uint64_t sightings_dropped = 0;
  std::vector<NoticeSighting> notices;  // one a kind and text, at most 64
  std::vector<DeviceProcess> processes;
  // Of the last lines, where no message was found: what ran when the log ended.
  std::vector<Traceback> last_tracebacks;
  std::vector<std::string> last_lines;
};

// Never throws for what the log says; what `source` throws passes through. Bounded memory.
LogEvidence read_log(const LogSource& source, std::string name);
LogEvidence read_log_text(std::string_view text, std::string name);

}  // namespace lowtide
