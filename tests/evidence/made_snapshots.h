#pragma once
// Snapshots made for tests, as the values that a pickle holds.

#include <cstdint>
#include <string>
#include <vector>

#include "src/evidence/snapshot.h"
#include "tests/evidence/pickle_writer.h"

namespace lowtide {

struct MadeBlock {
  std::uint64_t address;
  std::int64_t size;
  std::int64_t requested;
  const char* state;
};

struct MadeEvent {
  const char* action;
  std::uint64_t address;
  std::int64_t size;
  int stack = 0;  // 0: no frames
};

// A stack: {function, file, line} from the innermost.
struct MadeFrame {
  const char* function;
  const char* file;
  int line;
};

class MadeSnapshot {
 public:
  // What one version of torch writes and another does not.
  struct Form {
    bool list_only = false;
    bool history_form = false;  // torch 2.0: blocks with `history`, and without an address
    bool unknown_keys = false;
    bool has_pools = true;
    bool has_settings = true;
    bool has_times = true;
    bool has_frames = true;
    bool shared = true;           // equal stacks are one object
    bool wide_addresses = false;  // integers of nine bytes
  };

  int add_stack(std::vector<MadeFrame> frames) {
    stacks_.push_back(std::move(frames));
    return static_cast<int>(stacks_.size());
  }
  void add_segment(int device, std::uint64_t address, std::int64_t size,
                   std::vector<MadeBlock> blocks, int stack = 0) {
    segments_.push_back({device, address, size, std::move(blocks), stack});
  }
  // Events of device 0, 1 ..
  std::vector<std::vector<MadeEvent>> traces;
  std::vector<std::pair<const char*, std::int64_t>> annotations;  // stage, time

  Made value(const Form& form) const;
  std::string pickle(Dialect dialect, int protocol, const Form& form) const {
    return PickleWriter(dialect, protocol).write(value(form));
  }

 private:
  struct Segment {
    int device;
    std::uint64_t address;
    std::int64_t size;
    std::vector<MadeBlock> blocks;
    int stack;
  };
  std::vector<std::vector<MadeFrame>> stacks_;
  std::vector<Segment> segments_;
};

// Reads it back from memory.
Snapshot read_made(const std::string& pickle);

// Two devices, a training step of three blocks on the first, one of them there before.
MadeSnapshot small_snapshot();

}  // namespace lowtide
