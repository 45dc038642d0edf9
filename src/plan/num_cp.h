#pragma once
// What checkpointing the first layers of an encoder does to the peak of a step: the num_cp of
// mmdetection's Deformable DETR, chosen from a tape of the step without it.
//
//   if (auto layers = checkpoint_layers(tape)) layers->peaks[3];   // with num_cp = 3
//
// A checkpointed layer lets go of all that its forward made but its result, and runs its forward
// again right before its backward. Layers are known by the modules on the tape:
// "...encoder.layers.2.self_attn" is of layer 2. Nothing else about the step changes. A
// checkpoint that holds on to the second result of a layer during its backward takes that much
// more.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/tape/tape.h"

namespace lowtide {

struct LayerPeaks {
  std::string layers;                   // "encoder.layers"
  std::vector<Bytes> peaks;             // [k]: with the first k checkpointed; one more than layers
  std::vector<std::uint64_t> extra_ns;  // that the first k take again
};

// Of the layers called `prefix` ("encoder.layers"), or, where that is empty, of those among
// encoders' layers, else of all numbered modules, that saved the most bytes. nullopt: the tape
// knows none, or none that both runs and has a backward. Linear in the tape, times the layers.
std::optional<LayerPeaks> checkpoint_layers(const Tape& tape, std::string_view prefix = "");

// The smallest k whose peak is within `budget`; nullopt: none is.
std::optional<std::size_t> smallest_num_cp(const LayerPeaks& layers, Bytes budget);

}  // namespace lowtide
