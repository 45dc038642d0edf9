#pragma once
// What a memory budget knew when it refused, as plain data, and the snapshot that it makes: the
// same form as of CUDA memory, so that `lowtide snapshot`, `explain` and `report` read it, and
// torch's own tools do.
//
//   RefusalRecord record;
//   record.message = error.what();
//   record.request_bytes = ..;
//   record.live.push_back({.op = "aten::mm", .kind = StorageKind::kSaved, .bytes = bytes});
//   write_memory_report("refusal", evidence_of(record));      // memory_report_files.h

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lowtide/bytes.h"
#include "lowtide/error.h"
#include "src/evidence/snapshot.h"
#include "src/tape/tape.h"

namespace lowtide {

struct RefusalRecord {
  // Tensors that were live, by the op that made them and what they are for.
  struct Live {
    std::string op = {};    // "" for what no op under the budget made
    std::string line = {};  // "train.py:12" where the program's line is known
    StorageKind kind = StorageKind::kProgram;
    Bytes bytes = 0;
    std::uint64_t tensors = 1;
    bool program_held = false;  // the program itself holds them, so that they cannot be dropped
  };

  std::string message;  // BudgetError::what()
  std::string op;       // that asked; "" for the program itself
  Bytes request_bytes = 0;
  Bytes limit_bytes = 0;
  Bytes live_bytes = 0;    // all; what `live` does not name is shown as [unattributed]
  std::vector<Live> live;  // in any order
  // Of the step so far, where one was being written. Its events become the trace when they end with
  // as much as is live, which they do as long as nothing was dropped.
  std::optional<Tape> tape;
};

// From a BudgetError's id, text and details: kinds, without ops. Details that are missing are 0.
RefusalRecord refusal_of(const std::string& message, const ErrorDetails& details);

// One device, named the CPU; a segment of what was live, and the request as its failure. Sizes of
// `live` beyond live_bytes are cut off there.
Snapshot snapshot_of(const RefusalRecord& record);

}  // namespace lowtide
