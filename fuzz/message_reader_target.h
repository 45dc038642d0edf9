#pragma once
// What the fuzzer and the tests of its corpus run: a log, from its bytes to text and JSON.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "src/diagnose/diagnosis.h"
#include "src/evidence/log_evidence.h"

namespace lowtide {

// True when what was read keeps its promises: findings are there and ranked, bounds are kept.
inline bool run_message_reader(const std::uint8_t* data, std::size_t size) {
  std::size_t at = 0;
  const LogSource source = [&](char* buffer, std::size_t capacity) {
    const std::size_t take = std::min(capacity, size - at);
    if (take != 0) std::memcpy(buffer, data + at, take);
    at += take;
    return take;
  };
  std::vector<LogEvidence> logs;
  logs.push_back(read_log(source, "fuzz"));
  if (logs[0].sightings.size() > 64 || logs[0].totals.bytes != size) return false;
  const Diagnosis diagnosis = diagnose(logs);
  if (diagnosis.findings.empty()) return false;
  for (std::size_t i = 1; i < diagnosis.findings.size(); ++i) {
    if (diagnosis.findings[i].weight > diagnosis.findings[i - 1].weight) return false;
  }
  return true;
}

}  // namespace lowtide
