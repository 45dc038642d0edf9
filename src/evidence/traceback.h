#pragma once
// Python tracebacks in a log, in the forms of Python itself, IPython (Jupyter, Colab), rich and
// pytest, and what the program was doing when one was raised.
//
//   for (const Traceback& traceback : read_tracebacks(lines))
//     if (traceback.phase == Phase::kBackward) ...

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

struct Frame {
  std::string file;
  std::uint64_t line = 0;  // 0 where it is not given
  std::string function;    // may be empty: notebooks name none
  std::string code;        // the line itself, where it was printed
};

// What ran. Stored nowhere; the names in JSON are those of phase_name().
enum class Phase {
  kUnknown,
  kStart,      // a context, a process group, a device is set up
  kPlacement,  // a model goes to its device
  kLoading,    // a checkpoint is read
  kForward,
  kLoss,
  kBackward,
  kOptimizerStep,
  kCapture,  // of a CUDA graph
  kGeneration,
  kDataLoading,
};

const char* phase_name(Phase phase);

enum class ChainLink {
  kNone,
  kDuringHandling,  // raised while the one before was handled: a retry inside an except
  kDirectCause,     // "raise ... from ..."
};

struct Traceback {
  std::vector<Frame> frames;          // outermost first
  std::string exception;              // class as printed; empty when the log ends before it
  std::string message;                // the rest of its first line
  ChainLink link = ChainLink::kNone;  // to the traceback before this one
  std::size_t first_line = 0;         // indices into the lines that were read
  std::size_t exception_line = 0;     // equal to the last line read when there is no exception
  Phase phase = Phase::kUnknown;
  bool in_evaluation = false;  // below a function that evaluates, validates, tests or predicts
  bool grad_disabled = false;  // below torch.no_grad or inference_mode, or a loop that uses them
  bool in_checkpoint = false;  // below a recomputed region of activation checkpointing
  bool in_capture = false;
};

// In the order of the lines. Linear.
std::vector<Traceback> read_tracebacks(const std::vector<std::string>& lines);

// A traceback of these frames, outermost first, with what they tell of the phase.
Traceback traceback_of(std::vector<Frame> frames);

// True for a file of an installed package or of Python itself.
bool is_library_file(std::string_view file);

// The innermost frame of the user's own code; null when all are a library's.
const Frame* user_frame(const Traceback& traceback);

}  // namespace lowtide
