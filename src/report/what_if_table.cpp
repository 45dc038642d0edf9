#include "src/report/what_if_table.h"

#include <string>

namespace lowtide {

Json what_if_rows_json(const std::vector<WhatIfRow>& rows) {
  Json all = Json::array();
  for (const WhatIfRow& row : rows) {
    Json one = Json::object();
    one["change"] = row.change;
    one["peak_reserved"] = row.peak_reserved;
    one["smallest_capacity"] = row.smallest_capacity ? Json(*row.smallest_capacity) : Json();
    one["completes"] = row.completes ? Json(*row.completes) : Json();
    all.push_back(std::move(one));
  }
  return all;
}

Json what_if_table(const Snapshot& snapshot, const DeviceAnalysis& analysis) {
  const DeviceReplay replay(snapshot, analysis.device);
  const RecordedReplay recorded = replay.as_recorded();
  Json table = Json::object();
  table["allocations"] = recorded.allocations;
  table["addresses_matched"] = recorded.addresses_matched;
  table["layout_identical"] = recorded.layout_identical;
  table["unsupported"] = Json::array();
  for (const std::string& problem : replay.problems()) table["unsupported"].push_back(problem);
  if (!replay.has_trace() && !snapshot.is_budget)
    table["unsupported"].push_back("no trace was recorded");
  const WhatIfQuestions questions = usual_questions(analysis);
  table["capacity"] = questions.capacity ? Json(*questions.capacity) : Json();
  table["rows"] = what_if_rows_json(what_if_rows(replay, questions));
  return table;
}

}  // namespace lowtide
