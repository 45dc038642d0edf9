#pragma once
// Ctrl-C as a question that a loop asks, instead of an end.

#include <signal.h>

namespace lowtide {

// While one lives, the first SIGINT or SIGTERM only makes requested() true; a second one ends the
// process as usual. One at a time in a process; the handlers before it come back afterwards.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool requested() const;

 private:
  struct sigaction before_int_{};
  struct sigaction before_term_{};
};

}  // namespace lowtide
