#pragma once
// In which module of the program an op runs: "encoder.layers.0.linear1".
//
//   ModulePlaces::enter("encoder");      // the host's hooks around a module's forward
//   ModulePlaces::current();             // "encoder"
//   ModulePlaces::leave();
//   ...
//   loss.backward();                     // in an op of it: the module of the op whose gradient it
//   is
//
// Of a backward it is known from the numbers that autograd gives to the ops of the forward pass:
// where modules changed is written down with the number that was next. One thread's forward pass at
// a time; with several the places in the backward may be wrong, nothing else.
//
// Threads: enter and leave are for the calling thread. Cost: a lock; nothing while none is entered.

#include <cstdint>
#include <string>

#include "lowtide/export.h"

namespace lowtide {

class LOWTIDE_API ModulePlaces {
 public:
  static void enter(const std::string& name);
  static void leave();
  // Of this thread now; "" outside of modules. The text lives for ever.
  static const char* current() noexcept;
  // Where modules changed so far is of no use any more: a step begins.
  static void begin_step();

  // How many samples a step has, as the host can tell; 0: not known.
  static void set_batch_size(std::uint64_t batch_size) noexcept;
  static std::uint64_t batch_size() noexcept;
};

}  // namespace lowtide
