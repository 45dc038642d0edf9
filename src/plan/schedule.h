#pragma once
// The ops that run again, and what that means: when each value is there, bytes at every moment.
//
//   Schedule schedule(graph, replays);
//   schedule.peak_bytes();  schedule.total_ns();
//   schedule.fill(budget);  // keeps what there is room for instead of making it again
//
// The ops that run, in order, say everything: a value is there from each run of its op to the last
// read before the next one. So a schedule is only its replays, and whatever room a greedy choice
// left unused shows in the profile.
//
// Internal to the planners. Not thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "lowtide/bytes.h"
#include "src/plan/greedy_run.h"
#include "src/plan/plan.h"
#include "src/plan/step_graph.h"

namespace lowtide {

class Schedule {
 public:
  // Replays in order, as GreedyRun gives them. Those whose outputs no one reads are left out.
  Schedule(const StepGraph& graph, std::vector<Replay> replays);

  // False: a read finds nothing. Not after a GreedyRun.
  bool is_sound() const { return sound_; }
  Bytes peak_bytes() const { return peak_bytes_; }
  std::uint64_t total_ns() const { return total_ns_; }
  const std::vector<Replay>& replays() const { return replays_; }

  // Leaves out replays whose values can be kept from before inside of the budget, the dearest for
  // what keeping them takes first, until none is left. Never over budget when it was not before.
  void fill(Bytes budget);

  // The same with every drop spelled out, and the peak and times.
  Plan to_plan() const;

  struct Item {
    std::uint32_t event;
    std::uint32_t op;     // kNone: an event that only reads
    std::uint32_t value;  // that it reads, where op is kNone
    bool is_replay;
  };
  struct Instance {
    std::uint32_t value;
    std::uint32_t first;  // item that made it
    std::uint32_t last;   // item that read it last
    bool consumed;        // overwritten by `last`
  };
  std::span<const Item> items() const { return items_; }
  std::span<const Instance> instances() const { return instances_; }
  std::span<const Bytes> live_bytes() const { return live_bytes_; }  // by item

 private:
  void derive();
  void list_items();
  void drop_useless();
  void find_instances();
  std::size_t fill_once(Bytes budget);

  const StepGraph* graph_;
  std::vector<Replay> replays_;
  bool sound_ = true;
  Bytes peak_bytes_ = 0;
  std::uint64_t total_ns_ = 0;
  std::vector<Item> items_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> continued_;  // item, root: not made anew
  std::vector<Instance> instances_;
  std::vector<Bytes> live_bytes_;
  // Scratch.
  std::vector<std::uint8_t> needed_;
  std::vector<std::uint16_t> held_;
  std::vector<std::uint32_t> instance_of_;
  std::vector<std::int64_t> change_;
};

}  // namespace lowtide
