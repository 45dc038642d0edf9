#pragma once
// Times of ops, measured once each, made steadier.
//
//   level_costs(tape);
//
// Ops of one name over storages of the same bytes take about the same time; a page fault or another
// program's turn makes single ones look dear, and a plan would keep or drop by that noise. Each op
// gets the median of its like.

#include "src/tape/tape.h"

namespace lowtide {

void level_costs(Tape& tape);

}  // namespace lowtide
