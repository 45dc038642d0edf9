#pragma once
// Small steps of our own for the simulator: the shapes that nets have, with made-up costs and
// bytes.

#include <cstdint>
#include <random>

#include "src/plan/trace.h"

namespace lowtide::testing {

// f1 .. fn, then backward over them; every op a unit of time, every storage a byte.
Trace unit_chain(int length);

// Blocks of convolution, batch norm (three outputs), relu and add, with backward and a pinned
// gradient for each weight.
Trace residual_net(int blocks);

// Layers that read a concatenation of all earlier ones.
Trace dense_net(int layers);

// An LSTM over time: wide matrix products, small gates, views of them.
Trace recurrent_net(int steps);

// Down `depth` levels, each half as wide in bytes, and up again with skips from each level.
Trace u_net(int depth);

// A binary tree of cells `depth` levels deep, children before parents, as a TreeLSTM runs.
Trace tree_net(int depth);

// A random step: ops with one to three outputs, reading what is there; storages are released at
// random; some outputs are pinned at the end. With `in_place`, some ops write what they read.
Trace random_step(std::mt19937& random, int ops, bool in_place);

}  // namespace lowtide::testing
