#pragma once
// Where a budget tells of its refusals, for reports.
//
//   report_refusal(record);   // before BudgetError is thrown
//
// The storage table's lock may be held: nothing here makes or frees tensors.

#include "src/report/refusal_record.h"

namespace lowtide {

// Whether refusals are written down at once (report_out_of_memory(), LOWTIDE_REPORT): a record's
// tape is worth copying then.
bool writes_refusals();

// Keeps the record for write_memory_report(), and writes the report at once if that is asked for.
// Throws nothing.
void report_refusal(RefusalRecord record) noexcept;

}  // namespace lowtide
