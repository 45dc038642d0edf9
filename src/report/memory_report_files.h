#pragma once
// The three files of a memory report: the snapshot, the explanation, the page.

#include <optional>
#include <string>

#include "lowtide/memory_report.h"
#include "src/report/refusal_record.h"
#include "src/tape/tape.h"

namespace lowtide {

// What there is when memory runs out. Each part may be missing.
struct MemoryReportEvidence {
  std::string message;   // the error's text
  std::string snapshot;  // a pickle
  std::optional<Tape> tape;
};

MemoryReportEvidence evidence_of(const RefusalRecord& record);

// Writes PATH.pickle before it is looked into, then PATH.tape, PATH.txt and PATH.html. Throws
// IoError (LT0722) for what cannot be written, and FormatError when the snapshot cannot be read.
MemoryReportPaths write_memory_report(const std::string& path,
                                      const MemoryReportEvidence& evidence);

}  // namespace lowtide
