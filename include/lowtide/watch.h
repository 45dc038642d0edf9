#pragma once
// Names what grows from step to step while a program trains, the line that does it, what keeps it,
// and how to mend it.
//
//   lowtide::Watch watch;
//   for (auto& batch : loader) {
//     auto loss = loss_of(model, batch);
//     loss.backward();
//     optimizer.step();
//     total = total + loss;   // stderr, some steps later: "memory grows by ... at train.cpp:12"
//   }
//   std::cout << watch.report().to_text();
//
// It counts, from step to step, the blocks of tensors and the nodes of autograd's graphs that
// survive, by the op and the line that made them. What rose four times since it last fell, and
// rises still, is growth. An alarm is growth that no program means:
//
//   graph_carried  each step's graph hangs on the one before: a total with history, a state that is
//                  not detached, a teacher that is averaged with its gradients on
//   graph_kept     graphs of ended steps are kept by tensors in a list, a dict, an attribute
//   tensors_kept   tensors without a graph grow: an alarm when hooks pile up, when tensors are
//   keys,
//                  when small views keep large storages, and when each step's gradients are kept;
//                  else a note, because a log or a replay buffer looks just like that
//   held_at_peak   not growth: a tensor of an earlier step that the program no longer reads, but
//                  still holds when the next step's peak comes. fall_bytes is what `del` saves. A
//                  note where it is gradients, which zero_grad() lets go after the forward
//
// No alarm: what fills and stops, optimizer state, gradient accumulation, detached tensors in
// containers, containers that drop their oldest by themselves (deque with maxlen, lru_cache).
//
// Steps. A step ends where a graph begins to grow after a backward; once an optimizer of torch's
// has stepped (Python), after an optimizer's step; or where step() says so. A loop without backward
// (an evaluation) has no steps but those of step().
//
// Lines. In Python, those of the user's own code. In C++ they need the program's debug information
// (-g); without it they are "program+0x1234". The C++ chain names the op and line that made the
// tensor that keeps a graph: which variable that is only Python can say.
//
// Cost (bench/watch_bench.py). Ops are looked at in the first 16 steps, in 8 of every 128 after
// that, and whenever something seems to grow; of the others blocks are counted, by size, and some
// nodes of backward are followed, which is what tells that something seems to grow. So growth that
// begins late is named some steps later than growth that is there from the start. Without a Watch
// nothing is registered. Naming a finding is done once for each and may take a second in a large
// program.
//
// Threads: for the whole process; ops of all threads are seen. CPU tensors. Several may live at
// once. fork: the child has none.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lowtide/bytes.h"
#include "lowtide/export.h"

namespace lowtide {

struct LOWTIDE_API WatchFinding {
  enum class Kind : std::uint8_t { kGraphCarried, kGraphKept, kTensorsKept, kHeldAtPeak };
  Kind kind = Kind::kGraphKept;
  bool is_alarm = true;       // false: a note
  std::uint64_t step = 0;     // steps that had ended when it was found
  std::string op;             // made what is kept: "aten::add"
  std::string line;           // of the program, that called it: "train.py:12"; "" when not known
  std::string stored_at;      // the line that puts it where it is kept; "" when not known
  std::string held_by;        // "losses[17]", "model.hidden", "out in train()"; "" when not known
  std::string chain;          // what keeps it, in words
  Bytes bytes_per_step = 0;   // tensor bytes that each step adds; nodes take some 0.5 KiB more each
  double nodes_per_step = 0;  // nodes of graphs that each step adds
  std::uint64_t graph_nodes = 0;  // of ended steps, that the newest keeper's graph leads to
  Bytes peak_bytes = 0;           // kHeldAtPeak: of the step
  Bytes fall_bytes = 0;           // kHeldAtPeak: by how much it would be lower
  std::string fix;                // what to write instead

  std::string to_text() const;  // one line
};

// "graph_carried", "graph_kept", "tensors_kept" or "held_at_peak".
LOWTIDE_API const char* to_string(WatchFinding::Kind kind) noexcept;

struct LOWTIDE_API WatchReport {
  std::uint64_t steps = 0;             // ended
  std::uint64_t ops = 0;               // looked at
  std::vector<WatchFinding> findings;  // in the order in which they were found

  bool has_alarm() const;
  std::string to_text() const;
  std::string to_json() const;  // docs/habits.md
};

struct WatchOptions {
  // Called for each finding when it is made, on the thread whose op began the next step, with none
  // of Lowtide's locks held. Must not run ops. Unset: alarms go to stderr, one line each.
  std::function<void(const WatchFinding&)> on_finding;
};

class LOWTIDE_API Watch {
 public:
  // Throws TorchError (LT0602) when another tool's allocator is in place.
  explicit Watch(const WatchOptions& options = {});
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // A step ends here. From the first call on, only these calls end steps.
  void step();
  // An optimizer has stepped: from now on steps end after that. For the Python package.
  void optimizer_stepped();
  // How closely steps are looked at from now on. For benches, which take turns.
  enum class Look : std::uint8_t { kAsNeeded, kNot, kCounting, kClosely };
  void look(Look look);

  WatchReport report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lowtide
