#include "src/report/memory_report_files.h"

#include <span>
#include <string_view>

#include "lowtide/error.h"
#include "src/base/text.h"
#include "src/evidence/snapshot_reader.h"
#include "src/evidence/snapshot_writer.h"
#include "src/report/explanation.h"
#include "src/report/snapshot_page.h"
#include "src/report/whole_file.h"
#include "src/tape/tape_text.h"

namespace lowtide {
MemoryReportEvidence evidence_of(const RefusalRecord& record) {
  return {record.message, snapshot_pickle(snapshot_of(record)), record.tape};
}

MemoryReportPaths write_memory_report(const std::string& path,
                                      const MemoryReportEvidence& evidence) {
  MemoryReportPaths paths;
  Evidence all;
  if (!evidence.snapshot.empty()) {
    paths.snapshot = path + ".pickle";
    write_file(paths.snapshot, evidence.snapshot);
  }
  if (evidence.tape) {
    paths.tape = path + ".tape";
    write_file(paths.tape, to_tape_text(*evidence.tape));
    all.tapes.push_back(facts_of(*evidence.tape, paths.tape));
  }
  if (!evidence.message.empty()) all.logs.push_back(read_log_text(evidence.message, "the error"));
  if (!evidence.snapshot.empty()) {
    ByteSource source(paths.snapshot, std::as_bytes(std::span(evidence.snapshot)));
    const Snapshot snapshot = read_snapshot(source);
    all.snapshots.push_back(facts_of(snapshot, all.logs));
    paths.page = path + ".html";
    write_file(paths.page, snapshot_page(snapshot));
  }
  paths.explanation = path + ".txt";
  write_file(paths.explanation,
             explanation_text(diagnose(all.logs, all.snapshots, all.tapes), all));
  return paths;
}

}  // namespace lowtide
