// Tested by tests/train/trainer_test.cpp.
#include "src/train/interrupt.h"

#include <csignal>

namespace lowtide {
namespace {

// Written by the handler only, and by the constructor before the handler is installed.
volatile std::sig_atomic_t g_requested = 0;

// SA_RESETHAND has put the default back already: the next signal ends the process.
void note_request(int) { g_requested = 1; }

}  // namespace

InterruptWatch::InterruptWatch() {
  g_requested = 0;
  struct sigaction action{};
  action.sa_handler = note_request;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before_int_);
  sigaction(SIGTERM, &action, &before_term_);
}

InterruptWatch::~InterruptWatch() {
  sigaction(SIGINT, &before_int_, nullptr);
  sigaction(SIGTERM, &before_term_, nullptr);
}

bool InterruptWatch::requested() const { return g_requested != 0; }

}  // namespace lowtide
